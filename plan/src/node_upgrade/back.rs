//! Brings a node back to service: engines home, replicas in, schedulable, nothing left over.
//!
//! The way forth ends with the same steps as the way back. The invariant: an upgrade is released only when nothing
//! that it moved, stopped, marked or made is left.

use jiff::{SignedDuration, Timestamp};
use midflight_api::longhorn::NodeUpgradeState;
use midflight_api::{NodeName, VolumeName};

use super::facts::{Copy, Manager, MoveFailure, Replica, Volume};
use super::forth::AT_ONCE;
use super::node::{Action, Observed, Step, Todo};
use super::wait::Wait;

/// After so long another replica may come back, whatever became of those before it.
const ONE_MORE_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Engines come home, to whichever instance manager serves there.
pub(super) fn home(seen: &Observed) -> Todo {
    let mut todo = reinstate(seen);
    for volume in seen.volumes.values().filter(|volume| is_ours(seen, volume) && !volume.deleting) {
        let name = volume.name.clone();
        if !volume.is_up() {
            if !volume.asked.is_empty() {
                let (to, image) = (NodeName::default(), volume.image.clone());
                todo.actions.push(Action::Move { volume: name, to, image });
            }
            continue;
        }
        if volume.node.is_empty() {
            continue;
        }
        if is_anothers(seen, volume) {
            todo.waits.push(Wait::Moves { volume: name, to: volume.node.clone() });
            continue;
        }
        let is_home = volume.serves_on == volume.node && volume.seat == volume.node;
        let manager = seen.nodes.get(&volume.node).and_then(|node| node.serving());
        match manager {
            _ if *volume.target() == volume.node && is_home => {}
            None if !seen.is_ready(&volume.node) => {
                todo.waits.push(Wait::HomeNotReady { volume: name, node: volume.node.clone() });
            }
            None => todo.waits.push(Wait::NoManager { volume: name, node: volume.node.clone() }),
            // What runs there by now may be of another image than it was sent home with.
            Some(manager)
                if *volume.target() != volume.node
                    || seen.is_returning() && volume.image != manager.image =>
            {
                let (to, image) = (volume.node.clone(), manager.image.clone());
                todo.actions.push(Action::Move { volume: name, to, image });
            }
            Some(_) => todo.waits.push(match volume.failure_on(&volume.node) {
                Some(MoveFailure { node, why, .. }) => {
                    Wait::NotHome { volume: name, node: node.clone(), why: why.clone() }
                }
                None => Wait::Moves { volume: name, to: volume.node.clone() },
            }),
        }
    }
    todo
}

/// Whether the upgrade of another node brings a volume home that an attempt which has ended left on its way: two that move it would do so
/// for ever.
fn is_anothers(seen: &Observed, volume: &Volume) -> bool {
    let mut others = seen.nodes.iter().filter(|(name, node)| **name != seen.node && node.requested);
    seen.status.state == NodeUpgradeState::Error && others.any(|(name, _)| volume.touches(name))
}

/// The instance manager that was replaced comes back where its successor does not run, or runs and serves none of the engines that were sent
/// to it: first its object, then the successor goes, since one runs at a time.
fn reinstate(seen: &Observed) -> Todo {
    let mut todo = Todo::default();
    let previous = &seen.status.previous_image;
    let Some(here) = seen.here().filter(|node| node.ready) else { return todo };
    if !seen.is_returning() || previous.is_empty() {
        return todo;
    }
    let delete = |manager: &Manager| Action::DeleteManager { name: manager.name.clone() };
    let (old, others): (Vec<&Manager>, Vec<&Manager>) =
        here.managers.iter().partition(|manager| manager.image == *previous);
    let serving = here.serving().filter(|manager| manager.image == *previous || !serves_nothing(seen));
    match (serving, old.first()) {
        // The successor came up after all.
        (Some(serving), Some(old)) if serving.image != *previous && !old.has_process() && !old.deleting => {
            todo.actions.push(delete(old));
        }
        (Some(_), _) => {}
        (None, None) => todo.actions.push(Action::ReinstateManager { image: previous.clone() }),
        (None, Some(old)) if old.deleting => todo.waits.push(Wait::Goes(old.name.clone())),
        (None, Some(_)) => {
            let in_the_way = others.iter().filter(|manager| manager.has_process() && !manager.deleting);
            todo.actions.extend(in_the_way.map(|manager| delete(manager)));
            todo.waits.push(Wait::Starts { node: seen.node.clone(), image: previous.clone() });
        }
    }
    todo
}

/// Whether engines were sent home and do not serve there, and nothing else of a volume is there that would be lost with the instance manager.
fn serves_nothing(seen: &Observed) -> bool {
    let fails = |volume: &Volume| {
        volume.node == seen.node && volume.failure_on(&seen.node).is_some_and(|failure| !failure.is_lost)
    };
    let is_used = |volume: &Volume| {
        let replica = volume.replica_on(&seen.node);
        let has_engine = volume.seat == seen.node || volume.serves_on == seen.node;
        has_engine && !fails(volume) || replica.is_some_and(|one| one.runs || one.copy == Copy::InService)
    };
    seen.touched().any(fails) && !seen.touched().any(is_used)
}

/// Whether the upgrade has sent its engine away, or may have.
fn is_ours(seen: &Observed, volume: &Volume) -> bool {
    let was_sent =
        seen.status.volumes.get(&volume.name).is_some_and(|entry| !entry.temporary_node_id.is_empty());
    was_sent || (volume.node == seen.node && !volume.asked.is_empty() && volume.asked != volume.node)
}

/// The replicas of the node that were told to leave, with their volumes.
pub(super) fn replicas(seen: &Observed) -> impl Iterator<Item = (&Volume, &Replica)> {
    let here = seen.volumes.values().filter_map(|volume| Some((volume, volume.replica_on(&seen.node)?)));
    here.filter(|(_, replica)| replica.told_to_stop)
}

/// The node takes volumes and replicas again, and so many of those that left come back.
fn reopen(seen: &Observed, most: usize) -> Todo {
    let mut todo = Todo::default();
    if seen.here().is_some_and(|node| node.requested) {
        todo.actions.push(Action::Request(false));
    }
    for (volume, replica) in replicas(seen).take(most) {
        let (volume, replica) = (volume.name.clone(), replica.name.clone());
        todo.actions.push(Action::Start { volume, replica });
    }
    todo
}

/// The volumes that are waited for until they are whole.
fn served(seen: &Observed) -> impl Iterator<Item = &Volume> {
    let named = seen.volumes.values().filter(|volume| seen.status.volumes.contains_key(&volume.name));
    named.filter(|volume| volume.is_served())
}

/// How many more replicas may be on their way back: a few at a time, as each is opened, copied to and flushed, and one more every few
/// seconds, so that those which do not come keep no other away.
fn room(seen: &Observed) -> usize {
    let here = served(seen).filter_map(|volume| volume.replica_on(&seen.node));
    let coming = here.filter(|replica| !replica.told_to_stop && !replica.is_healthy()).count();
    let since = seen.status.since.as_str().parse::<Timestamp>().unwrap_or(seen.now);
    let more = seen.now.duration_since(since).as_secs() / ONE_MORE_AFTER.as_secs();
    (AT_ONCE + usize::try_from(more).unwrap_or_default()).saturating_sub(coming)
}

/// When another replica may come back, if some are kept from it for a while.
pub(super) fn next_return(seen: &Observed) -> Option<Timestamp> {
    let is_held_back =
        seen.status.state == NodeUpgradeState::RebuildingReplica && replicas(seen).next().is_some();
    is_held_back.then(|| seen.now.checked_add(ONE_MORE_AFTER).ok()).flatten()
}

/// Replicas come back and volumes are whole again.
pub(super) fn rebuild(seen: &Observed) -> Todo {
    let mut todo = reopen(seen, room(seen));
    for volume in served(seen) {
        let sick = || volume.replicas.iter().filter(|replica| !replica.is_healthy());
        // That of this node first: what another lacks would hide that this one is not back.
        let here = sick().find(|replica| replica.node == seen.node);
        let Some(missed) = here.or_else(|| sick().next()) else { continue };
        let name = volume.name.clone();
        todo.waits.push(match missed.node == seen.node {
            true if !seen.policy.rebuilds && missed.copy == Copy::Out => {
                Wait::RebuildsOff { volume: name, replica: missed.name.clone() }
            }
            // What another node lacks is not for this one to wait for on its way back.
            false if seen.is_returning() => continue,
            _ if !seen.is_ready(&missed.node) => {
                Wait::ReplicaNotReady { volume: name, node: missed.node.clone() }
            }
            true => Wait::Rebuilds { volume: name, replica: missed.name.clone() },
            false => Wait::NotHealthy { volume: name, node: missed.node.clone() },
        });
    }
    todo
}

/// A node that runs the image already, and of whose attempt before nothing is left but replicas that have not come back: they are waited
/// for.
pub(super) fn come_back(seen: &Observed) -> Step {
    let missed: Vec<&Volume> = seen.touched().filter(|volume| volume.misses(&seen.node)).collect();
    let unnamed: Vec<VolumeName> =
        seen.unnamed().into_iter().filter(|name| missed.iter().any(|volume| volume.name == *name)).collect();
    match missed.is_empty() {
        true => Step::Enter(NodeUpgradeState::Finalizing),
        false if unnamed.is_empty() => Step::Enter(NodeUpgradeState::RebuildingReplica),
        false => Step::Enlist(unnamed),
    }
}

/// Snapshots go, and volumes get the image that their node runs: those that are not attached for clients, and those whose engine is there
/// without having been sent.
pub(super) fn finish(seen: &Observed) -> Todo {
    let mut todo = Todo::default();
    if !seen.is_returning() {
        let is_there = seen.here().is_some_and(|node| node.runs_only(&seen.image));
        let follows = |volume: &&Volume| match volume.is_up() && !volume.serves_nobody() {
            true => is_there && volume.seat == seen.node && volume.serves_on == seen.node,
            false => volume.owner == seen.node || volume.replica_on(&seen.node).is_some(),
        };
        let all = seen.volumes.values().filter(|volume| !volume.deleting).filter(follows);
        for volume in all.filter(|volume| volume.image != seen.image) {
            todo.actions.push(Action::SetImage { volume: volume.name.clone(), image: seen.image.clone() });
        }
    }
    for volume in seen.volumes.values().filter(|volume| is_ours(seen, volume)) {
        // It is home, and stays free to be attached elsewhere later.
        if !volume.asked.is_empty() && volume.asked == volume.node {
            let (to, image) = (NodeName::default(), volume.image.clone());
            todo.actions.push(Action::Move { volume: volume.name.clone(), to, image });
        }
    }
    // The engine removes it, so that of a volume without one goes later.
    let has_engine = |name: &VolumeName| {
        seen.volumes.get(name).is_some_and(|volume| volume.is_up() && !volume.node.is_empty())
    };
    let mut removing =
        seen.snapshots.iter().filter(|(name, taken)| taken.deleting && has_engine(name)).count();
    for (name, taken) in &seen.snapshots {
        match taken.deleting {
            false if removing >= AT_ONCE => {}
            false => {
                removing += 1;
                todo.actions.push(Action::RemoveSnapshot { volume: name.clone() });
            }
            true if has_engine(name) => todo.waits.push(Wait::Removes(name.clone())),
            true => {}
        }
    }
    todo
}

/// What is left to be brought back after an attempt has ended.
pub(super) fn clean(seen: &Observed) -> Step {
    let mut left = home(seen);
    for more in [reopen(seen, usize::MAX), finish(seen)] {
        left.actions.extend(more.actions);
        left.waits.extend(more.waits);
    }
    match left.step() {
        Some(step) => step,
        None if seen.deleting => Step::Do(vec![Action::Release]),
        None => Step::Rest,
    }
}
