//! PATCH in its four forms.
//!
//! A patch that names no resourceVersion is applied to whatever the object is
//! by then: a lost race is run again, not reported.

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::body::Body;
use super::call::Call;
use super::decode;
use super::handlers::answer;
use super::query::{FieldValidation, WriteOptions};
use super::strict::Read;
use super::write::{Outcome, Write};
use crate::apply::{ApplyError, ApplyRequest, apply};
use crate::error::{ApiError, Reason};
use crate::lifecycle::{self, Part, json_type, precondition_failed, rfc3339};
use crate::patch::{json_patch, merge_patch, strategic_merge_patch};
use crate::schema::{FieldError, invalid};

/// How often a lost race is run again before the client is told.
const ATTEMPTS: usize = 50;

/// How the body says what to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    fn parse(call: &Call) -> Result<PatchKind, ApiError> {
        let built_in = call.served.kind().built_in;
        match call.content_type.as_str() {
            "application/json-patch+json" => Ok(PatchKind::Json),
            "application/merge-patch+json" => Ok(PatchKind::Merge),
            "application/strategic-merge-patch+json" if built_in => Ok(PatchKind::Strategic),
            "application/apply-patch+yaml" => Ok(PatchKind::Apply),
            _ if built_in => Err(decode::unsupported(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
                "application/strategic-merge-patch+json",
            ])),
            _ => Err(decode::unsupported(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ])),
        }
    }
}

pub(crate) async fn patch(call: &Call, body: &Bytes, part: Part) -> Result<Response<Body>, ApiError> {
    let kind = PatchKind::parse(call)?;
    let options = WriteOptions::parse(&call.query, "PatchOptions")?;
    let limits = &call.server.limits;
    let Read { value: change, faults } = match kind {
        PatchKind::Apply => decode::yaml(body, limits)?,
        PatchKind::Json | PatchKind::Merge | PatchKind::Strategic => decode::patch(body, limits)?,
    };
    if kind == PatchKind::Apply && options.field_manager.is_none() {
        let error = FieldError::required("fieldManager", "is required for apply patch");
        return Err(invalid("PatchOptions", "meta.k8s.io", "", &[error]));
    }
    if kind != PatchKind::Apply && options.force {
        let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
        return Err(invalid("PatchOptions", "meta.k8s.io", "", &[error]));
    }
    for _ in 0..ATTEMPTS {
        let mut write = Write::new(call, &options, part);
        write.patched = true;
        match kind {
            PatchKind::Apply => apply_faults(&mut write, &faults)?,
            PatchKind::Json | PatchKind::Merge | PatchKind::Strategic => write.faults.clone_from(&faults),
        }
        if let Some((code, outcome)) = attempt(&mut write, kind, &change).await? {
            return answer(call, code, outcome, &write.warnings).await;
        }
    }
    Err(lifecycle::modified(&call.served, call.name()))
}

/// What is wrong with a configuration for a strict reader is told before it is looked at.
fn apply_faults(write: &mut Write<'_>, faults: &[String]) -> Result<(), ApiError> {
    match write.options.field_validation {
        FieldValidation::Strict if !faults.is_empty() => {
            let message = format!(
                "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
                faults.join("\n  ")
            );
            Err(ApiError::new(Reason::BadRequest, message))
        }
        FieldValidation::Warn => {
            write.warn(faults.to_vec());
            Ok(())
        }
        FieldValidation::Strict | FieldValidation::Ignore => Ok(()),
    }
}

/// One try; `None` if somebody else was faster.
async fn attempt(
    write: &mut Write<'_>,
    kind: PatchKind,
    change: &Value,
) -> Result<Option<(StatusCode, Outcome)>, ApiError> {
    let call = write.call;
    let Some(stored) = call.server.store.get(&call.key()) else {
        if kind != PatchKind::Apply || write.part != Part::Main {
            return Err(call.served.not_found(call.name()));
        }
        if let Some(uid) = change["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let detail = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(precondition_failed(&call.served, call.name(), &detail));
        }
        let object = applied(write, None, change).await?;
        return match write.create(object).await {
            Ok(outcome) => Ok(Some((StatusCode::CREATED, outcome))),
            Err(error) if error.reason == Reason::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        };
    };
    let live = call.served.read(&stored).await?;
    let new = match kind {
        PatchKind::Json => json_patch(&live, change)?,
        PatchKind::Merge | PatchKind::Strategic if !change.is_object() => {
            let found = json_type(change);
            let message = format!(
                "error decoding patch: json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            );
            return Err(ApiError::new(Reason::BadRequest, message));
        }
        PatchKind::Merge => merge_patch(&live, change),
        PatchKind::Strategic => strategic_merge_patch(&live, change, call.served.schema())?,
        PatchKind::Apply => applied(write, Some(&live), change).await?,
    };
    check_patched(call, &new)?;
    let outcome = write.replace(&stored, &live, new).await?;
    Ok(outcome.map(|outcome| (StatusCode::OK, outcome)))
}

/// A patch cannot turn an object into one of another version.
fn check_patched(call: &Call, new: &Value) -> Result<(), ApiError> {
    let wanted = call.served.api_version();
    match new.get("apiVersion") {
        Some(Value::String(version)) if version != wanted => {
            let error = FieldError::invalid("apiVersion", &json!(version), format!("must be {wanted}"));
            Err(invalid(&call.served.kind().kind, "", call.name(), &[error]))
        }
        _ => Ok(()),
    }
}

/// What is applied must say what it is.
fn check_applicable(call: &Call, config: &Value) -> Result<(), ApiError> {
    let bad = |message: String| Err(ApiError::new(Reason::BadRequest, message));
    let (api_version, kind) = (config["apiVersion"].as_str(), config["kind"].as_str());
    if api_version.is_none() || kind.is_none() {
        let (group, version) = api_version.unwrap_or_default().split_once('/').unwrap_or(("", ""));
        return bad(format!("invalid object type: {group}/{version}, Kind={}", kind.unwrap_or_default()));
    }
    if config["metadata"]["name"].as_str().is_none_or(str::is_empty) && call.subresource.is_none() {
        let name = call.name();
        return bad(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ));
    }
    Ok(())
}

async fn applied(write: &mut Write<'_>, live: Option<&Value>, config: &Value) -> Result<Value, ApiError> {
    let call = write.call;
    check_applicable(call, config)?;
    let manager = call.manager(write.options.field_manager.as_deref());
    let now = rfc3339(Timestamp::now());
    let writer = write.writer(&manager, Some(&now));
    let force = write.options.force;
    let (schema, mut versions) = (call.served.schema(), call.served.other_versions());
    loop {
        match apply(ApplyRequest { live, config, writer, force, schema, versions: &versions }) {
            Ok(object) => {
                write.applied = true;
                return Ok(object);
            }
            Err(ApplyError::Unknown(unknown)) => call.served.find_out(&mut versions, *unknown).await?,
            Err(error) => return Err(error.into()),
        }
    }
}
