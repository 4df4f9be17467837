//! A node as storage sees it: its disks, and whether replicas may come to it.
//!
//! The invariant: a node under upgrade is never scheduled to.

use std::collections::BTreeMap;

use super::Conditions;
use crate::names::{Id, InstanceManagerName, Location, NodeName, Word};
use crate::wire::{kind, rule, wire, words};

words! {
    /// What a disk is on its node.
    pub enum DiskType {
        #[default]
        Filesystem = "filesystem",
        Block = "block",
    } or Unrecognised
}

kind! {
    /// A node with its disks.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Node", plural = "nodes", shortname = "lhn",
        status = "NodeStatus", doc = "A node with its disks.",
        printcolumn(name = "Ready", type_ = "string", description = "Indicate whether the node is ready", json_path = ".status.conditions[?(@.type=='Ready')].status"),
        printcolumn(name = "AllowScheduling", type_ = "boolean", description = "Indicate whether the user disabled/enabled replica scheduling for the node", json_path = ".spec.allowScheduling"),
        printcolumn(name = "Schedulable", type_ = "string", description = "Indicate whether Longhorn can schedule replicas on the node", json_path = ".status.conditions[?(@.type=='Schedulable')].status"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    pub struct NodeSpec {
        /// Name of the node in Kubernetes.
        pub name: NodeName,
        /// The disk of the node, by its name: replicas are in one folder, `/instance-manager`.
        #[schemars(extend("maxProperties" = 128, "x-kubernetes-validations" = [
            rule("size(self) <= 1", "replicas of a node are in one folder; name one disk, and mount a larger one at its path"),
            rule("self.all(name, !has(self[name].path) || self[name].path in ['', '/instance-manager'])",
                 "replicas of a node are in /instance-manager; leave path so, and mount there the disk that is to hold them"),
        ]))]
        pub disks: BTreeMap<String, DiskSpec>,
        /// Whether new replicas may come to the node.
        #[schemars(extend("default" = false))]
        pub allow_scheduling: bool,
        /// Whether replicas should leave the node.
        pub eviction_requested: bool,
        /// Words that volumes select nodes by.
        #[schemars(length(max = 64))]
        pub tags: Vec<Word>,
        /// Whether the data engine of this node is being upgraded. While it is, no
        /// volume can be attached here and no replica comes; detaching works.
        pub data_engine_upgrade_requested: bool,
    }
}

wire! {
    /// A disk of a node.
    pub struct DiskSpec {
        /// Path on the node: `/instance-manager`, or empty for the same.
        pub path: Location,
        /// What is at the path.
        pub disk_type: DiskType,
        /// Whether new replicas may come to the disk.
        pub allow_scheduling: bool,
        /// Whether replicas should leave the disk.
        pub eviction_requested: bool,
        /// Bytes that are not for replicas.
        #[schemars(range(min = 0))]
        pub storage_reserved: i64,
        /// Words that volumes select disks by.
        #[schemars(length(max = 64))]
        pub tags: Vec<Word>,
    }
}

wire! {
    /// What was seen of a node.
    pub struct NodeStatus {
        /// What can be said about the node: Ready, Schedulable and others.
        pub conditions: Conditions,
        /// Its disks, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 128))]
        pub disk_status: BTreeMap<String, DiskStatus>,
        /// Zone of the node, by its label `topology.kubernetes.io/zone`.
        pub zone: Word,
        /// Region of the node, by its label `topology.kubernetes.io/region`.
        pub region: Word,
        /// Whether replicas leave the node because it is drained.
        pub auto_evicting: bool,
    }
}

wire! {
    /// What was seen of a disk.
    pub struct DiskStatus {
        /// What can be said about the disk: Ready, Schedulable.
        pub conditions: Conditions,
        /// Name of the disk.
        pub disk_name: Word,
        /// Path on the node.
        pub disk_path: Location,
        /// What is at the path.
        pub disk_type: DiskType,
        /// Identity of the disk.
        #[serde(rename = "diskUUID")]
        pub disk_uuid: Id,
        /// Kind of file system.
        pub filesystem_type: Word,
        /// Instance manager that uses the disk.
        pub instance_manager_name: InstanceManagerName,
        /// Bytes that are free.
        pub storage_available: i64,
        /// Bytes in all.
        pub storage_maximum: i64,
        /// Bytes promised to replicas.
        pub storage_scheduled: i64,
        /// Bytes promised to each replica, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 5000))]
        pub scheduled_replica: BTreeMap<String, i64>,
    }
}
