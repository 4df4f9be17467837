//! Who set which field: server-side apply and the tracking of all other writes.
//!
//! Ownership is kept in `metadata.managedFields` in the form Kubernetes writes.
//!
//! The one invariant: every field that a manager owns exists in the object.

mod check;
mod compare;
mod element;
mod managed;
mod merge;
mod ownership;
mod set;
mod shape;
mod versions;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Cause, Reason};
use crate::lifecycle::type_of;
use crate::schema::{MAX_DEPTH, Schema, nests_deeper_than, tidy_metadata};
use managed::Managed;
use ownership::Attempt;
use shape::Type;
pub use versions::{Unknown, Versions};

/// Who owned everything before an object was first applied to.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Where client-side apply keeps what it applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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
    pub versions: &'a Versions<'a>,
}

/// Any other write of an object.
#[derive(Debug)]
pub struct TrackRequest<'a> {
    /// The object as stored; `None` for a create.
    pub live: Option<&'a Value>,
    /// What an object of the kind has before anyone has written to it; nobody owns that.
    pub blank: Value,
    /// The object to store, with whatever managedFields the client sent.
    pub new: &'a Value,
    pub writer: Writer<'a>,
    pub schema: &'a Schema,
    pub versions: &'a Versions<'a>,
}

/// Who writes, through which endpoint, when.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    pub manager: &'a str,
    /// `status` or `scale`; empty for the object itself.
    pub subresource: &'a str,
    /// `group/version` of the request.
    pub api_version: &'a str,
    /// RFC 3339 in UTC, whole seconds; `None` where the time is not noted.
    pub now: Option<&'a str>,
    /// Fields that this endpoint does not write, so that nobody can come to
    /// own them through it.
    pub resets: Resets,
}

/// Paths of fields that an endpoint leaves alone.
pub type Resets = &'static [&'static [&'static str]];

/// The endpoint writes everything.
pub const RESETS_NOTHING: Resets = &[];
/// The main endpoint of a kind whose status has its own.
pub const RESETS_STATUS: Resets = &[&["status"]];
/// The status endpoint of a built-in kind.
pub const RESETS_SPEC: Resets = &[&["spec"]];
/// The status endpoint of a custom kind.
pub const RESETS_ALL_BUT_STATUS: Resets = &[&["metadata"], &["spec"]];

impl Writer<'_> {
    fn name(&self) -> &str {
        if self.manager.is_empty() { "unknown" } else { self.manager }
    }
}

/// A field that another manager owns with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// `"kubectl-edit" using example.com/v1`
    pub manager: String,
    /// `.spec.size`
    pub path: String,
}

/// Why an apply was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the schema.
    #[error("{0}")]
    Untypable(String),
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// Nothing is refused yet: the same apply goes on with this known.
    #[error(transparent)]
    Unknown(Box<Unknown>),
}

impl From<Unknown> for ApplyError {
    fn from(unknown: Unknown) -> ApplyError {
        ApplyError::Unknown(Box::new(unknown))
    }
}

impl From<ApplyError> for ApiError {
    fn from(error: ApplyError) -> ApiError {
        let message = error.to_string();
        match error {
            ApplyError::BadRequest(_) => ApiError::new(Reason::BadRequest, message),
            ApplyError::Untypable(_) | ApplyError::Unknown(_) => ApiError::new(Reason::Unknown, message),
            ApplyError::Conflicts(conflicts) => {
                let cause = |conflict: Conflict| Cause {
                    reason: "FieldManagerConflict",
                    message: format!("conflict with {}", conflict.manager),
                    field: conflict.path,
                };
                ApiError::new(Reason::Conflict, message).because(conflicts.into_iter().map(cause).collect())
            }
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.manager, only.path);
    }
    let mut lines = Vec::new();
    let mut manager = "";
    for conflict in conflicts {
        if conflict.manager != manager {
            manager = &conflict.manager;
            lines.push(format!("conflicts with {manager}:"));
        }
        lines.push(format!("- {}", conflict.path));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// The object after the apply, ready to be defaulted, validated and stored.
/// Equal to the live one if nothing changed.
pub fn apply(request: ApplyRequest<'_>) -> Result<Value, ApplyError> {
    let ApplyRequest { live, config, writer, force, schema, versions } = request;
    let kind = |object: &Value| object.get("kind").cloned().unwrap_or_default();
    let other_kind = live.is_some_and(|live| kind(live) != kind(config));
    if config["apiVersion"] != writer.api_version || other_kind {
        return Err(ApplyError::BadRequest(format!("invalid object type: {}", type_of(config))));
    }
    if managed::raw(config).is_some_and(|fields| !fields.is_null()) {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".into()));
    }
    if nests_deeper_than(config, MAX_DEPTH) {
        let message = format!("the configuration must not nest deeper than {MAX_DEPTH} levels");
        return Err(ApplyError::BadRequest(message));
    }
    let of = Type::Object(schema.root());
    if let Some(fault) = check::faults(config, of) {
        let message = format!("failed to create typed patch object ({}): {fault}", describe(config));
        return Err(ApplyError::Untypable(message));
    }
    let blank = json!({"apiVersion": config.get("apiVersion"), "kind": config.get("kind")});
    let stored = live.unwrap_or(&blank);
    let decode = |fault| ApplyError::Untypable(format!("failed to decode managed fields: {fault}"));
    let mut before = Managed::decode(stored).map_err(decode)?;
    let bare = without_managed_fields(stored);
    if before.entries.is_empty() {
        let first = Writer { manager: BEFORE_FIRST_APPLY, ..writer };
        ownership::update(&mut before, (&blank, &bare), &first, of, versions)?;
    }
    let mut managed = before.clone();
    let attempt = Attempt { live: &bare, config, writer, of, versions };
    let mut outcome = ownership::apply(&mut managed, attempt, force)?;
    if let Err(conflicts) = &outcome
        && writer.manager == "kubectl"
    {
        let kept = last_applied_fields(&bare, &writer, of);
        let others: Vec<Conflict> = conflicts.iter().filter(|c| !kept.contains(&c.path)).cloned().collect();
        managed = before;
        outcome =
            if others.is_empty() { ownership::apply(&mut managed, attempt, true)? } else { Err(others) };
    }
    let applied = outcome.map_err(ApplyError::Conflicts)?;
    let mut object = if applied.changed { applied.object } else { bare };
    if writer.manager == "kubectl" {
        refresh_last_applied(&mut object, config);
    }
    tidy_metadata(&mut object);
    set_managed_fields(&mut object, &managed);
    Ok(object)
}

/// The object with `managedFields` that tell what this write changed.
pub fn track(request: TrackRequest<'_>) -> Result<Value, Unknown> {
    let TrackRequest { live, blank, new, writer, schema, versions } = request;
    let mut managed = managed_before(live, new, &writer, schema);
    let mut new = without_managed_fields(new);
    let is_create = live.is_none();
    if managed.entries.is_empty() && !is_create {
        return Ok(new);
    }
    let of = Type::Object(schema.root());
    let old = without_managed_fields(live.unwrap_or(&blank));
    ownership::update(&mut managed, (&old, &new), &writer, of, versions)?;
    set_managed_fields(&mut new, &managed);
    Ok(new)
}

/// The ownership to start from: what the client sent if it makes sense, else
/// what is stored; a subresource cannot change it.
fn managed_before(live: Option<&Value>, new: &Value, writer: &Writer<'_>, schema: &Schema) -> Managed {
    let stored = || live.and_then(|live| Managed::decode(live).ok()).unwrap_or_default();
    if !writer.subresource.is_empty() {
        return stored();
    }
    if managed::is_reset(new, schema.is_built_in()) {
        return Managed::default();
    }
    match Managed::decode(new) {
        Ok(managed) if !managed.entries.is_empty() => managed,
        Ok(_) | Err(_) => stored(),
    }
}

/// Keeps the old times of ownership if they are all that a write would change,
/// so that a write that changes nothing is not one.
pub fn keep_times(live: &Value, new: &mut Value) {
    let (Some(Value::Array(old)), Some(Value::Array(entries))) = (managed::raw(live), managed::raw(new))
    else {
        return;
    };
    let timeless = |entry: &Value| {
        let mut entry = entry.as_object().cloned().unwrap_or_default();
        entry.remove("time");
        entry
    };
    let key = |entry: &Map<String, Value>| {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
        (text("operation"), text("manager"), text("apiVersion"), text("subresource"))
    };
    if old.len() != entries.len() {
        return;
    }
    let (mut before, mut after): (Vec<_>, Vec<_>) =
        (old.iter().map(timeless).collect(), entries.iter().map(timeless).collect());
    before.sort_by_key(key);
    after.sort_by_key(key);
    if before == after && same_but_managed_fields(live, new) {
        let old = Value::Array(old.clone());
        if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("managedFields".into(), old);
        }
    }
}

fn same_but_managed_fields(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
    let fields_equal = |a: &Map<String, Value>, b: &Map<String, Value>, skip: &str| {
        a.len() == b.len() && a.iter().all(|(name, value)| name == skip || b.get(name) == Some(value))
    };
    let metadata = |object: &Map<String, Value>| {
        object.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default()
    };
    fields_equal(a, b, "metadata") && fields_equal(&metadata(a), &metadata(b), "managedFields")
}

/// `namespace/name; group/version, Kind=kind`
fn describe(object: &Value) -> String {
    let meta = |name: &str| object["metadata"][name].as_str().unwrap_or("").to_owned();
    format!("{}/{}; {}", meta("namespace"), meta("name"), type_of(object))
}

/// The paths that client-side apply set and that still have its values.
fn last_applied_fields(live: &Value, writer: &Writer<'_>, of: Type<'_>) -> Vec<String> {
    let annotation = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    let Some(last) = annotation.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return Vec::new();
    };
    if last["apiVersion"] != writer.api_version {
        return Vec::new();
    }
    let mut fields = compare::fields_of(&last, of);
    let mut change = compare::Difference::between(&last, live, of);
    fields.subtract(&change.take_set());
    fields.subtract(&change.removed);
    fields.paths()
}

fn refresh_last_applied(object: &mut Value, config: &Value) {
    let annotation = object.pointer_mut("/metadata/annotations").and_then(|map| map.get_mut(LAST_APPLIED));
    if let Some(annotation) = annotation.filter(|text| text.as_str().is_some_and(|text| !text.is_empty())) {
        let mut config = config.clone();
        if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
            annotations.remove(LAST_APPLIED);
        }
        *annotation = Value::String(format!("{config}\n"));
    }
}

fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    remove_managed_fields(&mut object);
    object
}

fn remove_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

fn set_managed_fields(object: &mut Value, managed: &Managed) {
    if managed.entries.is_empty() {
        return;
    }
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("managedFields".into(), managed.encode());
    }
}
