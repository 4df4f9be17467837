//! One function per verb on objects: get, create, update, delete.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::Value;

use super::body::Body;
use super::call::Call;
use super::decode;
use super::query::WriteOptions;
use super::respond;
use super::strict::Read;
use super::write::{Outcome, Write, unavailable};
use crate::admission::{Operation, Review};
use crate::error::{ApiError, Reason};
use crate::lifecycle::{self, DeleteOptions, Deletion, Part};
use crate::store::{Body as StoredBody, Change, Stored, WriteError};

pub(crate) async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    let found = call.served.here(&call.stored()?).await?;
    if call.check.is_some() {
        call.check(&call.served.object(&found))?;
    }
    Ok(respond::object(call, StatusCode::OK, call.served.bytes(&found)))
}

pub(crate) async fn create(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let options = WriteOptions::parse(&call.query, "CreateOptions")?;
    let sent = decode::object_of(&call.served, body, &call.content_type, &call.server.limits)?;
    let mut write = Write::new(call, &options, Part::Main);
    write.faults = sent.faults;
    let outcome = write.create(sent.value).await?;
    answer(call, StatusCode::CREATED, outcome, &write.warnings).await
}

/// PUT of the object or its status.
pub(crate) async fn update(call: &Call, body: &Bytes, part: Part) -> Result<Response<Body>, ApiError> {
    let options = WriteOptions::parse(&call.query, "UpdateOptions")?;
    let Read { value: sent, faults } =
        decode::object_of(&call.served, body, &call.content_type, &call.server.limits)?;
    if lifecycle::metadata_text(&sent, "name").is_empty() {
        let name = call.name();
        let message =
            format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
        return Err(ApiError::new(Reason::BadRequest, message));
    }
    lifecycle::check_version_given(&call.served, &sent, call.name())?;
    // Whoever was faster is looked at anew: the object may be gone, which is no conflict.
    loop {
        let stored = call.stored()?;
        let live = call.served.read(&stored).await?;
        lifecycle::check_uid(&call.served, &live, &sent, call.name())?;
        let mut write = Write::new(call, &options, part);
        write.faults.clone_from(&faults);
        if let Some(outcome) = write.replace(&stored, &live, sent.clone()).await? {
            return answer(call, StatusCode::OK, outcome, &write.warnings).await;
        }
    }
}

pub(crate) async fn answer(
    call: &Call,
    code: StatusCode,
    outcome: Outcome,
    warnings: &[String],
) -> Result<Response<Body>, ApiError> {
    let response = match outcome {
        Outcome::Stored(stored) => {
            respond::object(call, code, call.served.bytes(&call.served.here(&stored).await?))
        }
        Outcome::Dry(object) => respond::value(call, code, object),
    };
    Ok(respond::with_warnings(response, warnings))
}

pub(crate) async fn delete(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let options = delete_options(call, body)?;
    let (removed, warnings) = remove(call, &options).await?;
    let response = match removed {
        Removed::Gone(object) if returns_object(call) => respond::value(call, StatusCode::OK, object),
        Removed::Gone(object) => respond::deleted(call, &object),
        Removed::Held(object) => respond::value(call, StatusCode::OK, object),
    };
    Ok(respond::with_warnings(response, &warnings))
}

/// Kinds whose delete answers with the object rather than a status.
fn returns_object(call: &Call) -> bool {
    let resource = call.served.resource();
    let plurals: &[&str] = match &*resource.group {
        "" => &["namespaces", "pods", "persistentvolumes", "persistentvolumeclaims", "serviceaccounts"],
        "storage.k8s.io" => &["csidrivers", "csinodes", "storageclasses"],
        _ => &[],
    };
    plurals.contains(&&*resource.plural)
}

pub(crate) fn delete_options(call: &Call, body: &Bytes) -> Result<DeleteOptions, ApiError> {
    let body = match body.is_empty() {
        true => Value::Null,
        false => decode::options(body, &call.content_type, &call.server.limits)?,
    };
    DeleteOptions::parse(&call.query, &body)
}

/// What a delete led to.
pub(crate) enum Removed {
    Gone(Value),
    Held(Value),
}

/// Deletes one object; with what became of it come the warnings of webhooks.
pub(crate) async fn remove(call: &Call, options: &DeleteOptions) -> Result<(Removed, Vec<String>), ApiError> {
    loop {
        let stored = call.stored()?;
        let live = call.served.read(&stored).await?;
        call.check(&live)?;
        let deletion = lifecycle::decide_deletion(&call.served, &live, options, Timestamp::now())?;
        let review = Review {
            operation: Operation::Delete,
            object: None,
            old: Some(&live),
            dry_run: options.dry_run,
            deletion: Some(options),
        };
        let warnings = call.server.webhooks.review(call, review).await?;
        let (change, object, gone) = match deletion {
            Deletion::AsItIs => return Ok((Removed::Held(live), warnings)),
            Deletion::Gone(last) => (delete_change(call, &last, &stored).await?, last, true),
            Deletion::Marked(marked) => (replace_change(call, &marked, &stored).await?, marked, false),
        };
        if options.dry_run {
            return Ok((if gone { Removed::Gone(object) } else { Removed::Held(object) }, warnings));
        }
        match call.server.commit(change, Vec::new()).await {
            Ok(_) if gone => return Ok((Removed::Gone(object), warnings)),
            Ok(stored) => return Ok((Removed::Held(call.served.read(&stored).await?), warnings)),
            Err(WriteError::Conflict { .. } | WriteError::Missing) => {}
            Err(WriteError::Unavailable { reason }) => return Err(unavailable(&reason)),
            Err(error @ (WriteError::Exists | WriteError::GuardFailed { .. })) => {
                return Err(ApiError::new(Reason::InternalError, error.to_string()));
            }
        }
    }
}

async fn delete_change(call: &Call, last: &Value, stored: &Arc<Stored>) -> Result<Change, ApiError> {
    let last = StoredBody::new(&*call.served.to_stored(last).await?);
    Ok(Change::Delete { key: call.key(), last, expected: stored.version })
}

async fn replace_change(call: &Call, object: &Value, stored: &Arc<Stored>) -> Result<Change, ApiError> {
    let body = StoredBody::new(&*call.served.to_stored(object).await?);
    Ok(Change::Replace { key: call.key(), body, expected: stored.version })
}
