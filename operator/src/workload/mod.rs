//! Pods and nodes where no Kubernetes sees to them: the shells around `plan::{placement, daemon_set, node_life}`.

mod binding;
mod daemon_set;
mod node;
#[cfg(test)]
mod tests;
mod wishes;

use binding::Binding;
use daemon_set::DaemonSets;
pub(crate) use daemon_set::revision;
use node::NodeLife;

use crate::controller::Operator;

/// Adds the controllers of pods and nodes.
pub(crate) fn add(operator: &mut Operator) {
    let (sets, binding, nodes) = (DaemonSets::new(operator), Binding::new(operator), NodeLife::new(operator));
    operator.add(sets);
    operator.add(binding);
    operator.add(nodes);
}
