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

/// Shapes that nothing below could work with: refused before the object is looked at further.
pub(super) fn check_shape(object: &Value) -> Result<(), ApiError> {
    let bad = |message: String| Err(ApiError::new(Reason::BadRequest, message));
    if !object.is_object() {
        return bad("the body of the request must be a JSON object".to_owned());
    }
    let metadata = &object["metadata"];
    if !metadata.is_object() && !metadata.is_null() {
        return bad("metadata must be an object".to_owned());
    }
    for (field, is_right) in [
        ("name", Value::is_string as fn(&Value) -> bool),
        ("generateName", Value::is_string),
        ("namespace", Value::is_string),
        ("uid", Value::is_string),
        ("resourceVersion", Value::is_string),
        ("labels", Value::is_object),
        ("annotations", Value::is_object),
        ("finalizers", Value::is_array),
        ("ownerReferences", Value::is_array),
        ("managedFields", Value::is_array),
        ("generation", Value::is_number),
        ("creationTimestamp", Value::is_string),
        ("deletionTimestamp", Value::is_string),
    ] {
        let value = &metadata[field];
        if !value.is_null() && !is_right(value) {
            return bad(format!("metadata.{field} has the wrong type"));
        }
    }
    Ok(())
}

/// 409 for a uid or resourceVersion that is not the object's.
pub(crate) fn precondition_failed(served: &Served, name: &str, detail: &str) -> ApiError {
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {detail}", served.qualified());
    ApiError::new(Reason::Conflict, message).about(served.subject(name))
}
