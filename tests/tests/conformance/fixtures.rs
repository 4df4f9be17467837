//! Short ways to name and make the objects of scenarios.

use midflight_tests::kinds;
pub(crate) use midflight_tests::kinds::GROUP;
use serde_json::{Value, json};

/// `gadgets("g1")`, `gadgets("g1/status")`, `gadgets("?limit=1")`, `gadgets("")`.
pub(crate) fn gadgets(rest: &str) -> String {
    under(&format!("/apis/{GROUP}/v1/namespaces/{{ns}}/gadgets"), rest)
}

pub(crate) fn beacons(rest: &str) -> String {
    under(&format!("/apis/{GROUP}/v1/beacons"), rest)
}

/// Something namespaced of the core group: `core("configmaps", "c1")`.
pub(crate) fn core(plural: &str, rest: &str) -> String {
    under(&format!("/api/v1/namespaces/{{ns}}/{plural}"), rest)
}

pub(crate) fn namespaced(group_version: &str, plural: &str, rest: &str) -> String {
    under(&format!("/apis/{group_version}/namespaces/{{ns}}/{plural}"), rest)
}

pub(crate) fn under(base: &str, rest: &str) -> String {
    match rest.chars().next() {
        None => base.to_owned(),
        Some('?') => format!("{base}{rest}"),
        Some(_) => format!("{base}/{rest}"),
    }
}

pub(crate) fn gadget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": name}, "spec": spec})
}

/// The same with more in its metadata.
pub(crate) fn gadget_with(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": metadata, "spec": spec})
}

pub(crate) fn beacon(name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Beacon", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn config_map(name: &str, data: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    if data != json!({}) {
        object["data"] = data;
    }
    object
}

/// A CRD with one version `v1`, the smallest that is accepted.
pub(crate) fn definition(group: &str, plural: &str, kind: &str, spec_schema: Value) -> Value {
    kinds::definition(group, plural, kind, &spec_schema)
}
