//! Runs migrations, one after another, on a copy of the database.
//!
//! The one invariant: a migration that ran is in the log of the same copy, and
//! one that failed ends the run; what the caller then holds is thrown away.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::log::{self, Entry};
use super::manifest::{Manifest, Program};
use super::native::{Failure, Native};
use super::{Migration, Work};
use crate::northbound::{NorthBound, TouchError};
use crate::record::{Snapshot, Table};
use crate::worker::{ExecError, JqError, Worker};

/// What a run needs besides migrations and data.
pub struct Context<'a> {
    /// Where jq filters and commands are run.
    pub worker: &'a Worker,
    /// Written into the log.
    pub tool_version: &'a str,
    /// Gives the `applied_at` of the log.
    pub clock: &'a (dyn Fn() -> Timestamp + Sync),
    /// Told how far the run is, from several threads.
    pub progress: &'a (dyn Fn(Progress<'_>) + Sync),
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    pub id: &'a str,
    /// Migrations that are done, of how many.
    pub done: usize,
    pub of: usize,
    /// Rows of the current migration that are done, of how many it will look at.
    pub rows: u64,
    pub of_rows: u64,
}

/// What one migration took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub id: String,
    /// Rows in the tables it declared, when it began.
    pub rows: u64,
    pub removed: u64,
    pub took: Duration,
}

/// The migration that failed. Nothing was written to any database.
#[derive(Debug, thiserror::Error)]
#[error("migration {id} failed; nothing was written")]
pub struct RunError {
    pub id: String,
    pub source: StepError,
}

/// Why a migration failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Touch(#[from] TouchError),

    #[error("its function gave up")]
    Native { source: Failure },

    #[error("its function panicked: {message}")]
    Panicked { message: String },

    #[error(transparent)]
    Jq(#[from] JqError),

    #[error(transparent)]
    Exec(#[from] ExecError),

    #[error("it removed {removed} rows, and {allowed} is what it declares at most (max_removed)")]
    TooManyRemoved { removed: u64, allowed: u64 },
}

/// Runs `migrations` in the order given, each with its entry in the log.
pub fn run(
    migrations: &[&Migration],
    database: &mut Snapshot,
    context: &Context<'_>,
) -> Result<Vec<Ran>, RunError> {
    let mut ran = Vec::with_capacity(migrations.len());
    for (done, migration) in migrations.iter().enumerate() {
        let id = migration.header.id.as_str();
        let began = Instant::now();
        let of_rows = rows(database, &migration.header.tables);
        let progress = |rows| {
            (context.progress)(Progress { id, done, of: migrations.len(), rows, of_rows });
        };
        progress(0);
        let removed = step(migration, database, context, &progress)
            .map_err(|source| RunError { id: id.to_owned(), source })?;
        progress(of_rows);
        log::write(database, &Entry::of(migration, (context.clock)(), context.tool_version));
        ran.push(Ran { id: id.to_owned(), rows: of_rows, removed, took: began.elapsed() });
    }
    Ok(ran)
}

fn rows(database: &Snapshot, tables: &[Table]) -> u64 {
    tables.iter().map(|table| database.rows(table).count() as u64).sum()
}

fn step(
    migration: &Migration,
    database: &mut Snapshot,
    context: &Context<'_>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64, StepError> {
    let tables = &migration.header.tables;
    let removed = match &migration.work {
        Work::Native(native) => call(native, database, tables)?,
        Work::Folder(manifest) => {
            let Manifest { program, memory, folder, .. } = &**manifest;
            match program {
                Program::Jq { filters, stall } => {
                    let job = crate::worker::Jq { filters, declared: tables, stall: *stall, memory: *memory };
                    context.worker.jq(&job, database, progress)?
                }
                Program::Exec { command, timeout } => {
                    let job = crate::worker::Exec {
                        command,
                        folder,
                        declared: tables,
                        timeout: *timeout,
                        memory: *memory,
                    };
                    context.worker.exec(&job, database, progress)?
                }
            }
        }
    };
    match migration.max_removed {
        Some(allowed) if removed > allowed => Err(StepError::TooManyRemoved { removed, allowed }),
        _ => Ok(removed),
    }
}

fn call(native: &Native, database: &mut Snapshot, tables: &[Table]) -> Result<u64, StepError> {
    let mut north_bound = NorthBound::new(database, tables);
    // The copy is thrown away when a function panics: nothing half done is seen.
    let outcome = catch_unwind(AssertUnwindSafe(|| (native.migration)(&mut north_bound)));
    match outcome {
        Ok(Ok(())) => Ok(north_bound.removed()),
        Ok(Err(source)) => Err(match source.downcast::<TouchError>() {
            Ok(touch) => StepError::Touch(*touch),
            Err(source) => StepError::Native { source },
        }),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message")
                .to_owned();
            Err(StepError::Panicked { message })
        }
    }
}
