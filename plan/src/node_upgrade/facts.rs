//! What the rules look at: v2 volumes, nodes and their instance managers, reduced to what matters.
//!
//! The invariant: a copy counts as healthy only if the record has it in service and it was seen to run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{
    self, InstanceManagerState, InstanceState, TargetMove, TargetMoveReason, TargetMoveState, VolumeState,
};
use midflight_api::settings;
use midflight_api::{ImageRef, MemberMode, NodeName, ReplicaName, VolumeName, VolumeRecordSpec};

use crate::storage::engine_image::{Range, Ranges};
use crate::storage::rebuilds;

/// What a copy of a volume may be used for, as the record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Copy {
    InService,
    Rebuilding,
    Out,
}

/// One copy of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    pub name: ReplicaName,
    pub node: NodeName,
    /// Whether it was asked to leave its engine.
    pub told_to_stop: bool,
    /// Whether it was seen to run.
    pub runs: bool,
    pub copy: Copy,
}

impl Replica {
    pub fn is_healthy(&self) -> bool {
        self.runs && self.copy == Copy::InService
    }
}

/// One volume of the v2 data engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Volume {
    pub name: VolumeName,
    pub state: VolumeState,
    /// Node that it should be attached to; empty if to none.
    pub node: NodeName,
    /// Node that was asked to serve it instead; empty if none was.
    pub asked: NodeName,
    /// Node on which its engine was seen to serve.
    pub serves_on: NodeName,
    /// Node of the engine that the record names.
    pub seat: NodeName,
    /// Node it was last attached to.
    pub owner: NodeName,
    pub image: ImageRef,
    pub wanted_replicas: usize,
    pub replicas: Vec<Replica>,
    pub deleting: bool,
    pub expanding: bool,
    pub restoring: bool,
    pub migrating: bool,
    /// The last move of its engine to another node.
    pub moved: Moved,
}

/// How a move of an engine under clients went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Moved {
    /// When it was last heard of.
    pub at: Option<Timestamp>,
    /// For how long the frontend held back requests, and the longest wait, in microseconds.
    pub pause_us: i64,
    pub longest_wait_us: i64,
    /// The node that the engine could not go to, and why.
    pub failure: Option<MoveFailure>,
}

/// Why an engine does not serve where it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MoveFailure {
    pub node: NodeName,
    /// The node is lost, so that another may do.
    pub is_lost: bool,
    pub why: String,
}

impl Moved {
    fn of(known: &TargetMove) -> Moved {
        let failure = (known.state == TargetMoveState::Failed).then(|| MoveFailure {
            node: known.to.clone(),
            is_lost: known.reason == TargetMoveReason::NodeLost,
            why: known.message.to_string(),
        });
        Moved {
            at: known.at.as_str().parse().ok(),
            pause_us: known.pause_us,
            longest_wait_us: known.longest_wait_us,
            failure,
        }
    }
}

impl Volume {
    /// What the objects of a volume say.
    pub fn of<'a>(
        object: &longhorn::Volume,
        record: Option<&VolumeRecordSpec>,
        replicas: impl IntoIterator<Item = &'a longhorn::Replica>,
    ) -> Volume {
        let status = object.status.clone().unwrap_or_default();
        let spec = &object.spec;
        let seat = record.and_then(|record| record.engine.as_ref()).map(|seat| seat.node_id.clone());
        let seat = seat.unwrap_or_default();
        let kept = replicas.into_iter().filter(|replica| replica.metadata.deletion_timestamp.is_none());
        Volume {
            name: object.name_any().into(),
            state: status.state,
            node: spec.node_id.clone(),
            asked: spec.target_node_id.clone(),
            serves_on: status.current_target_node_id,
            seat,
            owner: status.owner_id,
            image: spec.image.clone(),
            wanted_replicas: usize::try_from(spec.number_of_replicas).unwrap_or(1).max(1),
            replicas: kept.map(|replica| replica_of(replica, record)).collect(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            expanding: status.expansion_required,
            restoring: status.restore_required,
            migrating: object.is_migrating(),
            moved: Moved::of(&status.target_move),
        }
    }

    /// The node that its engine should be on.
    pub fn target(&self) -> &NodeName {
        if self.asked.is_empty() { &self.node } else { &self.asked }
    }

    /// Whether something of it runs, or is to run.
    pub fn is_up(&self) -> bool {
        match self.state {
            VolumeState::Detached | VolumeState::Creating | VolumeState::Undefined => !self.node.is_empty(),
            VolumeState::Attached
            | VolumeState::Attaching
            | VolumeState::Detaching
            | VolumeState::Deleting
            | VolumeState::Unrecognised => true,
        }
    }

    /// Whether it follows backups and has no clients: its engine may be on any node, and finds another by itself.
    pub fn serves_nobody(&self) -> bool {
        self.state == VolumeState::Attached && self.node.is_empty()
    }

    /// Whether its engine is on this node, or is to come to it.
    pub fn engine_is_on(&self, node: &NodeName) -> bool {
        self.is_up() && [self.target(), &self.serves_on, &self.seat].contains(&node)
    }

    /// Why its engine does not serve on the node that it is asked to be on, if it was tried.
    pub fn failure_on(&self, node: &NodeName) -> Option<&MoveFailure> {
        self.moved.failure.as_ref().filter(|failure| failure.node == *node && self.target() == node)
    }

    pub fn replica_on(&self, node: &NodeName) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.node == *node)
    }

    /// Whether an upgrade of this node has to do with it.
    pub fn touches(&self, node: &NodeName) -> bool {
        self.is_up() && (self.node == *node || self.engine_is_on(node) || self.replica_on(node).is_some())
    }

    /// Whether it has an engine, or is to have one, which rebuilds its replicas.
    pub(super) fn is_served(&self) -> bool {
        self.is_up() && (!self.node.is_empty() || self.serves_nobody()) && !self.deleting
    }

    /// Whether its copy on this node is not in service, and is waited for.
    pub(super) fn misses(&self, node: &NodeName) -> bool {
        self.is_served() && self.replica_on(node).is_some_and(|replica| !replica.is_healthy())
    }

    /// All nodes that hold something of it, whether it is attached or not.
    pub(super) fn places(&self) -> BTreeSet<&NodeName> {
        let nodes = [&self.node, &self.asked, &self.serves_on, &self.seat];
        let all = nodes.into_iter().chain(self.replicas.iter().map(|replica| &replica.node));
        all.filter(|node| !node.is_empty()).collect()
    }
}

fn replica_of(replica: &longhorn::Replica, record: Option<&VolumeRecordSpec>) -> Replica {
    let name = ReplicaName::from(replica.name_any());
    let members = record.map_or(&[][..], |record| &record.members);
    let mode = members.iter().find(|member| member.replica == name).map(|member| member.mode);
    let state = replica.status.as_ref().map(|status| status.instance.current_state).unwrap_or_default();
    Replica {
        name,
        node: replica.spec.instance.node_id.clone(),
        told_to_stop: replica.spec.instance.desire_state == InstanceState::Stopped,
        runs: matches!(state, InstanceState::Running | InstanceState::Suspended),
        copy: match mode {
            Some(MemberMode::ReadWrite) => Copy::InService,
            Some(MemberMode::WriteOnly) => Copy::Rebuilding,
            // A cluster of Longhorn's own has no records.
            None if record.is_none() && !replica.spec.healthy_at.is_empty() => Copy::InService,
            Some(MemberMode::Error) | None => Copy::Out,
        },
    }
}

/// An instance manager of the v2 data engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Manager {
    pub name: String,
    pub image: ImageRef,
    pub state: InstanceManagerState,
    pub deleting: bool,
    /// Engines and replicas that it says it holds.
    pub instances: usize,
    /// What it speaks and reads, as far as is known.
    pub versions: Ranges,
}

impl Manager {
    pub fn of(object: &longhorn::InstanceManager) -> Manager {
        let status = object.status.clone().unwrap_or_default();
        let instances = status.instance_engines.values().chain(status.instance_replicas.values());
        Manager {
            name: object.name_any(),
            image: object.spec.image.clone(),
            state: status.current_state,
            deleting: object.metadata.deletion_timestamp.is_some(),
            instances: instances.filter(|instance| is_there(instance.status.state)).count(),
            versions: Ranges {
                api: Range::of(status.api_min_version, status.api_version),
                wire: Range::of(status.proxy_api_min_version, status.proxy_api_version),
                disk: Range::of(status.data_format_min_version, status.data_format_version),
            },
        }
    }

    pub fn runs(&self) -> bool {
        self.state == InstanceManagerState::Running && !self.deleting
    }

    /// Whether a process of it may be there.
    pub fn has_process(&self) -> bool {
        match self.state {
            InstanceManagerState::Running
            | InstanceManagerState::Starting
            | InstanceManagerState::Error
            | InstanceManagerState::Unknown
            | InstanceManagerState::Unrecognised => true,
            InstanceManagerState::Stopped | InstanceManagerState::Undefined => false,
        }
    }
}

/// Whether an instance in this state is still something.
fn is_there(state: InstanceState) -> bool {
    match state {
        InstanceState::Running
        | InstanceState::Suspended
        | InstanceState::Starting
        | InstanceState::Stopping
        | InstanceState::Unknown
        | InstanceState::Unrecognised => true,
        InstanceState::Undefined
        | InstanceState::Stopped
        | InstanceState::Error
        | InstanceState::Terminated => false,
    }
}

/// Whether an image is on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Image {
    #[default]
    Missing,
    There,
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Node {
    pub ready: bool,
    /// Whether its data engine is being upgraded: `spec.dataEngineUpgradeRequested`.
    pub requested: bool,
    /// Whether it has the image that upgrades lead to.
    pub image: Image,
    /// What the program of that image speaks, by its labels: of one that the node lacks, by those that are published.
    pub labels: Ranges,
    /// Its instance managers of the v2 data engine.
    pub managers: Vec<Manager>,
}

/// All nodes, by name.
pub type Nodes = BTreeMap<NodeName, Node>;

impl Node {
    /// The instance manager that serves, if one does.
    pub fn serving(&self) -> Option<&Manager> {
        self.managers.iter().find(|manager| manager.runs()).filter(|_| self.ready)
    }

    /// Whether an engine of another node may come to it for a while.
    pub fn may_host(&self) -> bool {
        self.serving().is_some() && !self.requested
    }

    /// Whether nothing but this image serves on it.
    pub fn runs_only(&self, image: &ImageRef) -> bool {
        self.serving().is_some() && self.managers.iter().all(|manager| manager.image == *image)
    }
}

/// What the settings ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How long each step may take.
    pub deadline: Duration,
    /// How often a node is tried again.
    pub retries: i32,
    /// Rest after the first failure; it doubles with each further one.
    pub back_off: Duration,
    /// Whether replicas that left are rebuilt when they come back.
    pub rebuilds: bool,
}

impl Policy {
    /// From the values of settings by name. One that is not there, or that cannot be read, has its default.
    pub fn of<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Policy {
        let number = |name: &'static str| {
            let given = value(name).filter(|text| settings::check(name, text).is_ok());
            let default = || settings::find(name).map(|setting| setting.default);
            given.or_else(default).and_then(|text| text.parse::<u32>().ok()).unwrap_or_default()
        };
        let seconds = |name| Duration::from_secs(number(name).into());
        Policy {
            deadline: seconds("node-upgrade-deadline-seconds"),
            retries: i32::try_from(number("node-upgrade-retry-limit")).unwrap_or(i32::MAX),
            back_off: seconds("node-upgrade-back-off-seconds"),
            rebuilds: number(rebuilds::LIMIT) > 0,
        }
    }

    /// How long a node rests after so many failures.
    pub(super) fn rest(&self, failures: i32) -> Duration {
        let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or_default().min(10);
        self.back_off * (1 << doublings)
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::of(|_| None)
    }
}
