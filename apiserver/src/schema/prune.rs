//! Removes fields that the schema does not know.
//!
//! `apiVersion`, `kind` and `metadata` of the object itself and of embedded
//! resources are known whatever the schema says.

use serde_json::Value;

use super::meta::common_field;
use super::node::{Additional, Node};
use super::path::Path;

/// Prunes a whole object and says what it removed, sorted.
pub(crate) fn prune_object(object: &mut Value, schema: &Node) -> Vec<String> {
    let mut removed = Vec::new();
    prune(object, Some(schema), true, &Path::Root, &mut removed);
    removed.sort_unstable();
    removed
}

/// Prunes a value that is no object of its own, such as a default.
pub(crate) fn prune_value(value: &mut Value, schema: &Node) -> Vec<String> {
    let mut removed = Vec::new();
    prune(value, Some(schema), false, &Path::Root, &mut removed);
    removed
}

fn prune(
    value: &mut Value,
    schema: Option<&Node>,
    is_resource: bool,
    path: &Path<'_>,
    removed: &mut Vec<String>,
) {
    match (value, schema) {
        (Value::Object(map), None) => {
            removed.extend(map.keys().map(|key| path.field(key).dotted()));
            map.clear();
        }
        (Value::Object(map), Some(node)) => {
            let keeps_meta = is_resource || node.embedded;
            map.retain(|key, child| {
                let here = path.field(key);
                if let Some(common) = common_field(key).filter(|_| keeps_meta) {
                    prune(child, Some(common), false, &here, removed);
                    return true;
                }
                match (node.properties.get(key), &node.additional) {
                    (Some(property), _) => prune(child, Some(property), false, &here, removed),
                    (None, Additional::Each(each)) => prune(child, Some(each), false, &here, removed),
                    (None, _) if node.preserve_unknown => {}
                    (None, Additional::Anything | Additional::Forbidden) => {
                        prune(child, None, false, &here, removed);
                    }
                    (None, Additional::Unsaid) => {
                        removed.push(here.dotted());
                        return false;
                    }
                }
                true
            });
        }
        (Value::Array(items), Some(node)) if node.preserve_unknown => {
            if let Some(schema) = node.items.as_deref() {
                for (index, item) in items.iter_mut().enumerate() {
                    skip(item, schema, &path.index(index), removed);
                }
            }
        }
        (Value::Array(items), _) => {
            let schema = schema.and_then(|node| node.items.as_deref());
            for (index, item) in items.iter_mut().enumerate() {
                prune(item, schema, false, &path.index(index), removed);
            }
        }
        (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), _) => {}
    }
}

/// Inside a list that preserves unknown fields only what is declared is looked at.
fn skip(value: &mut Value, node: &Node, path: &Path<'_>, removed: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, child) in map.iter_mut() {
                if node.embedded && common_field(key).is_some() {
                    continue;
                }
                if let Some(schema) = node.child(key) {
                    prune(child, Some(schema), false, &path.field(key), removed);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                if let Some(schema) = node.items.as_deref() {
                    skip(item, schema, &path.index(index), removed);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
