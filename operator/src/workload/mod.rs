//! Pods, nodes and claims where no Kubernetes sees to them: the shells around `plan::{placement, daemon_set, node_life, claim_binding}`.

mod binding;
mod claims;
mod daemon_set;
mod node;
#[cfg(test)]
mod tests;
mod wishes;

use binding::Binding;
use claims::Claims;
use daemon_set::DaemonSets;
pub(crate) use daemon_set::revision;
use node::NodeLife;

use crate::controller::Operator;

/// Adds the controllers of pods, nodes and claims.
pub(crate) fn add(operator: &mut Operator) {
    let (sets, binding, nodes) = (DaemonSets::new(operator), Binding::new(operator), NodeLife::new(operator));
    operator.add(sets);
    operator.add(binding);
    operator.add(nodes);
    let claims = Claims::new(operator);
    operator.add(claims);
}
