//! What a schema may say of the kind of its lists and maps.

use serde_json::{Map, Value};

use super::error::FieldError;

type Schema = Map<String, Value>;

/// Faults of `x-kubernetes-list-type`, `-list-map-keys` and `-map-type`.
pub(crate) fn check(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let text = |name: &str| schema.get(name).and_then(Value::as_str);
    let kind = text("type").unwrap_or("");
    let mut must_be = |name: &str, wanted: &str| {
        if schema.contains_key(name) && kind != wanted {
            let detail = format!("must be {wanted} if {name} is specified");
            let at = format!("{path}.type");
            faults.push(match kind {
                "" => FieldError::required(at, detail),
                _ => FieldError::invalid(at, &Value::from(kind), detail),
            });
        }
    };
    must_be("x-kubernetes-map-type", "object");
    must_be("x-kubernetes-list-type", "array");
    for (name, known) in [
        ("x-kubernetes-map-type", &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", &["atomic", "set", "map"][..]),
    ] {
        if let Some(value) = text(name).filter(|value| !known.contains(value)) {
            let known: Vec<String> = known.iter().map(|word| (*word).to_owned()).collect();
            faults.push(FieldError::not_supported(format!("{path}.{name}"), &Value::from(value), &known));
        }
    }
    let list = text("x-kubernetes-list-type");
    if schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).is_some_and(|keys| !keys.is_empty())
        && list != Some("map")
    {
        let at = format!("{path}.x-kubernetes-list-type");
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        faults.push(match list {
            None => FieldError::required(at, detail),
            Some(list) => FieldError::invalid(at, &Value::from(list), detail),
        });
    }
    match list {
        Some("map") => check_map_list(schema, path, faults),
        Some("set") => check_set(schema, path, faults),
        _ => {}
    }
}

fn check_set(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let Some(items) = schema.get("items") else { return };
    let text = |name: &str| items.get(name).and_then(Value::as_str);
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let (name, wrong) = match text("type") {
        Some("array") => {
            let kind = text("x-kubernetes-list-type");
            ("x-kubernetes-list-type", kind.is_some_and(|kind| kind != "atomic"))
        }
        Some("object") => ("x-kubernetes-map-type", text("x-kubernetes-map-type") != Some("atomic")),
        _ => return,
    };
    if wrong {
        let shown = items.get("x-kubernetes-list-type").cloned().unwrap_or_default();
        faults.push(FieldError::invalid(format!("{path}.items.{name}"), &shown, detail));
    }
}

fn check_map_list(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let all_keys = schema.get("x-kubernetes-list-map-keys").cloned().unwrap_or_default();
    let keys: Vec<&str> = all_keys.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let at_keys = format!("{path}.x-kubernetes-list-map-keys");
    if keys.is_empty() {
        faults.push(FieldError::required(&at_keys, "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = schema.get("items").and_then(Value::as_object) else {
        let detail = "must have a schema if x-kubernetes-list-type is map";
        faults.push(FieldError::required(format!("{path}.items"), detail));
        return;
    };
    let kind = items.get("type").and_then(Value::as_str).unwrap_or("");
    if kind != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        faults.push(FieldError::invalid(format!("{path}.items.type"), &Value::from(kind), detail));
        return;
    }
    for (place, key) in keys.iter().enumerate() {
        if keys[..place].contains(key) {
            faults.push(FieldError::invalid(&at_keys, &all_keys, "must not contain duplicate entries"));
        }
        let Some(property) = items.get("properties").and_then(|all| all.get(*key)) else {
            faults.push(FieldError::invalid(
                &at_keys,
                &all_keys,
                "entries must all be names of item properties",
            ));
            continue;
        };
        if matches!(property.get("type").and_then(Value::as_str), Some("array" | "object")) {
            let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
            let at = format!("{path}.items.properties[{key}].type");
            faults.push(FieldError::invalid(at, &Value::from("object"), detail));
        }
        let required = items.get("required").and_then(Value::as_array);
        let is_required = required.is_some_and(|names| names.iter().any(|name| name == key));
        if !is_required && property.get("default").is_none_or(Value::is_null) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                          property";
            faults.push(FieldError::required(format!("{path}.items.properties[{key}].default"), detail));
        }
    }
}
