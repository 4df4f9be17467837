//! Keeps count of what becomes of nodes: how often each has failed, and when it is tried again.
//!
//! The invariant: no node is waited for for ever. An attempt whose node cannot be brought back counts as another failure each time that
//! the node was to be tried again, until it is tried no more; it is brought back all the same.

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::NodeName;
use midflight_api::longhorn::{
    DataEngineUpgradeManagerStatus, NodeDataEngineUpgrade, NodeUpgradeState, UpgradeNodeStatus,
};

use super::run::{Observed, Order};

/// The upgrade of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Child {
    pub name: String,
    pub node: NodeName,
    pub manager: String,
    pub state: NodeUpgradeState,
    pub message: String,
    /// Why the node goes back, or went back, and what it was at.
    pub failure: String,
    pub returned_from: NodeUpgradeState,
    pub deleting: bool,
    /// Whether it has failed, and something of it cannot be brought back yet.
    pub waits: bool,
    pub longest_pause_us: i64,
}

impl Child {
    /// What the object of an upgrade says.
    pub fn of(upgrade: &NodeDataEngineUpgrade) -> Child {
        let status = upgrade.status.clone().unwrap_or_default();
        let pauses = status.volumes.values().map(|volume| volume.pause_us);
        Child {
            name: upgrade.name_any(),
            node: upgrade.spec.node_id.clone(),
            manager: upgrade.spec.data_engine_upgrade_manager.to_string(),
            state: status.state,
            message: status.message.to_string(),
            failure: status.failure.to_string(),
            returned_from: status.returned_from,
            deleting: upgrade.metadata.deletion_timestamp.is_some(),
            waits: status.state == NodeUpgradeState::Error && status.message != status.failure,
            longest_pause_us: pauses.max().unwrap_or_default(),
        }
    }

    /// What became of a node that failed, and what it still waits for.
    fn told(&self) -> String {
        let why = if self.waits { &self.message } else { &self.failure };
        match self.returned_from {
            NodeUpgradeState::Undefined => why.clone(),
            from => format!("went back from {from}: {why}"),
        }
    }

    /// Whether it holds a place among those that are under way.
    pub(super) fn is_active(&self) -> bool {
        match self.state {
            NodeUpgradeState::Completed | NodeUpgradeState::Error => false,
            NodeUpgradeState::Undefined
            | NodeUpgradeState::Initializing
            | NodeUpgradeState::FailingReplicas
            | NodeUpgradeState::SwitchingOver
            | NodeUpgradeState::UpgradingInstanceManager
            | NodeUpgradeState::SwitchingBack
            | NodeUpgradeState::RebuildingReplica
            | NodeUpgradeState::Finalizing => true,
        }
    }
}

/// Takes over what the upgrades of nodes say.
pub(super) fn follow(seen: &Observed, status: &mut DataEngineUpgradeManagerStatus, orders: &mut Vec<Order>) {
    for (node, entry) in &mut status.upgrade_nodes {
        match seen.child(node) {
            Some(child) if entry.state == NodeUpgradeState::Undefined && !came_late(entry, child) => {
                let_go(entry, child, seen, orders);
            }
            // What became of it is told; what it leaves undone is its own to finish.
            Some(_) if entry.state == NodeUpgradeState::Error => {}
            Some(child) => {
                entry.longest_pause_us = entry.longest_pause_us.max(child.longest_pause_us);
                match child.state {
                    NodeUpgradeState::Error => failed(entry, &child.told(), seen),
                    NodeUpgradeState::Undefined
                    | NodeUpgradeState::Initializing
                    | NodeUpgradeState::FailingReplicas
                    | NodeUpgradeState::SwitchingOver
                    | NodeUpgradeState::UpgradingInstanceManager
                    | NodeUpgradeState::SwitchingBack
                    | NodeUpgradeState::RebuildingReplica
                    | NodeUpgradeState::Finalizing
                    | NodeUpgradeState::Completed => take_over(entry, child, seen.now),
                }
            }
            None => match entry.state {
                NodeUpgradeState::Undefined
                | NodeUpgradeState::Initializing
                | NodeUpgradeState::Completed
                | NodeUpgradeState::Error => {}
                NodeUpgradeState::FailingReplicas
                | NodeUpgradeState::SwitchingOver
                | NodeUpgradeState::UpgradingInstanceManager
                | NodeUpgradeState::SwitchingBack
                | NodeUpgradeState::RebuildingReplica
                | NodeUpgradeState::Finalizing => failed(entry, "its upgrade was deleted", seen),
            },
        }
    }
}

/// Whether an attempt that was given up because nobody saw it made was made after all.
fn came_late(entry: &UpgradeNodeStatus, child: &Child) -> bool {
    entry.failures > 0 && child.is_active() && !child.deleting
}

fn take_over(entry: &mut UpgradeNodeStatus, child: &Child, now: Timestamp) {
    if child.deleting {
        entry.message = child.message.as_str().into();
        return;
    }
    if child.state == NodeUpgradeState::Undefined {
        return;
    }
    if child.state == NodeUpgradeState::Completed && entry.completed_at.is_empty() {
        entry.completed_at = now.to_string().into();
    }
    (entry.state, entry.message) = (child.state, child.message.as_str().into());
    entry.retry_at = "".into();
}

/// Lets go of what an attempt has left when its node is to be tried again; before, it can be looked at. One that waits for something then
/// has failed once more, and so has one that should have gone by now; not while nothing is tried.
fn let_go(entry: &mut UpgradeNodeStatus, child: &Child, seen: &Observed, orders: &mut Vec<Order>) {
    if rests_until(entry, seen.now).is_some() {
        return;
    }
    if !child.deleting {
        orders.push(Order::Remove { child: child.name.clone() });
    }
    let is_paused = seen.spec.paused;
    let was_to_be_tried = !is_paused && !entry.retry_at.is_empty();
    let is_late = !is_paused && gone_by(entry, seen).is_none_or(|gone_by| gone_by <= seen.now);
    match is_late || was_to_be_tried && child.waits {
        true => failed(entry, &child.told(), seen),
        false => entry.message = child.message.as_str().into(),
    }
}

/// When an attempt that waits for nothing should have gone.
fn gone_by(entry: &UpgradeNodeStatus, seen: &Observed) -> Option<Timestamp> {
    let since = entry.retry_at.as_str().parse().unwrap_or_else(|_| seen.since());
    since.checked_add(seen.policy.rest(entry.failures)).ok()
}

/// Notes a failure: the node is tried again after the others, or no more.
pub(super) fn failed(entry: &mut UpgradeNodeStatus, why: &str, seen: &Observed) {
    entry.failures += 1;
    if entry.failures > seen.policy.retries {
        entry.state = NodeUpgradeState::Error;
        entry.message = format!("failed {} times, last: {why}", entry.failures).into();
        return;
    }
    let rest = seen.policy.rest(entry.failures);
    let at = seen.now.checked_add(rest).unwrap_or(Timestamp::MAX);
    entry.state = NodeUpgradeState::Undefined;
    entry.retry_at = at.to_string().into();
    entry.message = format!("failed, and is tried again after {} s: {why}", rest.as_secs()).into();
}

/// Why the upgrade of a node that was to be made does not come any more, if its time is over. Whoever cannot make it says so in the entry;
/// where nobody does, nobody has tried.
pub(super) fn not_made(entry: &UpgradeNodeStatus, seen: &Observed) -> Option<String> {
    let since: Timestamp = entry.started_at.as_str().parse().ok()?;
    let is_late = since.checked_add(seen.policy.deadline).is_ok_and(|until| until <= seen.now);
    let within = seen.policy.deadline.as_secs();
    (is_late && !entry.message.is_empty())
        .then(|| format!("its NodeDataEngineUpgrade was not made within {within} s: {}", entry.message))
}

/// Until when a node rests after a failure, if that is not over.
pub(super) fn rests_until(entry: &UpgradeNodeStatus, now: Timestamp) -> Option<Timestamp> {
    entry.retry_at.as_str().parse().ok().filter(|at| *at > now)
}

/// When the first of the nodes that wait is to be looked at again.
pub(super) fn next_look(status: &DataEngineUpgradeManagerStatus, seen: &Observed) -> Option<Timestamp> {
    let pending = status.upgrade_nodes.iter().filter(|(_, entry)| entry.state == NodeUpgradeState::Undefined);
    let due = |(node, entry): (&NodeName, &UpgradeNodeStatus)| {
        let leaves = || seen.child(node).and_then(|_| gone_by(entry, seen));
        rests_until(entry, seen.now).or_else(leaves).filter(|at| *at > seen.now)
    };
    pending.filter_map(due).min()
}
