//! Decides what people may ask of nodes, also while they are upgraded.
//!
//! The invariant: whatever is refused is refused by name, and detaching never is.

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::NodeName;
use midflight_api::longhorn::{DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, UpgradeState};

use super::facts::{Copy, Nodes, Volume};
use super::words::some_of;

/// Why something is refused. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("spec.nodeID is {node}, which is no node of the cluster; {}", list(.known))]
    UnknownNode { node: NodeName, known: Vec<NodeName> },
    #[error(
        "spec.targetNodeID is {node}, which is no node of the cluster; {}; name one of its nodes, or clear it for that of spec.nodeID",
        list(.known)
    )]
    UnknownTarget { node: NodeName, known: Vec<NodeName> },
    #[error(
        "the data engine of node {0} is being upgraded; attach the volume to another node, or wait until it is done"
    )]
    NodeUpgrading(NodeName),
    #[error(
        "all copies of the volume that have all data are on nodes whose data engine is being upgraded; wait until they are done"
    )]
    NoCopy,
    #[error("DataEngineUpgradeManager {0} is not done; wait for it, or delete it to abort")]
    Active(String),
    #[error("a cluster of one node has no other that could serve its volumes meanwhile; add a node")]
    SingleNode,
    #[error(
        "spec.nodes names nodes that are not in the cluster: {0}; `kubectl get lhn -n longhorn-system` lists those that are"
    )]
    UnknownNodes(String),
}

fn list(known: &[NodeName]) -> String {
    match known.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it has {}", some_of(known, ", ")),
    }
}

/// Whether a volume may be attached to a node. `nodes` are all there are; one that is away is one of them.
pub fn attach(volume: &Volume, to: &NodeName, nodes: &Nodes) -> Result<(), Refusal> {
    if !nodes.contains_key(to) {
        return Err(Refusal::UnknownNode { node: to.clone(), known: nodes.keys().cloned().collect() });
    }
    let is_upgraded = |node: &NodeName| nodes.get(node).is_some_and(|node| node.requested);
    if is_upgraded(to) {
        return Err(Refusal::NodeUpgrading(to.clone()));
    }
    let mut whole = volume.replicas.iter().filter(|replica| replica.copy == Copy::InService).peekable();
    if whole.peek().is_some() && whole.all(|replica| is_upgraded(&replica.node)) {
        return Err(Refusal::NoCopy);
    }
    Ok(())
}

/// Whether the target of a volume may be asked for on a node.
pub fn target(to: &NodeName, nodes: &Nodes) -> Result<(), Refusal> {
    match nodes.contains_key(to) {
        true => Ok(()),
        false => Err(Refusal::UnknownTarget { node: to.clone(), known: nodes.keys().cloned().collect() }),
    }
}

/// Whether an upgrade of nodes may be asked for, while another may be under way.
pub fn create(
    spec: &DataEngineUpgradeManagerSpec,
    nodes: &[NodeName],
    active: Option<&str>,
) -> Result<(), Refusal> {
    if let Some(other) = active {
        return Err(Refusal::Active(other.to_owned()));
    }
    if nodes.len() < 2 {
        return Err(Refusal::SingleNode);
    }
    let unknown: Vec<&NodeName> = spec.nodes.iter().filter(|node| !nodes.contains(node)).collect();
    if unknown.is_empty() { Ok(()) } else { Err(Refusal::UnknownNodes(some_of(unknown, ", "))) }
}

/// Where an upgrade of nodes stands among others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stand {
    /// When it was created, and its name: of two that have not begun, the older one does.
    pub age: (Option<Timestamp>, String),
    pub state: UpgradeState,
}

impl Stand {
    pub fn of(upgrade: &DataEngineUpgradeManager) -> Stand {
        let created = upgrade.metadata.creation_timestamp.as_ref().map(|created| created.0);
        let state = upgrade.status.as_ref().map(|status| status.state).unwrap_or_default();
        Stand { age: (created, upgrade.name_any()), state }
    }

    /// Whether it has nodes to upgrade, or will have.
    pub fn is_active(&self) -> bool {
        match self.state {
            UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => true,
            UpgradeState::Completed | UpgradeState::Error => false,
        }
    }
}

/// Whether an upgrade that is about to begin has to wait for another one. One that failed may go on long after a younger one
/// has begun.
pub fn is_rival(own: &Stand, other: &Stand) -> bool {
    let has_begun = other.state != UpgradeState::Undefined;
    other.age.1 != own.age.1 && other.is_active() && (has_begun || other.age < own.age)
}

/// Whether the spec of an upgrade may change to this one: where it had failed it goes on then, unless it is paused.
pub fn resume(spec: &DataEngineUpgradeManagerSpec, own: &Stand, active: Option<&str>) -> Result<(), Refusal> {
    match active {
        Some(other) if own.state == UpgradeState::Error && !spec.paused => {
            Err(Refusal::Active(other.to_owned()))
        }
        Some(_) | None => Ok(()),
    }
}
