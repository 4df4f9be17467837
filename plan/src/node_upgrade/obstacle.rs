//! What stands in the way of an upgrade, and what would take it away.
//!
//! The invariant: whatever is in the way is told with the volume or node that it is about and a way out.

use std::borrow::Cow;

use midflight_api::longhorn::VolumeState;
use midflight_api::{ImageRef, NodeName, VolumeName};

use super::versions::Interface;
use super::words::some_of;
use crate::storage::engine_image::Range;

/// Why a node, or all of them, cannot be upgraded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    #[error("no image is the default: the setting default-instance-manager-image is empty")]
    NoImage,
    #[error("{} not in the cluster", names(.nodes))]
    UnknownNodes { nodes: Vec<NodeName> },
    #[error("a cluster of one node has no other that could serve its volumes meanwhile")]
    SingleNode,
    #[error("{image} is not on {}", some_of(.nodes, ", "))]
    ImageMissing { image: ImageRef, nodes: Vec<NodeName> },
    /// Found by those who can look into the registry.
    #[error("{image} is not published, and is not on {}", some_of(.nodes, ", "))]
    Unpublished { image: ImageRef, nodes: Vec<NodeName> },
    #[error(
        "no replica that leaves a node would be rebuilt: the setting concurrent-replica-rebuild-per-node-limit is 0"
    )]
    RebuildsOff,
    #[error("node {0} is not ready")]
    NodeNotReady(NodeName),
    #[error("node {0} is marked as one whose data engine is being upgraded, and no upgrade of it is there")]
    Marked(NodeName),
    #[error("{image} knows versions {its} of {what}, and the instance manager on {node} knows {theirs}")]
    Versions { image: ImageRef, what: Interface, its: Range, node: NodeName, theirs: Range },
    #[error("instance managers of {image} take orders of versions {its}, and these controllers give {ours}")]
    Unspoken { image: ImageRef, its: Range, ours: Range },
    #[error("single replica of {0}")]
    SingleReplica(VolumeName),
    #[error("{0} is faulted: no replica of it serves")]
    Faulted(VolumeName),
    #[error("{volume} is degraded: its replica on {node} is not in service")]
    Degraded { volume: VolumeName, node: NodeName },
    #[error("{volume} has {count} of {wanted} replicas")]
    TooFew { volume: VolumeName, count: usize, wanted: usize },
    #[error("{volume} is rebuilding its replica on {node}")]
    Rebuilding { volume: VolumeName, node: NodeName },
    #[error("{volume} is {state}")]
    Unsettled { volume: VolumeName, state: VolumeState },
    #[error("{0} is expanding")]
    Expanding(VolumeName),
    #[error("{0} is being restored")]
    Restoring(VolumeName),
    #[error("{0} is moving to another node")]
    Migrating(VolumeName),
    #[error("{volume} has no healthy replica outside of {node}")]
    NoCopyElsewhere { volume: VolumeName, node: NodeName },
    #[error(
        "no node can serve {volume} while {node} is upgraded: none with a healthy replica of it has a running instance manager"
    )]
    NoTarget { volume: VolumeName, node: NodeName },
}

impl Obstacle {
    /// One word that a program can match on.
    pub fn word(&self) -> &'static str {
        match self {
            Obstacle::NoImage => "NoDefaultImage",
            Obstacle::UnknownNodes { .. } => "UnknownNodes",
            Obstacle::SingleNode => "SingleNode",
            Obstacle::ImageMissing { .. } => "ImageMissing",
            Obstacle::Unpublished { .. } => "ImageUnpublished",
            Obstacle::RebuildsOff => "RebuildsOff",
            Obstacle::NodeNotReady(_) => "NodeNotReady",
            Obstacle::Marked(_) => "NodeMarked",
            Obstacle::Versions { .. } | Obstacle::Unspoken { .. } => "IncompatibleVersions",
            Obstacle::SingleReplica(_) => "SingleReplica",
            Obstacle::Faulted(_) => "Faulted",
            Obstacle::Degraded { .. } | Obstacle::TooFew { .. } => "Degraded",
            Obstacle::Rebuilding { .. } => "Rebuilding",
            Obstacle::Unsettled { .. } => "Unsettled",
            Obstacle::Expanding(_) => "Expanding",
            Obstacle::Restoring(_) => "Restoring",
            Obstacle::Migrating(_) => "Migrating",
            Obstacle::NoCopyElsewhere { .. } => "NoCopyElsewhere",
            Obstacle::NoTarget { .. } => "NoTargetNode",
        }
    }

    /// What would take it away.
    pub fn way_out(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Obstacle::Marked(node) => {
                let patch = r#"{"spec":{"dataEngineUpgradeRequested":false}}"#;
                return Cow::Owned(format!(
                    "take the mark away: `kubectl patch lhn {node} -n longhorn-system --type merge -p '{patch}'`"
                ));
            }
            Obstacle::NoImage => "set default-instance-manager-image",
            Obstacle::UnknownNodes { .. } => "name nodes as `kubectl get lhn -n longhorn-system` lists them",
            Obstacle::SingleNode => {
                "add a node, or detach the volumes: then the instance manager is replaced by itself"
            }
            Obstacle::ImageMissing { .. } => {
                "wait until the image is pulled (`midflight image prepull` says what each node lacks), then resume"
            }
            Obstacle::Unpublished { .. } => {
                "name one that `midflight image ls` lists, or publish it: `midflight image pack --tag instance-manager:TAG --binary PATH`"
            }
            Obstacle::RebuildsOff => "set it to at least 1",
            Obstacle::NodeNotReady(_) => "bring the node back, or leave it out by spec.nodes",
            Obstacle::Versions { .. } => "upgrade by way of a version that knows both",
            Obstacle::Unspoken { .. } => "upgrade the controllers first, or take an older image",
            Obstacle::SingleReplica(_) => {
                "raise its numberOfReplicas to 2 and wait until it is healthy, or detach it"
            }
            Obstacle::Faulted(_) => "salvage it, restore it from a backup, or detach it",
            Obstacle::Degraded { .. } | Obstacle::TooFew { .. } => {
                "wait for the rebuild; if none runs, make room for the replica or lower numberOfReplicas"
            }
            Obstacle::Rebuilding { .. } => "wait for the rebuild",
            Obstacle::Unsettled { .. } => "wait until it is attached or detached",
            Obstacle::Expanding(_) => "wait until it has grown",
            Obstacle::Restoring(_) => "wait until it is restored",
            Obstacle::Migrating(_) => "wait until it has moved",
            Obstacle::NoCopyElsewhere { .. } | Obstacle::NoTarget { .. } => {
                "bring back a node that has a replica of it"
            }
        })
    }

    /// Whether it may go away while the upgrade waits: by itself, or because somebody who turned something off turns it on again.
    pub fn passes(&self) -> bool {
        match self {
            Obstacle::NodeNotReady(_)
            | Obstacle::Marked(_)
            | Obstacle::RebuildsOff
            | Obstacle::Degraded { .. }
            | Obstacle::TooFew { .. }
            | Obstacle::Rebuilding { .. }
            | Obstacle::Unsettled { .. }
            | Obstacle::Expanding(_)
            | Obstacle::Restoring(_)
            | Obstacle::Migrating(_)
            | Obstacle::NoCopyElsewhere { .. }
            | Obstacle::NoTarget { .. } => true,
            Obstacle::NoImage
            | Obstacle::UnknownNodes { .. }
            | Obstacle::SingleNode
            | Obstacle::ImageMissing { .. }
            | Obstacle::Unpublished { .. }
            | Obstacle::Versions { .. }
            | Obstacle::Unspoken { .. }
            | Obstacle::SingleReplica(_)
            | Obstacle::Faulted(_) => false,
        }
    }

    /// The volume that it is about.
    pub fn volume(&self) -> Option<&VolumeName> {
        match self {
            Obstacle::SingleReplica(volume)
            | Obstacle::Faulted(volume)
            | Obstacle::Degraded { volume, .. }
            | Obstacle::TooFew { volume, .. }
            | Obstacle::Rebuilding { volume, .. }
            | Obstacle::Unsettled { volume, .. }
            | Obstacle::Expanding(volume)
            | Obstacle::Restoring(volume)
            | Obstacle::Migrating(volume)
            | Obstacle::NoCopyElsewhere { volume, .. }
            | Obstacle::NoTarget { volume, .. } => Some(volume),
            Obstacle::NoImage
            | Obstacle::UnknownNodes { .. }
            | Obstacle::SingleNode
            | Obstacle::ImageMissing { .. }
            | Obstacle::Unpublished { .. }
            | Obstacle::RebuildsOff
            | Obstacle::NodeNotReady(_)
            | Obstacle::Marked(_)
            | Obstacle::Versions { .. }
            | Obstacle::Unspoken { .. } => None,
        }
    }

    /// The obstacle and its way out, in one sentence.
    pub fn advice(&self) -> String {
        format!("{self}; {}", self.way_out())
    }
}

fn names(nodes: &[NodeName]) -> String {
    let verb = if nodes.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", some_of(nodes, ", "))
}
