//! Takes one object from what a client sent to what is stored.
//!
//! ```text
//! shape ──▶ prune ──▶ default ──▶ lifecycle ──▶ validate ──▶ managedFields ──▶ admission ──▶ store
//! ```
//!
//! The invariant: nothing reaches the store that did not pass every step, and
//! a dry run passes them all but the last.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::call::Call;
use super::query::{FieldValidation, WriteOptions};
use super::{definition, namespace, scale};
use crate::admission::{Operation, Review};
use crate::apply::{
    RESETS_ALL_BUT_STATUS, RESETS_NOTHING, RESETS_SPEC, RESETS_STATUS, Resets, TrackRequest, Writer,
    keep_times, track,
};
use crate::builtin;
use crate::error::{ApiError, Cause, Reason};
use crate::lifecycle::{self, Naming, Part, random_suffix, rfc3339};
use crate::schema::{Fault, FieldError, Rules, invalid};
use crate::store::{Body, Change, Guard, Stored, WriteError};

/// How often a generated name that is taken is replaced by another.
const NAME_ATTEMPTS: usize = 8;

/// A write under way.
pub(crate) struct Write<'a> {
    pub(crate) call: &'a Call,
    pub(crate) options: &'a WriteOptions,
    pub(crate) part: Part,
    /// Set when the object carries the managedFields it shall have.
    pub(crate) applied: bool,
    /// Set when the object is the result of a patch, not what the client sent.
    pub(crate) patched: bool,
    /// What a strict reader found wrong with what the client sent.
    pub(crate) faults: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// What became of a write.
pub(crate) enum Outcome {
    Stored(Arc<Stored>),
    /// Not stored, because this was a dry run or the object is gone: as it would have been.
    Dry(Value),
}

impl<'a> Write<'a> {
    pub(crate) fn new(call: &'a Call, options: &'a WriteOptions, part: Part) -> Write<'a> {
        let deprecated = call.served.version().deprecation_warning.clone();
        Write {
            call,
            options,
            part,
            applied: false,
            patched: false,
            faults: Vec::new(),
            warnings: deprecated.into_iter().collect(),
        }
    }

    /// Stores a new object.
    pub(crate) async fn create(&mut self, sent: Value) -> Result<Outcome, ApiError> {
        let name = lifecycle::metadata_text(&sent, "name");
        definition::refuse_where_it_ends(self.call, self.call.name.as_deref().unwrap_or(name))?;
        let generated = name.is_empty() && self.call.name.is_none();
        for _ in 1..NAME_ATTEMPTS {
            if !generated {
                break;
            }
            match self.try_create(sent.clone()).await {
                Err(error) if error.reason == Reason::AlreadyExists => {}
                outcome => return outcome,
            }
        }
        self.try_create(sent).await
    }

    async fn try_create(&mut self, mut object: Value) -> Result<Outcome, ApiError> {
        let call = self.call;
        let now = Timestamp::now();
        let (uid, suffix) = (Uuid::new_v4().to_string(), random_suffix(Uuid::new_v4().as_u128()));
        let naming = naming(call, &uid, &suffix, now);
        let guard = namespace::guard(call, lifecycle::metadata_text(&object, "name"))?;
        self.prune(&mut object)?;
        lifecycle::for_create(&call.served, &mut object, naming)?;
        self.default(&mut object);
        self.judge(&object, None)?;
        let mut object = self.with_managers(object, None, now).await?;
        lifecycle::complete_new(&call.served, &mut object);
        call.check(&object)?;
        let review = Review {
            operation: Operation::Create,
            object: Some(&object),
            old: None,
            dry_run: self.options.dry_run,
            deletion: None,
        };
        self.warnings.extend(call.server.webhooks.review(call, review).await?);
        let name = lifecycle::metadata_text(&object, "name");
        let key = call.key_of(name);
        if self.options.dry_run {
            if call.server.store.get(&key).is_some() {
                return Err(exists(call, name));
            }
            return Ok(Outcome::Dry(object));
        }
        let body = Body::new(&*call.served.to_stored(&object).await?);
        self.commit(Change::Create { key, body }, guard, &object).await.map(Outcome::Stored)
    }

    async fn commit(
        &self,
        change: Change,
        guard: Option<Guard>,
        object: &Value,
    ) -> Result<Arc<Stored>, ApiError> {
        let name = lifecycle::metadata_text(object, "name");
        match self.call.server.commit(change, guard.into_iter().collect()).await {
            Ok(stored) => Ok(stored),
            Err(WriteError::Exists) => Err(exists(self.call, name)),
            Err(WriteError::GuardFailed { .. }) => {
                // The namespace has changed meanwhile; say how it stands now, or let the client try again.
                namespace::guard(self.call, name)?;
                Err(lifecycle::modified(&self.call.served, name))
            }
            Err(WriteError::Missing | WriteError::Conflict { .. }) => {
                Err(lifecycle::modified(&self.call.served, name))
            }
            Err(WriteError::Unavailable { reason }) => Err(unavailable(&reason)),
        }
    }

    /// Replaces a stored object. `None` if somebody else was faster.
    pub(crate) async fn replace(
        &mut self,
        stored: &Arc<Stored>,
        live: &Value,
        mut new: Value,
    ) -> Result<Option<Outcome>, ApiError> {
        let call = self.call;
        let now = Timestamp::now();
        call.check(live)?;
        self.prune(&mut new)?;
        // What is left to its default has not changed.
        self.default(&mut new);
        lifecycle::for_update(&call.served, live, &mut new, self.part, naming(call, "", "", now))?;
        self.default(&mut new);
        self.judge(&new, Some(live))?;
        let mut new = self.with_managers(new, Some(live), now).await?;
        keep_times(live, &mut new);
        call.check(&new)?;
        let (shown_new, shown_old) = (self.shown(&new), self.shown(live));
        let review = Review {
            operation: Operation::Update,
            object: Some(&shown_new),
            old: Some(&shown_old),
            dry_run: self.options.dry_run,
            deletion: None,
        };
        self.warnings.extend(call.server.webhooks.review(call, review).await?);
        if new == *live {
            return Ok(Some(Outcome::Stored(stored.clone())));
        }
        if self.options.dry_run {
            return Ok(Some(Outcome::Dry(new)));
        }
        let (key, expected) = (call.key(), stored.version);
        let finished = lifecycle::is_finished(&call.served, &new);
        // What ends with this write is last seen as it was before it.
        let written = call.served.to_stored(if finished { live } else { &new }).await?;
        let body = Body::new(&written);
        let change = match finished {
            true => Change::Delete { key, last: body, expected },
            false => Change::Replace { key, body, expected },
        };
        match call.server.commit(change, Vec::new()).await {
            Ok(_) if finished => Ok(Some(Outcome::Dry(new))),
            Ok(stored) => Ok(Some(Outcome::Stored(stored))),
            Err(WriteError::Conflict { .. } | WriteError::Missing) => Ok(None),
            Err(WriteError::Unavailable { reason }) => Err(unavailable(&reason)),
            Err(error @ (WriteError::Exists | WriteError::GuardFailed { .. })) => {
                Err(ApiError::new(Reason::InternalError, error.to_string()))
            }
        }
    }

    /// The object as the endpoint shows it.
    fn shown<'o>(&self, object: &'o Value) -> Cow<'o, Value> {
        match self.part {
            Part::Main | Part::Status | Part::Finalize => Cow::Borrowed(object),
            Part::Scale => Cow::Owned(scale::shown(self.call, object)),
        }
    }

    /// Removes fields that the schema does not know, and says so as the client asked.
    pub(crate) fn prune(&mut self, object: &mut Value) -> Result<(), ApiError> {
        if !object.is_object() {
            return Ok(());
        }
        let strict = self.options.field_validation == FieldValidation::Strict;
        let sent = (self.patched && strict).then(|| object.to_string());
        let mut unknown = lifecycle::drop_unknown_metadata(object);
        unknown.extend(self.call.served.schema().prune(object));
        let named = unknown.iter().map(|field| format!("unknown field {field:?}"));
        let faults: Vec<String> = self.faults.iter().cloned().chain(named).collect();
        if faults.is_empty() {
            return Ok(());
        }
        match self.options.field_validation {
            FieldValidation::Ignore => Ok(()),
            FieldValidation::Warn => {
                self.warn(faults);
                Ok(())
            }
            FieldValidation::Strict => {
                let reason = format!("strict decoding error: {}", faults.join(", "));
                Err(match sent {
                    Some(sent) => invalid("", "", "", &[FieldError::invalid("patch", &sent.into(), reason)]),
                    None => lifecycle::undecodable(&self.call.served, &reason),
                })
            }
        }
    }

    /// Tells the client, each thing once.
    pub(crate) fn warn(&mut self, lines: Vec<String>) {
        let new = lines.into_iter().filter(|line| !self.warnings.contains(line)).collect::<Vec<_>>();
        self.warnings.extend(new);
    }

    /// Fills in defaults, unless the object is not even made of the right types: `judge` tells that.
    fn default(&self, object: &mut Value) {
        let (kind, schema) = (self.call.served.kind(), self.call.served.schema());
        let mistyped = |error: &FieldError| error.fault == Fault::TypeInvalid;
        schema.default(object);
        if kind.built_in && !schema.validate(object, None).iter().any(mistyped) {
            builtin::prepare(kind, object);
            schema.default(object);
        }
    }

    /// 422 with everything that is wrong with the object.
    fn judge(&self, new: &Value, live: Option<&Value>) -> Result<(), ApiError> {
        let kind = self.call.served.kind();
        if let Some(reason) = builtin::undecodable(kind, new) {
            return Err(lifecycle::undecodable(&self.call.served, &reason));
        }
        let mut faults = builtin::validate(kind, new, live);
        let (schema, rules) = (self.call.served.schema(), Rules::after(&faults));
        let found = match self.part {
            Part::Status if !kind.built_in => schema.validate_status(new, live, rules),
            _ => schema.validate_after(new, live, rules),
        };
        let mistyped = found.iter().find(|error| error.fault == Fault::TypeInvalid);
        if let (true, Some(error)) = (kind.built_in && !self.patched, mistyped) {
            return Err(lifecycle::undecodable(&self.call.served, &error.to_string()));
        }
        faults.extend(found.into_iter().map(Cause::from));
        match faults.is_empty() {
            true => Ok(()),
            false => Err(builtin::refusal(kind, lifecycle::metadata_text(new, "name"), faults)),
        }
    }

    async fn with_managers(
        &self,
        new: Value,
        live: Option<&Value>,
        now: Timestamp,
    ) -> Result<Value, ApiError> {
        if self.applied {
            return Ok(new);
        }
        let served = &self.call.served;
        let manager = self.call.manager(self.options.field_manager.as_deref());
        let now = rfc3339(now);
        // A change of the scale alone is noted without its time.
        let time = (self.part != Part::Scale).then_some(now.as_str());
        let writer = self.writer(&manager, time);
        let mut versions = served.other_versions();
        loop {
            let blank = builtin::blank(served.kind());
            let schema = served.schema();
            let request = TrackRequest { live, blank, new: &new, writer, schema, versions: &versions };
            match track(request) {
                Ok(tracked) => return Ok(tracked),
                Err(unknown) => served.find_out(&mut versions, unknown).await?,
            }
        }
    }

    /// The fields that this endpoint leaves alone.
    fn resets(&self) -> Resets {
        let served = &self.call.served;
        match self.part {
            Part::Main | Part::Finalize | Part::Scale if served.version().status_subresource => RESETS_STATUS,
            Part::Main | Part::Finalize | Part::Scale => RESETS_NOTHING,
            Part::Status if served.kind().built_in => RESETS_SPEC,
            Part::Status => RESETS_ALL_BUT_STATUS,
        }
    }

    /// Who writes, as managedFields note it.
    pub(crate) fn writer<'b>(&'b self, manager: &'b str, now: Option<&'b str>) -> Writer<'b> {
        Writer {
            manager,
            subresource: self.part.subresource(),
            api_version: self.call.served.api_version(),
            now,
            resets: self.resets(),
        }
    }
}

fn naming<'a>(call: &'a Call, uid: &'a str, suffix: &'a str, now: Timestamp) -> Naming<'a> {
    Naming { namespace: call.namespace.as_deref(), name: call.name.as_deref(), uid, suffix, now }
}

pub(crate) fn exists(call: &Call, name: &str) -> ApiError {
    let message = format!("{} {name:?} already exists", call.served.qualified());
    ApiError::new(Reason::AlreadyExists, message).about(call.served.subject(name))
}

pub(crate) fn unavailable(reason: &str) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, format!("the store takes no writes: {reason}"))
}
