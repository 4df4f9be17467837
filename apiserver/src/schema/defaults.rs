//! Fills in what the schema has defaults for, and brings values into the form
//! in which they are stored.
//!
//! A null where null is not allowed counts as absent: it is replaced by the
//! default, or removed if there is none.

use serde_json::{Map, Value};

use super::meta::tidy_metadata;
use super::node::Node;

/// Removes nulls that may not be there and makes whole floats integers, then defaults.
pub(crate) fn default_object(object: &mut Value, schema: &Node) {
    tidy_metadata(object);
    tidy(object, schema);
    if schema.below.defaults {
        fill(object, schema);
    }
}

fn tidy(value: &mut Value, node: &Node) {
    match value {
        Value::Object(map) => {
            map.retain(|key, child| {
                let Some(schema) = node.child(key) else { return true };
                if child.is_null() {
                    return schema.nullable || schema.default.is_some();
                }
                tidy(child, schema);
                true
            });
        }
        Value::Array(items) => {
            if let Some(schema) = node.items.as_deref() {
                items.iter_mut().for_each(|item| tidy(item, schema));
            }
        }
        Value::Number(number) => {
            // 3.0 is stored as 3, so that it reads back as the integer it is.
            if let Some(whole) = number.as_f64().filter(|float| number.is_f64() && is_small_whole(*float)) {
                *value = Value::from(whole as i64);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn is_small_whole(float: f64) -> bool {
    float.fract() == 0.0 && float.abs() < 9.0e18
}

fn fill(value: &mut Value, node: &Node) {
    match value {
        Value::Object(map) => fill_map(map, node),
        Value::Array(items) => {
            let Some(schema) = node.items.as_deref().filter(|items| items.below.defaults) else { return };
            for item in items {
                replace_null(item, schema);
                fill(item, schema);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn fill_map(map: &mut Map<String, Value>, node: &Node) {
    for (name, property) in node.properties.iter().filter(|(_, property)| property.below.defaults) {
        if let Some(default) = &property.default
            && !map.contains_key(name)
        {
            map.insert(name.clone(), default.clone());
        }
    }
    for (key, child) in map.iter_mut() {
        let Some(schema) = node.child(key).filter(|schema| schema.below.defaults) else { continue };
        replace_null(child, schema);
        fill(child, schema);
    }
}

fn replace_null(value: &mut Value, schema: &Node) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
    }
}
