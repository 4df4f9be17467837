//! What a run asks of a database: rows read at one revision, and fenced atomic batches.
//!
//! There are three drivers (etcd, Redis and one file), and one suite that holds them to this
//! contract. Every call may be repeated: after a lost answer the outcome is unknown, and the
//! caller looks again.
//!
//! The one invariant: a batch is applied whole or not at all, and only while the lock it was
//! issued under is still held.

mod batch;
mod embedded;
mod error;
mod etcd;
mod facts;
mod lock;
mod names;
mod reach;
mod redis;
mod roll;
mod roots;
mod url;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use self::roll::Roll;
use crate::lanes;
use crate::record::{RowKey, Rows, Snapshot, Table};
use crate::shelf::Shelf;

pub use batch::{Batch, Guard, Limits, Op, Outcome, Place, pack, puts};
pub use error::StoreError;
pub use facts::{Durability, Facts, Shortage};
pub use lock::{Fence, Held, hold};
pub use roots::{OtherRoot, OtherRoots};
pub use url::{Url, UrlError};

/// How rows lie in the database. The operator chooses it; it is never guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Dragonflow's own keys (`/TABLE/ID` in etcd, `{TABLE.TOPIC}ID` in Redis), changed in place
    /// by a journal and a marker.
    Dragonflow,
    /// Whole generations side by side; a pointer names the one that is live.
    Generation,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Dragonflow => "dragonflow",
            Layout::Generation => "generation",
        })
    }
}

/// Rises with every run on a database. Names the run's spaces, so none is ever used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunNumber(u64);

impl RunNumber {
    pub const FIRST: RunNumber = RunNumber(1);

    pub fn next(self) -> RunNumber {
        RunNumber(self.0 + 1)
    }

    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RunNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One whole copy of the rows, made by the run of the same number. Zero is the empty
/// generation that a database without a pointer stands at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(u64);

impl Generation {
    pub const EMPTY: Generation = Generation(0);

    pub fn of(run: RunNumber) -> Generation {
        Generation(run.0)
    }

    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of rows that is read and deleted as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// The live rows of [`Layout::Dragonflow`].
    Plain,
    /// Rows of one generation.
    Generation(Generation),
    /// What a run is going to change, until it has.
    Journal(RunNumber),
    /// What a run changed, as it was before.
    Undo(RunNumber),
    /// Fingerprints of the rows as a run left them.
    Seal(RunNumber),
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Plain => f.write_str("rows"),
            Space::Generation(generation) => write!(f, "generation {generation}"),
            Space::Journal(run) => write!(f, "journal of run {run}"),
            Space::Undo(run) => write!(f, "undo journal of run {run}"),
            Space::Seal(run) => write!(f, "seal of run {run}"),
        }
    }
}

/// A small document of the tool's own, beside the rows and never in a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Note {
    /// Which generation is live.
    Pointer,
    /// Where the last run stands.
    Run,
}

impl Note {
    pub fn name(self) -> &'static str {
        match self {
            Note::Pointer => "pointer",
            Note::Run => "run",
        }
    }
}

/// A moment of the database, as its driver counts them. Means nothing to another handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision(pub(crate) u64);

/// What a reader is going to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Look, and no more.
    Once,
    /// Commit later under [`Guard::Unchanged`]: the driver keeps what that takes.
    Guarded,
}

/// One row, as a driver reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub table: Table,
    pub key: RowKey,
    pub value: Bytes,
}

/// Takes rows as they arrive, in any order, some perhaps twice.
pub type Sink<'s> = dyn FnMut(Vec<Row>) + Send + 's;

/// One row as it lies in the store, for as long as somebody looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glimpse<'r> {
    pub table: &'r str,
    pub topic: &'r str,
    pub id: &'r str,
    pub value: &'r [u8],
}

impl<'r> From<&'r Row> for Glimpse<'r> {
    fn from(row: &'r Row) -> Glimpse<'r> {
        let RowKey { topic, id } = &row.key;
        Glimpse { table: row.table.as_str(), topic, id, value: &row.value }
    }
}

/// Looks at rows as they come, in any order, some perhaps twice.
pub type Look<'l> = dyn FnMut(Glimpse<'_>) + Send + 'l;

/// Told how many rows were found, often.
pub type OnFound<'f> = dyn Fn(u64) + Sync + 'f;

/// Rows between two reports of progress.
const TELL_EVERY: u64 = 4096;

/// Whether a space has rows left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleared {
    All,
    Some,
    /// The run note is another one; nothing was deleted.
    Conflict,
}

/// A database that can be migrated.
#[async_trait]
pub trait Store: Send + Sync {
    fn layout(&self) -> Layout;

    /// What one batch may hold.
    fn limits(&self) -> Limits;

    /// Why no live row can stand under this key, where none can: what is written there would not
    /// read back as the same row.
    fn refuses(&self, table: &Table, key: &RowKey) -> Option<&'static str>;

    /// What the pre-flight check wants to know of the server.
    async fn facts(&self) -> Result<Facts, StoreError>;

    /// Hands every row of `space` to `sink`, all as they were at the revision returned.
    async fn read(&self, space: Space, reading: Reading, sink: &mut Sink<'_>)
    -> Result<Revision, StoreError>;

    /// Shows every row of `space` to `look`, without keeping any.
    async fn look_at(&self, space: Space, look: &mut Look<'_>) -> Result<(), StoreError> {
        let mut each = |rows: Vec<Row>| rows.iter().for_each(|row| look(row.into()));
        self.read(space, Reading::Once, &mut each).await.map(drop)
    }

    /// Whether `space` holds exactly these rows. `found` is told how many of them were found, often.
    async fn is_exactly(
        &self,
        space: Space,
        rows: &Snapshot,
        found: &OnFound<'_>,
    ) -> Result<bool, StoreError> {
        let mut roll = Roll::of(rows);
        let (mut wrong, mut seen) = (0_u64, 0_u64);
        let mut tick = |row: Glimpse<'_>| {
            wrong += u64::from(!roll.tick(row));
            seen += 1;
            if seen.is_multiple_of(TELL_EVERY) {
                found(roll.found());
            }
        };
        self.look_at(space, &mut tick).await?;
        found(roll.found());
        Ok(wrong == 0 && roll.found() == rows.len() as u64)
    }

    /// Looks whether a row of `space` was written since a guarded reading. If none was, gives a
    /// newer revision, by which [`Guard::Unchanged`] is cheap.
    async fn confirm(&self, space: Space, since: Revision) -> Result<Option<Revision>, StoreError>;

    async fn note(&self, note: Note) -> Result<Option<Bytes>, StoreError>;

    /// What this tool has left under other roots, beside the same rows of Dragonflow's; `plain` are those rows.
    async fn other_roots(&self, _plain: &Snapshot) -> Result<OtherRoots, StoreError> {
        Ok(OtherRoots::new())
    }

    /// Applies the batch whole if the lock is held and every guard holds, else not at all.
    async fn commit(&self, fence: &Fence, batch: &Batch<'_>) -> Result<Outcome, StoreError>;

    /// Deletes some rows of `space`, as many as one write may, while the run note holds exactly
    /// `run`, or does not exist.
    async fn clear_some(
        &self,
        fence: &Fence,
        run: Option<&Bytes>,
        space: Space,
    ) -> Result<Cleared, StoreError>;

    /// Returns when all that was acknowledged is as durable as this server makes it.
    async fn flush(&self) -> Result<(), StoreError>;

    /// Takes the lock, or says who has it. It frees itself `ttl` after the last renewal.
    async fn lock(&self, owner: &str, ttl: Duration) -> Result<Fence, StoreError>;

    async fn renew(&self, fence: &Fence) -> Result<(), StoreError>;

    /// Frees the lock if it is still held under this fence.
    async fn unlock(&self, fence: &Fence) -> Result<(), StoreError>;
}

/// How to reach a server, beside its URL.
#[derive(Debug, Clone)]
pub struct Options {
    /// Certificate authority to trust instead of the system's, PEM.
    pub ca: Option<std::path::PathBuf>,
    /// Client certificate and key, PEM.
    pub identity: Option<(std::path::PathBuf, std::path::PathBuf)>,
    pub username: Option<String>,
    pub password: Option<SecretString>,
    /// Longest wait for one answer.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { ca: None, identity: None, username: None, password: None, timeout: Duration::from_secs(10) }
    }
}

/// Opens the database that `url` names.
pub async fn open(url: &Url, layout: Layout, options: &Options) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match url {
        Url::Embedded { path } => Arc::new(embedded::Embedded::open(path, layout)?),
        Url::Etcd(server) => Arc::new(etcd::Etcd::open(server, layout, options).await?),
        Url::Redis(server) => Arc::new(redis::Redis::open(server, layout, options).await?),
    })
}

/// Reads a whole space into memory.
pub async fn collect(
    store: &dyn Store,
    space: Space,
    reading: Reading,
) -> Result<(Snapshot, Revision), StoreError> {
    collect_telling(store, space, reading, &|_| {}).await
}

/// As [`collect`], and tells after each chunk how many rows have come.
pub async fn collect_telling(
    store: &dyn Store,
    space: Space,
    reading: Reading,
    told: &(dyn Fn(u64) + Sync),
) -> Result<(Snapshot, Revision), StoreError> {
    let mut come = 0;
    told(come);
    let mut tables: BTreeMap<Table, Vec<(RowKey, Bytes)>> = BTreeMap::new();
    let revision = store
        .read(space, reading, &mut |rows: Vec<Row>| {
            come += rows.len() as u64;
            told(come);
            let mut rows = rows.into_iter().peekable();
            while let Some(first) = rows.next() {
                let of_table = tables.entry(first.table.clone()).or_default();
                of_table.push((first.key, first.value));
                while let Some(row) = rows.next_if(|row| row.table == first.table) {
                    of_table.push((row.key, row.value));
                }
            }
        })
        .await?;
    let mut snapshot = Snapshot::default();
    for (table, rows) in tables {
        snapshot.set_table(&table, in_order(rows));
    }
    Ok((snapshot, revision))
}

/// The rows of a table as a tree. Values that came in another order are laid down again in this one:
/// everything that follows walks through them in it. Of a row that came twice the later one stays.
fn in_order(mut rows: Vec<(RowKey, Bytes)>) -> Rows {
    if !rows.is_sorted_by(|(one, _), (next, _)| one < next) {
        rows.sort_by(|(one, _), (other, _)| one.cmp(other));
        lanes::each(rows.chunks_mut(lanes::PIECE), |piece| {
            let bytes = piece.iter().map(|(_, value)| value.len()).sum();
            let mut shelf = Shelf::with_capacity(piece.len(), bytes);
            for (_, value) in piece.iter() {
                shelf.push((), value);
            }
            for ((_, value), ((), again)) in piece.iter_mut().zip(shelf.values()) {
                *value = again;
            }
        });
    }
    Rows::from_iter(rows)
}

/// Deletes a whole space, chunk by chunk, as long as the run note holds exactly `run`.
pub async fn clear(
    store: &dyn Store,
    fence: &Fence,
    run: Option<&Bytes>,
    space: Space,
) -> Result<Outcome, StoreError> {
    loop {
        match store.clear_some(fence, run, space).await? {
            Cleared::Some => {}
            Cleared::All => return Ok(Outcome::Done),
            Cleared::Conflict => return Ok(Outcome::Conflict),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_any_order_become_the_same_table() {
        let row = |number: usize, value: &str| {
            (RowKey::new("t", &format!("{number:05}")), Bytes::from(format!("{value}{number}")))
        };
        let ordered: Vec<_> = (0..10_000).map(|number| row(number, "v")).collect();
        let mut other: Vec<_> = ordered.iter().rev().cloned().collect();
        other.insert(0, row(17, "older "));
        assert_eq!(in_order(other), in_order(ordered.clone()));
        assert_eq!(in_order(ordered.clone()), Rows::from_iter(ordered));
    }
}
