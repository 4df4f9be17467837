use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::{kind::Kind, schema::Schema};

/// The built-in kind of an object.
pub(super) fn kind_of(object: &Value) -> Kind {
    let wanted = |kind: &Kind| kind.kind == object["kind"] && kind.api_version("v1") == object["apiVersion"];
    builtin_kinds().into_iter().find(wanted).unwrap_or_else(|| panic!("no built-in kind for {object}"))
}

#[test]
fn every_built_in_schema_is_structural() {
    for kind in builtin_kinds() {
        for version in &kind.versions {
            let openapi = version.openapi().expect("built-in kinds have a schema");
            if let Err(error) = Schema::compile(&openapi) {
                panic!("{} {}: {:#?}", kind.kind, version.name, error.0);
            }
        }
    }
}

#[test]
fn no_two_kinds_share_a_resource_or_a_name() {
    let kinds = builtin_kinds();
    let resources: BTreeSet<_> = kinds.iter().map(|kind| &kind.resource).collect();
    assert_eq!(resources.len(), kinds.len());
    let names: BTreeSet<_> = kinds.iter().map(|kind| (&kind.resource.group, &kind.kind)).collect();
    assert_eq!(names.len(), kinds.len());
}

#[test]
fn lists_say_how_they_merge() {
    let pods = builtin_kinds().into_iter().find(|kind| kind.kind == "Pod").unwrap();
    let schema = pods.versions[0].openapi().unwrap();
    let at = |path: &str, extension: &str| {
        let mut found: &Value = &schema;
        for step in path.split('.') {
            found = match step {
                "[]" => &found["items"],
                field => &found["properties"][field],
            };
        }
        found[extension].clone()
    };
    #[rustfmt::skip]
    let cases = [
        ("spec.containers",               "map",    Some("name")),
        ("spec.containers.[].env",        "map",    Some("name")),
        ("spec.containers.[].ports",      "map",    Some("containerPort")),
        ("spec.containers.[].volumeMounts", "map",  Some("mountPath")),
        ("spec.containers.[].command",    "atomic", None),
        ("spec.volumes",                  "map",    Some("name")),
        ("spec.tolerations",              "atomic", None),
        ("status.conditions",             "map",    Some("type")),
    ];
    for (path, list_type, merge_key) in cases {
        assert_eq!(at(path, "x-kubernetes-list-type"), list_type, "{path}");
        assert_eq!(at(path, "x-kubernetes-patch-merge-key").as_str(), merge_key, "{path}");
    }
    assert_eq!(at("spec.volumes", "x-kubernetes-patch-strategy"), "merge,retainKeys");
}

/// How the lists of kube-apiserver 1.36 merge; what is not recorded is atomic.
#[test]
fn every_list_merges_as_on_the_real_server() {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("recorded/lists.json")).unwrap();
    let mut definitions = schema::Definitions::new();
    for kind in builtin_kinds() {
        definer(&kind.resource).unwrap()(&mut definitions);
    }
    for (name, definition) in definitions.take() {
        let properties = definition["properties"].as_object().into_iter().flatten();
        for (field, property) in properties.filter(|(_, property)| property["type"] == "array") {
            if schema::short(&name) == "JSONSchemaProps" {
                continue;
            }
            let real =
                recorded.iter().find(|row| row["of"] == name.as_str() && row["field"] == field.as_str());
            let expected = |part: &str| real.map_or(Value::Null, |row| row[part].clone());
            let list_type = if real.is_some() { expected("type") } else { "atomic".into() };
            assert_eq!(property["x-kubernetes-list-type"], list_type, "{name}.{field}");
            assert_eq!(property["x-kubernetes-list-map-keys"], expected("keys"), "{name}.{field}");
            assert_eq!(property["x-kubernetes-patch-strategy"], expected("strategy"), "{name}.{field}");
            assert_eq!(property["x-kubernetes-patch-merge-key"], expected("key"), "{name}.{field}");
        }
    }
}

/// What the real server tolerates in built-in kinds, though apply tells items apart by these keys.
#[test]
fn some_lists_may_repeat_a_key() {
    let node = serde_json::json!({"status": {"addresses": [
        {"type": "InternalIP", "address": "127.0.0.1"}, {"type": "InternalIP", "address": "::1"}]}});
    let nodes = builtin_kinds().into_iter().find(|kind| kind.kind == "Node").unwrap();
    assert_eq!(Schema::trusted(&nodes.versions[0].openapi().unwrap()).validate(&node, None), []);
}

/// The table names types and fields; each must exist, or it does nothing.
#[test]
fn every_row_of_the_table_of_lists_is_used() {
    let mut definitions = schema::Definitions::new();
    for kind in builtin_kinds() {
        definer(&kind.resource).unwrap()(&mut definitions);
    }
    let definitions = definitions.take();
    for (of, field) in lists::rows() {
        let found = definitions.iter().any(|(name, definition)| {
            schema::short(name) == of && definition["properties"][field]["type"] == "array"
        });
        assert!(found, "{of}.{field} is no list");
    }
}
