//! Pods and nodes where no Kubernetes sees to them: the shells around `plan::{placement, daemon_set, node_life}`.

mod binding;
mod daemon_set;
mod node;
#[cfg(test)]
mod tests;
mod wishes;

pub(crate) use binding::Binding;
pub(crate) use daemon_set::DaemonSets;
pub(crate) use node::NodeLife;
