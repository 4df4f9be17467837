//! Decides where one volume stands: there, on its way, a candidate, or left out and why.
//!
//! The invariant: a DR, expanding, rebuilding or degraded volume is never a candidate, in any state.

use jiff::Timestamp;
use midflight_api::longhorn::{DataEngine, DataLocality, EngineImageStatus, Robustness, VolumeState};
use midflight_api::{ImageRef, NodeName, Outcome, Way};

use super::attempt;
use super::facts::{Volume, World};
use super::reason::{Reason, Span};

/// Where one volume stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It runs the target.
    There,
    /// It is on its way to an image, whichever; nothing else is asked of it.
    UnderWay,
    /// It may move to the target this way, when there is room.
    Candidate(Way),
    LeftOut(Reason),
}

/// Where the volume stands. That upgrades are off or on hold is not asked here.
pub fn judge(volume: &Volume, world: &World, now: Timestamp) -> Standing {
    if volume.deleting {
        return Standing::LeftOut(Reason::Deleting);
    }
    if volume.engine != DataEngine::V1 {
        return Standing::LeftOut(Reason::DataEngineV2);
    }
    if volume.current == world.target && !volume.current.is_empty() && !volume.is_upgrading() {
        return Standing::There;
    }
    if let Some(refused) = volume.refused_now(now) {
        return Standing::LeftOut(refused.reason());
    }
    if volume.is_upgrading() {
        return Standing::UnderWay;
    }
    match candidate(volume, world, now) {
        Ok(way) => Standing::Candidate(way),
        Err(reason) => Standing::LeftOut(reason),
    }
}

/// The way a volume of an older image may move.
fn candidate(volume: &Volume, world: &World, now: Timestamp) -> Result<Way, Reason> {
    let Some(new) = world.images.get(&world.target) else {
        return Err(Reason::NotOnNodes { nodes: volume.needs().into_iter().cloned().collect() });
    };
    if volume.opted_out {
        return Err(Reason::OptedOut);
    }
    if new.incompatible {
        return Err(Reason::Incompatible(world.misfit(&world.target, new)));
    }
    if volume.standby {
        return Err(Reason::Standby);
    }
    if volume.expanding {
        return Err(Reason::Expanding);
    }
    if volume.restoring {
        return Err(Reason::Restoring);
    }
    if volume.migrating {
        return Err(Reason::Migrating);
    }
    if volume.current.is_empty() {
        return Err(Reason::NoImageYet);
    }
    let way = match volume.state {
        VolumeState::Detached => Way::Detached,
        VolumeState::Attached => Way::Live,
        VolumeState::Undefined
        | VolumeState::Creating
        | VolumeState::Attaching
        | VolumeState::Detaching
        | VolumeState::Deleting
        | VolumeState::Unrecognised => return Err(Reason::Unsettled(volume.state)),
    };
    // Of an image that is nowhere yet nothing is known that could be judged.
    on_every_node(volume, new)?;
    match way {
        Way::Detached if volume.robustness == Robustness::Faulted => return Err(Reason::Faulted),
        Way::Detached => {}
        Way::Live => live(volume, new, world)?,
    }
    readable(volume, new, world)?;
    rested(volume, &world.target, now)?;
    Ok(way)
}

/// Whether an attached volume can change its engine under its clients.
pub(super) fn live(volume: &Volume, new: &EngineImageStatus, world: &World) -> Result<(), Reason> {
    match volume.robustness {
        Robustness::Healthy => {}
        Robustness::Degraded => return Err(Reason::Degraded),
        Robustness::Faulted => return Err(Reason::Faulted),
        Robustness::Undefined | Robustness::Unknown | Robustness::Unrecognised => {
            return Err(Reason::RobustnessUnknown);
        }
    }
    if volume.locality == DataLocality::StrictLocal {
        return Err(Reason::StrictLocal);
    }
    let Some(old) = world.images.get(&volume.current) else {
        return Err(Reason::CurrentUnknown(volume.current.clone()));
    };
    if !world.takes_over(new, old) {
        let of = |image: &EngineImageStatus| Span {
            oldest: image.controller_api_min_version,
            newest: image.controller_api_version,
        };
        return Err(Reason::ApiVersions { runs: of(old), takes: of(new) });
    }
    if !world.policy.same_commit && !new.git_commit.is_empty() && new.git_commit == old.git_commit {
        return Err(Reason::SameCommit { commit: new.git_commit.to_string() });
    }
    Ok(())
}

/// Whether the new image reads what is on the disks.
pub(super) fn readable(volume: &Volume, new: &EngineImageStatus, world: &World) -> Result<(), Reason> {
    match world.images.get(&volume.finalized) {
        Some(finalized) if finalized.data_format_version > new.data_format_version => {
            Err(Reason::Finalized { image: volume.finalized.clone() })
        }
        _ => Ok(()),
    }
}

/// Whether every node that the volume needs has the image, and its binary was heard: before, it may fit nothing here, also
/// not what is detached.
pub(super) fn on_every_node(volume: &Volume, new: &EngineImageStatus) -> Result<(), Reason> {
    if volume.replicas.is_empty() || volume.seat().is_none() {
        return Err(Reason::NotPlaced);
    }
    let lacks = |node: &&NodeName| new.node_deployment_map.get(*node) != Some(&true);
    let nodes: Vec<NodeName> = volume.needs().into_iter().filter(lacks).cloned().collect();
    match new.controller_api_version {
        _ if !nodes.is_empty() => Err(Reason::NotOnNodes { nodes }),
        0 => Err(Reason::VersionsUnknown),
        _ => Ok(()),
    }
}

/// Whether enough time has passed since the last attempt to reach this image failed or was taken back, whoever began it.
fn rested(volume: &Volume, target: &ImageRef, now: Timestamp) -> Result<(), Reason> {
    let last = volume.attempt.as_ref();
    let Some(last) = last.filter(|last| last.outcome == Outcome::Failed && last.to == *target) else {
        return Ok(());
    };
    let until = attempt::rests_until(last);
    match last.failures {
        _ if until <= now => Ok(()),
        0 => Err(Reason::TakenBack { until }),
        failures => Err(Reason::BackingOff { failures, until }),
    }
}
