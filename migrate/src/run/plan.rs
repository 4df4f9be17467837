//! What a run would do, for people to look at before it does.
//!
//! The one invariant: a plan is made by the real run, stopped before it writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::OpenOptions,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::error::RunError;
use crate::{
    diff::{self, Change, TableChanges},
    lanes,
    migration::log,
    record::{Snapshot, Table},
    store::{Facts, Layout},
};

/// Bytes that a server keeps for a row besides its names and value.
const ROW_OVERHEAD: u64 = 100;

/// Everything worth knowing of a run before it changes anything.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub made_at: Timestamp,
    pub tool: String,
    /// The address without its password.
    pub store: String,
    pub server: String,
    pub layout: Layout,
    pub already_applied: usize,
    /// In the order in which they run.
    pub migrations: Vec<Planned>,
    /// Worked out from the models, without a script.
    pub automatic: Vec<String>,
    pub tables: BTreeMap<Table, TableChanges>,
    /// What is lost for good once the run is final.
    pub destructive: Vec<String>,
    pub violations: u64,
    /// The first of them.
    pub violated: Vec<String>,
    pub needs: Needs,
    /// Why a run would be refused now; empty where it would not.
    pub refused_because: Vec<String>,
    pub warnings: Vec<String>,
}

/// A migration that would run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    pub id: String,
    pub release: String,
    pub description: String,
    pub proposed_at: Timestamp,
    pub origin: String,
    pub checksum: String,
    /// Rows it looked at and removed, and how long it took.
    pub rows: u64,
    pub removed: u64,
    pub milliseconds: u64,
}

/// Time and space of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Needs {
    pub rows_before: u64,
    pub rows_after: u64,
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// Rows that are written, journals included.
    pub writes: u64,
    /// What the server needs for the time until the run is final.
    pub server_bytes: u64,
    pub backup_bytes_at_most: u64,
    /// Measured while planning.
    pub read_seconds: f64,
    pub migrate_seconds: f64,
    pub validate_seconds: f64,
    /// Two readings, the migrations, the validation, and the writes at a rate typical of the server.
    pub run_seconds_about: f64,
}

impl Needs {
    /// What writing the result takes, by layout.
    pub(super) fn of(before: &Snapshot, after: &Snapshot, layout: Layout) -> Needs {
        let (bytes_before, bytes_after) = (before.size(), after.size());
        let (writes, server_bytes) = match layout {
            Layout::Generation => (after.len() as u64, bytes_after + ROW_OVERHEAD * after.len() as u64),
            // Journal, undo and the rows themselves.
            Layout::Dragonflow => {
                let (changed, bytes) = difference(before, after);
                (3 * changed, 2 * bytes + 3 * ROW_OVERHEAD * changed)
            }
        };
        Needs {
            rows_before: before.len() as u64,
            rows_after: after.len() as u64,
            bytes_before,
            bytes_after,
            writes,
            server_bytes,
            backup_bytes_at_most: bytes_before + ROW_OVERHEAD * before.len() as u64,
            ..Needs::default()
        }
    }

    pub(super) fn estimate(&mut self, facts: &Facts) {
        let per_second = if facts.server.starts_with("etcd") {
            18_000.0
        } else if facts.server.to_lowercase().starts_with("redis") {
            38_000.0
        } else {
            100_000.0
        };
        self.run_seconds_about = 2.0 * self.read_seconds
            + self.migrate_seconds
            + self.validate_seconds
            + self.writes as f64 / per_second;
    }
}

/// Rows that differ, and the bytes of both forms of them.
fn difference(before: &Snapshot, after: &Snapshot) -> (u64, u64) {
    diff::changes(before, after).fold((0, 0), |(rows, bytes), (_, key, change)| {
        let value = match change {
            Change::Added { after } => after.len(),
            Change::Changed { before, after } => before.len() + after.len(),
            Change::Removed { before } => before.len(),
        };
        (rows + 1, bytes + (value + key.topic.len() + key.id.len()) as u64)
    })
}

/// What a run takes away: rows, and fields of changed rows that are not there any more.
pub(super) fn destructive(
    before: &Snapshot,
    after: &Snapshot,
    tables: &BTreeMap<Table, TableChanges>,
) -> Vec<String> {
    let mut lost: Vec<String> = Vec::new();
    for (table, changes) in tables.iter().filter(|(_, changes)| changes.removed > 0) {
        let whole = changes.unchanged + changes.changed + changes.added == 0;
        let what = if whole { "all " } else { "" };
        lost.push(format!("{table}: {what}{} rows are removed", changes.removed));
    }
    for ((table, name), times) in gone_fields(before, after) {
        let changed = tables.get(table).map_or(0, |changes| changes.changed);
        lost.push(format!("{table}: field {name:?} is gone from {times} of {changed} changed rows"));
    }
    lost
}

/// In how many changed rows of a table a field is gone.
fn gone_fields<'a>(before: &'a Snapshot, after: &'a Snapshot) -> BTreeMap<(&'a Table, String), u64> {
    let changed: Vec<_> = diff::changes(before, after)
        .filter_map(|(table, _, change)| match change {
            Change::Changed { before, after } => Some((table, before, after)),
            Change::Added { .. } | Change::Removed { .. } => None,
        })
        .collect();
    let parts = lanes::each(changed.chunks(lanes::PIECE), |rows| {
        let mut gone: BTreeMap<(&Table, String), u64> = BTreeMap::new();
        for (table, before, after) in rows {
            let left = names(after);
            for name in names(before).into_iter().filter(|name| !left.contains(name)) {
                *gone.entry((*table, name)).or_default() += 1;
            }
        }
        gone
    });
    let mut all = BTreeMap::new();
    for (field, times) in parts.into_iter().flatten() {
        *all.entry(field).or_default() += times;
    }
    all
}

/// The fields of an object; none of what is no object.
fn names(value: &Bytes) -> BTreeSet<String> {
    let members = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(value).unwrap_or_default();
    members.into_keys().collect()
}

impl Plan {
    /// Whether there is anything to do.
    pub fn is_empty(&self) -> bool {
        self.migrations.is_empty() && self.automatic.is_empty()
    }

    /// Writes the plan to a new file that only its owner may read: samples are data.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        let failed = |doing| move |source| RunError::File { doing, path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed("make the plan file"))?;
        let text = serde_json::to_vec_pretty(self).expect("a plan always encodes");
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(|error| {
            // Half a plan is none; where even that fails, reading it says so.
            let _ = std::fs::remove_file(path);
            failed("write the plan to")(error)
        })
    }

    pub fn read(path: &Path) -> Result<Plan, RunError> {
        let text = std::fs::read(path).map_err(|source| RunError::File {
            doing: "read the plan",
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_slice(&text).map_err(|source| RunError::NotAPlan { path: path.to_owned(), source })
    }

    /// Where a run would do something else than was planned. Rows may have come and gone since; no more
    /// may be lost of a table than the plan said.
    pub(super) fn differs_from(&self, planned: &Plan) -> Option<String> {
        let ids = |plan: &Plan| -> Vec<(String, String)> {
            plan.migrations.iter().map(|m| (m.id.clone(), m.checksum.clone())).collect()
        };
        if (&self.store, self.layout) != (&planned.store, planned.layout) {
            return Some(format!("it was made for {} in the {} layout", planned.store, planned.layout));
        }
        if ids(self) != ids(planned) {
            return Some("other migrations, or other texts of them, are pending".to_owned());
        }
        if self.automatic != planned.automatic {
            return Some("other automatic steps are pending".to_owned());
        }
        if self.violations > planned.violations {
            let (now, then) = (self.violations, planned.violations);
            return Some(format!("the result breaks {now} rules of its models, {then} were planned"));
        }
        self.tables.iter().find_map(|(table, changes)| {
            let removed = planned.tables.get(table).map_or(0, |planned| planned.removed);
            (changes.removed > removed && table.as_str() != log::TABLE).then(|| {
                format!("{table}: {} rows would be removed, {removed} were planned", changes.removed)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RowKey;

    fn rows(rows: &[(&str, &str, &str)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (table, id, value) in rows {
            snapshot.put(&Table::new(table), RowKey::untopical(id), Bytes::copy_from_slice(value.as_bytes()));
        }
        snapshot
    }

    #[test]
    fn says_what_is_lost() {
        let before = rows(&[("a", "1", r#"{"id":"1","name":"x"}"#), ("a", "2", "{}"), ("b", "1", "{}")]);
        let after = rows(&[("a", "1", r#"{"id":"1"}"#), ("a", "2", "{}")]);
        let lost = destructive(&before, &after, &diff::summary(&before, &after));
        assert_eq!(lost, ["b: all 1 rows are removed", "a: field \"name\" is gone from 1 of 1 changed rows"]);
        assert_eq!(destructive(&before, &before, &diff::summary(&before, &before)), Vec::<String>::new());
    }

    #[test]
    fn in_place_only_the_difference_counts() {
        let before = rows(&[("a", "1", "{}"), ("a", "2", "{}"), ("a", "3", "{}")]);
        let after = rows(&[("a", "1", "{}"), ("a", "2", "[]"), ("a", "3", "{}")]);
        assert_eq!(Needs::of(&before, &after, Layout::Dragonflow).writes, 3);
        assert_eq!(Needs::of(&before, &after, Layout::Generation).writes, 3);
        assert_eq!(Needs::of(&before, &before, Layout::Dragonflow).writes, 0);
    }
}
