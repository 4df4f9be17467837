//! Backups of volumes and the places they go to.
//!
//! The invariant: a backup is `Completed` only when every block it needs is in
//! the store.

use std::collections::BTreeMap;

use super::{CompressionMethod, Conditions};
use crate::names::{Address, Location, Message, NodeName, ObjectName, Timestamp, VolumeName, Word};
use crate::size::Size;
use crate::wire::{kind, rule, wire, words};

words! {
    /// Whether unchanged blocks are sent again.
    pub enum BackupMode {
        #[default]
        Incremental = "incremental",
        Full = "full",
    } or Unrecognised
}

words! {
    /// How far a backup is.
    pub enum BackupState {
        #[default]
        New = "",
        Pending = "Pending",
        InProgress = "InProgress",
        Completed = "Completed",
        Error = "Error",
        Unknown = "Unknown",
        Deleting = "Deleting",
    } or Unrecognised
}

kind! {
    /// A place that backups go to.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "BackupTarget", plural = "backuptargets", shortname = "lhbt",
        status = "BackupTargetStatus", doc = "A place that backups go to.",
        printcolumn(name = "URL", type_ = "string", description = "The backup target URL", json_path = ".spec.backupTargetURL"),
        printcolumn(name = "Credential", type_ = "string", description = "The backup target credential secret", json_path = ".spec.credentialSecret"),
        printcolumn(name = "LastBackupAt", type_ = "string", description = "The backup target poll interval", json_path = ".spec.pollInterval"),
        printcolumn(name = "Available", type_ = "boolean", description = "Indicate whether the backup target is available or not", json_path = ".status.available"),
        printcolumn(name = "LastSyncedAt", type_ = "string", description = "The backup target last synced time", json_path = ".status.lastSyncedAt"),
    )]
    pub struct BackupTargetSpec {
        /// Folder that backups go to: `file:///backups`, which every node sees, or one below it.
        #[serde(rename = "backupTargetURL")]
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self == '' || self.matches('^file:///[^?#%]+$')", "backups go to folders only; say file:///FOLDER"),
        ]))]
        pub backup_target_url: Location,
        /// Not served here: a folder needs no credentials.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self == ''", "backups go to folders only, which need no credentials; leave credentialSecret out"),
        ]))]
        pub credential_secret: ObjectName,
        /// How often the store is looked through, such as `300s`; `0s` is never.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self == '' || self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$')", "pollInterval is a duration such as 300s or 5m"),
        ]))]
        pub poll_interval: Word,
        /// Asks for a look now, by the moment of asking.
        #[schemars(extend("nullable" = true, "format" = "date-time"))]
        pub sync_requested_at: Timestamp,
    }
}

wire! {
    /// What was seen of a backup target.
    pub struct BackupTargetStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Whether the store can be reached.
        #[schemars(extend("default" = false))]
        pub available: bool,
        /// What can be said about the store.
        pub conditions: Conditions,
        /// When it was last looked through.
        #[schemars(extend("nullable" = true, "format" = "date-time"))]
        pub last_synced_at: Timestamp,
    }
}

kind! {
    /// A copy of a snapshot in a backup target. The label `backup-volume` names its volume.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Backup", plural = "backups", shortname = "lhb",
        status = "BackupStatus", doc = "A copy of a snapshot in a backup target. The label `backup-volume` names its volume.",
        printcolumn(name = "SnapshotName", type_ = "string", description = "The snapshot name", json_path = ".status.snapshotName"),
        printcolumn(name = "SnapshotSize", type_ = "string", description = "The snapshot size", json_path = ".status.size"),
        printcolumn(name = "SnapshotCreatedAt", type_ = "string", description = "The snapshot creation time", json_path = ".status.snapshotCreatedAt"),
        printcolumn(name = "BackupTarget", type_ = "string", description = "The backup target name", json_path = ".status.backupTargetName"),
        printcolumn(name = "State", type_ = "string", description = "The backup state", json_path = ".status.state"),
        printcolumn(name = "LastSyncedAt", type_ = "string", description = "The backup last synced time", json_path = ".status.lastSyncedAt"),
    )]
    pub struct BackupSpec {
        /// Snapshot to back up; empty for a backup that was found in its target.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self == oldSelf", "a backup stays with its snapshot; create another backup"),
        ]))]
        pub snapshot_name: ObjectName,
        /// Only `incremental`: a target keeps every block once, by its hash.
        #[schemars(extend("x-kubernetes-validations" = [
            rule("self != 'full'", "a target keeps every block once, whoever sends it; leave backupMode out"),
        ]))]
        pub backup_mode: BackupMode,
        /// Labels to keep with the backup.
        #[schemars(extend("maxProperties" = 64))]
        pub labels: BTreeMap<String, Word>,
        /// Asks for a look at the store, by the moment of asking.
        #[schemars(extend("nullable" = true, "format" = "date-time"))]
        pub sync_requested_at: Timestamp,
    }
}

wire! {
    /// What was seen of a backup.
    pub struct BackupStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// How far it is.
        pub state: BackupState,
        /// Percent done.
        #[schemars(range(min = 0, max = 100))]
        pub progress: i32,
        /// Why it failed.
        pub error: Message,
        /// Name to restore it by.
        pub url: Location,
        /// Backup target that holds it.
        pub backup_target_name: ObjectName,
        /// When it was made, RFC 3339.
        pub backup_created_at: Timestamp,
        /// Snapshot it is of.
        pub snapshot_name: ObjectName,
        /// When the snapshot was made, RFC 3339.
        pub snapshot_created_at: Timestamp,
        /// Bytes of the snapshot.
        pub size: Size,
        /// Bytes that were sent for the first time.
        pub newly_upload_data_size: Size,
        /// Bytes that were sent again.
        pub re_uploaded_data_size: Size,
        /// How its blocks are packed.
        pub compression_method: CompressionMethod,
        /// Replica it is read from.
        pub replica_address: Address,
        /// Volume it is of.
        pub volume_name: VolumeName,
        /// Size in bytes of the volume.
        pub volume_size: Size,
        /// When the volume was made, RFC 3339.
        pub volume_created: Timestamp,
        /// Labels it was made with.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub labels: BTreeMap<String, Word>,
        /// Further words about it, by topic.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub messages: BTreeMap<String, Message>,
        /// When the store was last looked at.
        #[schemars(extend("nullable" = true, "format" = "date-time"))]
        pub last_synced_at: Timestamp,
    }
}
