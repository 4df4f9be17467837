//! A replica: one copy of a volume in a folder of one node.
//!
//! The invariant: `failedAt` and `healthyAt` are never both set.

use super::{InstanceSpec, InstanceStatus};
use crate::names::{EngineName, Id, Location, NodeName, ObjectName, Timestamp};
use crate::wire::{kind, rule, wire};

kind! {
    /// One copy of a volume on one node.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Replica", plural = "replicas", shortname = "lhr",
        status = "ReplicaStatus", doc = "One copy of a volume on one node.",
        printcolumn(name = "Data Engine", type_ = "string", description = "The data engine of the replica", json_path = ".spec.dataEngine"),
        printcolumn(name = "State", type_ = "string", description = "The current state of the replica", json_path = ".status.currentState"),
        printcolumn(name = "Node", type_ = "string", description = "The node that the replica is on", json_path = ".spec.nodeID"),
        printcolumn(name = "Disk", type_ = "string", description = "The disk that the replica is on", json_path = ".spec.diskID"),
        printcolumn(name = "InstanceManager", type_ = "string", description = "The instance manager of the replica", json_path = ".status.instanceManagerName"),
        printcolumn(name = "Image", type_ = "string", description = "The current image of the replica", json_path = ".status.currentImage"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    #[schemars(extend("x-kubernetes-validations" = [
        rule("!has(self.healthyAt) || self.healthyAt == '' || !has(self.failedAt) || self.failedAt == ''",
             "a replica is healthy or failed; clear healthyAt or failedAt"),
    ]))]
    pub struct ReplicaSpec {
        flatten pub instance: InstanceSpec,
        /// Engine that writes to the replica.
        pub engine_name: EngineName,
        /// Engine that will, after a move.
        pub migration_engine_name: EngineName,
        /// Whether the replica serves; the successor of a live upgrade is not active until the switch.
        pub active: bool,
        /// Since when the replica has all data, RFC 3339; empty until it was built.
        pub healthy_at: Timestamp,
        /// When it last had all data, RFC 3339.
        pub last_healthy_at: Timestamp,
        /// When the replica failed, RFC 3339; empty if it did not.
        pub failed_at: Timestamp,
        /// When it last failed, RFC 3339.
        pub last_failed_at: Timestamp,
        /// Disk that holds it.
        #[serde(rename = "diskID")]
        pub disk_id: Id,
        /// Path of that disk on the node.
        pub disk_path: Location,
        /// Folder of the replica on the disk.
        pub data_directory_name: ObjectName,
        /// Node the replica must stay on.
        pub hard_node_affinity: NodeName,
        /// Whether the replica should move to another disk.
        pub eviction_requested: bool,
        /// Rebuilds that failed in a row.
        #[schemars(range(min = 0, max = 1000000))]
        pub rebuild_retry_count: i32,
    }
}

wire! {
    /// What was seen of a replica.
    pub struct ReplicaStatus {
        flatten pub instance: InstanceStatus,
    }
}
