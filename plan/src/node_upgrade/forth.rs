//! Brings a node to the new image: its volumes let go of it, and the instance manager is replaced.
//!
//! The invariant: a copy is told to leave, and the instance manager is deleted, only while others serve on.

use midflight_api::longhorn::VolumeState;

use super::facts::{Copy, MoveFailure, Replica, Volume};
use super::node::{Action, Observed, Step, Todo};
use super::obstacle::Obstacle;
use super::place::{choose, has_copy_elsewhere, is_good};
use super::preflight::fit;
use super::wait::Wait;

/// Volumes whose snapshot is taken, or removed, or whose replica leaves at the same time: each of these is a flush of every copy, and
/// after it every first write to a region waits for a sync.
pub(super) const AT_ONCE: usize = 2;

/// Marks the node, names its volumes, and takes a snapshot of each, a few at a time.
pub(super) fn initialize(seen: &Observed) -> Option<Step> {
    let unfit: Vec<Obstacle> =
        seen.touched().filter_map(|volume| fit(volume, &seen.node, &seen.nodes).err()).collect();
    if let Some(lasting) = unfit.iter().find(|obstacle| !obstacle.passes()) {
        return Some(Step::GoBack(lasting.advice()));
    }
    if !seen.policy.rebuilds && seen.touched().next().is_some() {
        return Some(Step::Wait(vec![Wait::Unfit(Obstacle::RebuildsOff)]));
    }
    if !unfit.is_empty() {
        return Some(Step::Wait(unfit.into_iter().map(Wait::Unfit).collect()));
    }
    if !seen.here().is_some_and(|node| node.requested) {
        return Some(Step::Do(vec![Action::Request(true)]));
    }
    let unnamed = seen.unnamed();
    if !unnamed.is_empty() {
        return Some(Step::Enlist(unnamed));
    }
    let mut todo = Todo::default();
    // A standby is what its backup is, and has no snapshots.
    let kept = || seen.touched().filter(|volume| !volume.deleting && !volume.serves_nobody());
    let taking = kept().filter_map(|volume| seen.snapshots.get(&volume.name));
    let taking = taking.filter(|taken| !taken.ready && taken.error.is_empty()).count();
    for volume in kept() {
        let name = volume.name.clone();
        match seen.snapshots.get(&volume.name) {
            None if taking + todo.actions.len() >= AT_ONCE => {}
            None => todo.actions.push(Action::TakeSnapshot { volume: name }),
            Some(taken) if taken.ready => {}
            Some(taken) if taken.error.is_empty() => todo.waits.push(Wait::Snapshot(name)),
            Some(taken) => todo.waits.push(Wait::NoSnapshot { volume: name, why: taken.error.clone() }),
        }
    }
    todo.step()
}

/// Lets the replicas of the node leave their engines, a few at a time, each only while another copy serves on.
pub(super) fn leave(seen: &Observed) -> Option<Step> {
    let unnamed = seen.unnamed();
    if !unnamed.is_empty() {
        return Some(Step::Enlist(unnamed));
    }
    let mut todo = Todo::default();
    let is_out = |replica: &Replica| !replica.runs && replica.copy != Copy::InService;
    let here = || seen.touched().filter_map(|volume| Some((volume, volume.replica_on(&seen.node)?)));
    let leaving = here().filter(|(_, replica)| replica.told_to_stop && !is_out(replica)).count();
    for (volume, replica) in here() {
        let (is_out, told) = (is_out(replica), replica.told_to_stop);
        let (name, replica) = (volume.name.clone(), replica.name.clone());
        match told {
            true if is_out => {}
            true => todo.waits.push(Wait::Leaves { volume: name, replica }),
            false if volume.deleting => {}
            false if volume.state != VolumeState::Attached => {
                todo.waits.push(Wait::Unfit(Obstacle::Unsettled { volume: name, state: volume.state }));
            }
            false if !has_copy_elsewhere(volume, &seen.node, &seen.nodes) => {
                let node = seen.node.clone();
                todo.waits.push(Wait::Unfit(Obstacle::NoCopyElsewhere { volume: name, node }));
            }
            // Those that leave are waited for, and make room.
            false if leaving + todo.actions.len() >= AT_ONCE => {}
            false => todo.actions.push(Action::Stop { volume: name, replica }),
        }
    }
    todo.step()
}

/// Brings the engines of the node to others, and finds another for one whose node is lost. One that does not run where it was
/// sent ends the attempt: the node would wait for it in vain.
pub(super) fn keep_away(seen: &Observed) -> Option<Step> {
    let mine = |volume: &&Volume| {
        let is_here = volume.node == seen.node || volume.engine_is_on(&seen.node);
        is_here && !volume.node.is_empty() && !volume.deleting
    };
    let volumes: Vec<&Volume> = seen.touched().filter(mine).collect();
    let place = |volume: &Volume| seen.status.volumes.get(&volume.name).map(|entry| &entry.temporary_node_id);
    let is_placed =
        |volume: &Volume| place(volume).is_some_and(|there| is_good(volume, there, &seen.node, &seen.nodes));
    let homeless: Vec<&Volume> = volumes.iter().copied().filter(|volume| !is_placed(volume)).collect();
    let chosen = choose(&homeless, &seen.node, &seen.nodes, &seen.load);
    let failed = homeless.iter().find_map(|volume| {
        let failure = volume.failure_on(place(volume)?)?;
        (!failure.is_lost || !chosen.contains_key(&volume.name)).then_some((volume, failure))
    });
    if let Some((volume, MoveFailure { node, why, .. })) = failed {
        return Some(Step::GoBack(format!("the engine of {} does not serve on {node}: {why}", volume.name)));
    }
    if !chosen.is_empty() {
        return Some(Step::Assign(chosen));
    }
    let mut todo = Todo::default();
    for volume in volumes {
        let name = volume.name.clone();
        let Some(to) = place(volume).filter(|_| is_placed(volume)) else {
            let node = seen.node.clone();
            todo.waits.push(Wait::Unfit(Obstacle::NoTarget { volume: name, node }));
            continue;
        };
        // One that is asked for nowhere is to be at home; to ask for that would be to fight who clears it.
        if volume.target() != to {
            todo.actions.push(Action::Move { volume: name, to: to.clone(), image: seen.image.clone() });
        } else if volume.serves_on != *to || volume.seat != *to {
            todo.waits.push(Wait::Moves { volume: name, to: to.clone() });
        }
    }
    todo.step()
}

/// Deletes the old instance manager, which nobody uses any more, and waits for the new one.
pub(super) fn replace(seen: &Observed) -> Option<Step> {
    let mut todo = Todo::default();
    let managers = seen.here().map_or(&[][..], |node| &node.managers);
    let idle = seen.touched().filter(|volume| volume.serves_nobody() && volume.seat == seen.node);
    let idle: Vec<&Volume> = idle.collect();
    if let Some(busy) = idle.iter().find(|volume| volume.restoring) {
        return Some(Step::Wait(vec![Wait::Unfit(Obstacle::Restoring(busy.name.clone()))]));
    }
    for old in managers.iter().filter(|manager| manager.image != seen.image) {
        // Engines that serve nobody go with it, and begin again elsewhere.
        match old.instances.saturating_sub(idle.len()) {
            _ if old.deleting => todo.waits.push(Wait::Goes(old.name.clone())),
            instances if old.runs() && instances > 0 => {
                todo.waits.push(Wait::Holds { manager: old.name.clone(), instances });
            }
            _ => todo.actions.push(Action::DeleteManager { name: old.name.clone() }),
        }
    }
    let is_new = seen.here().is_some_and(|node| node.runs_only(&seen.image));
    if !is_new && todo.actions.is_empty() && todo.waits.is_empty() {
        let (node, image) = (seen.node.clone(), seen.image.clone());
        let is_ready = seen.is_ready(&node);
        todo.waits.push(if is_ready { Wait::Starts { node, image } } else { Wait::NotReady { node, image } });
    }
    todo.step()
}
