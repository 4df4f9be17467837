//! Lists of type set and map hold every item once.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::error::FieldError;
use super::node::{ListType, Node};
use super::path::Path;

/// Reports the second appearance of every item that must be unique.
pub(crate) fn check(value: &Value, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !node.below.unique {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                match node.properties.get(key) {
                    Some(property) => check(child, property, &path.field(key), errors),
                    None => {
                        if let Some(each) = node.child(key) {
                            check(child, each, &path.key(key), errors);
                        }
                    }
                }
            }
        }
        Value::Array(items) => {
            match &node.list {
                ListType::Unsaid | ListType::Atomic => {}
                ListType::Set => {
                    for index in repeated(items.iter()) {
                        errors.push(FieldError::duplicate(path.index(index).bracketed(), &items[index]));
                    }
                }
                ListType::Map(keys) => check_map_list(items, keys, path, errors),
            }
            if let Some(schema) = node.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    check(item, schema, &path.index(index), errors);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_map_list(items: &[Value], keys: &[String], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let stray = items.iter().position(|item| !item.is_object() && !item.is_null());
    if let Some(index) = stray {
        let detail = "must be an object for an array of list-type map";
        errors.push(FieldError::invalid(path.index(index).bracketed(), &items[index], detail));
        return;
    }
    if items.len() < 2 {
        return;
    }
    let identity = |item: &Value| {
        let pick = |key: &String| Some((key.clone(), item.get(key)?.clone()));
        Value::Object(keys.iter().filter_map(pick).collect::<Map<_, _>>())
    };
    let identities: Vec<Value> = items.iter().map(identity).collect();
    for index in repeated(identities.iter()) {
        errors.push(FieldError::duplicate(path.index(index).bracketed(), &identities[index]));
    }
}

/// Where each repeated value is seen for the second time.
fn repeated<'a>(items: impl ExactSizeIterator<Item = &'a Value>) -> Vec<usize> {
    if items.len() < 2 {
        return Vec::new();
    }
    let mut seen: HashMap<&Value, usize> = HashMap::with_capacity(items.len());
    let mut second = Vec::new();
    for (index, item) in items.enumerate() {
        let times = seen.entry(item).or_insert(0);
        *times += 1;
        if *times == 2 {
            second.push(index);
        }
    }
    second
}
