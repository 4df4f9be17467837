//! Asks the validating webhooks that are registered whether a write may happen.
//!
//! The one invariant: a webhook that cannot be asked counts as a refusal unless
//! its failurePolicy says `Ignore`.

mod matching;
mod question;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::join_all;
use serde_json::Value;

use crate::error::{ApiError, Cause, Reason};
use crate::hook::{self, Bounds};
use crate::http::Call;
use crate::kind::ResourceId;
use crate::lifecycle::{DeleteOptions, text};
use crate::store::{Snapshot, Version};

const DEFAULT_SECONDS: u64 = 10;
const MAX_SECONDS: u64 = 30;
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// What is done to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        }
    }
}

/// A write that webhooks may object to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Review<'a> {
    pub(crate) operation: Operation,
    pub(crate) object: Option<&'a Value>,
    pub(crate) old: Option<&'a Value>,
    pub(crate) dry_run: bool,
    /// How it is deleted, if it is.
    pub(crate) deletion: Option<&'a DeleteOptions>,
}

/// Asks webhooks. Connections to them are made anew for each question.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    /// As they were when they were last needed: every write asks, and they hardly ever change.
    last: ArcSwap<Registered>,
}

/// All configurations there are at one moment.
#[derive(Debug, Default)]
struct Registered {
    /// No two objects ever have the same version, so these tell whether anything is different.
    versions: Vec<Version>,
    configurations: Vec<Value>,
}

impl Registered {
    fn read(snapshot: &Snapshot) -> Registered {
        Registered {
            versions: versions(snapshot).collect(),
            configurations: snapshot.iter().map(|entry| entry.stored.parse()).collect(),
        }
    }

    fn webhooks(&self) -> impl Iterator<Item = &Value> {
        self.configurations
            .iter()
            .flat_map(|configuration| configuration["webhooks"].as_array().into_iter().flatten())
    }
}

fn versions(snapshot: &Snapshot) -> impl Iterator<Item = Version> {
    snapshot.iter().map(|entry| entry.stored.version)
}

fn configurations() -> ResourceId {
    ResourceId {
        group: "admissionregistration.k8s.io".into(),
        plural: "validatingwebhookconfigurations".into(),
    }
}

impl Webhooks {
    /// The warnings of the webhooks, or the refusal of the first that refused.
    pub(crate) async fn review(&self, call: &Call, review: Review<'_>) -> Result<Vec<String>, ApiError> {
        let registered = call.server.store.snapshot(&configurations());
        // Whoever can write configurations could lock everyone out by one that refuses its own removal.
        if registered.is_empty() || *call.served.resource() == configurations() {
            return Ok(Vec::new());
        }
        let registered = self.read(&registered);
        let mut asked = Vec::new();
        for webhook in registered.webhooks() {
            if matching::concerns(call, webhook, &review)? {
                refuse_side_effects(webhook, review.dry_run)?;
                asked.push(ask(call, webhook, &review));
            }
        }
        let mut warnings = Vec::new();
        for answer in join_all(asked).await {
            warnings.extend(answer?);
        }
        Ok(warnings)
    }

    fn read(&self, snapshot: &Snapshot) -> Arc<Registered> {
        let last = self.last.load_full();
        if versions(snapshot).eq(last.versions.iter().copied()) {
            return last;
        }
        let read = Arc::new(Registered::read(snapshot));
        self.last.store(read.clone());
        read
    }
}

fn refuse_side_effects(webhook: &Value, dry_run: bool) -> Result<(), ApiError> {
    if !dry_run || matches!(text(webhook, "/sideEffects"), "None" | "NoneOnDryRun") {
        return Ok(());
    }
    let message = format!("admission webhook {:?} does not support dry run", text(webhook, "/name"));
    Err(ApiError::new(Reason::BadRequest, message))
}

async fn ask(call: &Call, webhook: &Value, review: &Review<'_>) -> Result<Vec<String>, ApiError> {
    let name = text(webhook, "/name");
    let question = question::question(call, review);
    let seconds = webhook["timeoutSeconds"].as_u64().unwrap_or(DEFAULT_SECONDS).clamp(1, MAX_SECONDS);
    let bounds = Bounds { seconds, answer_bytes: MAX_ANSWER_BYTES };
    let reply = hook::post(&webhook["clientConfig"], &question, bounds).await;
    let reply = reply.map_err(|reason| format!("failed to call webhook: {reason}"));
    match reply.and_then(|reply| question::verdict(&question, &reply)) {
        Ok(verdict) => match verdict.refusal(name) {
            Some(refusal) => Err(refusal),
            None => Ok(verdict.warnings),
        },
        Err(reason) if text(webhook, "/failurePolicy") == "Ignore" => {
            tracing::warn!(
                webhook = name,
                reason,
                "webhook could not be asked; its failurePolicy lets the request pass"
            );
            Ok(Vec::new())
        }
        Err(reason) => {
            let cause = format!("failed calling webhook {name:?}: {reason}");
            let message = format!("Internal error occurred: {cause}");
            let cause = Cause { reason: "", message: cause, field: String::new() };
            Err(ApiError::new(Reason::InternalError, message).because(vec![cause]))
        }
    }
}
