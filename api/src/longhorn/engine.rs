//! The engine of a volume: the one process that writes to its replicas.
//!
//! The invariant: status is what the instance manager reported; who may write
//! is decided by the volume's record alone.

use std::collections::BTreeMap;

use super::{Frontend, InstanceSpec, InstanceStatus};
use crate::names::{Address, Location, Message, ObjectName, ReplicaName, Timestamp, Word};
use crate::size::Size;
use crate::wire::{kind, wire, words};

words! {
    /// What a replica may be used for.
    pub enum ReplicaMode {
        #[default]
        Undefined = "",
        /// In service.
        ReadWrite = "RW",
        /// Takes writes while it is rebuilt.
        WriteOnly = "WO",
        /// Out of service.
        Error = "ERR",
    } or Unrecognised
}

kind! {
    /// The engine of a volume: takes its requests and keeps its replicas equal.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Engine", plural = "engines", shortname = "lhe",
        status = "EngineStatus", doc = "The engine of a volume: takes its requests and keeps its replicas equal.",
        printcolumn(name = "Data Engine", type_ = "string", description = "The data engine of the engine", json_path = ".spec.dataEngine"),
        printcolumn(name = "State", type_ = "string", description = "The current state of the engine", json_path = ".status.currentState"),
        printcolumn(name = "Node", type_ = "string", description = "The node that the engine is on", json_path = ".spec.nodeID"),
        printcolumn(name = "InstanceManager", type_ = "string", description = "The instance manager of the engine", json_path = ".status.instanceManagerName"),
        printcolumn(name = "Image", type_ = "string", description = "The current image of the engine", json_path = ".status.currentImage"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    pub struct EngineSpec {
        flatten pub instance: InstanceSpec,
        /// How clients reach the volume.
        pub frontend: Frontend,
        /// Run without a frontend.
        pub disable_frontend: bool,
        /// Whether this is the engine that serves; a second one exists only during a move.
        pub active: bool,
        /// Replicas to connect to, by name.
        #[schemars(extend("maxProperties" = 64))]
        pub replica_address_map: BTreeMap<ReplicaName, Address>,
        /// Replicas of the new image, by name, that take over during a live upgrade.
        #[schemars(extend("maxProperties" = 64))]
        pub upgraded_replica_address_map: BTreeMap<ReplicaName, Address>,
        /// Backup that a standby volume should be restored to.
        pub requested_backup_restore: ObjectName,
        /// Volume in the backup store that backups belong to.
        pub backup_volume: ObjectName,
    }
}

wire! {
    /// What was seen of an engine.
    pub struct EngineStatus {
        flatten pub instance: InstanceStatus,
        /// What each replica may be used for, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub replica_mode_map: BTreeMap<ReplicaName, ReplicaMode>,
        /// When each of those modes began, RFC 3339.
        #[schemars(extend("maxProperties" = 64))]
        pub replica_transition_time_map: BTreeMap<ReplicaName, Timestamp>,
        /// Replicas the engine is connected to, by name; without an address from when it is told to let one go until it has.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub current_replica_address_map: BTreeMap<ReplicaName, Address>,
        /// Where clients find the volume: an NBD URI or the path of a device.
        pub endpoint: Location,
        /// Bytes the volume serves.
        pub current_size: Size,
        /// Whether the volume is growing.
        pub is_expanding: bool,
        /// Why the volume could not grow; empty if it could.
        pub last_expansion_error: Message,
        /// When it could not, RFC 3339.
        pub last_expansion_failed_at: Timestamp,
        /// Backup that was restored last.
        pub last_restored_backup: ObjectName,
        /// Bytes that the engine in charge has copied to replicas that came back.
        #[schemars(range(min = 0))]
        pub rebuilt_bytes: i64,
        /// Rebuilds, by address of the replica.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub rebuild_status: BTreeMap<String, RebuildStatus>,
        /// Restores, by address of the replica.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub restore_status: BTreeMap<String, RestoreStatus>,
        /// Merges of deleted snapshots, by address of the replica.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub purge_status: BTreeMap<String, PurgeStatus>,
        /// Backups, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 256))]
        pub backup_status: BTreeMap<String, BackupProgress>,
        /// Snapshots of the volume, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 256))]
        pub snapshots: BTreeMap<String, SnapshotInfo>,
        /// Why snapshots could not be listed; empty if they could.
        pub snapshots_error: Message,
    }
}

wire! {
    /// How far the rebuild of a replica is.
    pub struct RebuildStatus {
        /// Whether it goes on.
        pub is_rebuilding: bool,
        /// Percent done.
        #[schemars(range(min = 0, max = 100))]
        pub progress: i32,
        /// `in_progress`, `complete` or `error`.
        pub state: Word,
        /// Why it failed.
        pub error: Message,
        /// Replicas that are read.
        #[schemars(length(max = 64))]
        pub from_replica_address_list: Vec<Address>,
        /// Limit of the rate in MB/s; 0 is none.
        #[serde(rename = "appliedRebuildingMBps")]
        pub applied_rebuilding_mbps: i64,
    }
}

wire! {
    /// How far the restore of a replica is.
    pub struct RestoreStatus {
        /// Whether it goes on.
        pub is_restoring: bool,
        /// Percent done.
        #[schemars(range(min = 0, max = 100))]
        pub progress: i32,
        /// `incomplete`, `complete` or `error`.
        pub state: Word,
        /// Why it failed.
        pub error: Message,
        /// Backup that was restored last.
        pub last_restored: ObjectName,
        /// Backup that is being restored.
        pub current_restoring_backup: ObjectName,
        /// Where the backup is.
        #[serde(rename = "backupURL")]
        pub backup_url: Location,
    }
}

wire! {
    /// How far the merge of a deleted snapshot is.
    pub struct PurgeStatus {
        /// Whether it goes on.
        pub is_purging: bool,
        /// Percent done.
        #[schemars(range(min = 0, max = 100))]
        pub progress: i32,
        /// `in_progress`, `complete` or `error`.
        pub state: Word,
        /// Why it failed.
        pub error: Message,
    }
}

wire! {
    /// How far a backup is.
    pub struct BackupProgress {
        /// Percent done.
        #[schemars(range(min = 0, max = 100))]
        pub progress: i32,
        /// `in_progress`, `complete` or `error`.
        pub state: Word,
        /// Why it failed.
        pub error: Message,
        /// Snapshot that is backed up.
        pub snapshot_name: ObjectName,
        /// Replica it is read from.
        pub replica_address: Address,
        /// Where the backup is.
        #[serde(rename = "backupURL")]
        pub backup_url: Location,
    }
}

wire! {
    /// A snapshot as the engine sees it.
    pub struct SnapshotInfo {
        /// Name of the snapshot.
        pub name: ObjectName,
        /// Snapshot before it.
        pub parent: ObjectName,
        /// Snapshots after it, by name; `volume-head` is the live volume.
        #[schemars(extend("nullable" = true, "maxProperties" = 256))]
        pub children: BTreeMap<String, bool>,
        /// Whether it was deleted and is still to be merged.
        pub removed: bool,
        /// Whether a user made it.
        #[serde(rename = "usercreated")]
        pub user_created: bool,
        /// When it was made, RFC 3339.
        pub created: Timestamp,
        /// Bytes it takes.
        pub size: Size,
        /// Labels it was made with.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub labels: BTreeMap<String, Word>,
    }
}
