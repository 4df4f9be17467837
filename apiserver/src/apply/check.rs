//! Whether a configuration fits the schema well enough to be applied.
//!
//! Fields that the schema does not have, values of another type and repeated
//! items are refused: their ownership could not be kept.

use serde_json::Value;

use super::shape::{Keys, Shape, Type};
use crate::schema::{Node, Types, show_go};

/// What keeps a configuration from being applied, in the words of the real server.
pub(crate) fn faults(config: &Value, schema: Type<'_>) -> Option<String> {
    let mut faults = Vec::new();
    check(config, schema, "", &mut faults);
    match faults.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn check(value: &Value, of: Type<'_>, path: &str, faults: &mut Vec<String>) {
    if value.is_null() {
        return;
    }
    if let Type::Known(node) = of
        && let Some(fault) = mismatch(value, node)
    {
        faults.push(located(path, &fault));
        return;
    }
    match (of.shape(value), value) {
        (Shape::List(items, keys), _) => check_items(items, keys, of, path, faults),
        (Shape::Map(map), _) | (Shape::Leaf, Value::Object(map)) => {
            for (name, child) in map {
                let below = of.field(name);
                if matches!(below, Type::Undeclared) {
                    faults.push(located(&format!("{path}.{name}"), "field not declared in schema"));
                    return;
                }
                check(child, below, &format!("{path}.{name}"), faults);
            }
        }
        (Shape::Leaf, Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                check(item, of.item(), &format!("{path}[{index}]"), faults);
            }
        }
        (Shape::Leaf, Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {}
    }
}

fn check_items(items: &[Value], keys: Keys<'_>, of: Type<'_>, path: &str, faults: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        match keys.element(item, of.item()) {
            Err(fault) => {
                faults.push(located(path, &format!("element {index}: {fault}")));
                return;
            }
            Ok(element) => {
                let here = format!("{path}{element}");
                if !seen.insert(element.clone()) {
                    faults.push(located(path, &format!("duplicate entries for key {element}")));
                }
                check(item, of.item(), &here, faults);
            }
        }
    }
}

fn located(path: &str, fault: &str) -> String {
    if path.is_empty() { fault.to_owned() } else { format!("{path}: {fault}") }
}

fn mismatch(value: &Value, node: &Node) -> Option<String> {
    let types = node.types;
    if types.is_any() || node.int_or_string {
        return None;
    }
    let scalar = !value.is_object() && !value.is_array();
    let untyped_text = types == Types::STRING && node.has_format();
    if types == Types::OBJECT {
        (!value.is_object()).then(|| format!("expected map, got &{{{}}}", show_go(value)))
    } else if types == Types::ARRAY {
        (!value.is_array()).then(|| format!("expected list, got &{{{}}}", show_go(value)))
    } else if untyped_text {
        (!scalar).then(|| format!("expected any scalar, got &{{{}}}", show_go(value)))
    } else if types == Types::STRING {
        let shown = || format!("expected string, got &value.valueUnstructured{{Value:{}}}", show_go(value));
        (!value.is_string()).then(shown)
    } else if types == Types::BOOLEAN {
        (!value.is_boolean()).then(|| format!("expected boolean, got &{{{}}}", show_go(value)))
    } else {
        let name = match value {
            Value::Null | Value::Number(_) => return None,
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(_) => "[]interface {}",
            Value::Object(_) => "map[string]interface {}",
        };
        Some(format!("expected numeric (int or float), got {name}"))
    }
}
