//! Discovery: which groups, versions and resources there are.
//!
//! Invariant: the legacy lists and the aggregated ones tell the same.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    builtin::crd::version_priority,
    kind::{Kind, KindVersion, Scope},
};

/// The `Content-Type` of aggregated discovery; a client that does not see it
/// repeated takes the answer for the legacy form.
pub const AGGREGATED_CONTENT_TYPE: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Resources that answer a question and are never stored.
struct Review {
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
}

const REVIEWS: [Review; 2] = [
    Review { group: "authentication.k8s.io", plural: "selfsubjectreviews", kind: "SelfSubjectReview" },
    Review {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        kind: "SelfSubjectAccessReview",
    },
];

const BUILT_IN_VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const NAMESPACE_VERBS: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];
const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// While the definition is being deleted.
const TERMINATING_VERBS: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];

/// One entry of a resource list; `name` is `pods` or `pods/status`.
struct Resource {
    name: String,
    singular: String,
    namespaced: bool,
    /// Group and version of what it answers with, when they are not its own.
    group: String,
    version: String,
    kind: String,
    verbs: Vec<&'static str>,
    short_names: Vec<String>,
    categories: Vec<String>,
}

/// A version and its resources.
type Version = (String, Vec<Resource>);

/// Groups in order, each with its versions in order.
struct Catalogue {
    groups: Vec<(String, Vec<Version>)>,
}

/// `GET /api`.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// `GET /apis`.
pub fn api_group_list<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> Value {
    let catalogue = Catalogue::of(kinds);
    let groups: Vec<Value> =
        catalogue.named().map(|(group, versions)| group_value(group, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/{group}`.
pub fn api_group<'a>(kinds: impl IntoIterator<Item = &'a Kind>, group: &str) -> Option<Value> {
    let catalogue = Catalogue::of(kinds);
    let (_, versions) = catalogue.named().find(|(name, _)| *name == group)?;
    let mut value = group_value(group, versions);
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    Some(value)
}

/// `GET /api/v1` (with an empty group) and `GET /apis/{group}/{version}`.
pub fn api_resource_list<'a>(
    kinds: impl IntoIterator<Item = &'a Kind>,
    group: &str,
    version: &str,
) -> Option<Value> {
    let catalogue = Catalogue::of(kinds);
    let (_, versions) = catalogue.groups.iter().find(|(name, _)| name == group)?;
    let (_, resources) = versions.iter().find(|(name, _)| name == version)?;
    let mut list = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(group, version),
        "resources": resources.iter().map(Resource::to_value).collect::<Vec<_>>(),
    });
    if group.is_empty() {
        list.as_object_mut().and_then(|list| list.remove("apiVersion"));
    }
    Some(list)
}

/// `GET /api` (core) or `GET /apis` in aggregated form.
pub fn aggregated_discovery<'a>(kinds: impl IntoIterator<Item = &'a Kind>, core: bool) -> Value {
    let catalogue = Catalogue::of(kinds);
    let items: Vec<Value> = catalogue
        .groups
        .iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let metadata = if core { json!({}) } else { json!({"name": group}) };
            let versions: Vec<Value> = versions
                .iter()
                .map(|(version, resources)| aggregated_version(group, version, resources))
                .collect();
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

impl Catalogue {
    fn of<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> Catalogue {
        let mut groups: BTreeMap<(usize, String), BTreeMap<String, Vec<Resource>>> = BTreeMap::new();
        for kind in kinds {
            for version in kind.versions.iter().filter(|version| version.served) {
                let group = groups.entry(group_key(&kind.resource.group)).or_default();
                group.entry(version.name.clone()).or_default().extend(resources(kind, version));
            }
        }
        for review in &REVIEWS {
            let group = groups.entry(group_key(review.group)).or_default();
            group.entry("v1".into()).or_default().push(review.to_resource());
        }
        let ordered = |versions: BTreeMap<String, Vec<Resource>>| {
            let mut versions: Vec<_> = versions.into_iter().collect();
            versions.sort_by(|(a, _), (b, _)| version_priority(a, b));
            versions
        };
        Catalogue {
            groups: groups.into_iter().map(|((_, name), versions)| (name, ordered(versions))).collect(),
        }
    }

    /// All groups but the core one.
    fn named(&self) -> impl Iterator<Item = (&str, &[Version])> {
        self.groups
            .iter()
            .filter(|(group, _)| !group.is_empty())
            .map(|(group, versions)| (group.as_str(), versions.as_slice()))
    }
}

/// The real server's order: its own groups first, then what CRDs bring, by name.
fn group_key(group: &str) -> (usize, String) {
    const ORDER: [&str; 8] = [
        "",
        "apps",
        "events.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "storage.k8s.io",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
    ];
    let last = if group == "coordination.k8s.io" { ORDER.len() } else { ORDER.len() + 1 };
    (ORDER.iter().position(|own| *own == group).unwrap_or(last), group.to_owned())
}

fn resources(kind: &Kind, version: &KindVersion) -> Vec<Resource> {
    let verbs: &[&'static str] = match kind.built_in {
        true if kind.kind == "Namespace" => &NAMESPACE_VERBS,
        true => &BUILT_IN_VERBS,
        false if kind.terminating => &TERMINATING_VERBS,
        false => &CUSTOM_VERBS,
    };
    let plural = &kind.resource.plural;
    let namespaced = kind.scope == Scope::Namespaced;
    let main = Resource {
        name: plural.to_string(),
        singular: kind.singular.clone(),
        namespaced,
        group: String::new(),
        version: String::new(),
        kind: kind.kind.clone(),
        verbs: verbs.to_vec(),
        short_names: kind.short_names.clone(),
        categories: kind.categories.clone(),
    };
    let part = |name: &str, (group, version, kind): (&str, &str, &str), verbs: &[&'static str]| Resource {
        name: format!("{plural}/{name}"),
        singular: String::new(),
        namespaced,
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        verbs: verbs.to_vec(),
        short_names: Vec::new(),
        categories: Vec::new(),
    };
    let mut all = vec![main];
    for extra in version.subresources {
        all.push(part(extra.name, (extra.group, extra.version, extra.kind), extra.verbs));
    }
    if version.scale_subresource.is_some() {
        all.push(part("scale", ("autoscaling", "v1", "Scale"), &["get", "patch", "update"]));
    }
    if version.status_subresource {
        all.push(part("status", ("", "", &kind.kind), &["get", "patch", "update"]));
    }
    all
}

impl Review {
    fn to_resource(&self) -> Resource {
        Resource {
            name: self.plural.into(),
            singular: self.kind.to_lowercase(),
            namespaced: false,
            group: String::new(),
            version: String::new(),
            kind: self.kind.into(),
            verbs: vec!["create"],
            short_names: Vec::new(),
            categories: Vec::new(),
        }
    }
}

impl Resource {
    fn to_value(&self) -> Value {
        let mut value = json!({
            "name": self.name, "singularName": self.singular, "namespaced": self.namespaced, "kind": self.kind,
            "verbs": self.verbs,
        });
        for (field, text) in [("group", &self.group), ("version", &self.version)] {
            if !text.is_empty() {
                value[field] = json!(text);
            }
        }
        self.add_names(&mut value);
        value
    }

    fn add_names(&self, value: &mut Value) {
        for (field, names) in [("shortNames", &self.short_names), ("categories", &self.categories)] {
            if !names.is_empty() {
                value[field] = json!(names);
            }
        }
    }

    fn response_kind(&self, group: &str, version: &str) -> Value {
        let own =
            |other: &str, own: &str| if self.version.is_empty() { own.to_owned() } else { other.to_owned() };
        json!({"group": own(&self.group, group), "version": own(&self.version, version), "kind": self.kind})
    }
}

fn aggregated_version(group: &str, version: &str, resources: &[Resource]) -> Value {
    let mut listed: Vec<Value> = Vec::new();
    for resource in resources {
        let kind = resource.response_kind(group, version);
        match resource.name.split_once('/') {
            Some((_, part)) => {
                let part = json!({"subresource": part, "responseKind": kind, "verbs": resource.verbs});
                let Some(parent) = listed.last_mut() else { continue };
                match parent.get_mut("subresources").and_then(Value::as_array_mut) {
                    Some(parts) => parts.push(part),
                    None => parent["subresources"] = json!([part]),
                }
            }
            None => {
                let mut value = json!({
                    "resource": resource.name, "responseKind": kind, "verbs": resource.verbs,
                    "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                    "singularResource": resource.singular,
                });
                resource.add_names(&mut value);
                listed.push(value);
            }
        }
    }
    json!({"version": version, "resources": listed, "freshness": "Current"})
}

fn group_value(group: &str, versions: &[Version]) -> Value {
    let version =
        |(version, _): &Version| json!({"groupVersion": group_version(group, version), "version": version});
    let all: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": group, "versions": all, "preferredVersion": all.first()})
}

pub(super) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

#[cfg(test)]
mod tests;
