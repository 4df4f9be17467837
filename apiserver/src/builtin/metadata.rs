//! What must hold of every object's metadata, whatever its kind.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    faults::{forbidden, invalid, required, too_long},
    names::{dns_label, dns_subdomain, label_key, label_value, quoted},
};
use crate::{
    error::Cause,
    kind::{Kind, Scope},
};

const ANNOTATIONS_LIMIT: u64 = 256 * 1024;

/// Judges metadata after name generation and before it is stored.
pub(super) fn validate(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    let empty = Map::new();
    let metadata = |object: &'_ Value| object.get("metadata").and_then(Value::as_object).cloned();
    let new = metadata(new).unwrap_or_else(|| empty.clone());
    let mut faults = Vec::new();
    name(kind, &new, &mut faults);
    namespace(kind, &new, &mut faults);
    let mut content = Vec::new();
    labels(new.get("labels"), "metadata.labels", &mut content);
    annotations(new.get("annotations"), "metadata.annotations", &mut content);
    owners(new.get("ownerReferences"), &mut content);
    // On an update the real server judges the content three times and the changes twice, and tells all.
    let times = if old.is_some() { 3 } else { 1 };
    faults.extend(std::iter::repeat_n(content, times).flatten());
    finalizers(kind, &new, &mut faults);
    if let Some(old) = old.and_then(metadata) {
        let mut changed = Vec::new();
        changes(&new, &old, &mut changed);
        faults.extend(std::iter::repeat_n(changed, 2).flatten());
    }
    faults
}

fn text<'a>(metadata: &'a Map<String, Value>, field: &str) -> &'a str {
    metadata.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn name(kind: &Kind, metadata: &Map<String, Value>, faults: &mut Vec<Cause>) {
    let check = if kind.built_in && kind.kind == "Namespace" { dns_label } else { dns_subdomain };
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        // A prefix may end in what a name may not end in.
        let stem = prefix.strip_suffix('-').map(|stem| format!("{stem}a"));
        for wrong in check(stem.as_deref().unwrap_or(prefix)) {
            faults.push(invalid("metadata.generateName", prefix, &wrong));
        }
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        faults.push(required("metadata.name", "name or generateName is required"));
        return;
    }
    for wrong in check(name) {
        faults.push(invalid("metadata.name", name, &wrong));
    }
}

fn namespace(kind: &Kind, metadata: &Map<String, Value>, faults: &mut Vec<Cause>) {
    let namespace = text(metadata, "namespace");
    match kind.scope {
        Scope::Cluster if !namespace.is_empty() => {
            faults.push(forbidden("metadata.namespace", "not allowed on this type"));
        }
        Scope::Namespaced if namespace.is_empty() => faults.push(required("metadata.namespace", "")),
        Scope::Namespaced => {
            for wrong in dns_label(namespace) {
                faults.push(invalid("metadata.namespace", namespace, &wrong));
            }
        }
        Scope::Cluster => {}
    }
}

pub(super) fn labels(labels: Option<&Value>, field: &str, faults: &mut Vec<Cause>) {
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        for wrong in label_key(key) {
            faults.push(invalid(field, key.as_str(), &wrong));
        }
        let Some(value) = value.as_str() else {
            faults.push(invalid(format!("{field}.{key}"), value.clone(), "must be a string"));
            continue;
        };
        for wrong in label_value(value) {
            faults.push(invalid(field, value, &wrong));
        }
    }
}

fn annotations(annotations: Option<&Value>, field: &str, faults: &mut Vec<Cause>) {
    let mut size = 0_u64;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        for wrong in label_key(&key.to_lowercase()) {
            faults.push(invalid(field, key.as_str(), &wrong));
        }
        match value.as_str() {
            Some(value) => size += (key.len() + value.len()) as u64,
            None => faults.push(invalid(format!("{field}.{key}"), value.clone(), "must be a string")),
        }
    }
    if size > ANNOTATIONS_LIMIT {
        faults.push(too_long(field, ANNOTATIONS_LIMIT));
    }
}

/// What is wrong with labels or annotations that were changed by somebody else than a client, one line each.
pub(crate) fn map_faults(field: &str, map: &Map<String, Value>) -> Vec<String> {
    let (map, mut faults) = (Value::Object(map.clone()), Vec::new());
    match field {
        "labels" => labels(Some(&map), "metadata.labels", &mut faults),
        _ => annotations(Some(&map), "metadata.annotation", &mut faults),
    }
    faults.into_iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
}

fn owners(owners: Option<&Value>, faults: &mut Vec<Cause>) {
    const FIELD: &str = "metadata.ownerReferences";
    let mut controller: Option<String> = None;
    for owner in owners.and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let api_version = text("apiVersion");
        if api_version.is_empty() || api_version.ends_with('/') {
            faults.push(invalid(format!("{FIELD}.apiVersion"), api_version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if text(field).is_empty() {
                faults.push(invalid(format!("{FIELD}.{field}"), "", "must not be empty"));
            }
        }
        if api_version == "v1" && text("kind") == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            faults.push(invalid(FIELD, owner.clone(), detail));
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let name = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    faults.push(invalid(FIELD, owners.cloned().unwrap_or_default(), &detail));
                }
                None => controller = Some(name),
            }
        }
    }
}

fn finalizer_names(metadata: &Map<String, Value>) -> BTreeSet<&str> {
    metadata
        .get("finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn finalizers(kind: &Kind, metadata: &Map<String, Value>, faults: &mut Vec<Cause>) {
    const FIELD: &str = "metadata.finalizers";
    const STANDARD: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
    let names = finalizer_names(metadata);
    for name in &names {
        for wrong in label_key(name) {
            faults.push(invalid(FIELD, *name, &wrong));
        }
    }
    let in_order = metadata.get("finalizers").and_then(Value::as_array).into_iter().flatten();
    for (index, name) in in_order.enumerate().filter_map(|(index, name)| Some((index, name.as_str()?))) {
        if must_qualify_finalizers(kind) && !name.contains('/') && !STANDARD.contains(&name) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            faults.push(invalid(format!("{FIELD}[{index}]"), name, detail));
        }
    }
    if names.contains("orphan") && names.contains("foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        faults.push(invalid(FIELD, metadata["finalizers"].clone(), detail));
    }
}

/// The oldest groups want a finalizer to name its domain.
fn must_qualify_finalizers(kind: &Kind) -> bool {
    kind.built_in && ["", "apps", "storage.k8s.io"].contains(&&*kind.resource.group)
}

fn changes(new: &Map<String, Value>, old: &Map<String, Value>, faults: &mut Vec<Cause>) {
    if old.get("deletionTimestamp").is_some_and(|time| !time.is_null()) {
        let before = finalizer_names(old);
        let added: Vec<String> =
            finalizer_names(new).into_iter().filter(|name| !before.contains(name)).map(quoted).collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            faults.push(forbidden("metadata.finalizers", &detail));
        }
    }
    for field in ["name", "namespace", "uid", "deletionTimestamp"] {
        if text(new, field) != text(old, field) {
            faults.push(invalid(format!("metadata.{field}"), text(new, field), "field is immutable"));
        }
    }
}
