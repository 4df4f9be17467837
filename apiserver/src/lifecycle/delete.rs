//! What a delete request does to an object: remove it, mark it, or nothing yet.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::built_in;
use super::metadata::{finalizers, is_deleting, json_type};
use super::rfc3339;
use crate::error::{ApiError, Reason, Subject};
use crate::http::Query;
use crate::schema::{FieldError, invalid};
use crate::served::Served;

pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// What becomes of the objects that a deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl Propagation {
    fn as_str(self) -> &'static str {
        match self {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_seconds: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// From the query and, if there is one, the body, which wins.
    pub(crate) fn parse(query: &Query, body: &Value) -> Result<DeleteOptions, ApiError> {
        let bad = |message: &str| ApiError::new(Reason::BadRequest, message.to_owned());
        if !body.is_object() && !body.is_null() {
            return Err(bad("DeleteOptions must be an object"));
        }
        let mut errors = Vec::new();
        let from_body = body.is_object();
        check_types(body)?;
        let grace_seconds = match (from_body, query.get("gracePeriodSeconds")) {
            (false, Some(text)) => Some(
                text.parse()
                    .map_err(|_| bad(&format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))?,
            ),
            _ => body["gracePeriodSeconds"].as_i64(),
        };
        let policy = match from_body {
            true => body["propagationPolicy"].as_str().map(str::to_owned),
            false => query.get("propagationPolicy").map(str::to_owned),
        };
        let orphan = match from_body {
            true => body["orphanDependents"].as_bool(),
            false => query.get("orphanDependents").map(|_| query.flag("orphanDependents")),
        };
        let dry_runs: Vec<&str> = match from_body {
            true => body["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
            false => query.get("dryRun").into_iter().collect(),
        };
        let dry_run = crate::http::dry_run(dry_runs.first().copied(), &mut errors);
        let propagation = propagation(policy.as_deref(), orphan, &mut errors);
        if !errors.is_empty() {
            return Err(invalid("DeleteOptions", "meta.k8s.io", "", &errors));
        }
        let precondition = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
        let (uid, resource_version) = (precondition("uid"), precondition("resourceVersion"));
        Ok(DeleteOptions { grace_seconds, propagation, uid, resource_version, dry_run })
    }

    /// Writes into `options` what was asked for.
    pub(crate) fn write(&self, options: &mut Value) {
        if let Some(seconds) = self.grace_seconds {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        for (field, given) in [("uid", &self.uid), ("resourceVersion", &self.resource_version)] {
            if let Some(given) = given {
                options["preconditions"][field] = json!(given);
            }
        }
        if let Some(propagation) = self.propagation {
            options["propagationPolicy"] = json!(propagation.as_str());
        }
    }
}

fn check_types(body: &Value) -> Result<(), ApiError> {
    #[rustfmt::skip]
    let fields = [
        ("gracePeriodSeconds", "int64",                    Value::is_i64 as fn(&Value) -> bool),
        ("preconditions",      "v1.Preconditions",         Value::is_object),
        ("orphanDependents",   "bool",                     Value::is_boolean),
        ("propagationPolicy",  "v1.DeletionPropagation",   Value::is_string),
        ("dryRun",             "[]string",                 Value::is_array),
    ];
    let wrong = fields.into_iter().find(|(field, _, fits)| !body[field].is_null() && !fits(&body[field]));
    let Some((field, wanted, _)) = wrong else { return Ok(()) };
    let found = json_type(&body[field]);
    let message =
        format!("json: cannot unmarshal {found} into Go struct field DeleteOptions.{field} of type {wanted}");
    Err(ApiError::new(Reason::BadRequest, message))
}

fn propagation(
    policy: Option<&str>,
    orphan: Option<bool>,
    errors: &mut Vec<FieldError>,
) -> Option<Propagation> {
    match (policy, orphan) {
        (Some(policy), Some(_)) => {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", &json!(policy), detail));
            None
        }
        (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
        (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
        (Some("Foreground"), None) => Some(Propagation::Foreground),
        (Some(other), None) => {
            let supported = ["Foreground", "Background", "Orphan", "nil"].map(str::to_owned);
            errors.push(FieldError::not_supported("propagationPolicy", &json!(other), &supported));
            None
        }
        (None, None) => None,
    }
}

/// What to do with the stored object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// Remove it; this is its last state.
    Gone(Value),
    /// Store it, marked as being deleted; finalizers or a grace period hold it.
    Marked(Value),
    /// It is being deleted already and nothing changes.
    AsItIs,
}

pub(crate) fn decide_deletion(
    served: &Served,
    live: &Value,
    options: &DeleteOptions,
    now: Timestamp,
) -> Result<Deletion, ApiError> {
    check_preconditions(served, live, options)?;
    built_in::check_may_be_deleted(served, live)?;
    let mut object = live.clone();
    let mut grace = 0;
    if let Some(wanted) = built_in::grace_seconds(served, live, options.grace_seconds) {
        if is_deleting(live) {
            let pending = live["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
            if options.grace_seconds.is_none() || wanted > pending || (wanted == pending && pending > 0) {
                return Ok(Deletion::AsItIs);
            }
            shorten(&mut object, now, (pending, wanted));
        } else {
            mark(&mut object, now, wanted);
        }
        grace = wanted;
    }
    collection_finalizers(&mut object, options.propagation);
    let held = !finalizers(&object).is_empty() || built_in::on_delete(served, &mut object, now);
    if held && !is_deleting(&object) {
        mark(&mut object, now, 0);
    }
    match held || grace > 0 {
        false => Ok(Deletion::Gone(object)),
        true if object == *live => Ok(Deletion::AsItIs),
        true => Ok(Deletion::Marked(object)),
    }
}

fn check_preconditions(served: &Served, live: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let metadata = &live["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let refuse = |detail: String| {
        let kind = served.kind();
        let qualified = match &*kind.resource.group {
            "" => kind.kind.clone(),
            group => format!("{}.{group}", kind.kind),
        };
        let message = format!("Operation cannot be fulfilled on {qualified} {name:?}: {detail}");
        let subject = Subject { kind: kind.kind.clone(), ..served.subject(name) };
        Err(ApiError::new(Reason::Conflict, message).about(subject))
    };
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != text("uid")) {
        return refuse(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            text("uid")
        ));
    }
    if let Some(wanted) =
        options.resource_version.as_deref().filter(|wanted| *wanted != text("resourceVersion"))
    {
        return refuse(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({}). The object might have been modified",
            text("resourceVersion")
        ));
    }
    Ok(())
}

fn mark(object: &mut Value, now: Timestamp, grace: i64) {
    object["metadata"]["deletionTimestamp"] = json!(rfc3339(after(now, grace)));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = json!(generation + 1);
    }
}

/// A grace period has no upper bound: one beyond the calendar ends with the calendar.
fn after(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX)
}

/// Counts the shorter time from when the deletion was asked for, as far as that can be told.
fn shorten(object: &mut Value, now: Timestamp, (pending, wanted): (i64, i64)) {
    let marked = object["metadata"]["deletionTimestamp"].as_str().unwrap_or_default();
    let asked = match marked.parse::<Timestamp>() {
        Ok(end) if marked != rfc3339(Timestamp::MAX) => {
            end.checked_sub(SignedDuration::from_secs(pending)).ok()
        }
        Ok(_) | Err(_) => None,
    };
    object["metadata"]["deletionTimestamp"] = json!(rfc3339(after(asked.unwrap_or(now), wanted)));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(wanted);
}

/// The finalizers that tell the collector what to do with dependents.
fn collection_finalizers(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let wanted = match propagation {
        Propagation::Orphan => Some(ORPHAN),
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Background => None,
    };
    let old = finalizers(object);
    let mut new: Vec<&str> = old.iter().copied().filter(|f| *f != ORPHAN && *f != FOREGROUND).collect();
    new.extend(wanted);
    if new == old {
        return;
    }
    let new = json!(new);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        if new.as_array().is_some_and(Vec::is_empty) {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".into(), new);
        }
    }
}
