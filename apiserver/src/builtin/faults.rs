//! What is wrong with a field, worded as the real server words it.

use serde_json::Value;

use super::names::quoted;
use crate::{
    error::{ApiError, Cause, Reason, Subject},
    kind::Kind,
    schema::FieldError,
};

pub(crate) fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> Cause {
    cause(&FieldError::invalid(field, &value.into(), detail))
}

pub(crate) fn required(field: impl Into<String>, detail: &str) -> Cause {
    cause(&FieldError::required(field, detail))
}

pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Cause {
    cause(&FieldError::forbidden(field, detail))
}

pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Cause {
    cause(&FieldError::duplicate(field, &value.into()))
}

pub(crate) fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> Cause {
    let supported: Vec<String> = supported.iter().map(|one| (*one).to_owned()).collect();
    cause(&FieldError::not_supported(field, &value.into(), &supported))
}

pub(crate) fn not_found(field: impl Into<String>, value: &str) -> Cause {
    let message = format!("Not found: {}", quoted(value));
    Cause { reason: "FieldValueNotFound", message, field: field.into() }
}

pub(crate) fn too_many(field: impl Into<String>, count: usize, limit: u64) -> Cause {
    cause(&FieldError::too_many(field, count, limit))
}

pub(crate) fn too_long(field: impl Into<String>, limit: u64) -> Cause {
    cause(&FieldError::too_long(field, limit))
}

pub(crate) fn cause(error: &FieldError) -> Cause {
    Cause { reason: error.fault.reason(), message: error.body(), field: error.field.clone() }
}

/// The answer to an object with these faults: 422, with each fault once in the message.
pub fn refusal(kind: &Kind, name: &str, faults: Vec<Cause>) -> ApiError {
    let mut seen = Vec::new();
    for fault in &faults {
        let text = format!("{}: {}", fault.field, fault.message);
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    // A view is judged as what it is a view of.
    let group = &kind.stored_under().group;
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
