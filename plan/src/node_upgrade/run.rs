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

use super::attempts::{Child, failed, follow, next_look, not_made, rests_until};
use super::facts::{Nodes, Policy, Volume};
use super::halt::{aborted, paused, turned};
use super::obstacle::Obstacle;
use super::place::are_disjoint;
use super::preflight::{cluster, fit, marked, missing, nodes_of_run, preflight};
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
    let pauses = decision.status.upgrade_nodes.values().map(|entry| entry.longest_pause_us);
    decision.status.longest_pause_us = pauses.max().unwrap_or_default();
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
    pub(super) fn child(&self, node: &NodeName) -> Option<&Child> {
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
    pub(super) fn since(&self) -> Timestamp {
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
    found.extend(marked(&seen.nodes, &seen.children));
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

/// Whether replicas would have to leave nodes, or are waited for there, and none would be rebuilt afterwards.
pub(super) fn rebuilds_off(seen: &Observed, run: &BTreeSet<NodeName>, image: &ImageRef) -> Option<Obstacle> {
    let todo = |node: &NodeName| seen.nodes.get(node).is_some_and(|node| !node.runs_only(image));
    let needs_one = |node: &NodeName| {
        let leaves = todo(node);
        seen.volumes.iter().any(|volume| volume.misses(node) || leaves && volume.touches(node))
    };
    (!seen.policy.rebuilds && run.iter().any(needs_one)).then_some(Obstacle::RebuildsOff)
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
    let image = status.instance_manager_image.clone();
    for (node, entry) in &mut status.upgrade_nodes {
        let is_written = seen.status.upgrade_nodes.get(node).is_some_and(|was| was.state == entry.state);
        if entry.state != NodeUpgradeState::Initializing || !is_written || seen.child(node).is_some() {
            continue;
        }
        match not_made(entry, seen) {
            Some(why) => failed(entry, &why, seen),
            None => decision.orders.push(Order::Begin { node: node.clone(), image: image.clone() }),
        }
    }
    let why = next(seen, status);
    decision.until = next_look(status, seen);
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
    status.message = why.or_else(|| rests(seen, status)).or_else(caveat).unwrap_or_default().into();
}

/// What the first node that waits says, where nothing moves.
fn rests(seen: &Observed, status: &DataEngineUpgradeManagerStatus) -> Option<String> {
    // One that could not be begun says why.
    let moves = |(node, entry): (&NodeName, &UpgradeNodeStatus)| {
        seen.is_under_way(status, node) && (seen.child(node).is_some() || entry.message.is_empty())
    };
    if status.upgrade_nodes.iter().any(moves) {
        return None;
    }
    let mut waiting = status.upgrade_nodes.iter().filter(|(_, entry)| {
        matches!(entry.state, NodeUpgradeState::Undefined | NodeUpgradeState::Initializing)
    });
    waiting
        .find(|(_, entry)| !entry.message.is_empty())
        .map(|(node, entry)| format!("{node}: {}", entry.message))
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
    for (node, entry) in status.upgrade_nodes.iter().filter(|(_, entry)| is_pending(entry)) {
        if seen.child(node).is_some() || rests_until(entry, seen.now).is_some() {
            continue;
        }
        let unfit =
            seen.volumes.iter().any(|volume| volume.touches(node) && fit(volume, node, &seen.nodes).is_err());
        waiting.push((unfit, entry.failures, node.clone()));
    }
    waiting.sort();
    let nobodys = marked(&seen.nodes, &seen.children);
    let mut why = nobodys.first().filter(|_| !waiting.is_empty()).map(Obstacle::advice);
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

/// Begins again where it failed, once somebody has changed the spec; what is completed stays so, unless another image is the default by now.
fn resume(seen: &Observed, status: &mut DataEngineUpgradeManagerStatus) {
    if seen.generation == seen.status.observed_generation {
        return;
    }
    if seen.spec.paused {
        // The change that ends the pause is the one to begin at.
        return;
    }
    if seen.default_image != status.instance_manager_image {
        status.upgrade_nodes = BTreeMap::new();
    }
    for entry in status.upgrade_nodes.values_mut().filter(|entry| entry.state != NodeUpgradeState::Completed)
    {
        *entry = UpgradeNodeStatus::default();
    }
    go_on(status, UpgradeState::Undefined);
}
