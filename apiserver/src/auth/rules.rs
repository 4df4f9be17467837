//! Which role may do what.
//!
//! Admins may do everything, viewers may read, a node may do what its table
//! says. A rule that depends on the object is answered with the check to make
//! once the object is known.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::attributes::Attributes;
use super::identity::{Identity, Role};
use crate::kind::Kind;

/// How far a node's rule reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Every object.
    All,
    /// The object named like the node.
    OwnName,
    /// Objects that hold the node's name at one of these JSON pointers, before
    /// and after the request; `*` stands for every element of a list or map.
    /// Lists and watches are not narrowed.
    Naming(Vec<String>),
    /// Pods bound to the node; lists and watches must select them.
    BoundPods,
}

/// One line of what every node's token may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRule {
    pub group: String,
    /// `pods`, or `pods/status` for a subresource.
    pub resources: Vec<String>,
    pub verbs: Vec<String>,
    pub reach: Reach,
}

impl NodeRule {
    pub fn new(group: &str, resources: &[&str], verbs: &[&str], reach: Reach) -> Self {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        NodeRule { group: group.to_owned(), resources: owned(resources), verbs: owned(verbs), reach }
    }

    fn speaks_of(&self, wanted: &Attributes<'_>) -> bool {
        let resource = |listed: &String| match wanted.subresource {
            None => listed == wanted.resource,
            Some(sub) => listed.split_once('/') == Some((wanted.resource, sub)),
        };
        self.group == wanted.group
            && self.verbs.iter().any(|v| v == wanted.verb)
            && self.resources.iter().any(resource)
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Allow,
    /// Allowed if the object, old and new, passes.
    AllowIf(ObjectCheck),
    Deny,
}

/// A condition on an object that only its content can answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectCheck {
    node: String,
    pointers: Vec<String>,
}

impl ObjectCheck {
    pub(crate) fn passes(&self, object: &Value) -> bool {
        self.pointers
            .iter()
            .any(|pointer| holds(object, pointer.trim_start_matches('/').split('/'), &self.node))
    }
}

fn holds<'a>(value: &Value, mut path: impl Iterator<Item = &'a str> + Clone, wanted: &str) -> bool {
    match (path.next(), value) {
        (None, Value::String(text)) => text == wanted,
        (Some("*"), Value::Array(items)) => items.iter().any(|item| holds(item, path.clone(), wanted)),
        (Some("*"), Value::Object(map)) => map.values().any(|item| holds(item, path.clone(), wanted)),
        (Some(key), Value::Object(map)) => map.get(key).is_some_and(|inner| holds(inner, path, wanted)),
        _ => false,
    }
}

/// Decides on requests; made once from the table.
#[derive(Debug)]
pub(crate) struct Authorizer {
    node_rules: Vec<NodeRule>,
}

impl Authorizer {
    /// The rules every agent needs, and those the caller adds for its own kinds.
    pub(crate) fn new(extra: Vec<NodeRule>) -> Self {
        let mut node_rules = basic_node_rules();
        node_rules.extend(extra);
        Authorizer { node_rules }
    }

    pub(crate) fn decide(&self, identity: &Identity, wanted: &Attributes<'_>) -> Decision {
        match identity.role() {
            Role::Admin => Decision::Allow,
            _ if is_self_review(wanted) && identity.groups.iter().any(|g| g == "system:authenticated") => {
                Decision::Allow
            }
            Role::Viewer if viewer_may(wanted) => Decision::Allow,
            Role::Node(node) => self.decide_for_node(node, wanted),
            Role::Viewer | Role::Nobody => Decision::Deny,
        }
    }

    /// Paths that are not resources, such as `/version`.
    pub(crate) fn may_visit(&self, identity: &Identity, verb: &str, path: &str) -> bool {
        let open = ["/livez", "/readyz", "/healthz"]
            .iter()
            .any(|p| path == *p || path.starts_with(&format!("{p}/")));
        let discovery = ["/api", "/apis", "/openapi", "/version"]
            .iter()
            .any(|p| path == *p || path.strip_prefix(p).is_some_and(|rest| rest.starts_with('/')));
        match identity.role() {
            Role::Admin => true,
            _ if verb != "get" => false,
            Role::Viewer => open || discovery || path == "/metrics",
            Role::Node(_) => open || discovery,
            Role::Nobody => open || path == "/version",
        }
    }

    /// What the identity may do at all, for SelfSubjectRulesReview.
    pub(crate) fn rules_of<'a>(
        &self,
        identity: &Identity,
        kinds: impl Iterator<Item = &'a Kind>,
    ) -> Vec<NodeRule> {
        match identity.role() {
            Role::Admin => vec![NodeRule::new("*", &["*"], &["*"], Reach::All)],
            Role::Viewer => viewer_rules(kinds),
            Role::Node(_) => self.node_rules.clone(),
            Role::Nobody => Vec::new(),
        }
    }

    fn decide_for_node(&self, node: &str, wanted: &Attributes<'_>) -> Decision {
        let mut answer = Decision::Deny;
        for rule in self.node_rules.iter().filter(|rule| rule.speaks_of(wanted)) {
            match reach(&rule.reach, node, wanted) {
                Decision::Allow => return Decision::Allow,
                Decision::AllowIf(check) => answer = Decision::AllowIf(check),
                Decision::Deny => {}
            }
        }
        answer
    }
}

fn reach(reach: &Reach, node: &str, wanted: &Attributes<'_>) -> Decision {
    let many = matches!(wanted.verb, "list" | "watch" | "deletecollection");
    match reach {
        Reach::All => Decision::Allow,
        Reach::OwnName if wanted.name == Some(node) => Decision::Allow,
        Reach::OwnName if wanted.verb == "create" => naming(node, &["/metadata/name".to_owned()]),
        Reach::OwnName => Decision::Deny,
        Reach::Naming(_) if many => Decision::Allow,
        Reach::Naming(pointers) => naming(node, pointers),
        Reach::BoundPods if many && wanted.only_node == Some(node) => Decision::Allow,
        Reach::BoundPods if many => Decision::Deny,
        Reach::BoundPods => naming(node, &["/spec/nodeName".to_owned()]),
    }
}

fn naming(node: &str, pointers: &[String]) -> Decision {
    Decision::AllowIf(ObjectCheck { node: node.to_owned(), pointers: pointers.to_vec() })
}

/// Viewers read everything but secrets, whose content would make them admins elsewhere.
fn viewer_may(wanted: &Attributes<'_>) -> bool {
    let secret = wanted.group.is_empty() && wanted.resource == "secrets";
    matches!(wanted.verb, "get" | "list" | "watch") && !secret
}

/// What viewers may read, group by group: names are listed only where not all of a group may be read.
fn viewer_rules<'a>(kinds: impl Iterator<Item = &'a Kind>) -> Vec<NodeRule> {
    let mut groups: BTreeMap<&str, Vec<&Kind>> = BTreeMap::new();
    for kind in kinds {
        groups.entry(&kind.resource.group).or_default().push(kind);
    }
    let rules = groups.into_iter().map(|(group, kinds)| {
        let (readable, hidden): (Vec<&Kind>, Vec<&Kind>) = kinds.into_iter().partition(|kind| {
            let (resource, verb) = (&*kind.resource.plural, "get");
            viewer_may(&Attributes {
                verb,
                group,
                resource,
                subresource: None,
                namespace: None,
                name: None,
                only_node: None,
            })
        });
        let names: BTreeSet<String> = match hidden.is_empty() {
            true => BTreeSet::from(["*".to_owned()]),
            false => readable.into_iter().flat_map(names_of).collect(),
        };
        let verbs = ["get", "list", "watch"].map(str::to_owned).to_vec();
        NodeRule { group: group.to_owned(), resources: names.into_iter().collect(), verbs, reach: Reach::All }
    });
    rules.collect()
}

/// A resource and what is below it.
fn names_of(kind: &Kind) -> impl Iterator<Item = String> {
    let plural = &kind.resource.plural;
    let below = kind.versions.iter().flat_map(|version| {
        let status = version.status_subresource.then_some("status");
        let scale = version.scale_subresource.is_some().then_some("scale");
        version.subresources.iter().map(|one| one.name).chain(status).chain(scale)
    });
    std::iter::once(plural.to_string()).chain(below.map(move |name| format!("{plural}/{name}")))
}

fn is_self_review(wanted: &Attributes<'_>) -> bool {
    wanted.verb == "create"
        && match wanted.group {
            "authentication.k8s.io" => wanted.resource == "selfsubjectreviews",
            "authorization.k8s.io" => {
                matches!(wanted.resource, "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
            }
            _ => false,
        }
}

fn basic_node_rules() -> Vec<NodeRule> {
    const READ: &[&str] = &["get", "list", "watch"];
    const WRITE: &[&str] = &["create", "update", "patch"];
    const CHANGE: &[&str] = &["update", "patch"];
    let rule = NodeRule::new;
    #[rustfmt::skip]
    let rules = vec![
        rule("", &["nodes", "namespaces", "services", "persistentvolumes", "persistentvolumeclaims"], READ, Reach::All),
        rule("", &["nodes"], WRITE, Reach::OwnName),
        rule("", &["nodes/status"], CHANGE, Reach::OwnName),
        rule("", &["pods"], &["get", "list", "watch", "delete"], Reach::BoundPods),
        rule("", &["pods/status"], &["get", "update", "patch"], Reach::BoundPods),
        rule("", &["configmaps", "secrets"], &["get"], Reach::All),
        rule("", &["events"], WRITE, Reach::All),
        rule("events.k8s.io", &["events"], WRITE, Reach::All),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update", "patch", "delete"], Reach::OwnName),
        rule("storage.k8s.io", &["csidrivers", "storageclasses", "volumeattachments"], READ, Reach::All),
        rule("storage.k8s.io", &["csinodes"], &["get", "create", "update", "patch", "delete"], Reach::OwnName),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], READ, Reach::All),
    ];
    rules
}
