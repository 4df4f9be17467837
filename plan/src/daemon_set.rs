//! Decides which pods of a DaemonSet to make and to delete.
//!
//! The one invariant: an update never takes away an available pod while more nodes than allowed are without one.

use std::collections::{BTreeMap, BTreeSet};

/// Everything that is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Which template pods shall be made from.
    pub revision: String,
    pub strategy: Strategy,
    /// Nodes that shall have a pod.
    pub nodes: BTreeSet<String>,
    /// Nodes that take no pod, and keep one that is there.
    pub keep: BTreeSet<String>,
    /// Nodes that there are no more since a moment: they may only have to register again, and what runs there serves on.
    pub gone: BTreeSet<String>,
    /// In the order in which they were made.
    pub pods: Vec<Pod>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// A pod of an old template stays until somebody deletes it.
    OnDelete,
    RollingUpdate {
        max_unavailable: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub node: String,
    pub revision: String,
    pub ready: bool,
    /// Ready for as long as the set wants it to be.
    pub available: bool,
    pub deleting: bool,
    /// It has ended for good.
    pub ended: bool,
}

/// Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    Create { node: String },
    Delete { pod: String },
}

/// What the status of the set says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub desired: usize,
    pub current: usize,
    pub misscheduled: usize,
    pub ready: usize,
    pub updated: usize,
    pub available: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub counts: Counts,
    pub actions: Vec<Action>,
}

pub fn decide(seen: &Observed) -> Plan {
    let mut actions = Vec::new();
    let mut keepers: BTreeMap<&str, &Pod> = BTreeMap::new();
    let mut occupied: BTreeSet<&str> = BTreeSet::new();
    let mut misplaced: BTreeSet<&str> = BTreeSet::new();
    for pod in &seen.pods {
        let wanted = seen.nodes.contains(&pod.node);
        occupied.insert(&pod.node);
        if !wanted {
            misplaced.insert(&pod.node);
        }
        if pod.deleting || seen.gone.contains(&pod.node) {
            continue;
        }
        let stays = wanted || seen.keep.contains(&pod.node);
        if !stays || pod.ended || keepers.contains_key(pod.node.as_str()) {
            actions.push(Action::Delete { pod: pod.name.clone() });
            continue;
        }
        keepers.insert(&pod.node, pod);
    }
    // An update leaves alone what it could not put back.
    keepers.retain(|node, _| seen.nodes.contains(*node));
    // A pod that goes must be gone before the next comes: there is one at a time.
    let bare = seen.nodes.iter().filter(|node| !occupied.contains(node.as_str()));
    actions.extend(bare.map(|node| Action::Create { node: node.clone() }));
    actions.extend(outdated(seen, &keepers));
    let count = |holds: fn(&Pod, &Observed) -> bool| keepers.values().filter(|pod| holds(pod, seen)).count();
    let counts = Counts {
        desired: seen.nodes.len(),
        current: seen.nodes.iter().filter(|node| occupied.contains(node.as_str())).count(),
        misscheduled: misplaced.len(),
        ready: count(|pod, _| pod.ready),
        updated: count(|pod, seen| pod.revision == seen.revision),
        available: count(|pod, _| pod.available),
    };
    Plan { counts, actions }
}

/// Pods of old templates that may go now: those that serve nobody at once, the others as far as the limit allows.
fn outdated(seen: &Observed, keepers: &BTreeMap<&str, &Pod>) -> Vec<Action> {
    let Strategy::RollingUpdate { max_unavailable } = seen.strategy else { return Vec::new() };
    let unavailable = seen.nodes.len() - keepers.values().filter(|pod| pod.available).count();
    let mut left = max_unavailable.saturating_sub(unavailable);
    let mut going = Vec::new();
    for pod in keepers.values().filter(|pod| pod.revision != seen.revision) {
        if pod.available && left == 0 {
            continue;
        }
        left -= usize::from(pod.available);
        going.push(Action::Delete { pod: pod.name.clone() });
    }
    going
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::{any, prop_assert, proptest},
    };

    use super::*;

    const ROLLING: Strategy = Strategy::RollingUpdate { max_unavailable: 1 };

    fn pod(node: &str, revision: &str) -> Pod {
        Pod {
            name: format!("{node}-{revision}"),
            node: node.into(),
            revision: revision.into(),
            ready: true,
            available: true,
            deleting: false,
            ended: false,
        }
    }

    fn sick(node: &str, revision: &str) -> Pod {
        Pod { ready: false, available: false, ..pod(node, revision) }
    }

    fn decided(strategy: Strategy, nodes: &str, pods: Vec<Pod>) -> Plan {
        let nodes = nodes.split_whitespace().map(str::to_owned).collect();
        let (keep, gone) = (["tainted".to_owned()].into(), ["away".to_owned()].into());
        decide(&Observed { revision: "new".into(), strategy, nodes, keep, gone, pods })
    }

    fn create(node: &str) -> Action {
        Action::Create { node: node.into() }
    }

    fn delete(pod: &str) -> Action {
        Action::Delete { pod: pod.into() }
    }

    #[test]
    fn every_node_has_one_pod_of_the_right_template() {
        let deleting = |pod: Pod| Pod { deleting: true, ..pod };
        let ended = |pod: Pod| Pod { ended: true, ..sick(&pod.node, &pod.revision) };
        let second = |pod: Pod| Pod { name: "second".into(), ..pod };
        let two = Strategy::RollingUpdate { max_unavailable: 2 };
        let on_delete = Strategy::OnDelete;
        #[rustfmt::skip]
        let cases = [
            ("new",                 ROLLING,   "a b", vec![],                                                  vec![create("a"), create("b")]),
            ("all there",           ROLLING,   "a b", vec![pod("a", "new"), pod("b", "new")],                  vec![]),
            ("one going",           ROLLING,   "a",   vec![deleting(pod("a", "new"))],                         vec![]),
            ("one ended",           ROLLING,   "a",   vec![ended(pod("a", "new"))],                            vec![delete("a-new")]),
            ("one too many",        ROLLING,   "a",   vec![pod("a", "new"), second(pod("a", "new"))],          vec![delete("second")]),
            ("node left",           ROLLING,   "a",   vec![pod("a", "new"), pod("b", "new")],                  vec![delete("b-new")]),
            ("node just gone",      ROLLING,   "a",   vec![pod("a", "new"), pod("away", "old")],               vec![]),
            ("node takes no more",  ROLLING,   "a",   vec![pod("a", "new"), pod("tainted", "new")],            vec![]),
            ("the same, on delete", on_delete, "a",   vec![pod("a", "new"), pod("tainted", "old")],            vec![]),
            ("it had two",          ROLLING,   "",    vec![pod("tainted", "new"), second(pod("tainted", "new"))], vec![delete("second")]),
            ("its pod has ended",   ROLLING,   "",    vec![ended(pod("tainted", "new"))],                      vec![delete("tainted-new")]),
            ("it had none",         ROLLING,   "",    vec![],                                                  vec![]),
            ("no update there",     two,       "a",   vec![pod("a", "new"), pod("tainted", "old")],            vec![]),
            ("update, first",       ROLLING,   "a b", vec![pod("a", "old"), pod("b", "old")],                  vec![delete("a-old")]),
            ("update, under way",   ROLLING,   "a b", vec![deleting(pod("a", "old")), pod("b", "old")],        vec![]),
            ("update, not well",    ROLLING,   "a b", vec![sick("a", "new"), pod("b", "old")],                 vec![]),
            ("update, second",      ROLLING,   "a b", vec![pod("a", "new"), pod("b", "old")],                  vec![delete("b-old")]),
            ("update of the sick",  ROLLING,   "a b", vec![sick("a", "old"), pod("b", "old")],                 vec![delete("a-old")]),
            ("two at once",         two,       "a b", vec![pod("a", "old"), pod("b", "old")],                  vec![delete("a-old"), delete("b-old")]),
            ("on delete",           on_delete, "a b", vec![pod("a", "old"), sick("b", "old")],                 vec![]),
            ("on delete, deleted",  on_delete, "a b", vec![pod("a", "old")],                                   vec![create("b")]),
        ];
        for (case, strategy, nodes, pods, expected) in cases {
            assert_eq!(decided(strategy, nodes, pods).actions, expected, "{case}");
        }
    }

    #[test]
    fn counts_are_those_of_kubernetes() {
        let pods = vec![pod("a", "new"), sick("b", "old"), pod("x", "new"), pod("tainted", "new")];
        let counts = decided(Strategy::OnDelete, "a b c", pods).counts;
        let expected = Counts { desired: 3, current: 2, misscheduled: 2, ready: 1, updated: 1, available: 1 };
        assert_eq!(counts, expected);
    }

    proptest! {
        /// Whoever it serves would be left without: nothing comes in its place.
        #[test]
        fn what_a_node_keeps_is_taken_away_only_where_there_are_two(
            many in vec((0..4usize, any::<bool>(), any::<[bool; 3]>()), 0..8),
            places in any::<[(bool, bool, bool); 4]>(),
            limit in 0..4usize,
        ) {
            let named = |of: fn(&(bool, bool, bool)) -> bool| -> BTreeSet<String> {
                (0..4).filter(|at| of(&places[*at])).map(|at| at.to_string()).collect()
            };
            // A node takes pods or keeps those that are there, or neither.
            let (nodes, keep) = (named(|place| place.0), named(|place| place.1 && !place.0));
            let pods: Vec<Pod> = many
                .iter()
                .enumerate()
                .map(|(number, (node, is_new, [available, deleting, ended]))| Pod {
                    name: number.to_string(),
                    ready: *available,
                    available: *available && !ended,
                    deleting: *deleting,
                    ended: *ended,
                    ..pod(&node.to_string(), if *is_new { "new" } else { "old" })
                })
                .collect();
            let strategy = match limit {
                0 => Strategy::OnDelete,
                max_unavailable => Strategy::RollingUpdate { max_unavailable },
            };
            let gone = named(|place| place.2);
            let (revision, kept) = ("new".to_owned(), keep.clone());
            let plan = decide(&Observed { revision, strategy, nodes, keep, gone, pods: pods.clone() });
            for pod in pods.iter().filter(|pod| pod.available && kept.contains(&pod.node)) {
                let others = pods.iter().filter(|other| other.node == pod.node && other.name != pod.name).count();
                prop_assert!(others > 0 || !plan.actions.contains(&delete(&pod.name)));
            }
        }
    }

    #[test]
    fn an_update_ends_and_never_takes_away_too_much() {
        for max_unavailable in 1..4 {
            let nodes: BTreeSet<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
            let mut pods: Vec<Pod> = nodes.iter().map(|node| pod(node, "old")).collect();
            for _ in 0..20 {
                let strategy = Strategy::RollingUpdate { max_unavailable };
                let plan = decide(&Observed {
                    revision: "new".into(),
                    strategy,
                    nodes: nodes.clone(),
                    keep: BTreeSet::new(),
                    gone: BTreeSet::new(),
                    pods: pods.clone(),
                });
                for action in plan.actions {
                    match action {
                        Action::Create { node } => pods.push(sick(&node, "new")),
                        Action::Delete { pod } => pods.retain(|other| other.name != pod),
                    }
                }
                let available = pods.iter().filter(|pod| pod.available).count();
                assert!(available + max_unavailable >= nodes.len(), "{available} of {}", nodes.len());
                // Those that were just made become available, one at a time.
                if let Some(fresh) = pods.iter_mut().find(|pod| !pod.available) {
                    (fresh.ready, fresh.available) = (true, true);
                }
            }
            assert!(pods.iter().all(|pod| pod.revision == "new") && pods.len() == nodes.len());
        }
    }
}
