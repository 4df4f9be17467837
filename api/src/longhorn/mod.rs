//! Longhorn's kinds, `longhorn.io/v1beta2`, and those that seeds 001 and 004 add to them.
//!
//! The invariant: every name and value is upstream's, so that the same objects
//! work on a Longhorn cluster; `tests/api/fixtures.rs` lists what is added and why.

mod backup;
mod condition;
mod engine;
mod engine_image;
mod guard;
mod image;
mod instance;
mod instance_manager;
mod node;
mod node_upgrade;
mod replica;
mod setting;
mod snapshot;
mod volume;

pub use backup::{
    Backup, BackupMode, BackupSpec, BackupState, BackupStatus, BackupTarget, BackupTargetSpec,
    BackupTargetStatus,
};
pub use condition::{Condition, ConditionStatus, Conditions};
pub use engine::{
    BackupProgress, Engine, EngineSpec, EngineStatus, PurgeStatus, RebuildStatus, ReplicaMode, RestoreStatus,
    SnapshotInfo,
};
pub use engine_image::{EngineImage, EngineImageSpec, EngineImageState, EngineImageStatus};
pub use image::{Image, ImageSpec, ImageState, ImageStatus};
pub use instance::{DataEngine, Frontend, InstanceSpec, InstanceState, InstanceStatus};
pub use instance_manager::{
    InstanceManager, InstanceManagerSpec, InstanceManagerState, InstanceManagerStatus, InstanceManagerType,
    InstanceProcess, InstanceProcessSpec, InstanceProcessStatus, InstanceType,
};
pub use node::{DiskSpec, DiskStatus, DiskType, Node, NodeSpec, NodeStatus};
pub use node_upgrade::{
    DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, DataEngineUpgradeManagerStatus,
    NodeDataEngineUpgrade, NodeDataEngineUpgradeSpec, NodeDataEngineUpgradeStatus, NodeUpgradeState,
    UpgradeNodeStatus, UpgradeState, VolumeUpgradeStatus,
};
pub use replica::{Replica, ReplicaSpec, ReplicaStatus};
pub use setting::{Setting, SettingStatus};
pub use snapshot::{Snapshot, SnapshotSpec, SnapshotStatus};
pub use volume::{
    AccessMode, CompressionMethod, DataLocality, EngineChange, EngineChangeState, KubernetesStatus,
    OfflineRebuilding, Robustness, SwitchoverState, TargetMove, TargetMoveReason, TargetMoveState, Volume,
    VolumeSpec, VolumeState, VolumeStatus, WorkloadStatus,
};

pub(crate) use guard::rules as rules_of_whole_volumes;

/// Group of all kinds here.
pub const GROUP: &str = "longhorn.io";
/// Namespace in which Longhorn keeps its objects.
pub const NAMESPACE: &str = "longhorn-system";
/// Finalizer on every object whose removal takes work.
pub const FINALIZER: &str = "longhorn.io";
/// Label on engines, replicas and snapshots: the volume they belong to.
pub const VOLUME_LABEL: &str = "longhornvolume";
