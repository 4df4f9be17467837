//! SchemaMigrationLog: which migrations ran, and what they were when they did.
//!
//! The one invariant: an entry holds all that is needed to show, later and
//! without the files of that time, what was run.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use similar::TextDiff;

use super::checksum::CHECKSUM_VERSION;
use super::{Applied, Migration};
use crate::json;
use crate::record::{RowKey, Snapshot, Table};

/// The table of the log.
pub const TABLE: &str = "schemamigrationlog";

/// The table in which the models of the stored data are kept.
pub const MODELS_TABLE: &str = "schemamodels";

/// Tables that no migration may touch.
pub fn is_reserved(table: &Table) -> bool {
    [TABLE, MODELS_TABLE].contains(&table.as_str())
}

/// One row of the log. Fields that were not written by us are kept as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: String,
    pub release: String,
    pub description: String,
    pub proposed_at: Timestamp,
    pub applied_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum_version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_version: Option<String>,
    /// What the migration was, as people wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Marked as applied without having run here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marked: bool,
    /// When somebody let an edit pass that was made after it ran; checksum and text are those of the edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit_accepted_at: Option<Timestamp>,
}

/// A row of the log that says nothing.
#[derive(Debug, thiserror::Error)]
#[error("{TABLE} {key}: not an entry of the log")]
pub struct LogError {
    pub key: RowKey,
    pub source: serde_json::Error,
}

impl Entry {
    /// What is written when `migration` has run.
    pub fn of(migration: &Migration, applied_at: Timestamp, tool_version: &str) -> Entry {
        let header = &migration.header;
        Entry {
            id: header.id.clone(),
            release: header.release.clone(),
            description: header.description.clone(),
            proposed_at: header.proposed_at,
            applied_at,
            checksum: Some(migration.checksum.to_string()),
            checksum_version: Some(CHECKSUM_VERSION),
            tool_version: Some(tool_version.to_owned()),
            source: Some(migration.source.clone()),
            marked: false,
            edit_accepted_at: None,
        }
    }

    /// The same entry with what the migration is today.
    pub fn accepting(&self, migration: &Migration, at: Timestamp) -> Entry {
        Entry {
            proposed_at: migration.header.proposed_at,
            checksum: Some(migration.checksum.to_string()),
            checksum_version: Some(CHECKSUM_VERSION),
            source: Some(migration.source.clone()),
            edit_accepted_at: Some(at),
            ..self.clone()
        }
    }

    /// The tables that the migration declared, where its text is known.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &str> {
        let first = self.source.as_deref().and_then(|source| source.lines().next());
        first.and_then(|line| line.strip_prefix("tables ")).into_iter().flat_map(|names| names.split(", "))
    }

    /// What the order of migrations needs of it.
    pub fn applied(&self) -> Applied {
        Applied { id: self.id.clone(), release: self.release.clone(), proposed_at: self.proposed_at }
    }
}

/// All entries, in the order in which they were applied.
pub fn read(database: &Snapshot) -> Result<Vec<Entry>, LogError> {
    let mut entries = vec![];
    for (key, value) in database.rows(&Table::new(TABLE)) {
        let entry: Entry =
            serde_json::from_slice(value).map_err(|source| LogError { key: key.clone(), source })?;
        entries.push(entry);
    }
    entries.sort_by(|a, b| (a.applied_at, a.proposed_at, &a.id).cmp(&(b.applied_at, b.proposed_at, &b.id)));
    Ok(entries)
}

/// Adds an entry, or replaces the one of the same id.
pub fn write(database: &mut Snapshot, entry: &Entry) {
    let value = serde_json::to_value(entry).expect("an entry is plain data");
    let mut bytes = vec![];
    json::write_value(&mut bytes, &value);
    database.put(&Table::new(TABLE), RowKey::untopical(&entry.id), Bytes::from(bytes));
}

/// How the log and the migrations at hand disagree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Drift {
    #[error("{id} was changed after it was applied at {applied_at}:\n{diff}")]
    Changed { id: String, applied_at: Timestamp, diff: String },

    #[error("{id} of release {release} is applied, but not among the migrations at hand:\n{diff}")]
    Missing { id: String, release: String, diff: String },

    #[error("{id} was proposed at {then} when it was applied, and says {now} today")]
    Redated { id: String, then: Timestamp, now: Timestamp },

    #[error("{id} says that it runs after {other}, but was applied before it:\n{diff}")]
    Reordered { id: String, other: String, diff: String },

    #[error("{id} was logged with checksum version {version}, which this tool cannot compare")]
    OtherChecksum { id: String, version: u32 },
}

impl Drift {
    /// Whether the migration of this id is another one than was applied.
    pub(crate) fn is_edit_of(&self, wanted: &str) -> bool {
        match self {
            Drift::Changed { id, .. } | Drift::Redated { id, .. } | Drift::OtherChecksum { id, .. } => {
                id == wanted
            }
            Drift::Missing { .. } | Drift::Reordered { .. } => false,
        }
    }
}

/// Compares what was applied with what is at hand. Empty where they agree.
pub fn compare(available: &[Migration], entries: &[Entry]) -> Vec<Drift> {
    let at_hand: BTreeMap<&str, &Migration> =
        available.iter().map(|migration| (migration.header.id.as_str(), migration)).collect();
    let position: BTreeMap<&str, usize> =
        entries.iter().enumerate().map(|(i, entry)| (entry.id.as_str(), i)).collect();
    let mut drifts = vec![];
    for (i, entry) in entries.iter().enumerate() {
        let Some(migration) = at_hand.get(entry.id.as_str()) else {
            let replaced = available.iter().any(|other| other.header.replaces.contains(&entry.id));
            if !replaced {
                let (id, release) = (entry.id.clone(), entry.release.clone());
                drifts.push(Drift::Missing { id, release, diff: difference(text(entry), "") });
            }
            continue;
        };
        drifts.extend(changed(entry, migration));
        if entry.proposed_at != migration.header.proposed_at {
            let (then, now) = (entry.proposed_at, migration.header.proposed_at);
            drifts.push(Drift::Redated { id: entry.id.clone(), then, now });
        }
        let early = migration.header.after.iter().find(|other| position.get(other.as_str()) > Some(&i));
        if let Some(other) = early {
            let (id, other) = (entry.id.clone(), other.clone());
            let diff = reordered(entries, i, &other);
            drifts.push(Drift::Reordered { id, other, diff });
        }
    }
    drifts
}

fn changed(entry: &Entry, migration: &Migration) -> Option<Drift> {
    // An entry without a checksum was written by another tool: nothing to compare.
    let logged = entry.checksum.as_ref()?;
    let version = entry.checksum_version.unwrap_or(0);
    if version != CHECKSUM_VERSION {
        return Some(Drift::OtherChecksum { id: entry.id.clone(), version });
    }
    if logged == migration.checksum.as_str() {
        return None;
    }
    let diff = difference(text(entry), &migration.source);
    Some(Drift::Changed { id: entry.id.clone(), applied_at: entry.applied_at, diff })
}

/// What was applied, as people wrote it.
fn text(entry: &Entry) -> &str {
    entry.source.as_deref().unwrap_or("(the log has no text of it)\n")
}

/// The order in which migrations were applied, beside one in which the one at `early` comes after `other`.
fn reordered(entries: &[Entry], early: usize, other: &str) -> String {
    let lines = |ids: &[&str]| ids.iter().map(|id| format!("{id}\n")).collect::<String>();
    let applied: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
    let mut today = applied.clone();
    let moved = today.remove(early);
    let behind = today.iter().position(|id| *id == other).map_or(today.len(), |at| at + 1);
    today.insert(behind, moved);
    difference(&lines(&applied), &lines(&today))
}

fn difference(applied: &str, today: &str) -> String {
    TextDiff::from_lines(applied, today).unified_diff().header("applied", "today").to_string()
}
