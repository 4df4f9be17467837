//! Reads rows from Redis, and notices that they were written meanwhile.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, FromRedisValue, Pipeline, Value};

use super::super::{Reading, Revision, Row, Sink, Space, StoreError};
use super::Redis;
use super::connection::failed;
use super::keys::{Shared, Tables};
use crate::shelf::Shelf;

/// Entries asked for in one step of a scan: at first, at least and at most.
const FIRST_STEP: usize = 256;
const LEAST_STEP: usize = 16;
const LARGEST_STEP: usize = 4096;
/// Bytes that a step should come to.
const STEP_BYTES: usize = 2 << 20;
/// Where a scan begins, and what it says at its end.
const START: &str = "0";
/// Only names of this shape can be rows.
const SHAPE: &str = "{*.*}*";

/// What is kept between a guarded reading and the batch that relies on it.
#[derive(Default)]
pub(super) struct Guarded {
    /// Numbers the guarded readings of this handle.
    readings: u64,
    kept: Option<Kept>,
    hasher: RandomState,
}

enum Kept {
    /// The connection that watches every table of a generation.
    Watch { at: Revision, connection: MultiplexedConnection },
    /// Fingerprints of all of Dragonflow's rows, sorted; and whether two readings agreed.
    Prints { at: Revision, sorted: Vec<u64>, confirmed: bool },
}

impl Guarded {
    fn keep(&mut self, kept: impl FnOnce(Revision) -> Kept) -> Revision {
        self.readings += 1;
        let at = Revision(self.readings);
        self.kept = Some(kept(at));
        at
    }

    /// The connection that has watched since then. It can be used for one transaction.
    pub(super) fn take_watch(&mut self, since: Revision) -> Option<MultiplexedConnection> {
        match self.kept.take() {
            Some(Kept::Watch { at, connection }) if at == since => Some(connection),
            Some(Kept::Watch { .. } | Kept::Prints { .. }) | None => None,
        }
    }

    /// Whether Dragonflow's rows were read a second time, and were the same then. Good for one batch.
    pub(super) fn take_confirmed(&mut self, since: Revision) -> bool {
        match self.kept.take() {
            Some(Kept::Prints { at, confirmed, .. }) => confirmed && at == since,
            Some(Kept::Watch { .. }) | None => false,
        }
    }
}

impl Redis {
    pub(super) async fn read_space(
        &self,
        space: Space,
        reading: Reading,
        sink: &mut Sink<'_>,
    ) -> Result<Revision, StoreError> {
        let doing = format!("read {space}");
        // Of its own: what it watches must not be mixed with the transactions of others.
        let mut connection = self.dialer.dial().await?;
        match (self.keys.tables(space), reading) {
            (Some(tables), Reading::Once) => {
                read_tables(&doing, &mut connection, &tables, None, sink).await?;
                Ok(Revision(0))
            }
            (Some(tables), Reading::Guarded) => {
                let watch: fn(&str) -> Cmd = |key| {
                    let mut command = redis::cmd("WATCH");
                    command.arg(key);
                    command
                };
                read_tables(&doing, &mut connection, &tables, Some(watch), sink).await?;
                Ok(self.guarded.lock().await.keep(|at| Kept::Watch { at, connection }))
            }
            (None, Reading::Once) => {
                read_plain(&doing, &mut connection, sink).await?;
                Ok(Revision(0))
            }
            (None, Reading::Guarded) => {
                let hasher = self.guarded.lock().await.hasher.clone();
                let mut prints = Vec::new();
                let mut both = |rows: Vec<Row>| {
                    prints.extend(rows.iter().map(|row| print(&hasher, row)));
                    sink(rows);
                };
                read_plain(&doing, &mut connection, &mut both).await?;
                let sorted = in_order(prints);
                Ok(self.guarded.lock().await.keep(|at| Kept::Prints { at, sorted, confirmed: false }))
            }
        }
    }

    /// What is watched is compared by the transaction itself; plain rows are read again.
    pub(super) async fn confirm_space(
        &self,
        space: Space,
        since: Revision,
    ) -> Result<Option<Revision>, StoreError> {
        let mut guarded = self.guarded.lock().await;
        if self.keys.tables(space).is_some() {
            let Some(Kept::Watch { at, connection }) = &mut guarded.kept else { return Ok(None) };
            let alive = ask::<String>("ask Redis", connection, &redis::cmd("PING")).await.is_ok();
            return Ok((alive && *at == since).then_some(since));
        }
        let hasher = guarded.hasher.clone();
        let Some(Kept::Prints { at, sorted, .. }) = &guarded.kept else { return Ok(None) };
        if *at != since {
            return Ok(None);
        }
        let mut connection = self.dialer.dial().await?;
        let mut prints = Vec::with_capacity(sorted.len());
        let mut sink = |rows: Vec<Row>| prints.extend(rows.iter().map(|row| print(&hasher, row)));
        read_plain(&format!("look for changes of {space}"), &mut connection, &mut sink).await?;
        let now = in_order(prints);
        if now != *sorted {
            return Ok(None);
        }
        Ok(Some(guarded.keep(|at| Kept::Prints { at, sorted: now, confirmed: true })))
    }
}

/// A scan may give a row twice.
fn in_order(mut prints: Vec<u64>) -> Vec<u64> {
    prints.sort_unstable();
    prints.dedup();
    prints
}

fn print(hasher: &RandomState, row: &Row) -> u64 {
    hasher.hash_one((row.table.as_str(), &*row.key.topic, &*row.key.id, row.value.as_ref()))
}

async fn ask<T: FromRedisValue>(
    doing: &str,
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<T, StoreError> {
    let value = connection.req_packed_command(command).await.map_err(|error| failed(doing, error))?;
    understood(doing, value)
}

fn understood<T: FromRedisValue>(doing: &str, value: Value) -> Result<T, StoreError> {
    let value = value.extract_error().map_err(|error| failed(doing, error))?;
    T::from_redis_value(value).map_err(|error| failed(doing, error.into()))
}

/// How many entries to ask for next: few where rows are large, so that no answer takes too long or too much memory.
#[derive(Debug, Clone, Copy)]
struct Pace(usize);

impl Pace {
    /// After a step that gave so many rows of so many bytes.
    fn after(self, rows: usize, bytes: usize) -> Pace {
        if rows == 0 {
            return self;
        }
        let fitting = STEP_BYTES / (bytes / rows).max(1);
        Pace(fitting.min(self.0 * 4).clamp(LEAST_STEP, LARGEST_STEP))
    }
}

/// One step of a scan: where to go on, and what was found.
fn step(doing: &str, answer: Value) -> Result<(String, Vec<Value>), StoreError> {
    understood(doing, answer)
}

/// While the rows of one step are used, the server works on the next.
async fn read_tables(
    doing: &str,
    connection: &mut MultiplexedConnection,
    tables: &Tables,
    watch: Option<fn(&str) -> Cmd>,
    sink: &mut Sink<'_>,
) -> Result<(), StoreError> {
    if let Some(watch) = watch {
        ask::<()>(doing, connection, &watch(&tables.index)).await?;
    }
    let names: Vec<String> = ask(doing, connection, redis::cmd("SMEMBERS").arg(&tables.index)).await?;
    let mut shared = Shared::default();
    for name in names {
        let (hash, table) = (tables.hash(&name), shared.table(&name));
        if let Some(watch) = watch {
            ask::<()>(doing, connection, &watch(&hash)).await?;
        }
        let scan = |cursor: &str, Pace(count): Pace| {
            let mut command = redis::cmd("HSCAN");
            command.arg(&hash).arg(cursor).arg("COUNT").arg(count);
            command
        };
        let mut pace = Pace(FIRST_STEP);
        let mut answer: Value = ask(doing, connection, &scan(START, pace)).await?;
        loop {
            let (cursor, pairs) = step(doing, answer)?;
            let bytes = pairs.iter().map(size_of).sum();
            pace = pace.after(pairs.len() / 2, bytes);
            let hand_on = async {
                let mut shelf = Shelf::with_capacity(pairs.len() / 2, bytes);
                let mut pairs = pairs.into_iter();
                while let (Some(field), Some(value)) = (pairs.next(), pairs.next()) {
                    if let (Value::BulkString(field), Value::BulkString(value)) = (field, value)
                        && let Some(key) = shared.field(&field)
                    {
                        shelf.push(key, &value);
                    }
                }
                let row = |(key, value)| Row { table: table.clone(), key, value };
                sink(shelf.values().map(row).collect());
            };
            if cursor == START {
                hand_on.await;
                break;
            }
            let next = scan(&cursor, pace);
            let (asked, ()) = tokio::join!(biased; ask(doing, connection, &next), hand_on);
            answer = asked?;
        }
    }
    Ok(())
}

/// Names and values take turns: while the values of one step are fetched, the next is scanned, and
/// the rows of the one before are used.
async fn read_plain(
    doing: &str,
    connection: &mut MultiplexedConnection,
    sink: &mut Sink<'_>,
) -> Result<(), StoreError> {
    let scan = |cursor: &str, Pace(count): Pace| {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(SHAPE).arg("COUNT").arg(count);
        command
    };
    let mut shared = Shared::default();
    let mut pace = Pace(FIRST_STEP);
    let mut told_of_others = false;
    let mut found = step(doing, ask(doing, connection, &scan(START, pace)).await?)?;
    let mut fetched = (vec![], vec![]);
    loop {
        let (cursor, names) = found;
        let more = cursor != START;
        let mut both = Pipeline::new();
        both.add_command(match names.is_empty() {
            true => redis::cmd("PING"),
            false => {
                let mut values = redis::cmd("MGET");
                for name in &names {
                    values.arg(bytes_of(name));
                }
                values
            }
        });
        if more {
            both.add_command(scan(&cursor, pace));
        }
        let hand_on = async { sink(plain_rows(&mut shared, fetched)) };
        let asked = connection.req_packed_commands(&both, 0, if more { 2 } else { 1 });
        let (asked, ()) = tokio::join!(biased; asked, hand_on);
        let mut answers = asked.map_err(|error| failed(doing, error))?.into_iter();
        let values: Vec<Value> = match answers.next() {
            Some(values) if !names.is_empty() => understood(doing, values)?,
            Some(_) | None => vec![],
        };
        if !told_of_others && let Some(at) = values.iter().position(|value| *value == Value::Nil) {
            told_of_others = tell_of_another(doing, connection, bytes_of(&names[at])).await?;
        }
        pace = pace.after(names.len(), values.iter().map(size_of).sum());
        fetched = (names, values);
        let Some(next) = answers.next() else {
            sink(plain_rows(&mut shared, fetched));
            return Ok(());
        };
        found = step(doing, next)?;
    }
}

/// A key of the shape of a row that is still there and has no value holds something else than a string.
async fn tell_of_another(
    doing: &str,
    connection: &mut MultiplexedConnection,
    name: &[u8],
) -> Result<bool, StoreError> {
    let kind: String = ask(doing, connection, redis::cmd("TYPE").arg(name)).await?;
    let other = !["none", "string"].contains(&kind.as_str());
    if other {
        let key = String::from_utf8_lossy(name);
        tracing::warn!(%key, %kind, "keys that look like rows but hold no strings are left alone, and are in no backup");
    }
    Ok(other)
}

fn size_of(value: &Value) -> usize {
    bytes_of(value).len()
}

fn bytes_of(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes,
        _ => &[],
    }
}

/// A name without a value is gone since it was seen, or holds no string.
fn plain_rows(shared: &mut Shared, (names, values): (Vec<Value>, Vec<Value>)) -> Vec<Row> {
    let mut shelf = Shelf::with_capacity(names.len(), values.iter().map(size_of).sum());
    for (name, value) in names.iter().zip(values) {
        if let Value::BulkString(value) = value
            && let Some(place) = shared.plain(bytes_of(name))
        {
            shelf.push(place, &value);
        }
    }
    shelf.values().map(|((table, key), value)| Row { table, key, value }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_small_where_rows_are_large() {
        #[rustfmt::skip]
        let cases = [
            ("nothing came",     Pace(256),  0,    0,            256),
            ("small rows",       Pace(256),  250,  250 * 300,    1024),
            ("small rows, late", Pace(4096), 4096, 4096 * 300,   4096),
            ("large rows",       Pace(256),  256,  256 << 19,    16),
            ("middling",         Pace(1024), 1024, 1024 * 10_240, 204),
            ("empty values",     Pace(4096), 4096, 0,            4096),
        ];
        for (name, pace, rows, bytes, expected) in cases {
            assert_eq!(pace.after(rows, bytes).0, expected, "{name}");
        }
    }
}
