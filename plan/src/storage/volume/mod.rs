//! Decides the next step in the life of a volume.
//!
//! ```text
//! creating ──▶ detached ──nodeID──▶ attaching ──▶ attached ──nodeID ""──▶ detaching ──▶ detached
//!                  └──────────── deleted ────────────┴──▶ deleting
//! ```
//!
//! `seen` is what is looked at, `step` chooses the one next action, `upgrade` those that change the engine image under
//! clients, `target` those that move a v2 engine to another node under them, `leave` those of a copy that is told to leave
//! and to come back, `rebuild` those of a copy that is not whole, `salvage` those of a volume that has lost all copies, `standing` says in which state the volume is, `unsettled` why it is not at
//! rest, `integrity` what became of damage. Nothing is remembered: the record, the objects and the instances say how far it is.
//!
//! The invariant: the last copy in service never leaves, and whoever had the volume before is fenced out by
//! a new term before another gets it.

mod integrity;
mod leave;
mod rebuild;
mod salvage;
mod seen;
mod standing;
mod step;
mod target;
#[cfg(test)]
mod tests;
mod unsettled;
mod upgrade;

use std::collections::BTreeSet;

use midflight_api::{Address, EngineName, ImageRef, NodeName, ReplicaName, Size};
use sha2::{Digest, Sha512};

pub use integrity::{INTACT, Integrity, of_replica as integrity_of};
pub use rebuild::{Rebuild, ends_a_turn, note as note_rebuild, wanted as rebuild_wanted};
pub use salvage::is_over as is_salvage_over;
pub use seen::{Deployed, Flaw, Instance, Manager, Observed, Serving, is_leaving};
pub use standing::Standing;
pub use unsettled::{MOVING, NODE_LOST, REPLICAS_AWAY, SETTLED, Unsettled, refused};

use super::schedule::NoPlace;

/// What is to be written down and done.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub standing: Standing,
    pub next: Result<Action, Wait>,
}

/// One step. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Keep the volume until all that belongs to it is gone; give it an image if it asks for none.
    Protect {
        image: ImageRef,
    },
    /// Make the object of a replica on a node.
    MakeReplica {
        name: ReplicaName,
        node: NodeName,
    },
    /// Make the record, with these copies in service.
    MakeRecord {
        members: Vec<(ReplicaName, NodeName)>,
    },
    MakeEngine {
        name: EngineName,
    },
    /// Give the volume to its engine on this node, for a new attachment.
    TakeTerm {
        node: NodeName,
    },
    /// Nobody is served any more.
    EndAttachment,
    /// Note a new copy in the record: it has to be built before it is in service.
    Enlist {
        replica: ReplicaName,
        node: NodeName,
    },
    /// Take a copy out of the record of a volume that nobody has.
    Strike {
        replica: ReplicaName,
    },
    /// Put a copy into service that has older data, in place of all that had more and are lost.
    Salvage {
        replica: ReplicaName,
    },
    /// What was salvaged is served: nothing is asked for any more.
    EndSalvage,
    /// Start a copy; one that runs from another image is followed by one of this.
    StartReplica {
        manager: String,
        replica: ReplicaName,
        image: ImageRef,
        /// Whether its data has to be there: a copy in service is not begun anew.
        existing: bool,
    },
    /// Stop a copy; its data stays.
    StopReplica {
        manager: String,
        replica: ReplicaName,
    },
    StartEngine {
        manager: String,
        image: ImageRef,
        members: Vec<(ReplicaName, Address)>,
    },
    StopEngine {
        manager: String,
        engine: EngineName,
    },
    /// Give the volume's next term to another engine on its node, of this image.
    ChangeEngine {
        image: ImageRef,
    },
    /// Give the volume's next term to an engine on another node.
    MoveEngine {
        node: NodeName,
    },
    /// A volume that is detached has its target nowhere.
    ClearTarget,
    /// Let the frontend go over to the engine that has the term.
    SwitchOver {
        manager: String,
        engine: Address,
    },
    /// The engine that has the term serves.
    EndSwitch,
    /// Tell the engine of a copy that it does not know, or to forget one.
    AddReplica {
        manager: String,
        replica: ReplicaName,
        address: Address,
    },
    RemoveReplica {
        manager: String,
        replica: ReplicaName,
    },
    /// Note that the engine is about to be told to let a copy go: from then on it may not know it, whatever becomes of the order.
    DoubtReplica {
        replica: ReplicaName,
    },
    /// Put a copy out of service that is to come back.
    ReleaseReplica {
        manager: String,
        replica: ReplicaName,
    },
    Expand {
        manager: String,
        size: Size,
    },
    /// Let rebuilds copy so many bytes per second at most; 0 is no limit.
    Throttle {
        manager: String,
        bytes_per_second: u64,
    },
    /// Let a copy be silent for so long before it is taken out of service.
    Bear {
        manager: String,
        seconds: u32,
    },
    /// Let the engine rebuild these copies and no others.
    Permit {
        manager: String,
        replicas: BTreeSet<ReplicaName>,
    },
    /// Offer the volume to clients of its node.
    Offer {
        manager: String,
        engine: Address,
    },
    /// Stop offering it. Without a manager its node is lost, and with it the frontend and the clients.
    Withdraw {
        manager: Option<String>,
    },
    /// Give a copy up, or one that is too many.
    DeleteReplica {
        replica: ReplicaName,
    },
    /// Remove the data of a replica that goes, then its object. Without a manager nothing of it is on any node.
    ForgetReplica {
        manager: Option<String>,
        replica: ReplicaName,
    },
    DeleteEngine,
    DeleteRecord,
    /// Nothing of a deleted volume is left.
    Release,
}

/// Why nothing is being done. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("all is as it should be")]
    Content,
    #[error("it has no engine image; set spec.image, or the setting default-engine-image")]
    NoImage,
    #[error("its size is that of the backup in spec.fromBackup, which is not known yet")]
    NoSize,
    #[error("replica {0} is coming up")]
    ReplicaStarts(ReplicaName),
    #[error("the engine is coming up")]
    EngineStarts,
    #[error("node {0} has no running instance manager for the volume's data engine")]
    NoManager(NodeName),
    #[error(
        "none of the replicas that have all data can be reached: {0}; the volume serves again when one of their nodes is back; if they are gone for good, spec.salvageRequested of another replica makes it serve what that one has"
    )]
    NoCopy(String),
    #[error(
        "all replicas failed, and the setting auto-salvage is false; spec.salvageRequested of one that has all data makes it serve again: {0}"
    )]
    NotSalvaged(String),
    #[error("no node for another replica: {0}")]
    NoPlace(NoPlace),
    #[error("replica {replica} cannot be reached; it is replaced if it is not back by {until}")]
    Missing { replica: ReplicaName, until: jiff::Timestamp },
    #[error(
        "replica {replica} is to leave node {node}, and can be copied only while the volume is attached; attach it, or set its spec.offlineRebuilding to enabled"
    )]
    CannotLeave { replica: ReplicaName, node: NodeName },
    #[error("a replica is being rebuilt")]
    Rebuilding,
    #[error("replica {replica} waits to be rebuilt: {why}")]
    Turn { replica: ReplicaName, why: String },
    #[error("no replica is rebuilt or added: the setting concurrent-replica-rebuild-per-node-limit is 0")]
    RebuildsOff,
    #[error("the engine of {image} serves; it has to do so for a while before the replicas follow")]
    Proving { image: ImageRef, until: jiff::Timestamp },
    #[error(
        "the target is to be on node {0}, which has no running instance manager for the volume's data engine"
    )]
    NoTarget(NodeName),
    #[error(
        "the target cannot be on node {node}: {why}; it is tried again when spec.targetNodeID was another"
    )]
    TargetFailed { node: NodeName, why: String },
    #[error("the target could not be brought home to node {node}: {why}; it is tried again at {until}")]
    NotHome { node: NodeName, why: String, until: jiff::Timestamp },
    #[error("{}", left(.0))]
    Left(Vec<(ReplicaName, NodeName)>),
    #[error(
        "the data engine of node {0} is being upgraded; until that is done, a lost replica is waited for and none is added"
    )]
    NodeUpgraded(NodeName),
    #[error(
        "replica {replica} on node {node} was told to leave and is the last in service; it stays until another is: {others}"
    )]
    LastCopy { replica: ReplicaName, node: NodeName, others: String },
    #[error(
        "replica {replica} on node {node} is to go and stays until another that has all data can be reached: {others}"
    )]
    LastWhole { replica: ReplicaName, node: NodeName, others: String },
    #[error("node {node} has to be reached to remove {what} from it")]
    CannotRemove { node: NodeName, what: String },
}

fn left(replicas: &[(ReplicaName, NodeName)]) -> String {
    let all: Vec<String> = replicas.iter().map(|(replica, node)| format!("{replica} on {node}")).collect();
    format!("told to leave until they are told to run again: {}", all.join(", "))
}

/// Looks at a volume and says where it stands and what to do next.
pub fn decide(seen: &Observed) -> Decision {
    let next = step::next(seen);
    Decision { standing: standing::standing(seen, &next), next }
}

/// The one engine of a volume.
pub fn engine_name(volume: &str) -> EngineName {
    format!("{volume}-e-0").into()
}

/// What the engine of a later term is called: both run while one follows the other.
pub fn next_engine_name(volume: &str, term: midflight_api::Term) -> EngineName {
    format!("{volume}-e-{term}").into()
}

/// Whether an instance is an engine of this volume.
pub fn is_engine_of(volume: &str, instance: &str) -> bool {
    let number = instance.strip_prefix(volume).and_then(|rest| rest.strip_prefix("-e-"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A name that no replica of this volume has had, if `number` is one that never comes again.
fn replica_name(volume: &str, uid: &str, number: &str) -> ReplicaName {
    let digest = Sha512::digest(format!("{uid}/{number}").as_bytes());
    let hex: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{volume}-r-{hex}").into()
}

/// The attachment of a term: a number that no other of this volume's has.
pub fn attachment(uid: &str, term: midflight_api::Term) -> u64 {
    let digest = Sha512::digest(format!("{uid}/attachment/{term}").as_bytes());
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}
