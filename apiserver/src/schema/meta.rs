//! The schema of `metadata`, which is the same for every kind.

use std::sync::LazyLock;

use serde_json::json;

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
