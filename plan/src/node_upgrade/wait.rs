//! What the upgrade of a node waits for.
//!
//! The invariant: each wait names what it is about, and ends by itself or at the deadline of its state.

use midflight_api::{ImageRef, NodeName, ReplicaName, VolumeName};

use super::obstacle::Obstacle;

/// Why a node is not further. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("{}", .0.advice())]
    Unfit(Obstacle),
    #[error("a snapshot of {0} is being taken")]
    Snapshot(VolumeName),
    #[error("a snapshot of {volume} could not be taken: {why}")]
    NoSnapshot { volume: VolumeName, why: String },
    #[error("replica {replica} of {volume} leaves its engine")]
    Leaves { volume: VolumeName, replica: ReplicaName },
    #[error("the engine of {volume} moves to {to}")]
    Moves { volume: VolumeName, to: NodeName },
    #[error("the engine of {volume} does not serve on {node}, where it belongs: {why}; it is tried again")]
    NotHome { volume: VolumeName, node: NodeName, why: String },
    #[error("instance manager {manager} still holds {instances} engines and replicas")]
    Holds { manager: String, instances: usize },
    #[error("instance manager {0} is going")]
    Goes(String),
    #[error("the instance manager of {image} on {node} does not run yet")]
    Starts { node: NodeName, image: ImageRef },
    #[error("{volume} cannot come home: node {node} is not ready; bring the node back, or detach the volume")]
    HomeNotReady { volume: VolumeName, node: NodeName },
    #[error(
        "{volume} cannot come home: no instance manager of the v2 data engine runs on {node}; set default-instance-manager-image to an \
         image that starts there"
    )]
    NoManager { volume: VolumeName, node: NodeName },
    #[error("the instance manager of {image} cannot start: node {node} is not ready; bring the node back")]
    NotReady { node: NodeName, image: ImageRef },
    #[error("replica {replica} of {volume} is rebuilt")]
    Rebuilds { volume: VolumeName, replica: ReplicaName },
    #[error(
        "replica {replica} of {volume} is not rebuilt: the setting concurrent-replica-rebuild-per-node-limit is 0; set it to at least 1"
    )]
    RebuildsOff { volume: VolumeName, replica: ReplicaName },
    #[error("a replica of {volume} cannot be rebuilt: node {node} is not ready; bring the node back")]
    ReplicaNotReady { volume: VolumeName, node: NodeName },
    #[error("{volume} is not healthy: its replica on {node} is not in service")]
    NotHealthy { volume: VolumeName, node: NodeName },
    #[error("the snapshot of {0} that the upgrade took is being removed")]
    Removes(VolumeName),
}

impl Wait {
    /// The volume that it is about.
    pub(super) fn volume(&self) -> Option<&VolumeName> {
        match self {
            Wait::Unfit(obstacle) => obstacle.volume(),
            Wait::Snapshot(volume)
            | Wait::NoSnapshot { volume, .. }
            | Wait::Leaves { volume, .. }
            | Wait::Moves { volume, .. }
            | Wait::NotHome { volume, .. }
            | Wait::HomeNotReady { volume, .. }
            | Wait::NoManager { volume, .. }
            | Wait::ReplicaNotReady { volume, .. }
            | Wait::Rebuilds { volume, .. }
            | Wait::RebuildsOff { volume, .. }
            | Wait::NotHealthy { volume, .. }
            | Wait::Removes(volume) => Some(volume),
            Wait::Holds { .. } | Wait::Goes(_) | Wait::Starts { .. } | Wait::NotReady { .. } => None,
        }
    }
}

/// All that is waited for, in one sentence.
pub(super) fn message(waits: &[Wait]) -> String {
    match waits {
        [] => String::new(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first}; and {} more", rest.len()),
    }
}
