//! Decides on which node a pod may run.
//!
//! The one invariant: a pod is never put where its selectors or the node's taints forbid it.

use std::collections::BTreeMap;

/// What is looked at of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub ready: bool,
    /// Cordoned: takes no pod that does not insist.
    pub cordoned: bool,
    /// How many pods it takes.
    pub room: usize,
    /// How many pods are bound to it.
    pub pods: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// Where a pod wants to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    pub selector: BTreeMap<String, String>,
    /// One of these must hold as a whole; none is no wish.
    pub terms: Vec<Vec<Requirement>>,
    pub tolerations: Vec<Toleration>,
    /// It also runs on nodes that are not ready or cordoned, as pods of DaemonSets do.
    pub insists: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// A label, or `None` for the name of the node.
    pub label: Option<String>,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

/// A taint that does not matter to a pod. What is `None` stands for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    pub key: Option<String>,
    pub value: Option<String>,
    pub effect: Option<Effect>,
}

/// Why a pod cannot run on a node. Shown to the user verbatim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Misfit {
    #[error("not ready")]
    NotReady,
    #[error("cordoned")]
    Cordoned,
    #[error("without the labels that the pod wants")]
    Labels,
    #[error("with a taint that the pod does not tolerate")]
    Taint,
    #[error("full")]
    Full,
}

/// Why a pod can run nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("0 of {nodes} nodes take the pod{}", reasons(misfits))]
pub struct Nowhere {
    pub nodes: usize,
    /// How many nodes do not fit, by why.
    pub misfits: BTreeMap<Misfit, usize>,
}

fn reasons(misfits: &BTreeMap<Misfit, usize>) -> String {
    let reasons: Vec<String> = misfits.iter().map(|(misfit, count)| format!("{count} {misfit}")).collect();
    if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) }
}

/// Whether a pod with these wishes may run on the node.
pub fn fits(node: &Node, wishes: &Wishes) -> Result<(), Misfit> {
    if !wishes.insists && !node.ready {
        return Err(Misfit::NotReady);
    }
    if !wishes.insists && node.cordoned {
        return Err(Misfit::Cordoned);
    }
    let selected = wishes.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let wanted = wishes.terms.is_empty()
        || wishes.terms.iter().any(|term| !term.is_empty() && term.iter().all(|one| holds(one, node)));
    if !selected || !wanted {
        return Err(Misfit::Labels);
    }
    if node.taints.iter().any(|taint| forbids(taint, wishes)) {
        return Err(Misfit::Taint);
    }
    Ok(())
}

/// What a node is to pods that belong on every node which takes them, as those of DaemonSets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// It has one.
    Takes,
    /// It keeps one that is there, and takes none.
    Keeps,
    /// One that is there has to go.
    Refuses,
}

/// Whether such a pod may come to a node, and whether it may stay: a taint that only forbids to come takes nothing away
/// from those who are served already.
pub fn host(node: &Node, wishes: &Wishes) -> Host {
    let ends = |taint: &Taint| taint.effect == Effect::NoExecute && forbids(taint, wishes);
    match fits(node, wishes) {
        Ok(()) => Host::Takes,
        Err(Misfit::Taint) if node.taints.iter().any(ends) => Host::Refuses,
        Err(Misfit::Taint | Misfit::NotReady | Misfit::Cordoned | Misfit::Full) => Host::Keeps,
        Err(Misfit::Labels) => Host::Refuses,
    }
}

/// The node with the fewest pods that fits.
pub fn choose<'a>(nodes: &'a [Node], wishes: &Wishes) -> Result<&'a Node, Nowhere> {
    let mut misfits = BTreeMap::new();
    let mut chosen: Option<&Node> = None;
    for node in nodes {
        let fit = fits(node, wishes).and(if node.pods < node.room { Ok(()) } else { Err(Misfit::Full) });
        match fit {
            Ok(()) => {
                let better = chosen.is_none_or(|other| (node.pods, &node.name) < (other.pods, &other.name));
                chosen = if better { Some(node) } else { chosen };
            }
            Err(misfit) => *misfits.entry(misfit).or_default() += 1,
        }
    }
    chosen.ok_or(Nowhere { nodes: nodes.len(), misfits })
}

fn holds(requirement: &Requirement, node: &Node) -> bool {
    let value = match &requirement.label {
        None => Some(&node.name),
        Some(label) => node.labels.get(label),
    };
    let listed = || value.is_some_and(|value| requirement.values.contains(value));
    let compared = |wanted: fn(i64, i64) -> bool| {
        let (own, other) = (value.and_then(|v| v.parse().ok()), requirement.values.first());
        matches!((own, other.and_then(|v| v.parse().ok())), (Some(own), Some(other)) if wanted(own, other))
    };
    match requirement.operator {
        Operator::In => listed(),
        Operator::NotIn => !listed(),
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Gt => compared(|own, other| own > other),
        Operator::Lt => compared(|own, other| own < other),
    }
}

fn forbids(taint: &Taint, wishes: &Wishes) -> bool {
    if taint.effect == Effect::PreferNoSchedule {
        return false;
    }
    // What Kubernetes puts on nodes that are not well.
    if wishes.insists && taint.key.starts_with("node.kubernetes.io/") {
        return false;
    }
    !wishes.tolerations.iter().any(|toleration| {
        toleration.key.as_ref().is_none_or(|key| *key == taint.key)
            && toleration.value.as_ref().is_none_or(|value| *value == taint.value)
            && toleration.effect.is_none_or(|effect| effect == taint.effect)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, pods: usize) -> Node {
        Node {
            name: name.into(),
            labels: [("disk".to_owned(), "ssd".to_owned()), ("cores".to_owned(), "8".to_owned())].into(),
            taints: Vec::new(),
            ready: true,
            cordoned: false,
            room: 3,
            pods,
        }
    }

    fn tainted(effect: Effect) -> Node {
        let taint = Taint { key: "only".into(), value: "db".into(), effect };
        Node { taints: vec![taint], ..node("a", 0) }
    }

    fn selects(key: &str, value: &str) -> Wishes {
        Wishes { selector: [(key.to_owned(), value.to_owned())].into(), ..Wishes::default() }
    }

    fn requires(label: Option<&str>, operator: Operator, values: &[&str]) -> Wishes {
        let label = label.map(str::to_owned);
        let values = values.iter().map(|&value| value.to_owned()).collect();
        Wishes { terms: vec![vec![Requirement { label, operator, values }]], ..Wishes::default() }
    }

    fn tolerates(key: Option<&str>, effect: Option<Effect>) -> Wishes {
        let toleration = Toleration { key: key.map(str::to_owned), value: None, effect };
        Wishes { tolerations: vec![toleration], ..Wishes::default() }
    }

    #[test]
    fn a_node_fits_or_says_why_not() {
        use Effect::{NoExecute, NoSchedule, PreferNoSchedule};
        use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
        let insists = || Wishes { insists: true, ..Wishes::default() };
        let any = Wishes::default;
        let (unready, cordoned) =
            (Node { ready: false, ..node("a", 0) }, Node { cordoned: true, ..node("a", 0) });
        #[rustfmt::skip]
        let cases = [
            ("no wishes",          node("a", 0),              any(),                                     Ok(())),
            ("not ready",          unready.clone(),           any(),                                     Err(Misfit::NotReady)),
            ("not ready, insists", unready,                   insists(),                                 Ok(())),
            ("cordoned",           cordoned.clone(),          any(),                                     Err(Misfit::Cordoned)),
            ("cordoned, insists",  cordoned,                  insists(),                                 Ok(())),
            ("label",              node("a", 0),              selects("disk", "ssd"),                    Ok(())),
            ("other label",        node("a", 0),              selects("disk", "hdd"),                    Err(Misfit::Labels)),
            ("no label",           node("a", 0),              selects("gpu", ""),                        Err(Misfit::Labels)),
            ("in",                 node("a", 0),              requires(Some("disk"), In, &["ssd"]),      Ok(())),
            ("not in",             node("a", 0),              requires(Some("disk"), NotIn, &["ssd"]),   Err(Misfit::Labels)),
            ("exists",             node("a", 0),              requires(Some("disk"), Exists, &[]),       Ok(())),
            ("does not exist",     node("a", 0),              requires(Some("disk"), DoesNotExist, &[]), Err(Misfit::Labels)),
            ("more",               node("a", 0),              requires(Some("cores"), Gt, &["4"]),       Ok(())),
            ("less",               node("a", 0),              requires(Some("cores"), Lt, &["4"]),       Err(Misfit::Labels)),
            ("by name",            node("a", 0),              requires(None, In, &["a"]),                Ok(())),
            ("by other name",      node("a", 0),              requires(None, In, &["b"]),                Err(Misfit::Labels)),
            ("taint",              tainted(NoSchedule),       any(),                                     Err(Misfit::Taint)),
            ("mild taint",         tainted(PreferNoSchedule), any(),                                     Ok(())),
            ("tolerated",          tainted(NoSchedule),       tolerates(Some("only"), None),             Ok(())),
            ("all tolerated",      tainted(NoExecute),        tolerates(None, None),                     Ok(())),
            ("other effect",       tainted(NoExecute),        tolerates(None, Some(NoSchedule)),         Err(Misfit::Taint)),
            ("insists on taint",   tainted(NoSchedule),       insists(),                                 Err(Misfit::Taint)),
        ];
        for (case, node, wishes, expected) in cases {
            assert_eq!(fits(&node, &wishes), expected, "{case}");
        }
    }

    #[test]
    fn a_pod_that_is_there_goes_only_when_it_must() {
        use Effect::{NoExecute, NoSchedule, PreferNoSchedule};
        let insists = |wishes: Wishes| Wishes { insists: true, ..wishes };
        let any = || insists(Wishes::default());
        let taint = |key: &str, effect| Taint { key: key.into(), value: String::new(), effect };
        let both = Node { taints: vec![taint("a", NoSchedule), taint("b", NoExecute)], ..node("a", 0) };
        let unreachable = taint("node.kubernetes.io/unreachable", NoExecute);
        let unreachable = Node { taints: vec![unreachable], ..node("a", 0) };
        let other = Node { taints: vec![taint("a", NoSchedule)], ..node("a", 0) };
        #[rustfmt::skip]
        let cases = [
            ("no wishes",                 node("a", 0),              any(),                                       Host::Takes),
            ("other label",               node("a", 0),              insists(selects("disk", "hdd")),             Host::Refuses),
            ("other name",                node("a", 0),              insists(requires(None, Operator::In, &["b"])), Host::Refuses),
            ("other label, and tainted",  other,                     insists(selects("disk", "hdd")),             Host::Refuses),
            ("takes none",                tainted(NoSchedule),       any(),                                       Host::Keeps),
            ("rather takes none",         tainted(PreferNoSchedule), any(),                                       Host::Takes),
            ("ends them",                 tainted(NoExecute),        any(),                                       Host::Refuses),
            ("takes none, tolerated",     tainted(NoSchedule),       insists(tolerates(Some("only"), None)),      Host::Takes),
            ("ends them, tolerated",      tainted(NoExecute),        insists(tolerates(None, None)),              Host::Takes),
            ("only the other tolerated",  tainted(NoExecute),        insists(tolerates(None, Some(NoSchedule))),  Host::Refuses),
            ("both",                      both.clone(),              any(),                                       Host::Refuses),
            ("both, the end tolerated",   both,                      insists(tolerates(Some("b"), None)),         Host::Keeps),
            ("not heard of",              unreachable,               any(),                                       Host::Takes),
        ];
        for (case, node, wishes, expected) in cases {
            assert_eq!(host(&node, &wishes), expected, "{case}");
        }
    }

    #[test]
    fn the_fewest_that_fits_is_chosen() {
        let nodes = [node("c", 1), node("b", 1), node("a", 2)];
        assert_eq!(choose(&nodes, &Wishes::default()).unwrap().name, "b");
        assert_eq!(choose(&nodes, &requires(None, Operator::In, &["a"])).unwrap().name, "a");
        let full = [node("a", 3), Node { ready: false, ..node("b", 0) }];
        let nowhere = choose(&full, &Wishes::default()).unwrap_err();
        assert_eq!(nowhere.to_string(), "0 of 2 nodes take the pod: 1 not ready, 1 full");
        assert_eq!(choose(&[], &Wishes::default()).unwrap_err().to_string(), "0 of 0 nodes take the pod");
    }
}
