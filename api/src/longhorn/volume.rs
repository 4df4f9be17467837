//! A volume: what a user wants and what the volume is.
//!
//! The invariant: a volume is upgrading exactly while `spec.image` and
//! `status.currentImage` differ.

use super::{Conditions, DataEngine, Frontend};
use crate::names::{ImageRef, Location, Message, NodeName, ObjectName, Timestamp, Word};
use crate::size::Size;
use crate::wire::{kind, rule, wire, words};

words! {
    /// How many nodes may use a volume at once.
    pub enum AccessMode {
        #[default]
        ReadWriteOnce = "rwo",
        ReadWriteOncePod = "rwop",
        ReadWriteMany = "rwx",
    } or Unrecognised
}

words! {
    /// Whether a replica should be on the node of the engine.
    pub enum DataLocality {
        #[default]
        Disabled = "disabled",
        BestEffort = "best-effort",
        StrictLocal = "strict-local",
    } or Unrecognised
}

words! {
    /// Whether replicas of a detached volume are rebuilt; `ignored` follows the
    /// setting `offline-replica-rebuilding`.
    pub enum OfflineRebuilding {
        #[default]
        Ignored = "ignored",
        Disabled = "disabled",
        Enabled = "enabled",
    } or Unrecognised
}

words! {
    /// How the blocks of a backup are packed.
    pub enum CompressionMethod {
        #[default]
        Lz4 = "lz4",
        None = "none",
        Gzip = "gzip",
    } or Unrecognised
}

words! {
    /// Where a volume stands.
    ///
    /// ```text
    /// creating ──▶ detached ──▶ attaching ──▶ attached
    ///                 ▲                          │
    ///                 └──────── detaching ◀──────┘      any ──▶ deleting
    /// ```
    pub enum VolumeState {
        /// No controller has seen the volume yet.
        #[default]
        Undefined = "",
        Creating = "creating",
        Attached = "attached",
        Detached = "detached",
        Attaching = "attaching",
        Detaching = "detaching",
        Deleting = "deleting",
    } or Unrecognised
}

words! {
    /// How much redundancy is left. Known only while the volume is attached.
    pub enum Robustness {
        #[default]
        Undefined = "",
        /// Every replica the volume should have is in service.
        Healthy = "healthy",
        /// At least one is in service, and at least one is missing.
        Degraded = "degraded",
        /// None is left.
        Faulted = "faulted",
        Unknown = "unknown",
    } or Unrecognised
}

words! {
    /// Where the move of a v2 target stands.
    pub enum SwitchoverState {
        #[default]
        None = "",
        Preparing = "preparing",
        SwitchingOver = "switching-over",
        Finalizing = "finalizing",
        Reverting = "reverting",
    } or Unrecognised
}

kind! {
    /// A replicated block device. Attach it by setting `nodeID`, detach it by clearing it.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Volume", plural = "volumes", shortname = "lhv",
        status = "VolumeStatus", doc = "A replicated block device.",
        printcolumn(name = "Data Engine", type_ = "string", description = "The data engine of the volume", json_path = ".spec.dataEngine"),
        printcolumn(name = "State", type_ = "string", description = "The state of the volume", json_path = ".status.state"),
        printcolumn(name = "Robustness", type_ = "string", description = "The robustness of the volume", json_path = ".status.robustness"),
        printcolumn(name = "Scheduled", type_ = "string", description = "The scheduled condition of the volume", json_path = ".status.conditions[?(@.type=='Schedulable')].status"),
        printcolumn(name = "Size", type_ = "string", description = "The size of the volume", json_path = ".spec.size"),
        printcolumn(name = "Node", type_ = "string", description = "The node that the volume is currently attaching to", json_path = ".status.currentNodeID"),
        printcolumn(name = "Switchover", type_ = "string", description = "The engine switchover state", priority = 1, json_path = ".status.switchoverState"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    #[schemars(extend("x-kubernetes-validations" = [
        rule("(has(self.size) && self.size.matches('^[0-9]+$') && int(self.size) > 0) || (has(self.fromBackup) && self.fromBackup != '')",
             "a volume needs a size in bytes, such as \"1073741824\" for 1 GiB, unless it is restored by fromBackup"),
        rule("!has(self.size) || !self.size.matches('^[0-9]+$') || int(self.size) % 4096 == 0",
             "size must be a multiple of 4096 bytes; round it up"),
        rule("!has(self.size) || (has(oldSelf.size) && self.size == oldSelf.size) || !self.size.matches('^[0-9]+$') || int(self.size) <= 17592186040320",
             "a copy of a volume is one file, which has at most 16 TiB less 4 KiB; make several volumes"),
        rule("!has(oldSelf.size) || oldSelf.size == '' || (has(self.size) && self.size.matches('^[0-9]+$') && int(self.size) >= int(oldSelf.size))",
             "a volume can grow but not shrink; to make it smaller, copy its data to a new volume"),
        rule("has(self.dataEngine) == has(oldSelf.dataEngine) && (!has(self.dataEngine) || self.dataEngine == oldSelf.dataEngine)",
             "dataEngine cannot change; back the volume up and restore it to a new one"),
        rule("!has(self.targetNodeID) || self.targetNodeID == '' || (has(self.dataEngine) && self.dataEngine == 'v2')",
             "only the target of a v2 volume can be on another node; clear targetNodeID"),
        rule("!has(self.Standby) || !self.Standby || (has(self.fromBackup) && self.fromBackup != '')",
             "a standby volume follows a backup; name it in fromBackup"),
        rule("!has(self.Standby) || !self.Standby || (has(oldSelf.Standby) && oldSelf.Standby)",
             "a volume cannot become a standby; restore a new one with Standby: true and fromBackup"),
    ]))]
    pub struct VolumeSpec {
        /// Size in bytes, a whole number of 4 KiB blocks. It may grow at any time.
        pub size: Size,
        /// Node to attach the volume to; empty to detach it.
        #[serde(rename = "nodeID")]
        pub node_id: NodeName,
        /// Kept for Longhorn's tools, without effect here: the engine is on the node of `nodeID`, or of `targetNodeID`.
        #[serde(rename = "engineNodeID")]
        pub engine_node_id: NodeName,
        /// Node on which the target of a v2 volume should run, under its clients; empty is `nodeID`.
        #[serde(rename = "targetNodeID")]
        pub target_node_id: NodeName,
        /// Not served here: a volume has its clients on one node.
        #[serde(rename = "migrationNodeID")]
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self == ''", "clients of a volume are not moved to another node while they use it; stop them, clear migrationNodeID and change nodeID"),
        ]))]
        pub migration_node_id: NodeName,
        /// Image the volume should run: of its engine, or of its instance manager for v2; empty is the default.
        pub image: ImageRef,
        /// How many replicas the volume should have, each on another node.
        #[schemars(range(min = 1, max = 20), extend("default" = 3))]
        pub number_of_replicas: i32,
        /// Whether the volume follows the newest backup and serves no client until it is activated.
        #[serde(rename = "Standby")]
        pub standby: bool,
        /// Which data engine serves the volume.
        #[schemars(extend("default" = "v1"))]
        pub data_engine: DataEngine,
        /// Kept for Longhorn's tools, without effect here: replicas come to the nodes with the most room. `strict-local` is refused.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self != 'strict-local'", "replicas are not kept on the node of the engine here; leave dataLocality out, and choose nodes by nodeSelector"),
        ]))]
        pub data_locality: DataLocality,
        /// How clients reach the volume: `nbd`, `blockdev`, or empty for no way.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("!(self in ['iscsi', 'nvmf', 'ublk'])", "this frontend is not served; use nbd or blockdev, or leave it empty"),
        ]))]
        pub frontend: Frontend,
        /// Attach without a frontend, for maintenance.
        pub disable_frontend: bool,
        /// How many nodes may use the volume at once.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self != 'rwx'", "shared volumes are not served; use rwo or rwop"),
        ]))]
        pub access_mode: AccessMode,
        /// Backup to restore the volume from, as in `status.url` of a Backup.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self == oldSelf", "fromBackup cannot change; create another volume to restore another backup"),
            rule("self == '' || (self.matches('^file:///[^?#%]+[?]') && self.matches('[?&]backup=[^&]+') && self.matches('[?&]volume=[^&]+'))",
                 "fromBackup is status.url of a Backup: file:///FOLDER?backup=NAME&volume=VOLUME"),
        ]))]
        pub from_backup: Location,
        /// Backup target that backups of this volume go to; empty is `default`.
        pub backup_target_name: ObjectName,
        /// Kept for Longhorn's tools, without effect here: backups are packed as their target has it, and read whatever they are.
        pub backup_compression_method: CompressionMethod,
        /// Kept for Longhorn's tools, without effect here: the setting `replica-replenishment-wait-interval` holds for all volumes.
        #[schemars(range(min = 0, max = 525600))]
        pub stale_replica_timeout: i32,
        /// Only nodes with all of these tags hold replicas.
        #[schemars(length(max = 64))]
        pub node_selector: Vec<Word>,
        /// Only disks with all of these tags hold replicas.
        #[schemars(length(max = 64))]
        pub disk_selector: Vec<Word>,
        /// Whether replicas are rebuilt while the volume is detached.
        pub offline_rebuilding: OfflineRebuilding,
        /// Greatest rate of a rebuild in MB/s; 0 follows the setting `replica-rebuilding-bandwidth-limit`.
        #[schemars(range(min = 0, max = 1000000))]
        pub replica_rebuilding_bandwidth_limit: i64,
    }
}

wire! {
    /// What was seen of a volume.
    pub struct VolumeStatus {
        /// Node whose controller looks after the volume: where it is attached, or was last.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Where the volume stands.
        pub state: VolumeState,
        /// How much redundancy is left; `unknown` while detached.
        pub robustness: Robustness,
        /// Node the volume is attached to.
        #[serde(rename = "currentNodeID")]
        pub current_node_id: NodeName,
        /// Node on which the engine runs.
        #[serde(rename = "currentEngineNodeID")]
        pub current_engine_node_id: NodeName,
        /// Node on which the target was last seen to serve; empty while it does not.
        #[serde(rename = "currentTargetNodeID")]
        pub current_target_node_id: NodeName,
        /// Node to which the volume is being moved.
        #[serde(rename = "currentMigrationNodeID")]
        pub current_migration_node_id: NodeName,
        /// Image the volume runs: of its engine, for v2 that of the instance manager in which its engine is.
        pub current_image: ImageRef,
        /// Whether the volume is still to grow to `spec.size`.
        pub expansion_required: bool,
        /// Whether the volume follows a backup.
        pub is_standby: bool,
        /// Whether a restore is still to be done.
        pub restore_required: bool,
        /// Whether the restore has begun.
        pub restore_initiated: bool,
        /// Whether the volume is attached without a frontend.
        pub frontend_disabled: bool,
        /// Where the move of the target stands.
        pub switchover_state: SwitchoverState,
        /// The last change of the engine image under clients.
        pub engine_change: EngineChange,
        /// The last move of a v2 volume's target under clients.
        pub target_move: TargetMove,
        /// What can be said about the volume, and why.
        pub conditions: Conditions,
        /// Who uses the volume in Kubernetes.
        pub kubernetes_status: KubernetesStatus,
        /// Since when the volume is degraded, RFC 3339; empty if it is not.
        pub last_degraded_at: Timestamp,
        /// Bytes that the volume takes on each replica.
        pub actual_size: i64,
        /// Name of the newest backup.
        pub last_backup: ObjectName,
        /// When the newest backup was made, RFC 3339.
        pub last_backup_at: Timestamp,
    }
}

words! {
    /// Where a change of the engine image under clients stands.
    ///
    /// ```text
    /// moving ──▶ done
    ///    └─────▶ failed ──spec.image──▶ taken-back
    /// ```
    pub enum EngineChangeState {
        #[default]
        None = "",
        /// Processes of the new image take the places of the old ones.
        Moving = "moving",
        /// All of them are of the new image.
        Done = "done",
        /// The new image did not serve; the volume has its old one again, or gets it.
        Failed = "failed",
        /// It failed, and nobody asks for that image any more.
        TakenBack = "taken-back",
    } or Unrecognised
}

wire! {
    /// A change of the engine image under clients.
    pub struct EngineChange {
        /// Where it stands.
        pub state: EngineChangeState,
        /// Image that it leads to.
        pub image: ImageRef,
        /// When it began, or when the new engine began to serve, RFC 3339.
        pub at: Timestamp,
        /// For how long the frontend held back requests while the engines changed, in microseconds.
        #[schemars(range(min = 0))]
        pub pause_us: i64,
        /// The longest that any request waited for its answer in that time, in microseconds.
        #[schemars(range(min = 0))]
        pub longest_wait_us: i64,
        /// Requests that were sent again, to the new engine.
        #[schemars(range(min = 0))]
        pub replayed: i64,
        /// Why it failed.
        pub message: Message,
    }
}

words! {
    /// Where a move of the target under clients stands.
    ///
    /// ```text
    /// moving ──▶ done
    ///    └──────┴──▶ failed ──spec.targetNodeID──▶ taken-back
    /// ```
    pub enum TargetMoveState {
        #[default]
        None = "",
        /// The engine on the other node is started and takes over.
        Moving = "moving",
        /// It serves there, and nowhere else.
        Done = "done",
        /// It does not serve there; the volume serves where it can, or is about to.
        Failed = "failed",
        /// It was broken off or had failed, and that node is not asked for any more.
        TakenBack = "taken-back",
    } or Unrecognised
}

words! {
    /// Why a move of the target failed.
    pub enum TargetMoveReason {
        #[default]
        None = "",
        /// The instance manager of that node does not answer.
        NodeLost = "NodeLost",
        /// The engine there does not run.
        EngineFailed = "EngineFailed",
        /// The engine there did not serve in time.
        NotInTime = "NotInTime",
        /// The frontend could not go over to it.
        SwitchFailed = "SwitchFailed",
    } or Unrecognised
}

wire! {
    /// A move of a v2 volume's target to another node, under clients.
    pub struct TargetMove {
        /// Where it stands.
        pub state: TargetMoveState,
        /// Node that the target was on.
        pub from: NodeName,
        /// Node that it was asked to be on.
        pub to: NodeName,
        /// When it began, when the target began to serve, or when it failed, RFC 3339.
        pub at: Timestamp,
        /// For how long the frontend held back requests, on the way there or back, in microseconds.
        #[schemars(range(min = 0))]
        pub pause_us: i64,
        /// The longest that any request waited for its answer in that time, in microseconds.
        #[schemars(range(min = 0))]
        pub longest_wait_us: i64,
        /// Requests that were sent again, to the engine that took over.
        #[schemars(range(min = 0))]
        pub replayed: i64,
        /// Why it failed, in one word.
        pub reason: TargetMoveReason,
        /// Why it failed.
        pub message: Message,
    }
}

wire! {
    /// Who uses a volume in Kubernetes.
    pub struct KubernetesStatus {
        /// Name of the PersistentVolume.
        pub pv_name: ObjectName,
        /// Phase of the PersistentVolume.
        pub pv_status: Word,
        /// Namespace of the PersistentVolumeClaim.
        pub namespace: ObjectName,
        /// Name of the PersistentVolumeClaim.
        pub pvc_name: ObjectName,
        /// Pods that use the volume.
        #[schemars(length(max = 1000), extend("nullable" = true, "x-kubernetes-list-type" = "atomic"))]
        pub workloads_status: Vec<WorkloadStatus>,
    }
}

wire! {
    /// A pod that uses a volume.
    pub struct WorkloadStatus {
        /// Name of the pod.
        pub pod_name: ObjectName,
        /// Phase of the pod.
        pub pod_status: Word,
        /// Object that made the pod.
        pub workload_name: ObjectName,
        /// Kind of that object.
        pub workload_type: Word,
    }
}

impl Volume {
    /// Whether the volume is on its way to another engine image, or stuck on it.
    pub fn is_upgrading(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.current_image != self.spec.image)
    }

    /// Whether the volume is being moved to another node while attached.
    pub fn is_migrating(&self) -> bool {
        let to = self.status.as_ref().map(|status| &status.current_migration_node_id);
        !self.spec.migration_node_id.is_empty() || to.is_some_and(|node| !node.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume as Longhorn's manager writes it, in Go's way: zero values and nulls.
    const UPSTREAM: &str = r#"{
        "apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": {"name": "v"},
        "spec": {"size": "1073741824", "image": "new", "Standby": false, "migrationNodeID": "", "frontend": "blockdev",
                 "nodeSelector": null, "accessMode": "rwx", "encrypted": false, "somethingNew": 1},
        "status": {"currentImage": "old", "state": "attached", "robustness": "", "conditions": null,
                   "currentMigrationNodeID": "", "kubernetesStatus": {"workloadsStatus": null}}
    }"#;

    #[test]
    fn reads_what_longhorn_writes() {
        let volume: Volume = serde_json::from_str(UPSTREAM).unwrap();
        let status = volume.status.as_ref().unwrap();
        assert_eq!(volume.spec.size, Size::from_bytes(1 << 30));
        assert_eq!((status.state, status.robustness), (VolumeState::Attached, Robustness::Undefined));
        assert!(volume.is_upgrading() && !volume.is_migrating());
    }

    #[test]
    fn a_word_of_a_newer_version_spoils_nothing() {
        let newer = UPSTREAM.replace("\"attached\"", "\"hibernating\"");
        let volume: Volume = serde_json::from_str(&newer).unwrap();
        assert_eq!(volume.status.unwrap().state, VolumeState::Unrecognised);
    }
}
