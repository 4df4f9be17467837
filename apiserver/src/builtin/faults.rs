//! What is wrong with a field, worded as the real server words it.

use serde_json::Value;

use super::names::quoted;
use crate::{
    error::{ApiError, Cause, Reason, Subject},
    kind::Kind,
};

fn fault(reason: &'static str, field: impl Into<String>, message: String) -> Cause {
    Cause { reason, message, field: field.into() }
}

pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> Cause {
    fault("FieldValueInvalid", field, format!("Invalid value: {}: {detail}", value.into()))
}

pub(crate) fn required(field: impl Into<String>, detail: &str) -> Cause {
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    fault("FieldValueRequired", field, format!("Required value{detail}"))
}

pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Cause {
    fault("FieldValueForbidden", field, format!("Forbidden: {detail}"))
}

pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Cause {
    fault("FieldValueDuplicate", field, format!("Duplicate value: {}", value.into()))
}

pub(crate) fn not_found(field: impl Into<String>, value: &str) -> Cause {
    fault("FieldValueNotFound", field, format!("Not found: {}", quoted(value)))
}

pub(crate) fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> Cause {
    let supported: Vec<String> = supported.iter().map(|one| quoted(one)).collect();
    let message = format!("Unsupported value: {}: supported values: {}", quoted(value), supported.join(", "));
    fault("FieldValueNotSupported", field, message)
}

pub(crate) fn too_many(field: impl Into<String>, count: usize, limit: usize) -> Cause {
    fault("FieldValueTooMany", field, format!("Too many: {count}: must have at most {limit} items"))
}

pub(crate) fn too_long(field: impl Into<String>, limit: usize) -> Cause {
    fault("FieldValueTooLong", field, format!("Too long: may not be more than {limit} bytes"))
}

/// The answer to an object with these faults: 422, with each fault once.
pub fn refusal(kind: &Kind, name: &str, mut faults: Vec<Cause>) -> ApiError {
    let mut seen = Vec::new();
    faults.retain(|fault| {
        let text = format!("{}: {}", fault.field, fault.message);
        let new = !seen.contains(&text);
        if new {
            seen.push(text);
        }
        new
    });
    let group = &kind.resource.group;
    let qualified = if group.is_empty() { kind.kind.clone() } else { format!("{}.{group}", kind.kind) };
    let list = if seen.len() == 1 { seen.remove(0) } else { format!("[{}]", seen.join(", ")) };
    let subject = Subject {
        group: group.to_string(),
        kind: kind.kind.clone(),
        name: name.to_owned(),
        uid: String::new(),
    };
    ApiError::new(Reason::Invalid, format!("{qualified} {} is invalid: {list}", quoted(name)))
        .about(subject)
        .because(faults)
}
