//! An instance manager: the process of one node, image and data engine that
//! runs engines and replicas.
//!
//! The invariant: an instance manager with instances in it is never deleted to
//! make room for another.

use std::collections::BTreeMap;

use super::{Conditions, DataEngine, InstanceState};
use crate::names::{Address, Id, ImageRef, Location, Message, NodeName, ObjectName, Word};
use crate::wire::{kind, rule, wire, words};

words! {
    /// What an instance manager hosts; all but `aio` are upstream's past.
    pub enum InstanceManagerType {
        #[default]
        AllInOne = "aio",
        Engine = "engine",
        Replica = "replica",
    } or Unrecognised
}

words! {
    /// What an instance manager does.
    pub enum InstanceManagerState {
        #[default]
        Undefined = "",
        Error = "error",
        Running = "running",
        Stopped = "stopped",
        Starting = "starting",
        Unknown = "unknown",
    } or Unrecognised
}

words! {
    /// What an instance is.
    pub enum InstanceType {
        #[default]
        Undefined = "",
        Engine = "engine",
        Replica = "replica",
    } or Unrecognised
}

kind! {
    /// Runs the engines and replicas of one node, image and data engine.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "InstanceManager", plural = "instancemanagers",
        shortname = "lhim", status = "InstanceManagerStatus",
        doc = "Runs the engines and replicas of one node, image and data engine.",
        printcolumn(name = "Data Engine", type_ = "string", description = "The data engine of the instance manager", json_path = ".spec.dataEngine"),
        printcolumn(name = "State", type_ = "string", description = "The state of the instance manager", json_path = ".status.currentState"),
        printcolumn(name = "Type", type_ = "string", description = "The type of the instance manager (engine or replica)", json_path = ".spec.type"),
        printcolumn(name = "Node", type_ = "string", description = "The node that the instance manager is running on", json_path = ".spec.nodeID"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    #[schemars(extend("x-kubernetes-validations" = [
        rule("self == oldSelf", "an instance manager is one of a node, image and data engine; create another instead of changing it"),
    ]))]
    pub struct InstanceManagerSpec {
        /// Image it runs from.
        pub image: ImageRef,
        /// Node it runs on.
        #[serde(rename = "nodeID")]
        pub node_id: NodeName,
        /// What it hosts: `aio`, engines and replicas.
        #[serde(rename = "type")]
        #[schemars(extend("default" = "aio"))]
        pub kind: InstanceManagerType,
        /// Which data engine it runs.
        #[schemars(extend("default" = "v1"))]
        pub data_engine: DataEngine,
    }
}

wire! {
    /// What was seen of an instance manager.
    pub struct InstanceManagerStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// What it does.
        pub current_state: InstanceManagerState,
        /// Address it listens on.
        pub ip: Address,
        /// Newest version of the control interface it speaks.
        pub api_version: i32,
        /// Oldest version of the control interface it speaks.
        pub api_min_version: i32,
        /// Newest version of the interface to engines it speaks.
        pub proxy_api_version: i32,
        /// Oldest version of the interface to engines it speaks.
        pub proxy_api_min_version: i32,
        /// Newest format of replicas' folders that it reads.
        pub data_format_version: i32,
        /// Oldest format of replicas' folders that it reads.
        pub data_format_min_version: i32,
        /// Engines in it, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 5000))]
        pub instance_engines: BTreeMap<String, InstanceProcess>,
        /// Replicas in it, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 5000))]
        pub instance_replicas: BTreeMap<String, InstanceProcess>,
        /// What can be said about the instance manager: NodeReady, PodReady, SettingSynced, ReplicasKnown.
        pub conditions: Conditions,
    }
}

wire! {
    /// An instance as its instance manager reports it.
    pub struct InstanceProcess {
        /// What it is.
        pub spec: InstanceProcessSpec,
        /// What it does.
        pub status: InstanceProcessStatus,
    }
}

wire! {
    /// What an instance is.
    pub struct InstanceProcessSpec {
        /// Name of the Engine or Replica.
        pub name: ObjectName,
        /// Which data engine runs it.
        pub data_engine: DataEngine,
        /// Program that it is a process of, below the node's folder of engine binaries; empty inside the instance manager.
        pub binary: Location,
    }
}

wire! {
    /// What an instance does.
    pub struct InstanceProcessStatus {
        /// State it is in.
        pub state: InstanceState,
        /// Whether it is an engine or a replica.
        #[serde(rename = "type")]
        pub kind: InstanceType,
        /// Where clients find it.
        pub endpoint: Location,
        /// Why it failed.
        pub error_msg: Message,
        /// Address it listens on.
        pub listen: Address,
        /// First port of the instance.
        #[schemars(range(min = 0, max = 65535))]
        pub port_start: i32,
        /// Last port of the instance.
        #[schemars(range(min = 0, max = 65535))]
        pub port_end: i32,
        /// First port of its target.
        #[schemars(range(min = 0, max = 65535))]
        pub target_port_start: i32,
        /// Last port of its target.
        #[schemars(range(min = 0, max = 65535))]
        pub target_port_end: i32,
        /// First port of the target that stands by to take over.
        #[schemars(range(min = 0, max = 65535))]
        pub standby_target_port_start: i32,
        /// Last port of the target that stands by to take over.
        #[schemars(range(min = 0, max = 65535))]
        pub standby_target_port_end: i32,
        /// Rises with every change of the instance.
        pub resource_version: i64,
        /// Identity of this run of the instance.
        pub uuid: Id,
        /// How often it ended and was started again.
        #[schemars(range(min = 0))]
        pub restarts: i64,
        /// Further facts about the instance, by name.
        #[schemars(extend("nullable" = true, "maxProperties" = 64))]
        pub conditions: BTreeMap<Word, bool>,
    }
}
