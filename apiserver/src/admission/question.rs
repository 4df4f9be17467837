//! The AdmissionReview sent to a webhook, and what its answer means.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Operation, Review};
use crate::auth::Verb;
use crate::error::{ApiError, Reason};
use crate::http::Call;
use crate::lifecycle::metadata_text;

pub(super) fn question(call: &Call, review: &Review<'_>) -> Value {
    let (group, version) = (&*call.served.resource().group, call.served.version().name.as_str());
    let kind = match call.subresource.as_deref() {
        Some("scale") => json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}),
        Some("binding") => json!({"group": "", "version": "v1", "kind": "Binding"}),
        _ => json!({"group": group, "version": version, "kind": call.served.kind().kind}),
    };
    let resource = json!({"group": group, "version": version, "resource": &*call.served.resource().plural});
    let mut request = json!({
        "uid": Uuid::new_v4().to_string(),
        "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "operation": review.operation.as_str(),
        "userInfo": {"username": call.identity.user(), "groups": call.identity.groups()},
        "object": review.object, "oldObject": review.old, "dryRun": review.dry_run, "options": options(call, review),
    });
    // Who deletes a collection names none of its objects.
    if call.verb != Verb::DeleteCollection {
        let object = review.object.or(review.old);
        request["name"] = json!(object.map(|object| metadata_text(object, "name")));
    }
    if let Some(namespace) = &call.namespace {
        request["namespace"] = json!(namespace);
    }
    if let Some(sub) = &call.subresource {
        request["subResource"] = json!(sub);
        request["requestSubResource"] = json!(sub);
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})
}

/// The options of the request, as its kind of operation names them.
fn options(call: &Call, review: &Review<'_>) -> Value {
    let kind = match review.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(given) = call.query.get(field).filter(|_| review.deletion.is_none()) {
            options[field] = json!(given);
        }
    }
    if let Some(deletion) = review.deletion {
        deletion.write(&mut options);
    }
    if review.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    options
}

/// A webhook's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    allowed: bool,
    message: String,
    code: u16,
    pub(super) warnings: Vec<String>,
}

/// Reads the answer; the error says what is wrong with it.
pub(super) fn verdict(question: &Value, reply: &Value) -> Result<Verdict, String> {
    let response = &reply["response"];
    let Some(allowed) = response["allowed"].as_bool() else {
        return Err("received invalid webhook response: the answer holds no response.allowed".to_owned());
    };
    if response["uid"] != question["request"]["uid"] {
        return Err(format!(
            "received invalid webhook response: expected response.uid={}, got {}",
            question["request"]["uid"], response["uid"]
        ));
    }
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(Verdict {
        allowed,
        message: response["status"]["message"].as_str().unwrap_or_default().to_owned(),
        code: response["status"]["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or(0)
            .max(400),
        warnings: warnings.map(str::to_owned).collect(),
    })
}

impl Verdict {
    /// The error the client gets, if the webhook said no.
    pub(super) fn refusal(&self, webhook: &str) -> Option<ApiError> {
        if self.allowed {
            return None;
        }
        let message = match self.message.as_str() {
            "" => format!("admission webhook {webhook:?} denied the request without explanation"),
            message => format!("admission webhook {webhook:?} denied the request: {message}"),
        };
        let reason = match self.code {
            401 => Reason::Unauthorized,
            404 => Reason::NotFound,
            409 => Reason::Conflict,
            422 => Reason::Invalid,
            429 => Reason::TooManyRequests,
            403 => Reason::Forbidden,
            500..=599 => Reason::InternalError,
            _ => Reason::Denied,
        };
        Some(ApiError::new(reason, message))
    }
}
