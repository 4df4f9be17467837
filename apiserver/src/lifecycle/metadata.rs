//! Reads and tidies `metadata`, the same for every kind.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Reason};
use crate::served::Served;

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn metadata_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// `group/version, Kind=kind`
pub(crate) fn type_of(object: &Value) -> String {
    let version = text(object, "/apiVersion");
    let slash = if version.contains('/') { "" } else { "/" };
    format!("{slash}{version}, Kind={}", text(object, "/kind"))
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// `metadata` as a map, made if it is not there.
pub(super) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"].as_object_mut().expect("just made so")
}

/// Removes what a client may send empty but nobody stores.
pub(super) fn drop_empty(metadata: &mut Map<String, Value>) {
    metadata.remove("selfLink");
    // An empty list of managers means something: it forgets them.
    metadata.retain(|field, value| match value {
        _ if field == "managedFields" => true,
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    });
}

const KNOWN: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Removes fields that metadata does not have, and names them.
pub(crate) fn drop_unknown_metadata(object: &mut Value) -> Vec<String> {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return Vec::new() };
    let unknown: Vec<String> =
        metadata.keys().filter(|field| !KNOWN.contains(&field.as_str())).cloned().collect();
    for field in &unknown {
        metadata.remove(field);
    }
    unknown.into_iter().map(|field| format!("metadata.{field}")).collect()
}

/// Shapes that nothing below could work with: refused before the object is looked at further.
pub(super) fn check_shape(served: &Served, object: &Value) -> Result<(), ApiError> {
    let bad = |value: &Value, field: &str, wanted: &str| {
        let found = json_type(value);
        Err(undecodable(
            served,
            &format!("json: cannot unmarshal {found} into Go struct field {field} of type {wanted}"),
        ))
    };
    if !object.is_object() {
        return bad(object, &served.kind().kind, "map[string]interface {}");
    }
    let metadata = &object["metadata"];
    if !metadata.is_object() && !metadata.is_null() {
        return bad(metadata, &format!("{}.metadata", served.kind().kind), "v1.ObjectMeta");
    }
    for (field, wanted, is_right) in [
        ("name", "string", Value::is_string as fn(&Value) -> bool),
        ("generateName", "string", Value::is_string),
        ("namespace", "string", Value::is_string),
        ("uid", "types.UID", Value::is_string),
        ("resourceVersion", "string", Value::is_string),
        ("labels", "map[string]string", Value::is_object),
        ("annotations", "map[string]string", Value::is_object),
        ("finalizers", "[]string", Value::is_array),
        ("ownerReferences", "[]v1.OwnerReference", Value::is_array),
        ("managedFields", "[]v1.ManagedFieldsEntry", Value::is_array),
        ("generation", "int64", Value::is_number),
        ("creationTimestamp", "string", is_time),
        ("deletionTimestamp", "string", is_time),
    ] {
        let value = &metadata[field];
        let field = format!("ObjectMeta.{field}");
        if !value.is_null() && !is_right(value) {
            return bad(value, &field, wanted);
        }
        let inner: Vec<&Value> = match (wanted, value) {
            ("map[string]string", Value::Object(map)) => map.values().collect(),
            ("[]string", Value::Array(items)) => items.iter().collect(),
            _ => continue,
        };
        if let Some(wrong) = inner.into_iter().find(|value| !value.is_string()) {
            return bad(wrong, &field, "string");
        }
    }
    Ok(())
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.is_empty() || text.parse::<jiff::Timestamp>().is_ok())
}

/// A JSON type as Go's decoder names it.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// 400 for a body that is not what the kind is made of.
pub(crate) fn undecodable(served: &Served, reason: &str) -> ApiError {
    let (version, kind) = (&served.version().name, &served.kind().kind);
    let message = format!("{kind} in version {version:?} cannot be handled as a {kind}: {reason}");
    ApiError::new(Reason::BadRequest, message)
}

/// 409 for a uid or resourceVersion that is not the object's.
pub(crate) fn precondition_failed(served: &Served, name: &str, detail: &str) -> ApiError {
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {detail}", served.qualified());
    ApiError::new(Reason::Conflict, message).about(served.subject(name))
}
