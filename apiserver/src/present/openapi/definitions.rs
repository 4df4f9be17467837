//! The schemas of an OpenAPI document, for `kubectl explain`.
//!
//! Built-in types refer to each other; custom kinds are inlined but for their metadata.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::{choices, definition_name, group_version_kind};
use crate::{
    builtin::{
        definer,
        schema::{Definitions, short},
    },
    kind::{Kind, KindVersion},
};

pub(super) fn schemas(members: &[(&Kind, &KindVersion)]) -> Map<String, Value> {
    let mut definitions = Definitions::new();
    let mut roots = Vec::new();
    let mut custom = Vec::new();
    for (kind, version) in members {
        let identity = group_version_kind(kind, version);
        match definer(&kind.resource).filter(|_| kind.built_in) {
            Some(define) => roots.push((define(&mut definitions), identity)),
            None => {
                let metadata = definitions.add::<ObjectMeta>();
                custom.push((definition_name(kind, version), custom_schema(version, &metadata, &identity)));
            }
        }
    }
    let mut schemas = definitions.take();
    for (name, schema) in &mut schemas {
        wrap_references(schema);
        choices::add(short(name), schema);
    }
    for (name, identity) in roots {
        if let Some(Value::Object(schema)) = schemas.get_mut(&name) {
            // The types demand metadata; the API does not, an object may get its name elsewhere.
            // The oldest kind of event is the exception.
            if name != "io.k8s.api.core.v1.Event"
                && let Some(Value::Array(required)) = schema.get_mut("required")
            {
                required.retain(|field| field != "metadata");
            }
            schema.insert("x-kubernetes-group-version-kind".into(), json!([identity]));
        }
    }
    schemas.extend(custom);
    schemas
}

fn custom_schema(version: &KindVersion, metadata: &str, identity: &Value) -> Value {
    let mut schema = version
        .openapi()
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    schema["x-kubernetes-group-version-kind"] = json!([identity]);
    let own = [
        (
            "apiVersion",
            json!({"type": "string", "description": "Group and version of the schema that this object is written in."}),
        ),
        ("kind", json!({"type": "string", "description": "What kind of object this is, in CamelCase."})),
        (
            "metadata",
            json!({
                "description": "What every object has: name, namespace, labels, annotations.",
                "allOf": [{"$ref": format!("#/components/schemas/{metadata}")}],
            }),
        ),
    ];
    for (field, value) in own {
        schema["properties"][field] = value;
    }
    schema
}

/// A reference must stand alone in OpenAPI 3.0, so what is said beside it goes around it.
fn wrap_references(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(wrap_references);
            // A property may be called `$ref` too, but then it is no text.
            if fields.len() > 1 && fields.get("$ref").is_some_and(Value::is_string) {
                let reference = fields.remove("$ref");
                fields.insert("allOf".into(), json!([{"$ref": reference}]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}
