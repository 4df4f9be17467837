//! Decides what people may ask of nodes, also while they are upgraded.
//!
//! The invariant: whatever is refused is refused by name, and detaching never is.

use midflight_api::NodeName;
use midflight_api::longhorn::DataEngineUpgradeManagerSpec;

use super::facts::{Copy, Nodes, Volume};

/// Why something is refused. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("spec.nodeID is {node}, which is no node of the cluster; {}", list(.known))]
    UnknownNode { node: NodeName, known: Vec<NodeName> },
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
        "spec.nodes names nodes that are not in the cluster: {0}; `kubectl get lhn` lists those that are"
    )]
    UnknownNodes(String),
}

/// How many nodes are named of which one can be chosen.
const NAMED: usize = 8;

fn list(known: &[NodeName]) -> String {
    let mut named: Vec<&str> = known.iter().take(NAMED).map(NodeName::as_str).collect();
    let more = known.len().saturating_sub(NAMED);
    let rest = format!("{more} more");
    if more > 0 {
        named.push(&rest);
    }
    match named.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it has {}", named.join(", ")),
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
    let unknown: Vec<&str> =
        spec.nodes.iter().filter(|node| !nodes.contains(node)).map(NodeName::as_str).collect();
    if unknown.is_empty() { Ok(()) } else { Err(Refusal::UnknownNodes(unknown.join(", "))) }
}
