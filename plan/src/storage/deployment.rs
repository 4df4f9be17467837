//! Where an image stands on the nodes of a cluster.
//!
//! The invariant: an image is called whole only if every node has it.

use std::collections::BTreeMap;

use midflight_api::{ImageRef, NodeName};

/// How many nodes are named of which something is said.
const NAMED: usize = 8;
/// How much is said of each.
const LONGEST: usize = 400;

/// Why a node does not have an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// It is on its way.
    #[error("{0}")]
    Coming(&'static str),
    /// Something is in the way, which is tried again.
    #[error("{0}")]
    Failed(String),
}

/// How far an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Coming,
    /// Something is in the way on at least one node.
    Failing,
    Whole,
}

/// Each node, and why it does not have the image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deployment(pub BTreeMap<NodeName, Result<(), Lack>>);

impl Deployment {
    pub fn map(&self) -> BTreeMap<NodeName, bool> {
        self.0.iter().map(|(node, there)| (node.clone(), there.is_ok())).collect()
    }

    /// No node at all is not every node.
    pub fn stage(&self) -> Stage {
        if self.0.values().any(|there| matches!(there, Err(Lack::Failed(_)))) {
            return Stage::Failing;
        }
        match !self.0.is_empty() && self.0.values().all(Result::is_ok) {
            true => Stage::Whole,
            false => Stage::Coming,
        }
    }

    /// What is in the way of the image, node by node.
    pub fn complaint(&self, image: &ImageRef) -> String {
        let lacking: Vec<(&NodeName, &Lack)> =
            self.0.iter().filter_map(|(node, there)| Some((node, there.as_ref().err()?))).collect();
        let said = lacking.iter().take(NAMED).map(|(node, lack)| {
            let why: String = lack.to_string().chars().take(LONGEST).collect();
            format!("{node}: {why}")
        });
        let more = lacking.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("and {more} more nodes"));
        match lacking.is_empty() {
            true => String::new(),
            false => format!("{image} on {}", said.chain(more).collect::<Vec<_>>().join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(well: usize, coming: usize, failing: usize) -> Deployment {
        let of = |letter: &'static str, count: usize, there: Result<(), Lack>| {
            (0..count).map(move |number| (NodeName::from(format!("{letter}-{number}")), there.clone()))
        };
        let failed = Lack::Failed("no room".to_owned());
        let all = of("a", well, Ok(()));
        let all = all.chain(of("b", coming, Err(Lack::Coming("it is being pulled"))));
        Deployment(all.chain(of("c", failing, Err(failed))).collect())
    }

    #[test]
    fn is_whole_when_no_node_lacks_it() {
        use Stage::{Coming, Failing, Whole};
        #[rustfmt::skip]
        let cases = [
            (0, 0, 0, Coming), (2, 0, 0, Whole), (2, 1, 0, Coming), (2, 1, 1, Failing), (0, 0, 1, Failing),
        ];
        for (well, coming, failing, expected) in cases {
            assert_eq!(nodes(well, coming, failing).stage(), expected, "{well} {coming} {failing}");
        }
        assert_eq!(nodes(1, 1, 0).map(), [("a-0".into(), true), ("b-0".into(), false)].into());
    }

    #[test]
    fn names_a_few_nodes_that_lack_it() {
        let said = |nodes: Deployment| nodes.complaint(&"engine:2".into());
        assert_eq!(said(nodes(1, 0, 0)), "");
        assert_eq!(said(nodes(1, 1, 1)), "engine:2 on b-0: it is being pulled; c-0: no room");
        assert!(said(nodes(0, 0, 10)).ends_with("c-7: no room; and 2 more nodes"));
    }
}
