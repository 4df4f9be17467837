//! What engines and replicas have in common: both are instances that an
//! instance manager runs.
//!
//! The invariant: spec says where and from which image an instance should run,
//! status only what was seen of it.

use super::Conditions;
use crate::names::{Address, Id, ImageRef, InstanceManagerName, NodeName, VolumeName};
use crate::size::Size;
use crate::wire::{wire, words};

words! {
    /// Which data engine serves a volume: `v1` has a process per engine and
    /// replica, `v2` hosts them all in the instance manager of the node.
    pub enum DataEngine {
        #[default]
        V1 = "v1",
        V2 = "v2",
    }
}

words! {
    /// How clients reach a volume.
    pub enum Frontend {
        /// Not at all.
        #[default]
        None = "",
        /// A block device on the node.
        Blockdev = "blockdev",
        Iscsi = "iscsi",
        Nvmf = "nvmf",
        Ublk = "ublk",
        /// An NBD export on a Unix socket of the node.
        Nbd = "nbd",
    } or Unrecognised
}

words! {
    /// What an instance does.
    pub enum InstanceState {
        /// Nobody has looked yet.
        #[default]
        Undefined = "",
        Running = "running",
        /// Holds its clients' requests back during a switch-over.
        Suspended = "suspended",
        Stopped = "stopped",
        Error = "error",
        Starting = "starting",
        Stopping = "stopping",
        Unknown = "unknown",
        Terminated = "terminated",
    } or Unrecognised
}

wire! {
    /// What an instance should be.
    pub struct InstanceSpec {
        /// Volume the instance belongs to.
        pub volume_name: VolumeName,
        /// Size of that volume in bytes.
        pub volume_size: Size,
        /// Node the instance should run on.
        #[serde(rename = "nodeID")]
        pub node_id: NodeName,
        /// Node on which the target of the volume should run during a node upgrade; empty is `nodeID`.
        #[serde(rename = "targetNodeID")]
        pub target_node_id: NodeName,
        /// Image the instance should run from.
        pub image: ImageRef,
        /// State the instance should be in: `running`, or `stopped` for a replica that leaves and keeps its data.
        pub desire_state: InstanceState,
        /// Which data engine runs it.
        #[schemars(extend("default" = "v1"))]
        pub data_engine: DataEngine,
        /// Asks to serve again from what is left after all replicas failed.
        pub salvage_requested: bool,
    }
}

wire! {
    /// What was seen of an instance.
    pub struct InstanceStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Instance manager that runs the instance.
        pub instance_manager_name: InstanceManagerName,
        /// State the instance is in.
        pub current_state: InstanceState,
        /// Image the instance runs from.
        pub current_image: ImageRef,
        /// Address of the instance for control.
        pub ip: Address,
        /// Address of the instance for data.
        #[serde(rename = "storageIP")]
        pub storage_ip: Address,
        /// Port of the instance.
        #[schemars(range(min = 0, max = 65535))]
        pub port: i32,
        /// Address of the volume's target for control.
        #[serde(rename = "targetIP")]
        pub target_ip: Address,
        /// Address of the volume's target for data.
        #[serde(rename = "storageTargetIP")]
        pub storage_target_ip: Address,
        /// Port of the volume's target.
        #[schemars(range(min = 0, max = 65535))]
        pub target_port: i32,
        /// Node on which the target runs.
        #[serde(rename = "currentTargetNodeID")]
        pub current_target_node_id: NodeName,
        /// Whether the target that is to take over has been created.
        pub target_instance_replacement_created: bool,
        /// Whether a start was asked for.
        pub starting: bool,
        /// Whether the instance has started since it was last stopped.
        pub started: bool,
        /// Whether older data was put into service because somebody asked for it, and is not served yet.
        pub salvage_executed: bool,
        /// Identity of this run of the instance.
        pub uuid: Id,
        /// What can be said about the instance.
        pub conditions: Conditions,
    }
}
