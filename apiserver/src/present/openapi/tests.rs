use super::*;
use crate::builtin::{builtin_kinds, kind_from_crd};

fn gadget(field: &str) -> Kind {
    kind_from_crd(&json!({"spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "description": "A thing.", "properties": {
                "spec": {"type": "object", "properties": {field: {"type": "string", "description": "What it is."}}}}}}}],
    }}))
    .unwrap()
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_served_version_has_a_document_without_loose_ends() {
    let mut kinds = builtin_kinds();
    kinds.push(gadget("color"));
    let index = openapi_index(&kinds);
    for (path, entry) in index["paths"].as_object().unwrap() {
        let group_version = path.strip_prefix("apis/").or_else(|| path.strip_prefix("api/")).unwrap();
        let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
        let document = openapi_document(&kinds, group, version).unwrap();
        let hash = openapi_hash(&kinds, group, version);
        assert_eq!(entry["serverRelativeURL"], format!("/openapi/v3/{path}?hash={hash}"));
        let mut found = Vec::new();
        references(&document, &mut found);
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(document["components"]["schemas"].get(name).is_some(), "{path}: {reference}");
        }
    }
    assert!(openapi_document(&kinds, "nowhere", "v1").is_none());
}

/// What kubectl looks for before it applies, creates or explains something.
#[test]
fn kubectl_finds_what_it_looks_for() {
    let mut kinds = builtin_kinds();
    kinds.push(gadget("color"));
    for kind in &kinds {
        let identity = json!({"group": kind.resource.group.as_ref(), "version": "v1", "kind": kind.kind});
        let document = openapi_document(&kinds, &kind.resource.group, "v1").unwrap();
        let paths = document["paths"].as_object().unwrap();
        let patch = paths
            .values()
            .filter_map(|path| path.get("patch"))
            .find(|patch| patch["x-kubernetes-group-version-kind"] == identity);
        let names: Vec<&str> = patch.unwrap()["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        assert!(names.contains(&"fieldValidation") && names.contains(&"dryRun"), "{}", kind.kind);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let schema =
            schemas.values().find(|schema| schema["x-kubernetes-group-version-kind"] == json!([identity]));
        let schema = schema.unwrap_or_else(|| panic!("{} can be explained", kind.kind));
        assert!(schema["description"].is_string(), "{}", kind.kind);
        assert!(schema["properties"]["metadata"]["allOf"][0]["$ref"].is_string(), "{}", kind.kind);
    }
}

/// `properties` of the schema of schemas has a field of that very name.
#[test]
fn a_property_called_ref_is_no_reference() {
    let document = openapi_document(&builtin_kinds(), "apiextensions.k8s.io", "v1").unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let (_, schema) = schemas.iter().find(|(name, _)| name.ends_with(".JSONSchemaProps")).unwrap();
    assert_eq!(schema["properties"]["$ref"]["type"], "string");
    assert_eq!(schema["properties"].get("allOf").unwrap()["type"], "array");
}

/// The table names types and fields; each must exist, or it does nothing.
#[test]
fn every_row_of_the_table_of_choices_is_used() {
    let kinds = builtin_kinds();
    let groups: std::collections::BTreeSet<&str> = kinds.iter().map(|kind| &*kind.resource.group).collect();
    let documents: Vec<Value> =
        groups.iter().filter_map(|group| openapi_document(&kinds, group, "v1")).collect();
    for (of, field) in choices::rows() {
        let named = documents.iter().any(|document| {
            let schemas = document["components"]["schemas"].as_object().into_iter().flatten();
            schemas.filter(|(name, _)| name.ends_with(&format!(".{of}"))).any(|(_, schema)| {
                let property = &schema["properties"][field];
                property.get("enum").or_else(|| property["items"].get("enum")).is_some()
            })
        });
        assert!(named, "{of}.{field}");
    }
}

/// Tag 1 with a text of three bytes, and nothing after it.
#[test]
fn the_old_document_is_a_version_and_nothing_else() {
    let (_, bytes) = OPENAPI_V2;
    assert_eq!(bytes, [&[0x0a, 3], b"2.0".as_slice()].concat());
}

#[test]
fn the_hash_follows_the_content() {
    let [red, same, blue] = [gadget("color"), gadget("color"), gadget("colour")];
    let hash = |kind: &Kind| openapi_hash([kind], "example.com", "v1");
    assert_eq!(hash(&red), hash(&same));
    assert_ne!(hash(&red), hash(&blue));
}
