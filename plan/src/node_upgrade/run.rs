//! Decides which node is upgraded next, and when all of them are.
//!
//! ```text
//! undefined: the image ──▶ initializing: the nodes, the preflight ──▶ upgrading: node by node ──▶ completed
//!      └─────────────────────────┴──────────────────────────────────────────┴──▶ error ──spec changes──▶ undefined
//! ```
//!
//! A node that is chosen is written down before its upgrade is created. The invariant: never more nodes than allowed
//! are under way, whoever began them, and nodes run together only if no volume has anything on two of them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use midflight_api::longhorn::{
    DataEngineUpgradeManagerSpec, DataEngineUpgradeManagerStatus, NodeUpgradeState, UpgradeNodeStatus,
    UpgradeState,
};
use midflight_api::{ImageRef, NodeName};

use super::facts::{Nodes, Policy, Volume};
use super::halt::{aborted, paused, turned};
use super::obstacle::Obstacle;
use super::place::are_disjoint;
use super::preflight::{cluster, fit, missing, nodes_of_run, preflight};
use super::versions::caveat;
use super::words::{fit_run, some_of};

/// Everything `decide` may look at.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub now: Timestamp,
    pub name: String,
    pub generation: i64,
    pub deleting: bool,
    /// Whether it is kept until all is as it was.
    pub protected: bool,
    pub spec: DataEngineUpgradeManagerSpec,
    pub status: DataEngineUpgradeManagerStatus,
    pub default_image: ImageRef,
    pub policy: Policy,
    pub nodes: Nodes,
    /// All volumes of the v2 data engine; none where [`asks_for_volumes`] says no.
    pub volumes: Vec<Volume>,
    /// Upgrades of nodes, whoever began them.
    pub children: Vec<Child>,
    /// Another upgrade that this one has to wait for before it begins.
    pub rival: Option<String>,
}

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
    pub longest_pause_us: i64,
}

impl Child {
    /// What became of a node that failed.
    fn told(&self) -> String {
        match self.returned_from {
            NodeUpgradeState::Undefined => self.failure.clone(),
            from => format!("went back from {from}: {}", self.failure),
        }
    }

    /// Whether it holds a place among those that are under way.
    fn is_active(&self) -> bool {
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

/// Something the shell can do. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Order {
    /// Keep the object until all that it began is over.
    Protect,
    /// Create the upgrade of a node.
    Begin { node: NodeName, image: ImageRef },
    /// Delete the upgrade of a node.
    Remove { child: String },
    /// Nothing of it is left.
    Release,
}

/// What is to be written down, and then what is to be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub status: DataEngineUpgradeManagerStatus,
    pub orders: Vec<Order>,
    /// When something is due that no watch tells of.
    pub until: Option<Timestamp>,
}

/// Whether the next decision looks at volumes.
pub fn asks_for_volumes(status: &DataEngineUpgradeManagerStatus) -> bool {
    match status.state {
        UpgradeState::Initializing => true,
        UpgradeState::Upgrading => status.upgrade_nodes.values().any(is_pending),
        UpgradeState::Undefined | UpgradeState::Completed | UpgradeState::Error => false,
    }
}

fn is_pending(entry: &UpgradeNodeStatus) -> bool {
    entry.state == NodeUpgradeState::Undefined
}

/// Looks at an upgrade and says what it is to say and do next.
pub fn decide(seen: &Observed) -> Decision {
    let mut decision = Decision { status: seen.status.clone(), orders: Vec::new(), until: None };
    decision.status.observed_generation = seen.generation;
    if seen.deleting {
        abort(seen, &mut decision);
    } else if !seen.protected {
        decision.orders.push(Order::Protect);
    } else {
        match seen.status.state {
            UpgradeState::Undefined => begin(seen, &mut decision.status),
            UpgradeState::Initializing => initialize(seen, &mut decision),
            UpgradeState::Upgrading => upgrade(seen, &mut decision),
            UpgradeState::Completed => {}
            UpgradeState::Error => resume(seen, &mut decision.status),
        }
    }
    // The controllers are on no node; people who look for one get the same as with an Image.
    decision.status.owner_id = seen.nodes.keys().next().cloned().unwrap_or_default();
    let active = |entry: &&NodeName| seen.is_under_way(&decision.status, entry);
    let first = decision.status.upgrade_nodes.keys().find(active).cloned();
    decision.status.upgrading_node = first.unwrap_or_default();
    if decision.status.state != seen.status.state {
        decision.status.since = seen.now.to_string().into();
    }
    fit_run(&mut decision.status);
    decision
}

impl Observed {
    fn child(&self, node: &NodeName) -> Option<&Child> {
        self.children.iter().find(|child| child.node == *node && child.manager == self.name)
    }

    fn is_under_way(&self, status: &DataEngineUpgradeManagerStatus, node: &NodeName) -> bool {
        let chosen = status.upgrade_nodes.get(node).is_some_and(|entry| {
            !matches!(
                entry.state,
                NodeUpgradeState::Undefined | NodeUpgradeState::Completed | NodeUpgradeState::Error
            )
        });
        chosen || self.child(node).is_some_and(Child::is_active)
    }

    /// Since when it is in its state.
    fn since(&self) -> Timestamp {
        self.status.since.as_str().parse().unwrap_or(self.now)
    }
}

/// Lets every node go back, then goes.
fn abort(seen: &Observed, decision: &mut Decision) {
    let mine: Vec<&Child> = seen.children.iter().filter(|child| child.manager == seen.name).collect();
    for child in mine.iter().filter(|child| !child.deleting) {
        decision.orders.push(Order::Remove { child: child.name.clone() });
    }
    for (node, entry) in &mut decision.status.upgrade_nodes {
        if let Some(child) = seen.child(node) {
            (entry.state, entry.message) = (child.state, child.message.as_str().into());
        }
    }
    if seen.status.state != UpgradeState::Completed {
        decision.status.message = aborted(seen, &mine).into();
    }
    if mine.is_empty() && seen.protected {
        decision.orders.push(Order::Release);
    }
}

/// Takes the image, and looks whether it is where it is needed.
fn begin(seen: &Observed, status: &mut DataEngineUpgradeManagerStatus) {
    if let Some(rival) = &seen.rival {
        status.message = format!("waits for the upgrade {rival} to end").into();
        return;
    }
    let run = nodes_of_run(&seen.spec.nodes, &seen.nodes);
    status.instance_manager_image = seen.default_image.clone();
    match missing(&run, &seen.default_image, &seen.nodes) {
        Some(obstacle) => fail(status, &obstacle.advice()),
        None => go_on(status, UpgradeState::Initializing),
    }
}

fn fail(status: &mut DataEngineUpgradeManagerStatus, why: &str) {
    status.state = UpgradeState::Error;
    status.message = why.into();
}

fn go_on(status: &mut DataEngineUpgradeManagerStatus, state: UpgradeState) {
    status.state = state;
    status.message = "".into();
}

/// Notes the nodes, and looks at all of them before the first change.
fn initialize(seen: &Observed, decision: &mut Decision) {
    let status = &mut decision.status;
    let run = nodes_of_run(&seen.spec.nodes, &seen.nodes);
    status.upgrade_nodes.retain(|node, _| run.contains(node));
    for node in &run {
        status.upgrade_nodes.entry(node.clone()).or_default();
    }
    let mut found = preflight(&run, &status.instance_manager_image, &seen.nodes, &seen.volumes);
    found.extend(rebuilds_off(seen, &run, &status.instance_manager_image));
    let until = seen.since().checked_add(seen.policy.deadline).ok();
    match found.as_slice() {
        [] if seen.spec.paused => status.message = paused(seen, &[]).into(),
        [] => {
            go_on(status, UpgradeState::Upgrading);
            // Told with the state, so that it is read before the first node begins.
            status.message = caveat(&status.instance_manager_image, &seen.nodes).unwrap_or_default().into();
        }
        [first, ..] if !first.passes() => fail(status, &all_of(&found, Obstacle::passes)),
        found if until.is_some_and(|until| until <= seen.now) => fail(status, &all_of(found, |_| false)),
        found => {
            status.message = format!("waits: {}", all_of(found, |_| false)).into();
            decision.until = until;
        }
    }
}

/// Whether replicas would have to leave nodes, and none would be rebuilt afterwards.
pub(super) fn rebuilds_off(seen: &Observed, run: &BTreeSet<NodeName>, image: &ImageRef) -> Option<Obstacle> {
    let todo = |node: &&NodeName| seen.nodes.get(*node).is_some_and(|node| !node.runs_only(image));
    let is_used = |node: &NodeName| seen.volumes.iter().any(|volume| volume.touches(node));
    (!seen.policy.rebuilds && run.iter().filter(todo).any(is_used)).then_some(Obstacle::RebuildsOff)
}

/// These obstacles in one message, without those that are left out.
fn all_of(found: &[Obstacle], left_out: impl Fn(&Obstacle) -> bool) -> String {
    some_of(found.iter().filter(|one| !left_out(one)).map(Obstacle::advice), " | ")
}

/// Goes through the nodes.
fn upgrade(seen: &Observed, decision: &mut Decision) {
    let status = &mut decision.status;
    follow(seen, status, &mut decision.orders);
    if seen.default_image != status.instance_manager_image {
        return begin_anew(seen, status);
    }
    for (node, entry) in &status.upgrade_nodes {
        let is_written = seen.status.upgrade_nodes.get(node).is_some_and(|was| was.state == entry.state);
        if entry.state == NodeUpgradeState::Initializing && is_written && seen.child(node).is_none() {
            let image = status.instance_manager_image.clone();
            decision.orders.push(Order::Begin { node: node.clone(), image });
        }
    }
    let why = next(seen, status);
    decision.until = earliest_retry(status, seen.now);
    let all = |state| status.upgrade_nodes.values().all(|entry| entry.state == state);
    if all(NodeUpgradeState::Completed) {
        return go_on(status, UpgradeState::Completed);
    }
    let is_over = |entry: &UpgradeNodeStatus| {
        matches!(entry.state, NodeUpgradeState::Completed | NodeUpgradeState::Error)
    };
    if status.upgrade_nodes.values().all(is_over) {
        let failed = status.upgrade_nodes.iter().filter(|(_, entry)| entry.state == NodeUpgradeState::Error);
        let failed = failed.map(|(node, entry)| format!("{node}: {}", entry.message));
        return fail(status, &some_of(failed, " | "));
    }
    let caveat = || caveat(&status.instance_manager_image, &seen.nodes);
    status.message = why.or_else(caveat).unwrap_or_default().into();
}

/// Takes over what the upgrades of nodes say.
fn follow(seen: &Observed, status: &mut DataEngineUpgradeManagerStatus, orders: &mut Vec<Order>) {
    for (node, entry) in &mut status.upgrade_nodes {
        match seen.child(node) {
            // What a failed attempt has left goes before the next one; what it leaves undone is its own to finish.
            Some(child) if child.deleting => entry.message = child.message.as_str().into(),
            Some(child) if entry.state == NodeUpgradeState::Undefined => {
                // It can be looked at until its node is tried again.
                if rests_until(entry, seen.now).is_none() {
                    orders.push(Order::Remove { child: child.name.clone() });
                }
            }
            Some(child) => {
                entry.longest_pause_us = entry.longest_pause_us.max(child.longest_pause_us);
                match child.state {
                    NodeUpgradeState::Error if entry.state != NodeUpgradeState::Error => {
                        failed(entry, &child.told(), seen);
                    }
                    NodeUpgradeState::Error | NodeUpgradeState::Undefined => {}
                    state => {
                        if state == NodeUpgradeState::Completed && entry.completed_at.is_empty() {
                            entry.completed_at = seen.now.to_string().into();
                        }
                        (entry.state, entry.message) = (state, child.message.as_str().into());
                    }
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

/// Notes a failure: the node is tried again after the others, or no more.
fn failed(entry: &mut UpgradeNodeStatus, why: &str, seen: &Observed) {
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

/// Another image became the default: all begins anew with it, once the nodes that are under way have gone back.
fn begin_anew(seen: &Observed, status: &mut DataEngineUpgradeManagerStatus) {
    let active = seen.children.iter().filter(|child| child.manager == seen.name && child.is_active());
    let active: Vec<&NodeName> = active.map(|child| &child.node).collect();
    if !active.is_empty() {
        status.message = turned(seen, &active).into();
        return;
    }
    status.upgrade_nodes = BTreeMap::new();
    go_on(status, UpgradeState::Undefined);
}

/// Chooses nodes that begin now, or says why none does.
fn next(seen: &Observed, status: &mut DataEngineUpgradeManagerStatus) -> Option<String> {
    let mut active: Vec<NodeName> =
        status.upgrade_nodes.keys().filter(|node| seen.is_under_way(status, node)).cloned().collect();
    if seen.spec.paused {
        return Some(paused(seen, &active));
    }
    let mut waiting: Vec<(bool, i32, NodeName)> = Vec::new();
    let mut why = None;
    for (node, entry) in status.upgrade_nodes.iter().filter(|(_, entry)| is_pending(entry)) {
        if seen.child(node).is_some() || rests_until(entry, seen.now).is_some() {
            continue;
        }
        let unfit =
            seen.volumes.iter().any(|volume| volume.touches(node) && fit(volume, node, &seen.nodes).is_err());
        waiting.push((unfit, entry.failures, node.clone()));
    }
    waiting.sort();
    let most = usize::try_from(seen.spec.max_parallel_nodes).unwrap_or(1).max(1);
    let others = seen.children.iter().filter(|child| child.manager != seen.name && child.is_active());
    active.extend(others.map(|child| child.node.clone()));
    // One that has given up on its way back does without something until its mark is gone.
    let marked = seen.nodes.iter().filter(|(_, node)| node.requested).map(|(name, _)| name.clone());
    let marked: Vec<NodeName> = marked.filter(|name| !active.contains(name)).collect();
    active.extend(marked);
    for (_, _, node) in waiting {
        if active.len() >= most {
            break;
        }
        let run = [node.clone()].into();
        if let Some(obstacle) = rebuilds_off(seen, &run, &status.instance_manager_image) {
            why = Some(obstacle.advice());
            continue;
        }
        if let Some(obstacle) = cluster(&run, &status.instance_manager_image, &seen.nodes).first() {
            why = Some(obstacle.advice());
            // A failed attempt, so that it neither blocks the others nor waits for ever.
            if let Some(entry) = status.upgrade_nodes.get_mut(&node) {
                failed(entry, &obstacle.advice(), seen);
            }
            continue;
        }
        if !active.iter().all(|other| *other != node && are_disjoint(&node, other, &seen.volumes)) {
            continue;
        }
        if let Some(entry) = status.upgrade_nodes.get_mut(&node) {
            *entry = UpgradeNodeStatus {
                state: NodeUpgradeState::Initializing,
                started_at: seen.now.to_string().into(),
                retry_at: "".into(),
                message: "".into(),
                ..entry.clone()
            };
        }
        active.push(node);
    }
    why
}

/// Until when a node rests after a failure, if that is not over.
fn rests_until(entry: &UpgradeNodeStatus, now: Timestamp) -> Option<Timestamp> {
    entry.retry_at.as_str().parse().ok().filter(|at| *at > now)
}

fn earliest_retry(status: &DataEngineUpgradeManagerStatus, now: Timestamp) -> Option<Timestamp> {
    let pending = status.upgrade_nodes.values().filter(|entry| is_pending(entry));
    pending.filter_map(|entry| rests_until(entry, now)).min()
}

/// Begins again where it failed, once somebody has changed the spec; what is completed stays so.
fn resume(seen: &Observed, status: &mut DataEngineUpgradeManagerStatus) {
    if seen.generation == seen.status.observed_generation {
        return;
    }
    if seen.spec.paused {
        // The change that ends the pause is the one to begin at.
        return;
    }
    for entry in status.upgrade_nodes.values_mut().filter(|entry| entry.state != NodeUpgradeState::Completed)
    {
        *entry = UpgradeNodeStatus::default();
    }
    go_on(status, UpgradeState::Undefined);
}
