//! Seed 004: replaces the data engine of every node while its volumes serve.
//!
//! The invariant: a state is written before anything is done in it, so that
//! whoever comes next continues from there.

use std::collections::BTreeMap;

use super::DataEngine;
use crate::condition::Conditions;
use crate::names::{ImageRef, Message, NodeName, ObjectName, Timestamp, VolumeName};
use crate::wire::{kind, rule, wire, words};

words! {
    /// Where the upgrade of all nodes stands.
    ///
    /// ```text
    /// undefined ──▶ initializing ──▶ upgrading ──▶ completed
    ///     └───────────────┴──────────────┴──────▶ error
    /// ```
    pub enum UpgradeState {
        #[default]
        Undefined = "undefined",
        Initializing = "initializing",
        Upgrading = "upgrading",
        Completed = "completed",
        Error = "error",
    }
}

words! {
    /// Where the upgrade of one node, or of one volume on it, stands.
    ///
    /// ```text
    /// undefined ▶ initializing ▶ failing-replicas ▶ switching-over ▶ upgrading-instance-manager
    ///                                                                          │
    /// completed ◀ finalizing ◀ rebuilding-replica ◀ switching-back ◀───────────┘
    /// ```
    ///
    /// On the way back (`status.failure`) any state leads to `switching-back`, and `finalizing` to `error`.
    pub enum NodeUpgradeState {
        #[default]
        Undefined = "undefined",
        Initializing = "initializing",
        FailingReplicas = "failing-replicas",
        SwitchingOver = "switching-over",
        UpgradingInstanceManager = "upgrading-instance-manager",
        SwitchingBack = "switching-back",
        RebuildingReplica = "rebuilding-replica",
        Finalizing = "finalizing",
        Completed = "completed",
        Error = "error",
    }
}

impl NodeUpgradeState {
    /// Whether something is being done to the node.
    pub fn is_under_way(self) -> bool {
        match self {
            NodeUpgradeState::Undefined | NodeUpgradeState::Completed | NodeUpgradeState::Error => false,
            NodeUpgradeState::Initializing
            | NodeUpgradeState::FailingReplicas
            | NodeUpgradeState::SwitchingOver
            | NodeUpgradeState::UpgradingInstanceManager
            | NodeUpgradeState::SwitchingBack
            | NodeUpgradeState::RebuildingReplica
            | NodeUpgradeState::Finalizing => true,
        }
    }
}

kind! {
    /// Asks for the data engine of every node to be replaced while its volumes stay attached.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "DataEngineUpgradeManager",
        plural = "dataengineupgrademanagers", shortname = "lhum", status = "DataEngineUpgradeManagerStatus",
        doc = "Asks for the data engine of every node to be replaced while its volumes stay attached.",
        printcolumn(name = "Node", type_ = "string", description = "The node that the upgrade manager is being performed on", json_path = ".status.ownerID"),
        printcolumn(name = "Data Engine", type_ = "string", description = "The data engine targeted for upgrade", json_path = ".spec.dataEngine"),
        printcolumn(name = "State", type_ = "string", description = "The current state of the upgrade process", json_path = ".status.state"),
        printcolumn(name = "Upgrading Node", type_ = "string", description = "The node that is currently being upgraded", json_path = ".status.upgradingNode"),
        printcolumn(name = "Paused", type_ = "boolean", description = "Whether no further node is begun", priority = 1, json_path = ".spec.paused"),
    )]
    #[schemars(extend("required" = ["dataEngine"], "x-kubernetes-validations" = [
        rule("self.dataEngine == 'v2'", "only the v2 data engine is upgraded node by node; set dataEngine to v2 (v1 volumes follow default-engine-image)"),
        rule("self.dataEngine == oldSelf.dataEngine", "dataEngine cannot change; delete this upgrade and create another"),
        rule("(has(self.nodes) ? self.nodes : []) == (has(oldSelf.nodes) ? oldSelf.nodes : [])",
             "nodes cannot change; delete this upgrade and create another"),
    ]))]
    pub struct DataEngineUpgradeManagerSpec {
        /// Which data engine to upgrade: `v2`.
        pub data_engine: DataEngine,
        /// Nodes to upgrade, in any order; empty is all.
        #[schemars(length(max = 5000), extend("x-kubernetes-list-type" = "set"))]
        pub nodes: Vec<NodeName>,
        /// Begin no further node. Those that have begun go on to their end.
        pub paused: bool,
        /// How many nodes may be upgraded at once; only nodes that share no volume are.
        #[schemars(range(min = 1, max = 100), extend("default" = 1))]
        pub max_parallel_nodes: i32,
    }
}

wire! {
    /// How far the upgrade is.
    pub struct DataEngineUpgradeManagerStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Instance-manager image that nodes are upgraded to.
        pub instance_manager_image: ImageRef,
        /// Where the upgrade stands.
        pub state: UpgradeState,
        /// Why it is not further, and what would help.
        pub message: Message,
        /// Node that is being upgraded; the first by name if there are several.
        pub upgrading_node: NodeName,
        /// Where each node stands.
        #[schemars(extend("maxProperties" = 5000))]
        pub upgrade_nodes: BTreeMap<NodeName, UpgradeNodeStatus>,
        /// For how long the frontend of any volume held back requests at most, in microseconds.
        #[schemars(range(min = 0))]
        pub longest_pause_us: i64,
        /// Since when it is in its state, RFC 3339.
        pub since: Timestamp,
        /// Generation of the spec that this status speaks of.
        pub observed_generation: i64,
        /// Ready, Reconciling and Stalled, and why.
        pub conditions: Conditions,
    }
}

wire! {
    /// Where a node of the upgrade stands.
    pub struct UpgradeNodeStatus {
        /// Where it stands.
        pub state: NodeUpgradeState,
        /// Why it is not further, and what would help.
        pub message: Message,
        /// Attempts that failed.
        #[schemars(range(min = 0))]
        pub failures: i32,
        /// When it is tried again after a failure, RFC 3339; empty if nothing is put off.
        pub retry_at: Timestamp,
        /// When the last attempt began, RFC 3339.
        pub started_at: Timestamp,
        /// When it was completed, RFC 3339.
        pub completed_at: Timestamp,
        /// For how long the frontend of any of its volumes held back requests at most, in microseconds.
        #[schemars(range(min = 0))]
        pub longest_pause_us: i64,
    }
}

kind! {
    /// The upgrade of one node, made by a DataEngineUpgradeManager.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "NodeDataEngineUpgrade", plural = "nodedataengineupgrades",
        shortname = "lhnu", status = "NodeDataEngineUpgradeStatus",
        doc = "The upgrade of one node, made by a DataEngineUpgradeManager.",
        printcolumn(name = "Node", type_ = "string", description = "The node that the upgrade is being performed on", json_path = ".status.ownerID"),
        printcolumn(name = "Data Engine", type_ = "string", description = "The data engine targeted for node upgrade", json_path = ".spec.dataEngine"),
        printcolumn(name = "State", type_ = "string", description = "The current state of the node upgrade process", json_path = ".status.state"),
    )]
    #[schemars(extend("required" = ["nodeID", "dataEngine", "instanceManagerImage", "dataEngineUpgradeManager"], "x-kubernetes-validations" = [
        rule("self.dataEngine == 'v2'", "only the v2 data engine is upgraded node by node; set dataEngine to v2"),
        rule("self == oldSelf", "the upgrade of a node cannot change; delete its DataEngineUpgradeManager to abort it"),
    ]))]
    pub struct NodeDataEngineUpgradeSpec {
        /// Node to upgrade.
        #[serde(rename = "nodeID")]
        pub node_id: NodeName,
        /// Which data engine to upgrade: `v2`.
        pub data_engine: DataEngine,
        /// Instance-manager image to upgrade to.
        pub instance_manager_image: ImageRef,
        /// DataEngineUpgradeManager that asked for it.
        pub data_engine_upgrade_manager: ObjectName,
    }
}

wire! {
    /// How far the upgrade of a node is.
    pub struct NodeDataEngineUpgradeStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Where each volume with an engine or replica on the node stands.
        #[schemars(extend("maxProperties" = 5000))]
        pub volumes: BTreeMap<VolumeName, VolumeUpgradeStatus>,
        /// Where the upgrade stands.
        pub state: NodeUpgradeState,
        /// Why it is not further, and what would help.
        pub message: Message,
        /// Since when it is in its state, RFC 3339.
        pub since: Timestamp,
        /// Why the node goes back, or went back, to how it was; empty while it goes on.
        pub failure: Message,
        /// State that the node was in when it began to go back; `undefined` while it goes on.
        pub returned_from: NodeUpgradeState,
        /// Image of the instance manager that is replaced.
        pub previous_image: ImageRef,
        /// Generation of the spec that this status speaks of.
        pub observed_generation: i64,
        /// Ready, Reconciling and Stalled, and why.
        pub conditions: Conditions,
    }
}

wire! {
    /// Where a volume of the upgrade stands.
    pub struct VolumeUpgradeStatus {
        /// Where it stands.
        pub state: NodeUpgradeState,
        /// Why it is not further, and what would help.
        pub message: Message,
        /// Node that serves it meanwhile; empty if its engine does not move.
        #[serde(rename = "temporaryNodeID")]
        pub temporary_node_id: NodeName,
        /// For how long its frontend held back requests at most while its engine moved, in microseconds.
        #[schemars(range(min = 0))]
        pub pause_us: i64,
        /// The longest that any request waited for its answer in that time, in microseconds.
        #[schemars(range(min = 0))]
        pub longest_wait_us: i64,
        /// Bytes that were copied to its replica of the node when that came back.
        #[schemars(range(min = 0))]
        pub rebuilt_bytes: i64,
        /// Bytes that its engine had copied to replicas before, which do not count.
        #[schemars(range(min = 0))]
        pub rebuilt_before_bytes: i64,
    }
}
