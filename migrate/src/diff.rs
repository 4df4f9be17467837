//! What a run would change: rows added, changed and removed, per table, with samples.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::record::{RowKey, Rows, Snapshot, Table};

/// Samples kept of each kind of change in a table.
const SAMPLES: usize = 3;

/// One row that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    Added { after: &'a Bytes },
    Changed { before: &'a Bytes, after: &'a Bytes },
    Removed { before: &'a Bytes },
}

/// Every row in which the two differ, in order. Tables and rows that are shared
/// by the two are passed over without being compared.
pub fn changes<'a>(
    before: &'a Snapshot,
    after: &'a Snapshot,
) -> impl Iterator<Item = (&'a Table, &'a RowKey, Change<'a>)> {
    let mut tables: BTreeMap<&Table, (Option<&Rows>, Option<&Rows>)> = BTreeMap::new();
    for (table, rows) in before.tables() {
        tables.entry(table).or_default().0 = Some(rows);
    }
    for (table, rows) in after.tables() {
        tables.entry(table).or_default().1 = Some(rows);
    }
    let differ = |(old, new): &(Option<&Rows>, Option<&Rows>)| match (old, new) {
        (Some(old), Some(new)) => !std::ptr::eq(*old, *new),
        _ => true,
    };
    tables
        .into_iter()
        .filter(move |(_, both)| differ(both))
        .flat_map(|(table, (old, new))| rows_changed(old, new).map(move |(key, change)| (table, key, change)))
}

fn rows_changed<'a>(
    old: Option<&'a Rows>,
    new: Option<&'a Rows>,
) -> impl Iterator<Item = (&'a RowKey, Change<'a>)> {
    let mut old = old.into_iter().flatten().peekable();
    let mut new = new.into_iter().flatten().peekable();
    std::iter::from_fn(move || {
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return None,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((was, _)), Some((is, _))) => was.cmp(is),
            };
            match order {
                std::cmp::Ordering::Less => {
                    return old.next().map(|(key, before)| (key, Change::Removed { before }));
                }
                std::cmp::Ordering::Greater => {
                    return new.next().map(|(key, after)| (key, Change::Added { after }));
                }
                std::cmp::Ordering::Equal => {
                    let ((key, before), (_, after)) = old.next().zip(new.next())?;
                    if !same(before, after) {
                        return Some((key, Change::Changed { before, after }));
                    }
                }
            }
        }
    })
}

fn same(before: &Bytes, after: &Bytes) -> bool {
    (before.as_ptr() == after.as_ptr() && before.len() == after.len()) || before == after
}

/// What happens to one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableChanges {
    pub added: u64,
    pub changed: u64,
    pub removed: u64,
    pub unchanged: u64,
    pub samples: Vec<Sample>,
}

/// One changed row, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    pub row: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Counts and samples for every table that holds or held a row.
pub fn summary(before: &Snapshot, after: &Snapshot) -> BTreeMap<Table, TableChanges> {
    let mut tables: BTreeMap<Table, TableChanges> = BTreeMap::new();
    for (table, rows) in before.tables() {
        tables.entry(table.clone()).or_default().unchanged = rows.len() as u64;
    }
    for (table, key, change) in changes(before, after) {
        let entry = tables.entry(table.clone()).or_default();
        let (counter, kept) = match change {
            Change::Added { .. } => (&mut entry.added, false),
            Change::Changed { .. } => (&mut entry.changed, true),
            Change::Removed { .. } => (&mut entry.removed, true),
        };
        *counter += 1;
        let wanted = *counter <= SAMPLES as u64;
        if kept {
            entry.unchanged -= 1;
        }
        if wanted {
            entry.samples.push(sample(key, change));
        }
    }
    tables
}

fn sample(key: &RowKey, change: Change<'_>) -> Sample {
    let text = |bytes: &Bytes| Some(String::from_utf8_lossy(bytes).into_owned());
    let (before, after) = match change {
        Change::Added { after } => (None, text(after)),
        Change::Changed { before, after } => (text(before), text(after)),
        Change::Removed { before } => (text(before), None),
    };
    Sample { row: key.to_string(), before, after }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(rows: &BTreeMap<(u8, u8), u8>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for ((table, id), value) in rows {
            let (table, key) = (Table::new(format!("t{table}")), RowKey::untopical(&id.to_string()));
            snapshot.put(&table, key, Bytes::from(vec![*value]));
        }
        snapshot
    }

    fn rows() -> impl Strategy<Value = BTreeMap<(u8, u8), u8>> {
        prop::collection::btree_map((0..3u8, 0..12u8), 0..3u8, 0..20)
    }

    proptest! {
        #[test]
        fn applying_the_changes_gives_the_result(before in rows(), after in rows()) {
            let (before, after) = (snapshot(&before), snapshot(&after));
            let mut built = before.clone();
            for (table, key, change) in changes(&before, &after) {
                match change {
                    Change::Added { after } | Change::Changed { after, .. } => built.put(table, key.clone(), after.clone()),
                    Change::Removed { .. } => { built.remove(table, key); }
                }
            }
            prop_assert_eq!(built, after);
        }

        #[test]
        fn counts_add_up(before in rows(), after in rows()) {
            let (before, after) = (snapshot(&before), snapshot(&after));
            let counts = summary(&before, &after);
            let sum = |of: fn(&TableChanges) -> u64| counts.values().map(of).sum::<u64>();
            prop_assert_eq!(sum(|t| t.unchanged + t.changed + t.removed), before.len() as u64);
            prop_assert_eq!(sum(|t| t.unchanged + t.changed + t.added), after.len() as u64);
        }
    }
}
