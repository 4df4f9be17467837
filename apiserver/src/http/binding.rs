//! `pods/binding`: puts a pod on a node, once.

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::body::Body;
use super::call::Call;
use super::decode;
use super::query::WriteOptions;
use super::respond;
use super::write::unavailable;
use crate::admission::{Operation, Review};
use crate::error::{ApiError, Reason};
use crate::lifecycle::{is_deleting, precondition_failed, rfc3339, text};
use crate::schema::{FieldError, invalid};
use crate::store::{Body as StoredBody, Change, WriteError};

pub(crate) async fn bind(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions")?;
    let binding = decode::object(body, &call.content_type, &call.server.limits)?;
    let node = text(&binding, "/target/name");
    if node.is_empty() {
        return Err(invalid("Binding", "", call.name(), &[FieldError::required("target.name", "")]));
    }
    let warnings = loop {
        let stored = call.stored()?;
        let pod = bound(call, call.served.read(&stored).await?, node)?;
        let review = Review {
            operation: Operation::Create,
            object: Some(&binding),
            old: None,
            dry_run: options.dry_run,
            deletion: None,
        };
        let warnings = call.server.webhooks.review(call, review).await?;
        if options.dry_run {
            break warnings;
        }
        let change =
            Change::Replace { key: call.key(), body: StoredBody::new(&pod), expected: stored.version };
        match call.server.commit(change, Vec::new()).await {
            Ok(_) => break warnings,
            Err(WriteError::Conflict { .. } | WriteError::Missing) => {}
            Err(WriteError::Unavailable { reason }) => return Err(unavailable(&reason)),
            Err(error @ (WriteError::Exists | WriteError::GuardFailed { .. })) => {
                return Err(ApiError::new(Reason::InternalError, error.to_string()));
            }
        }
    };
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(respond::with_warnings(respond::json_value(StatusCode::CREATED, &status), &warnings))
}

fn bound(call: &Call, mut pod: Value, node: &str) -> Result<Value, ApiError> {
    let refuse = |detail: String| Err(precondition_failed(&call.served, call.name(), &detail));
    if is_deleting(&pod) {
        return refuse(format!("pod {} is being deleted, cannot be assigned to a host", call.name()));
    }
    let current = text(&pod, "/spec/nodeName");
    if !current.is_empty() {
        return refuse(format!("pod {} is already assigned to node {current:?}", call.name()));
    }
    pod["spec"]["nodeName"] = json!(node);
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": rfc3339(Timestamp::now()),
    });
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let others = conditions.into_iter().filter(|one| one["type"] != "PodScheduled");
    pod["status"]["conditions"] = others.chain([condition]).collect();
    Ok(pod)
}
