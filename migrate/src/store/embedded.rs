//! The driver of a database that is one file (redb).
//!
//! The file belongs to the process that has it open, so the lock lives in memory and other
//! writers cannot exist; the contract is kept all the same, lease and fence included.

use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use redb::{
    Database, Durability as Sync, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, TableDefinition, TableError, TableHandle, WriteTransaction,
};
use tokio::sync::mpsc;

use super::{
    Batch, Cleared, Durability, Facts, Fence, Glimpse, Guard, Layout, Limits, Look, Note, OnFound, Op,
    Outcome, Place, Reading, Revision, Row, Sink, Space, Store, StoreError,
};
use crate::lanes;
use crate::record::{RowKey, Snapshot, Table};
use crate::shelf::Shelf;

const NOTES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("notes");
/// The revision at which each space was last written.
const TOUCHED: TableDefinition<'_, &str, u64> = TableDefinition::new("touched");
/// Name under which the newest revision is kept beside those of the spaces.
const NEWEST: &str = "";
/// Rows handed on at a time.
const CHUNK: usize = 4096;
/// Chunks that may wait to be taken.
const AHEAD: usize = 2;
/// Memory for pages of the file. Everything is read and written once, in order: more would only be
/// a second copy of the rows.
const CACHE: usize = 128 << 20;
/// Between the parts of a key; no name may hold it.
const SEPARATOR: u8 = 0;

/// One open file.
#[derive(Debug)]
pub(super) struct Embedded {
    path: PathBuf,
    layout: Layout,
    database: Database,
    lock: Mutex<Lock>,
}

#[derive(Debug, Default)]
struct Lock {
    taken: u64,
    held: Option<(Fence, Instant)>,
}

impl Lock {
    fn holder(&self) -> Option<&Fence> {
        self.held.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(fence, _)| fence)
    }
}

impl Embedded {
    pub(super) fn open(path: &Path, layout: Layout) -> Result<Embedded, StoreError> {
        make_private(path);
        let database = match Database::builder().set_cache_size(CACHE).create(path) {
            Ok(database) => database,
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => {
                return Err(StoreError::Busy {
                    owner: format!("a process that has {} open", path.display()),
                });
            }
            Err(source) => return Err(StoreError::Open { path: path.to_owned(), source: source.into() }),
        };
        refuse_foreign(&database)
            .map_err(|reason| StoreError::refused(path.display().to_string(), &reason))?;
        Ok(Embedded { path: path.to_owned(), layout, database, lock: Mutex::default() })
    }

    fn locked(&self) -> MutexGuard<'_, Lock> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `write` in one transaction while the lock is held; no renewal or takeover can happen
    /// in between, because both need the same mutex.
    fn write<T>(
        &self,
        fence: &Fence,
        durable: Sync,
        write: impl FnOnce(&WriteTransaction) -> Result<Option<T>, redb::Error>,
    ) -> Result<Option<T>, StoreError> {
        let lock = self.locked();
        if lock.holder().is_none_or(|holder| holder.number != fence.number) {
            return Err(StoreError::FencedOut);
        }
        let doing = || format!("write to {}", self.path.display());
        let run = || -> Result<Option<T>, redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(durable)?;
            match write(&transaction)? {
                Some(done) => {
                    transaction.commit()?;
                    Ok(Some(done))
                }
                None => {
                    transaction.abort()?;
                    Ok(None)
                }
            }
        };
        run().map_err(|error| StoreError::refused(doing(), &error))
    }
}

/// Makes the file where there is none, for its owner only: it holds the same data as a backup. What goes wrong is
/// told by whoever opens it next.
fn make_private(path: &Path) {
    let _ = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
}

/// A file of the same format that somebody else keeps his own tables in, such as the store of a cluster.
fn refuse_foreign(database: &Database) -> Result<(), String> {
    let names = || -> Result<Vec<String>, redb::Error> {
        let reading = database.begin_read()?;
        let tables = reading.list_tables()?;
        Ok(tables.map(|table| table.name().to_owned()).collect())
    };
    let names = names().map_err(|error| error.to_string())?;
    if names.is_empty() || names.iter().any(|name| name == NOTES.name() || name == TOUCHED.name()) {
        return Ok(());
    }
    let clusters = names.iter().any(|name| name == "log") && names.iter().any(|name| name == "meta");
    Err(if clusters {
        "this is the store of a Midflight cluster, and no database for migrations".to_owned()
    } else {
        format!("no database for migrations: it holds the tables {} of somebody else", names.join(", "))
    })
}

#[async_trait]
impl Store for Embedded {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn limits(&self) -> Limits {
        Limits { ops: 20_000, bytes: 16 << 20, value: 1 << 30, in_flight: 1 }
    }

    fn refuses(&self, table: &Table, key: &RowKey) -> Option<&'static str> {
        let parts = [table.as_str(), &key.topic, &key.id];
        let zero = parts.iter().any(|part| part.as_bytes().contains(&SEPARATOR));
        zero.then_some("a zero byte is in its name")
    }

    async fn facts(&self) -> Result<Facts, StoreError> {
        let failed =
            |error: std::io::Error| StoreError::refused(format!("look at {}", self.path.display()), &error);
        let size = std::fs::metadata(&self.path).map_err(failed)?.len();
        let disk = rustix::fs::statvfs(&self.path).map_err(|error| failed(error.into()))?;
        Ok(Facts {
            database_bytes: Some(size),
            free_bytes: Some(disk.f_bavail * disk.f_frsize),
            ..Facts::of("embedded (redb)", Durability::EachWrite)
        })
    }

    async fn read(
        &self,
        space: Space,
        _reading: Reading,
        sink: &mut Sink<'_>,
    ) -> Result<Revision, StoreError> {
        let doing = format!("read {}", self.path.display());
        let failed = |error: redb::Error| StoreError::refused(doing.clone(), &error);
        let transaction = self.database.begin_read().map_err(|error| failed(error.into()))?;
        let newest = newest(&transaction).map_err(failed)?;
        // Rows are taken from the file on one thread while another uses those before.
        let (give, mut chunks) = mpsc::channel(AHEAD);
        let place = format!("{space} in {}", self.path.display());
        let reading = tokio::task::spawn_blocking(move || {
            read_chunks(&transaction, space, &place, |rows| give.blocking_send(rows).is_ok())
        });
        while let Some(rows) = chunks.recv().await {
            sink(rows);
        }
        match reading.await {
            Ok(read) => read.map(|()| Revision(newest)),
            Err(panic) => Err(StoreError::refused(doing, &panic)),
        }
    }

    /// On this thread, without a copy of anything.
    async fn look_at(&self, space: Space, look: &mut Look<'_>) -> Result<(), StoreError> {
        let doing = format!("read {}", self.path.display());
        let transaction = self
            .database
            .begin_read()
            .map_err(|error| StoreError::refused(doing, &redb::Error::from(error)))?;
        let place = format!("{space} in {}", self.path.display());
        each_row(&transaction, space, &place, |row| {
            look(row);
            ControlFlow::Continue(())
        })
        .map(drop)
    }

    /// Piece by piece on all cores. That there is no other row is known from how many there are.
    async fn is_exactly(
        &self,
        space: Space,
        rows: &Snapshot,
        found: &OnFound<'_>,
    ) -> Result<bool, StoreError> {
        let place = format!("{space} in {}", self.path.display());
        let failed = |error: redb::Error| StoreError::refused(format!("read {place}"), &error);
        let transaction = self.database.begin_read().map_err(|error| failed(error.into()))?;
        let Some(stored) = open(&transaction, space).map_err(failed)? else { return Ok(rows.is_empty()) };
        if stored.len().map_err(|error| failed(error.into()))? != rows.len() as u64 {
            return Ok(false);
        }
        let so_far = AtomicU64::new(0);
        let check = |(table, piece): (&Table, &[(&RowKey, &Bytes)])| {
            let same = holds_piece(&stored, table, piece)?;
            if same {
                let piece = piece.len() as u64;
                found(so_far.fetch_add(piece, Relaxed) + piece);
            }
            Ok(same)
        };
        let tables: Vec<(&Table, Vec<_>)> =
            rows.tables().map(|(table, rows)| (table, rows.iter().collect())).collect();
        let pieces: Vec<_> = tables
            .iter()
            .flat_map(|(table, rows)| rows.chunks(lanes::PIECE).map(move |piece| (*table, piece)))
            .collect();
        let same = lanes::each(pieces.into_iter(), check).into_iter().collect::<Result<Vec<bool>, _>>();
        Ok(same.map_err(failed)?.into_iter().all(|same| same))
    }

    async fn confirm(&self, space: Space, since: Revision) -> Result<Option<Revision>, StoreError> {
        let run = || -> Result<bool, redb::Error> {
            let transaction = self.database.begin_read()?;
            match transaction.open_table(TOUCHED) {
                Ok(touched) => Ok(unchanged(&touched, space, since)?),
                Err(TableError::TableDoesNotExist(_)) => Ok(true),
                Err(error) => Err(error.into()),
            }
        };
        let same =
            run().map_err(|error| StoreError::refused(format!("read {}", self.path.display()), &error))?;
        Ok(same.then_some(since))
    }

    async fn note(&self, note: Note) -> Result<Option<Bytes>, StoreError> {
        let run = || -> Result<Option<Bytes>, redb::Error> {
            let transaction = self.database.begin_read()?;
            let table = match transaction.open_table(NOTES) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            Ok(table.get(note.name())?.map(|value| Bytes::copy_from_slice(value.value())))
        };
        run().map_err(|error| StoreError::refused(format!("read {}", self.path.display()), &error))
    }

    async fn commit(&self, fence: &Fence, batch: &Batch<'_>) -> Result<Outcome, StoreError> {
        for op in &batch.ops {
            if let Place::Row { table, key, .. } = op.place()
                && let Some(reason) = self.refuses(table, key)
            {
                return Err(StoreError::Unnameable { table: table.clone(), key: key.clone(), reason });
            }
        }
        let notes = batch.ops.iter().any(|op| matches!(op.place(), Place::Note(_)));
        // Rows alone become durable with the next note, and nothing counts before that.
        let durable = if notes { Sync::Immediate } else { Sync::None };
        let done = self.write(fence, durable, |transaction| {
            if !holds(transaction, &batch.guards)? {
                return Ok(None);
            }
            apply(transaction, &batch.ops).map(Some)
        })?;
        Ok(done.map_or(Outcome::Conflict, |()| Outcome::Done))
    }

    async fn clear_some(
        &self,
        fence: &Fence,
        run: Option<&Bytes>,
        space: Space,
    ) -> Result<Cleared, StoreError> {
        let same_run = Guard::Note { note: Note::Run, is: run.cloned() };
        let done = self.write(fence, Sync::None, |transaction| {
            if !holds(transaction, &[same_run])? {
                return Ok(None);
            }
            transaction.delete_table(TableDefinition::<&[u8], &[u8]>::new(&table_of(space)))?;
            touch(transaction, &[space])?;
            Ok(Some(()))
        })?;
        Ok(done.map_or(Cleared::Conflict, |()| Cleared::All))
    }

    async fn flush(&self) -> Result<(), StoreError> {
        let run = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(Sync::Immediate)?;
            Ok(transaction.commit()?)
        };
        run().map_err(|error| StoreError::refused(format!("flush {}", self.path.display()), &error))
    }

    async fn lock(&self, owner: &str, ttl: Duration) -> Result<Fence, StoreError> {
        let mut lock = self.locked();
        if let Some(holder) = lock.holder() {
            return Err(StoreError::Busy { owner: holder.owner.to_string() });
        }
        lock.taken += 1;
        let fence = Fence { number: lock.taken, lease: 0, owner: Arc::from(owner), ttl };
        lock.held = Some((fence.clone(), Instant::now() + ttl));
        Ok(fence)
    }

    async fn renew(&self, fence: &Fence) -> Result<(), StoreError> {
        let mut lock = self.locked();
        if lock.holder() != Some(fence) {
            return Err(StoreError::FencedOut);
        }
        lock.held = Some((fence.clone(), Instant::now() + fence.ttl));
        Ok(())
    }

    async fn unlock(&self, fence: &Fence) -> Result<(), StoreError> {
        let mut lock = self.locked();
        if lock.holder() == Some(fence) {
            lock.held = None;
        }
        Ok(())
    }
}

fn newest(transaction: &ReadTransaction) -> Result<u64, redb::Error> {
    match transaction.open_table(TOUCHED) {
        Ok(table) => Ok(table.get(NEWEST)?.map_or(0, |at| at.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Hands on the rows of a space in order, until nobody takes them any more.
fn read_chunks(
    transaction: &ReadTransaction,
    space: Space,
    place: &str,
    mut give: impl FnMut(Vec<Row>) -> bool,
) -> Result<(), StoreError> {
    let (mut table, mut topic) = (Table::new(""), Arc::<str>::from(""));
    let mut shelf = Shelf::with_capacity(CHUNK, 0);
    let mut put_down = |shelf: Shelf<(Table, RowKey)>| {
        let rows = shelf.values().map(|((table, key), value)| Row { table, key, value });
        if give(rows.collect()) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let all = each_row(transaction, space, place, |row| {
        if table.as_str() != row.table {
            table = Table::new(row.table);
        }
        if *topic != *row.topic {
            topic = Arc::from(row.topic);
        }
        let key = RowKey { topic: topic.clone(), id: row.id.into() };
        shelf.push((table.clone(), key), row.value);
        if shelf.len() < CHUNK {
            return ControlFlow::Continue(());
        }
        // The next one as large as this one.
        let empty = Shelf::with_capacity(CHUNK, shelf.size());
        put_down(std::mem::replace(&mut shelf, empty))
    })?;
    if all.is_continue() && shelf.len() > 0 {
        // The last ones: whether anybody wants more does not matter.
        let _ = put_down(shelf);
    }
    Ok(())
}

/// Shows the rows of a space in order, as they lie in the file, until told to stop.
fn each_row(
    transaction: &ReadTransaction,
    space: Space,
    place: &str,
    mut each: impl FnMut(Glimpse<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, StoreError> {
    let failed = |error: redb::Error| StoreError::refused(format!("read {place}"), &error);
    let Some(stored) = open(transaction, space).map_err(failed)? else {
        return Ok(ControlFlow::Continue(()));
    };
    for entry in stored.iter().map_err(|error| failed(error.into()))? {
        let (key, value) = entry.map_err(|error| failed(error.into()))?;
        let (table, topic, id) = split(key.value()).ok_or_else(|| StoreError::Unreadable {
            place: place.to_owned(),
            reason: "a key without table, topic and id".to_owned(),
        })?;
        if each(Glimpse { table, topic, id, value: value.value() }).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

type Stored = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// The rows of a space, if it has had any.
fn open(transaction: &ReadTransaction, space: Space) -> Result<Option<Stored>, redb::Error> {
    match transaction.open_table(TableDefinition::new(&table_of(space))) {
        Ok(stored) => Ok(Some(stored)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether exactly these rows lie from the first to the last of them.
fn holds_piece(stored: &Stored, table: &Table, piece: &[(&RowKey, &Bytes)]) -> Result<bool, redb::Error> {
    let [(first, _), ..] = piece else { return Ok(true) };
    let mut key_bytes = Vec::new();
    key_of(table, first, &mut key_bytes);
    let mut there = stored.range(key_bytes.as_slice()..)?;
    for (key, value) in piece {
        let Some(next) = there.next() else { return Ok(false) };
        let (stored_key, stored_value) = next?;
        key_of(table, key, &mut key_bytes);
        if stored_key.value() != key_bytes || stored_value.value() != *value {
            return Ok(false);
        }
    }
    Ok(true)
}

fn table_of(space: Space) -> String {
    match space {
        Space::Plain => "plain".to_owned(),
        Space::Generation(generation) => format!("generation/{generation}"),
        Space::Journal(run) => format!("journal/{run}"),
        Space::Undo(run) => format!("undo/{run}"),
        Space::Seal(run) => format!("seal/{run}"),
    }
}

fn key_of(table: &Table, key: &RowKey, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(table.as_str().as_bytes());
    into.push(SEPARATOR);
    into.extend_from_slice(key.topic.as_bytes());
    into.push(SEPARATOR);
    into.extend_from_slice(key.id.as_bytes());
}

fn split(key: &[u8]) -> Option<(&str, &str, &str)> {
    let mut parts = std::str::from_utf8(key).ok()?.splitn(3, char::from(SEPARATOR));
    Some((parts.next()?, parts.next()?, parts.next()?))
}

fn holds(transaction: &WriteTransaction, guards: &[Guard]) -> Result<bool, redb::Error> {
    for guard in guards {
        let held = match guard {
            Guard::Note { note, is } => {
                let notes = transaction.open_table(NOTES)?;
                let found = notes.get(note.name())?;
                found.as_ref().map(redb::AccessGuard::value) == is.as_deref()
            }
            Guard::Unchanged { space, since } => {
                unchanged(&transaction.open_table(TOUCHED)?, *space, *since)?
            }
        };
        if !held {
            return Ok(false);
        }
    }
    Ok(true)
}

fn unchanged(
    touched: &impl ReadableTable<&'static str, u64>,
    space: Space,
    since: Revision,
) -> Result<bool, redb::StorageError> {
    Ok(touched.get(table_of(space).as_str())?.is_none_or(|at| at.value() <= since.0))
}

fn apply(transaction: &WriteTransaction, ops: &[Op<'_>]) -> Result<(), redb::Error> {
    let mut written: Vec<Space> = Vec::new();
    let mut key_bytes = Vec::new();
    // One table is open at a time, for as long as consecutive operations are about it.
    let mut rest = ops;
    while let Some(first) = rest.first() {
        let Place::Row { space, .. } = first.place() else {
            if let Place::Note(note) = first.place() {
                let mut notes = transaction.open_table(NOTES)?;
                match first {
                    Op::Put { value, .. } => drop(notes.insert(note.name(), value.as_ref())?),
                    Op::Remove { .. } => drop(notes.remove(note.name())?),
                }
            }
            rest = &rest[1..];
            continue;
        };
        let name = table_of(space);
        let mut table = transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(&name))?;
        let same = |op: &&Op<'_>| matches!(op.place(), Place::Row { space: other, .. } if other == space);
        let run = rest.iter().take_while(same).count();
        for op in &rest[..run] {
            if let Place::Row { table, key, .. } = op.place() {
                key_of(table, key, &mut key_bytes);
            }
            match op {
                Op::Put { value, .. } => drop(table.insert(key_bytes.as_slice(), value.as_ref())?),
                Op::Remove { .. } => drop(table.remove(key_bytes.as_slice())?),
            }
        }
        written.push(space);
        rest = &rest[run..];
    }
    touch(transaction, &written)
}

fn touch(transaction: &WriteTransaction, spaces: &[Space]) -> Result<(), redb::Error> {
    if spaces.is_empty() {
        return Ok(());
    }
    let mut touched = transaction.open_table(TOUCHED)?;
    let next = touched.get(NEWEST)?.map_or(0, |at| at.value()) + 1;
    touched.insert(NEWEST, next)?;
    for space in spaces {
        touched.insert(table_of(*space).as_str(), next)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_with_tables_of_somebody_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        #[rustfmt::skip]
        let cases = [
            ("cluster", vec!["log", "meta"], "the store of a Midflight cluster"),
            ("other",   vec!["things"],      "the tables things of somebody else"),
        ];
        for (name, tables, expected) in cases {
            let path = folder.path().join(name);
            let database = Database::create(&path).unwrap();
            let transaction = database.begin_write().unwrap();
            for table in tables {
                transaction.open_table(TableDefinition::<&str, &[u8]>::new(table)).unwrap();
            }
            transaction.commit().unwrap();
            drop(database);
            let error = Embedded::open(&path, Layout::Dragonflow).unwrap_err();
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
        let fresh = folder.path().join("fresh");
        drop(Embedded::open(&fresh, Layout::Dragonflow).unwrap());
        assert_eq!(std::fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o600);
        Embedded::open(&fresh, Layout::Dragonflow).unwrap();
    }
}
