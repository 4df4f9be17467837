//! A snapshot of a volume.
//!
//! The invariant: a snapshot is ready to use only while the engine reports it.

use std::collections::BTreeMap;

use crate::names::{Message, NodeName, ObjectName, Timestamp, VolumeName, Word};
use crate::wire::{kind, rule, wire};

kind! {
    /// The state of a volume at one moment.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Snapshot", plural = "snapshots", shortname = "lhsnap",
        status = "SnapshotStatus", doc = "The state of a volume at one moment.",
        printcolumn(name = "Volume", type_ = "string", description = "The volume that this snapshot belongs to", json_path = ".spec.volume"),
        printcolumn(name = "CreationTime", type_ = "string", description = "Timestamp when the point-in-time snapshot was taken", json_path = ".status.creationTime"),
        printcolumn(name = "ReadyToUse", type_ = "boolean", description = "Indicates if the snapshot is ready to be used to restore/backup a volume", json_path = ".status.readyToUse"),
        printcolumn(name = "RestoreSize", type_ = "string", description = "Represents the minimum size of volume required to rehydrate from this snapshot", json_path = ".status.restoreSize"),
        printcolumn(name = "Size", type_ = "string", description = "The actual size of the snapshot", json_path = ".status.size"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    #[schemars(extend("required" = ["volume"]))]
    pub struct SnapshotSpec {
        /// Volume the snapshot is of.
        #[schemars(length(min = 1), extend("x-kubernetes-validations" = [
            rule("self == oldSelf", "a snapshot stays with its volume; create another snapshot"),
        ]))]
        pub volume: VolumeName,
        /// Whether to take a snapshot now; false only stands for one that exists.
        pub create_snapshot: bool,
        /// Labels to keep with the snapshot.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub labels: BTreeMap<String, Word>,
    }
}

wire! {
    /// What was seen of a snapshot.
    pub struct SnapshotStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Snapshot before it.
        pub parent: ObjectName,
        /// Snapshots after it, by name; `volume-head` is the live volume.
        #[schemars(extend("nullable" = true, "maxProperties" = 256))]
        pub children: BTreeMap<String, bool>,
        /// Labels it was made with.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub labels: BTreeMap<String, Word>,
        /// Whether it was deleted and is still to be merged.
        pub mark_removed: bool,
        /// Whether a user made it.
        pub user_created: bool,
        /// When it was made, RFC 3339.
        pub creation_time: Timestamp,
        /// When it was asked for, RFC 3339.
        pub requested_time: Timestamp,
        /// Whether it can be restored or backed up.
        #[schemars(extend("default" = false))]
        pub ready_to_use: bool,
        /// Size in bytes of the volume when it was made.
        pub restore_size: i64,
        /// Bytes it takes.
        pub size: i64,
        /// Checksum of its data.
        pub checksum: Word,
        /// Why it could not be made.
        pub error: Message,
    }
}
