//! The nouns of Midflight: resources, states, ids and wire messages. No I/O.
//!
//! The invariant: names and values of upstream's kinds are upstream's, and what
//! the schemas accept is what the types can hold.

mod attempt;
pub mod condition;
mod crds;
mod epoch;
pub mod fluid;
pub mod longhorn;
mod machine;
mod names;
mod record;
mod reference;
mod registry;
pub mod settings;
mod size;
mod wire;

pub use attempt::{Attempt, ENGINE_UPGRADE, ENGINE_UPGRADE_ATTEMPT, FINALIZED, Initiator, Outcome, Way};
/// Condition of a pod of the embedded cluster: whether its images are on its node; if not, how far that is or why.
pub const IMAGES_PULLED: &str = "midflight.dev/ImagesPulled";

pub use crds::{MANAGED_BY, MANAGER, System, crds, render, system_of};
pub use epoch::{Epoch, Term};
pub use machine::images_listed;
pub use names::{
    Address, EngineName, Id, ImageRef, InstanceManagerName, Location, Message, NodeName, ObjectName,
    ReplicaName, Timestamp, VolumeName, Word,
};
pub use record::{
    EngineSeat, FrontendSeat, Member, MemberMode, NODES_OF_RECORD, Operation, OperationPhase, VolumeRecord,
    VolumeRecordSpec,
};
pub use reference::reference;
pub use registry::{LOCAL_REGISTRY, split_registry};
pub use size::Size;
