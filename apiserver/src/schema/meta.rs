//! The schema of `metadata`, which is the same for every kind.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::node::Node;

static META: LazyLock<Node> = LazyLock::new(|| {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    Node::compile(&json!({"type": "object", "properties": {
        "annotations": texts, "labels": texts, "name": text, "generateName": text, "namespace": text,
        "uid": text, "resourceVersion": text, "selfLink": text, "creationTimestamp": text,
        "deletionTimestamp": text, "deletionGracePeriodSeconds": {"type": "integer"},
        "generation": {"type": "integer"},
        "finalizers": {
            "type": "array", "items": text, "x-kubernetes-list-type": "set",
            "x-kubernetes-patch-strategy": "merge",
        },
        "ownerReferences": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "uid",
            "items": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {
                "apiVersion": text, "kind": text, "name": text, "uid": text,
                "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
            }},
        },
        "managedFields": {
            "type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    }}))
});

static TEXT: LazyLock<Node> = LazyLock::new(|| Node::compile(&json!({"type": "string"})));

/// The schema of a field that every object has, if it is one.
pub(crate) fn common_field(name: &str) -> Option<&'static Node> {
    match name {
        "metadata" => Some(&META),
        "apiVersion" | "kind" => Some(&TEXT),
        _ => None,
    }
}

/// Removes what metadata has of nulls and of maps and lists that hold nothing:
/// in metadata empty is absent. An empty list of managedFields is a request of
/// its own and stays.
pub(crate) fn tidy_metadata(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.retain(|name, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty() || name == "managedFields",
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    });
}
