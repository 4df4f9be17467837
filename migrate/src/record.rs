//! What a database holds: rows in tables, each under a topic and an id.
//!
//! The topic is part of a row's identity: Redis keeps it in the key, and a row
//! written back under another topic would be lost to its readers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Name of a table, e.g. `lport`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table(Arc<str>);

impl Table {
    pub fn new(name: impl AsRef<str>) -> Table {
        Table(Arc::from(name.as_ref()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a row stands in its table. Rows of one topic lie together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// Empty where the row belongs to no topic.
    pub topic: Arc<str>,
    /// Shared by all snapshots that hold the row.
    pub id: Arc<str>,
}

impl RowKey {
    pub fn new(topic: &str, id: &str) -> RowKey {
        RowKey { topic: Arc::from(topic), id: id.into() }
    }

    pub fn untopical(id: &str) -> RowKey {
        RowKey::new("", id)
    }

    /// The key of another row of the same topic.
    pub fn beside(&self, id: &str) -> RowKey {
        RowKey { topic: Arc::clone(&self.topic), id: id.into() }
    }
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.topic.is_empty() { f.write_str(&self.id) } else { write!(f, "{}@{}", self.id, self.topic) }
    }
}

impl fmt::Debug for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The rows of one table, in order. Values are shared, never copied: the
/// snapshot before and the result after a migration differ only where rows do.
pub type Rows = BTreeMap<RowKey, Bytes>;

/// A whole database as it was at one moment. A copy of it costs nothing: tables are shared until one
/// of the copies changes them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    tables: BTreeMap<Table, Arc<Rows>>,
}

impl Snapshot {
    pub fn put(&mut self, table: &Table, key: RowKey, value: Bytes) {
        self.table_mut(table).insert(key, value);
    }

    pub fn remove(&mut self, table: &Table, key: &RowKey) -> Option<Bytes> {
        let rows = self.tables.get_mut(table).filter(|rows| rows.contains_key(key))?;
        let removed = Arc::make_mut(rows).remove(key);
        if rows.is_empty() {
            self.tables.remove(table);
        }
        removed
    }

    pub fn get(&self, table: &Table, key: &RowKey) -> Option<&Bytes> {
        self.tables.get(table)?.get(key)
    }

    /// Tables that hold at least one row.
    pub fn tables(&self) -> impl Iterator<Item = (&Table, &Rows)> {
        self.tables.iter().map(|(table, rows)| (table, &**rows))
    }

    /// The rows of a table, to be looked at while the snapshot changes.
    pub fn table(&self, table: &Table) -> Arc<Rows> {
        self.tables.get(table).cloned().unwrap_or_default()
    }

    pub fn rows(&self, table: &Table) -> impl ExactSizeIterator<Item = (&RowKey, &Bytes)> {
        static NONE: Rows = Rows::new();
        self.tables.get(table).map_or(&NONE, |rows| &**rows).iter()
    }

    pub fn len(&self) -> usize {
        self.tables.values().map(|rows| rows.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Bytes of all values and ids: what staging it will take, give or take keys.
    pub fn size(&self) -> u64 {
        let row = |(key, value): (&RowKey, &Bytes)| (key.topic.len() + key.id.len() + value.len()) as u64;
        self.tables.values().flat_map(|rows| rows.iter()).map(row).sum()
    }

    /// Takes the rows of a table out, to be put back by [`Snapshot::set_table`].
    pub fn take_table(&mut self, table: &Table) -> Rows {
        self.tables.remove(table).map(Arc::unwrap_or_clone).unwrap_or_default()
    }

    pub fn set_table(&mut self, table: &Table, rows: Rows) {
        if rows.is_empty() {
            self.tables.remove(table);
        } else {
            self.tables.insert(table.clone(), Arc::new(rows));
        }
    }

    fn table_mut(&mut self, table: &Table) -> &mut Rows {
        Arc::make_mut(self.tables.entry(table.clone()).or_default())
    }
}
