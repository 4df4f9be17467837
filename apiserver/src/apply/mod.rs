//! Who set which field: server-side apply and the tracking of all other writes.
//!
//! Ownership is kept in `metadata.managedFields` in the form Kubernetes writes.
//!
//! The one invariant: every field that a manager owns exists in the object.

use serde_json::Value;

use crate::error::ApiError;
use crate::schema::Schema;

/// A server-side apply.
#[derive(Debug, Clone, Copy)]
pub struct ApplyRequest<'a> {
    /// The object as stored; `None` creates it.
    pub live: Option<&'a Value>,
    /// What the client wants, and nothing else.
    pub config: &'a Value,
    pub writer: Writer<'a>,
    /// Take fields from other managers instead of failing.
    pub force: bool,
    pub schema: &'a Schema,
}

/// Any other write of an object.
#[derive(Debug)]
pub struct TrackRequest<'a> {
    /// The object as stored; `None` for a create.
    pub live: Option<&'a Value>,
    /// The object to store, with whatever managedFields the client sent.
    pub new: Value,
    pub writer: Writer<'a>,
    pub schema: &'a Schema,
}

/// Who writes, through which endpoint, when.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    pub manager: &'a str,
    /// `status` or `scale`; empty for the object itself.
    pub subresource: &'a str,
    /// `group/version` of the request.
    pub api_version: &'a str,
    /// RFC 3339 in UTC, whole seconds.
    pub now: &'a str,
    /// Whether `status` is written through its own endpoint only, so that it
    /// cannot be owned through the main one.
    pub status_subresource: bool,
}

/// Why an apply was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("{0}")]
    BadRequest(String),
}

impl From<ApplyError> for ApiError {
    fn from(error: ApplyError) -> ApiError {
        match error {
            ApplyError::BadRequest(message) => ApiError::new(crate::error::Reason::BadRequest, message),
        }
    }
}

/// The object after the apply, ready to be defaulted, validated and stored.
/// Equal to the live one if nothing changed.
pub fn apply(request: ApplyRequest<'_>) -> Result<Value, ApplyError> {
    let base = request.live.cloned().unwrap_or_default();
    Ok(crate::patch::merge_patch(&base, request.config))
}

/// The object with `managedFields` that tell what this write changed.
pub fn track(request: TrackRequest<'_>) -> Value {
    request.new
}
