//! Asks a definition's webhook for objects in another version.
//!
//! The one invariant: what comes back is the same object. Its name, namespace and uid must be, and of its
//! metadata only labels and annotations may differ.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::builtin::map_faults;
use crate::error::{ApiError, Reason};
use crate::hook::{self, Bounds};
use crate::kind::{ConversionWebhook, ReviewVersion};
use crate::lifecycle::{json_type, metadata_text, text, type_of};

/// How long a webhook may take for one question, and how much it may answer.
const BOUNDS: Bounds = Bounds { seconds: 30, answer_bytes: 32 * 1024 * 1024 };
/// Objects are asked for together up to about this size.
const QUESTION_BYTES: usize = 1024 * 1024;

/// The objects, all of one kind, in the version `to`, in the same order.
pub(crate) async fn convert(
    webhook: &ConversionWebhook,
    objects: Vec<Value>,
    to: &str,
) -> Result<Vec<Value>, ApiError> {
    let mut converted = Vec::with_capacity(objects.len());
    let mut rest = objects.as_slice();
    while !rest.is_empty() {
        let (together, later) = rest.split_at(fitting(rest));
        converted.extend(ask(webhook, together, to).await?);
        rest = later;
    }
    Ok(converted)
}

/// How many of the objects go into one question: at least one.
fn fitting(objects: &[Value]) -> usize {
    let mut size = 0;
    let fits = |object: &&Value| {
        size += object.to_string().len();
        size <= QUESTION_BYTES
    };
    objects.iter().take_while(fits).count().max(1)
}

async fn ask(webhook: &ConversionWebhook, objects: &[Value], to: &str) -> Result<Vec<Value>, ApiError> {
    let refuse = |object: &Value, reason: String| {
        let message = format!("conversion webhook for {} {reason}", type_of(object));
        ApiError::new(Reason::Unknown, message)
    };
    let Some(first) = objects.first() else { return Ok(Vec::new()) };
    let question = question(webhook.review, objects, to);
    let answer = hook::post(&webhook.client, &question, BOUNDS).await;
    let converted = answer
        .and_then(|answer| verdict(webhook.review, &question, answer))
        .map_err(|reason| refuse(first, format!("failed: {reason}")))?;
    if converted.len() != objects.len() {
        let (got, expected) = (converted.len(), objects.len());
        return Err(refuse(first, format!("returned {got} objects, expected {expected}")));
    }
    let pairs = objects.iter().zip(converted);
    pairs.map(|(old, new)| checked(old, new, to).map_err(|reason| refuse(old, reason))).collect()
}

fn question(review: ReviewVersion, objects: &[Value], to: &str) -> Value {
    json!({
        "kind": "ConversionReview", "apiVersion": review_version(review),
        "request": {"uid": Uuid::new_v4().to_string(), "desiredAPIVersion": to, "objects": objects},
    })
}

fn review_version(review: ReviewVersion) -> &'static str {
    match review {
        ReviewVersion::V1 => "apiextensions.k8s.io/v1",
        ReviewVersion::V1beta1 => "apiextensions.k8s.io/v1beta1",
    }
}

/// The objects of an answer to this very question; the error says what is wrong with it.
fn verdict(review: ReviewVersion, question: &Value, mut answer: Value) -> Result<Vec<Value>, String> {
    if review == ReviewVersion::V1 {
        let (wanted, got) = (type_of(question), type_of(&answer));
        if wanted != got {
            return Err(format!("expected webhook response of {wanted}, got {got}"));
        }
    }
    let response = &mut answer["response"];
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let (wanted, got) = (text(question, "/request/uid"), text(response, "/uid"));
    if review == ReviewVersion::V1 && wanted != got {
        return Err(format!("expected response.uid={wanted:?}, got {got:?}"));
    }
    match (text(response, "/result/status"), text(response, "/result/message")) {
        ("Success", _) => {}
        (status, "") => return Err(format!("response.result.status was '{status}', not 'Success'")),
        (_, message) => return Err(message.to_owned()),
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// The new object with the metadata of the old one but its own labels and annotations.
fn checked(old: &Value, mut new: Value, to: &str) -> Result<Value, String> {
    let (got, kind) = (text(&new, "/apiVersion"), text(&new, "/kind"));
    if got != to {
        return Err(format!(
            "returned invalid object at index 0: invalid groupVersion (expected {to}, received {got})"
        ));
    }
    if kind != text(old, "/kind") {
        let expected = text(old, "/kind");
        return Err(format!(
            "returned invalid object at index 0: invalid kind (expected {expected}, received {kind})"
        ));
    }
    for (field, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (before, after) = (metadata_text(old, field), metadata_text(&new, field));
        if before != after {
            return Err(format!("returned invalid object: must have the same {shown}: {before} != {after}"));
        }
    }
    let metadata = restored(old, &new).map_err(|reason| format!("returned invalid metadata: {reason}"))?;
    new["metadata"] = Value::Object(metadata);
    Ok(new)
}

fn restored(old: &Value, new: &Value) -> Result<Map<String, Value>, String> {
    let answered = match new.get("metadata") {
        Some(Value::Object(metadata)) => metadata,
        Some(other) => {
            return Err(format!("invalid metadata of type {} in converted object", json_type(other)));
        }
        None => return Err("missing metadata in converted object".to_owned()),
    };
    let mut metadata = old["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let map = match answered.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
                continue;
            }
            Some(Value::Object(map)) => map,
            Some(other) => {
                let found = json_type(other);
                return Err(format!("invalid metadata.{field} of type {found} in converted object"));
            }
        };
        if let Some((key, value)) = map.iter().find(|(_, value)| !value.is_string()) {
            let found = json_type(value);
            return Err(format!(
                "metadata.{field}[{key}] must be a string, but is {found} in converted object"
            ));
        }
        if metadata.get(field).and_then(Value::as_object) != Some(map) {
            let faults = map_faults(field, map);
            match faults.as_slice() {
                [] => {}
                [only] => return Err(only.clone()),
                several => return Err(format!("[{}]", several.join(", "))),
            }
        }
        metadata.insert(field.to_owned(), Value::Object(map.clone()));
    }
    Ok(metadata)
}
