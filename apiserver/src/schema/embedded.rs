//! Embedded resources name what they are.

use serde_json::Value;

use super::error::FieldError;
use super::node::Node;
use super::path::Path;

const NOT_A_LABEL: &str = "may have mixed case, but should otherwise match: a DNS-1035 label must consist of \
    lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric \
    character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

/// Reports embedded resources without a sensible `apiVersion` and `kind`.
pub(crate) fn check(value: &Value, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !node.below.embedded {
        return;
    }
    match value {
        Value::Object(map) => {
            if node.embedded {
                for (name, accepts) in
                    [("apiVersion", is_version as fn(&str) -> Result<(), String>), ("kind", is_kind)]
                {
                    check_name(map.get(name), accepts, &path.field(name), errors);
                }
            }
            for (key, child) in map {
                match (node.properties.get(key), node.child(key)) {
                    (Some(property), _) => check(child, property, &path.field(key), errors),
                    (None, Some(each)) => check(child, each, &path.key(key), errors),
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = node.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    check(item, schema, &path.index(index), errors);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_name(
    value: Option<&Value>,
    accepts: fn(&str) -> Result<(), String>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(value) = value else {
        errors.push(FieldError::required(path.bracketed(), ""));
        return;
    };
    let fault = match value.as_str() {
        None => "must be a string".to_owned(),
        Some("") => "must not be empty".to_owned(),
        Some(text) => match accepts(text) {
            Ok(()) => return,
            Err(fault) => fault,
        },
    };
    errors.push(FieldError::invalid(path.bracketed(), value, fault));
}

fn is_version(text: &str) -> Result<(), String> {
    if text.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {text}"));
    }
    Ok(())
}

fn is_kind(text: &str) -> Result<(), String> {
    let lower = text.to_lowercase();
    let bytes = lower.as_bytes();
    let fits = bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    if fits { Ok(()) } else { Err(NOT_A_LABEL.into()) }
}
