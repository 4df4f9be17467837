//! The commands that only look: check, status, history.
//!
//! The one invariant: nothing is written, except that what an interrupted run left is finished first, where nobody
//! has the lock.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::{
    database::Database,
    error::{Refusal, RunError},
    event::Tell,
};
use crate::{
    commit::{self, CommitError, State},
    migration::{
        Migration,
        log::{self, Drift},
    },
    record::Snapshot,
    store::{Facts, Layout, StoreError},
};

/// Whether a run may begin now.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    pub store: String,
    pub server: Facts,
    pub layout: Layout,
    pub rows: u64,
    /// How long was watched for writers.
    pub watched_seconds: u64,
    /// What to know of the server before a run.
    pub caveats: Vec<String>,
    /// What stands against it; empty where nothing does.
    pub blocked_by: Vec<String>,
}

/// Where a database stands.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub store: String,
    pub server: Facts,
    pub layout: Layout,
    /// Absent while a run writes them.
    pub rows: Option<u64>,
    pub bytes: Option<u64>,
    /// Who has the lock while the last run is not over; if he is dead, the next command after its end finishes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locked_by: Option<String>,
    pub applied: usize,
    pub pending: Vec<Waiting>,
    /// Why the order of what is pending cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_problem: Option<String>,
    /// Where log and files disagree.
    pub drift: Vec<String>,
    pub last_run: Option<LastRun>,
}

/// A migration that is not applied.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    pub id: String,
    pub release: String,
    pub description: String,
    pub proposed_at: Timestamp,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastRun {
    pub run: u64,
    pub phase: &'static str,
    pub migrations: Vec<String>,
    pub started_at: Option<Timestamp>,
    pub tool: String,
    /// Whether `rollback` is possible, as long as nobody has written since.
    pub can_roll_back: bool,
}

impl Database {
    /// Looks whether services are stopped or fenced out: nobody may write, and none may say that it runs.
    pub async fn check(&self, tell: &Tell<'_>) -> Result<Checked, RunError> {
        self.settle(tell).await?;
        let before = self.take(tell).await?;
        let server = self.store.facts().await?;
        let mut blocked_by: Vec<String> = self
            .live_services(&before.taken.snapshot)
            .into_iter()
            .filter(|_| !self.settings.accept.live_services)
            .map(|service| Refusal::LiveService(service.words).to_string())
            .collect();
        let moment = Duration::from_secs(self.settings.watch_seconds);
        let writers = commit::writers(self.store.as_ref(), moment).await?;
        if !writers.is_empty() {
            blocked_by.push(Refusal::Writers(writers.to_string()).to_string());
        }
        blocked_by.extend(self.still_open().await?.map(|open| open.to_string()));
        blocked_by
            .extend(server.alarms.iter().map(|alarm| format!("the server has raised an alarm: {alarm}")));
        Ok(Checked {
            store: self.address(),
            caveats: server.caveats(),
            server,
            layout: self.settings.layout,
            rows: before.taken.snapshot.len() as u64,
            watched_seconds: self.settings.watch_seconds,
            blocked_by,
        })
    }

    /// Also while a run is under way, or died a moment ago: then what can be told is told, and nothing is waited for.
    pub async fn status(&self, tell: &Tell<'_>) -> Result<Status, RunError> {
        let locked_by = match self.settle(tell).await {
            Ok(()) => None,
            Err(
                RunError::Store(StoreError::Busy { owner })
                | RunError::Commit(CommitError::Store(StoreError::Busy { owner })),
            ) => Some(owner),
            Err(error) => return Err(error),
        };
        let before = match self.take(tell).await {
            Ok(before) => Some(before),
            Err(RunError::Commit(CommitError::Unfinished { .. })) if locked_by.is_some() => None,
            Err(error) => return Err(error),
        };
        let none = Snapshot::default();
        let rows = before.as_ref().map_or(&none, |before| &before.taken.snapshot);
        let entries = log::read(rows)?;
        let (pending, order_problem) = match self.todo(rows) {
            _ if before.is_none() => (Vec::new(), None),
            Ok(todo) => {
                let waiting = todo.migrations().into_iter().map(|migration| Waiting {
                    id: migration.header.id.clone(),
                    release: migration.header.release.clone(),
                    description: migration.header.description.clone(),
                    proposed_at: migration.header.proposed_at,
                });
                (waiting.collect(), None)
            }
            Err(RunError::Order(problem) | RunError::Newer { problem, .. }) => {
                (Vec::new(), Some(problem.to_string()))
            }
            Err(error) => return Err(error),
        };
        let drift = match &before {
            Some(_) => disagreements(&self.migrations()?, &entries),
            None => Vec::new(),
        };
        let last_run = match commit::state(self.store.as_ref()).await? {
            State::Fresh => None,
            State::Settled(record) | State::Interrupted(record) => Some(last(&record, false)),
            State::Applied(record) => Some(last(&record, true)),
        };
        Ok(Status {
            store: self.address(),
            server: self.store.facts().await?,
            layout: self.settings.layout,
            rows: before.as_ref().map(|_| rows.len() as u64),
            bytes: before.as_ref().map(|_| rows.size()),
            locked_by,
            applied: entries.len(),
            pending,
            order_problem,
            drift,
            last_run,
        })
    }

    /// The log, first to last.
    pub async fn history(&self, tell: &Tell<'_>) -> Result<Vec<log::Entry>, RunError> {
        self.settle(tell).await?;
        Ok(log::read(&self.take(tell).await?.taken.snapshot)?)
    }
}

/// Where log and files disagree, in words, each with its difference.
fn disagreements(at_hand: &[Migration], entries: &[log::Entry]) -> Vec<String> {
    in_words(at_hand, entries, &log::compare(at_hand, entries))
}

/// The migrations that are applied and not at hand, in words, each with its text.
pub(super) fn missing(at_hand: &[Migration], entries: &[log::Entry]) -> Vec<String> {
    let mut drift = log::compare(at_hand, entries);
    drift.retain(|drift| matches!(drift, Drift::Missing { .. }));
    in_words(at_hand, entries, &drift)
}

/// Where nothing at all is at hand, nobody has named a folder to look in: then the whole log would be shown as
/// removed, and its ids say as much.
fn in_words(at_hand: &[Migration], entries: &[log::Entry], drift: &[Drift]) -> Vec<String> {
    if !at_hand.is_empty() || drift.is_empty() {
        return drift.iter().map(ToString::to_string).collect();
    }
    let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
    vec![format!("applied, but not among the migrations at hand: {}", ids.join(", "))]
}

fn last(record: &commit::RunRecord, can_roll_back: bool) -> LastRun {
    LastRun {
        run: record.run.get(),
        phase: record.phase.name(),
        migrations: record.note.migrations.clone(),
        started_at: record.note.started_at,
        tool: record.note.tool.clone(),
        can_roll_back,
    }
}
