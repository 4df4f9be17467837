//! JSON merge patch (RFC 7396).

use serde_json::Value;

/// The document with the patch laid over it: null removes a field, objects
/// merge, everything else replaces.
pub fn merge_patch(doc: &Value, patch: &Value) -> Value {
    let mut result = doc.clone();
    merge(&mut result, patch);
    result
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = without_nulls(patch);
        return;
    };
    let Value::Object(fields) = target else {
        *target = without_nulls(patch);
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else if let Some(field) = fields.get_mut(name) {
            merge(field, change);
        } else {
            fields.insert(name.clone(), without_nulls(change));
        }
    }
}

/// New values keep no null fields, since in a merge patch null means absent.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, child)| !child.is_null())
            .map(|(name, child)| (name.clone(), without_nulls(child)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
