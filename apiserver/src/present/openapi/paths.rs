//! The operations of an OpenAPI document. kubectl looks here whether the server
//! validates fields itself (`fieldValidation`) and tries things out (`dryRun`).

use serde_json::{Map, Value, json};

use super::{document_path, group_version_kind};
use crate::kind::{Kind, KindVersion, Scope};

const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: &[&str] = &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];

pub(super) fn add(paths: &mut Map<String, Value>, kind: &Kind, version: &KindVersion) {
    let root = document_path(&kind.resource.group, &version.name);
    let plural = &kind.resource.plural;
    let identity = group_version_kind(kind, version);
    let operation = |action: &str, queries: &[&str]| operation(action, queries, &identity);
    let namespaced = kind.scope == Scope::Namespaced;
    let collection = if namespaced {
        format!("/{root}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("/{root}/{plural}")
    };
    if namespaced {
        paths.insert(format!("/{root}/{plural}"), json!({"get": operation("list", LIST)}));
    }
    let in_namespace: &[&str] = if namespaced { &["namespace"] } else { &[] };
    let of_object = [&["name"], in_namespace].concat();
    paths.insert(
        collection.clone(),
        json!({
            "parameters": path_parameters(in_namespace),
            "get": operation("list", LIST),
            "post": operation("post", WRITE),
            "delete": operation("deletecollection", LIST),
        }),
    );
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "parameters": path_parameters(&of_object),
            "get": operation("get", &[]),
            "put": operation("put", WRITE),
            "patch": operation("patch", PATCH),
            "delete": operation("delete", DELETE),
        }),
    );
    let scale = version.scale_subresource.is_some();
    for (part, _) in [("status", version.status_subresource), ("scale", scale)].iter().filter(|(_, has)| *has)
    {
        paths.insert(
            format!("{collection}/{{name}}/{part}"),
            json!({
                "parameters": path_parameters(&of_object),
                "get": operation("get", &[]),
                "put": operation("put", WRITE),
                "patch": operation("patch", PATCH),
            }),
        );
    }
}

fn operation(action: &str, queries: &[&str], identity: &Value) -> Value {
    let parameter = |name: &&str| {
        let schema = match *name {
            "limit" | "timeoutSeconds" | "gracePeriodSeconds" => {
                json!({"type": "integer", "uniqueItems": true})
            }
            "force" | "watch" | "allowWatchBookmarks" | "orphanDependents" | "sendInitialEvents" => {
                json!({"type": "boolean", "uniqueItems": true})
            }
            _ => json!({"type": "string", "uniqueItems": true}),
        };
        json!({"name": name, "in": "query", "schema": schema})
    };
    json!({
        "parameters": queries.iter().map(parameter).collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": identity,
    })
}

fn path_parameters(names: &[&str]) -> Vec<Value> {
    let parameter = |name: &&str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}});
    names.iter().map(parameter).collect()
}
