//! Feeds the rows of tables to workers that run jq filters, and puts together
//! what becomes of them.
//!
//! The one invariant: every filter sees the rows as they were before the
//! migration, whatever the order of tables and workers, and no two rows end up
//! under one key.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::ChildStdin;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Worker;
use super::answers::{Answers, Draft};
use super::process::{Process, Timed, how_it_ended};
use super::wire::{self, Setup, SetupFilter};
use crate::record::{RowKey, Snapshot, Table};

/// A chunk is closed at this many rows or bytes.
const CHUNK_ROWS: usize = 1024;
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes that a row takes besides its value and its names.
const ROW: usize = 128;

/// jq filters to run, and within which bounds.
#[derive(Debug, Clone, Copy)]
pub struct Jq<'a> {
    pub filters: &'a [(Table, String)],
    /// Tables that rows may go to.
    pub declared: &'a [Table],
    /// The longest a filter may think about one row.
    pub stall: Duration,
    /// Bytes of memory a worker may take.
    pub memory: u64,
}

/// Why filters could not be run to their end.
#[derive(Debug, thiserror::Error)]
pub enum JqError {
    #[error("start {}, which runs jq filters", program.display())]
    Start { program: std::path::PathBuf, source: io::Error },

    #[error("speak with the process that runs jq filters")]
    Talk { source: io::Error },

    #[error("{table} {key}: {problem}")]
    Row { table: Table, key: RowKey, problem: String },

    #[error("{table}: the filter came to no end within {} s, at or soon after {key}; it was stopped", after.as_secs())]
    Stalled { table: Table, key: RowKey, after: Duration },

    #[error("{table}: the filter was ended at or soon after {key} ({} MiB were allowed): {how}", memory >> 20)]
    Ended { table: Table, key: RowKey, memory: u64, how: String },

    #[error(
        "{table} {key}: an output goes to {to}, which is not declared; add it to `tables` of the migration"
    )]
    Undeclared { table: Table, key: RowKey, to: String },

    #[error("{table} {key}: two rows would end up under this key")]
    Collision { table: Table, key: RowKey },

    #[error("{table} {key}: the rows would grow by more than {} MiB in all (memory_mib)", most >> 20)]
    TooMuch { table: Table, key: RowKey, most: u64 },
}

/// What becomes of one row.
pub(super) enum Fate {
    Keep,
    Replace(Bytes),
    /// Not under its key any more, or not alone: these take its place.
    Become(Vec<(Table, RowKey, Bytes)>),
}

pub(super) struct Chunk<'a> {
    pub(super) filter: usize,
    pub(super) rows: &'a [(&'a RowKey, &'a Bytes)],
}

impl Worker {
    /// Runs the filters on every row of their tables. Gives the number of rows removed.
    pub(crate) fn jq(
        &self,
        job: &Jq<'_>,
        database: &mut Snapshot,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, JqError> {
        let fates = {
            let tables: Vec<Vec<(&RowKey, &Bytes)>> =
                job.filters.iter().map(|(table, _)| database.rows(table).collect()).collect();
            let chunks: Vec<Chunk<'_>> =
                tables.iter().enumerate().flat_map(|(filter, rows)| cut(filter, rows)).collect();
            self.judge(job, &chunks, progress)?
        };
        put_together(job, database, fates)
    }

    /// The fate of every row of every chunk, in order.
    fn judge(
        &self,
        job: &Jq<'_>,
        chunks: &[Chunk<'_>],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Vec<Fate>>, JqError> {
        let shared = Shared {
            job,
            chunks,
            next: AtomicUsize::new(0),
            rows: AtomicU64::new(0),
            grown: AtomicI64::new(0),
            progress,
        };
        let lanes = self.parallel.min(chunks.len());
        let mut judged: Vec<Option<Vec<Fate>>> = chunks.iter().map(|_| None).collect();
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(|| shared.lane(self))).collect();
            lanes.into_iter().map(|lane| lane.join()).collect()
        });
        let mut first: Option<(usize, JqError)> = None;
        for outcome in outcomes {
            let (done, failed) = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (index, fates) in done {
                judged[index] = Some(fates);
            }
            if let Some(failed) = failed
                && first.as_ref().is_none_or(|(index, _)| failed.0 < *index)
            {
                first = Some(failed);
            }
        }
        match first {
            Some((_, error)) => Err(error),
            None => {
                Ok(judged.into_iter().map(|fates| fates.expect("every chunk was taken by a lane")).collect())
            }
        }
    }
}

fn cut<'a>(filter: usize, rows: &'a [(&'a RowKey, &'a Bytes)]) -> Vec<Chunk<'a>> {
    let mut chunks = vec![];
    let (mut start, mut size) = (0, 0);
    for (i, (_, value)) in rows.iter().enumerate() {
        size += value.len();
        if i + 1 - start == CHUNK_ROWS || size >= CHUNK_BYTES || i + 1 == rows.len() {
            chunks.push(Chunk { filter, rows: &rows[start..=i] });
            (start, size) = (i + 1, 0);
        }
    }
    chunks
}

/// What the lanes share: each takes the next chunk that nobody has taken.
pub(super) struct Shared<'a> {
    pub(super) job: &'a Jq<'a>,
    chunks: &'a [Chunk<'a>],
    next: AtomicUsize,
    rows: AtomicU64,
    /// Bytes that came out more than went in, in all lanes.
    grown: AtomicI64,
    progress: &'a (dyn Fn(u64) + Sync),
}

/// Chunks that one lane did, and where and why it failed.
type Lane = (Vec<(usize, Vec<Fate>)>, Option<(usize, JqError)>);

impl Shared<'_> {
    /// One worker and the two threads that feed and hear it.
    fn lane(&self, worker: &Worker) -> Lane {
        let mut done = vec![];
        let (mut process, input, output) = match Process::start(worker, &["jq"], &[], Path::new("/")) {
            Ok(started) => started,
            Err(source) => {
                self.stop();
                return (done, Some((0, JqError::Start { program: worker.program.clone(), source })));
            }
        };
        let failed = std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            scope.spawn(move || self.feed(input, &tell));
            let timed = Timed::new(output, Instant::now() + self.job.stall);
            let mut answers = Answers::of(timed);
            for index in told {
                let chunk = &self.chunks[index];
                match answers.read(self, chunk) {
                    Ok(fates) => done.push((index, fates)),
                    Err(failure) => {
                        self.stop();
                        // Also wakes the feeding thread, whose pipe breaks.
                        let (status, said) = process.kill();
                        let error = failure.explain(self.job, chunk, || how_it_ended(status, &said));
                        return Some((index, error));
                    }
                }
                let rows = chunk.rows.len() as u64;
                (self.progress)(self.rows.fetch_add(rows, Ordering::Relaxed) + rows);
            }
            None
        });
        (done, failed)
    }

    /// Counts what has become of a row, and whether that still fits into memory beside all the others.
    pub(super) fn fits(&self, before: &Bytes, draft: &Draft) -> bool {
        let after = match draft {
            Draft::Keep => return true,
            Draft::Replace(range) => range.len() + ROW,
            Draft::Become(rows) => rows.iter().map(|(_, key, range)| key.id.len() + range.len() + ROW).sum(),
        };
        let more = after as i64 - (before.len() + ROW) as i64;
        let grown = self.grown.fetch_add(more, Ordering::Relaxed) + more;
        grown <= i64::try_from(self.job.memory).unwrap_or(i64::MAX)
    }

    /// Lets no lane take another chunk.
    fn stop(&self) {
        self.next.store(self.chunks.len(), Ordering::Relaxed);
    }

    fn feed(&self, mut input: ChildStdin, tell: &mpsc::Sender<usize>) {
        let filters = self
            .job
            .filters
            .iter()
            .map(|(table, program)| SetupFilter { table: table.to_string(), program: program.clone() });
        let setup = Setup { memory: self.job.memory, filters: filters.collect() };
        let mut frame = vec![];
        wire::put_bytes(&mut frame, &serde_json::to_vec(&setup).expect("plain data"));
        let mut sent = input.write_all(&frame);
        while sent.is_ok() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = self.chunks.get(index) else { return };
            wire::begin_frame(&mut frame);
            wire::put_u32(&mut frame, chunk.filter);
            wire::put_u32(&mut frame, chunk.rows.len());
            for (key, value) in chunk.rows {
                wire::put_bytes(&mut frame, key.topic.as_bytes());
                wire::put_bytes(&mut frame, key.id.as_bytes());
                wire::put_bytes(&mut frame, value);
            }
            wire::end_frame(&mut frame);
            if tell.send(index).is_err() {
                return;
            }
            // A broken pipe is the worker's end, which the hearing thread explains.
            sent = input.write_all(&frame);
        }
    }
}

/// Lets every row meet its fate: first what stays, then what is new. Gives the
/// number of rows that are gone.
fn put_together(job: &Jq<'_>, database: &mut Snapshot, fates: Vec<Vec<Fate>>) -> Result<u64, JqError> {
    let mut fates = fates.into_iter().flatten();
    let mut born: BTreeMap<(Table, RowKey), Bytes> = BTreeMap::new();
    let mut removed = 0;
    for (table, _) in job.filters {
        let rows = database.take_table(table);
        let mut stay = Vec::with_capacity(rows.len());
        for ((key, value), fate) in rows.into_iter().zip(fates.by_ref()) {
            match fate {
                Fate::Keep => stay.push((key, value)),
                Fate::Replace(value) => stay.push((key, value)),
                Fate::Become(outputs) => {
                    let mut gone = true;
                    for (to, at, value) in outputs {
                        gone &= to != *table || at != key;
                        if born.insert((to.clone(), at.clone()), value).is_some() {
                            return Err(JqError::Collision { table: to, key: at });
                        }
                    }
                    removed += u64::from(gone);
                }
            }
        }
        database.set_table(table, stay.into_iter().collect());
    }
    for ((table, key), value) in born {
        if database.get(&table, &key).is_some() {
            return Err(JqError::Collision { table, key });
        }
        database.put(&table, key, value);
    }
    Ok(removed)
}
