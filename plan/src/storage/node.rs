//! Decides whether a node may be taken out of storage.
//!
//! The invariant: a node that holds or serves anything stays; its instance managers would end with it, under whoever uses them.

use midflight_api::NodeName;

/// How many of what is there are named.
const NAMED: usize = 5;

/// Why a node has to stay. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} is in use: {} replicas ({}) and {} attached volumes ({}); empty it with `midflight node drain {node}` and detach its volumes first",
    replicas.len(), some(replicas), volumes.len(), some(volumes)
)]
pub struct InUse {
    pub node: NodeName,
    pub replicas: Vec<String>,
    pub volumes: Vec<String>,
}

/// The first of these, and how many more there are.
pub fn some(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("{more} more"));
    let named: Vec<String> = names.iter().take(NAMED).cloned().chain(more).collect();
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}

/// Whether somebody may take a node out of storage that has these replicas, and these volumes attached or served.
pub fn may_go(node: &NodeName, replicas: Vec<String>, volumes: Vec<String>) -> Result<(), InUse> {
    match replicas.is_empty() && volumes.is_empty() {
        true => Ok(()),
        false => Err(InUse { node: node.clone(), replicas, volumes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_goes_when_nothing_is_there() {
        let names = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
        let told = |replicas, volumes| {
            let verdict = may_go(&"node-1".into(), names(replicas), names(volumes));
            verdict.err().map(|why| why.to_string()).unwrap_or_default()
        };
        assert_eq!(told(0, 0), "");
        assert!(told(0, 1).contains("0 replicas (none) and 1 attached volumes (n0)"), "{}", told(0, 1));
        assert!(told(7, 0).contains("7 replicas (n0, n1, n2, n3, n4, 2 more)"), "{}", told(7, 0));
    }
}
