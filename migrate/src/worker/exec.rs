//! Runs a migration that is a command: rows go in and come out as lines of JSON.
//!
//! In: one line per row of every declared table, then the end of the input:
//! `{"table":"lport","topic":"t","id":"a","object":{…}}`. Out: such a line for
//! every row to be added or replaced, and `{"table":…,"topic":…,"id":…,
//! "remove":true}` for every row to be removed. Rows that are not named stay.
//!
//! The one invariant: nothing a command said counts before it ended well.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::Worker;
use super::child::WATCH;
use super::process::{Process, Timed, how_it_ended};
use crate::json::{self, MAX_ROW};
use crate::northbound::{TouchError, check_row};
use crate::record::{RowKey, Snapshot, Table};

/// The longest line: a row and what names it.
const MAX_LINE: u64 = MAX_ROW as u64 + (64 << 10);

/// Rows between two reports of progress.
const REPORT: u64 = 4096;

/// A command to run, and within which bounds.
#[derive(Debug, Clone, Copy)]
pub struct Exec<'a> {
    pub command: &'a [String],
    /// Where it is run.
    pub folder: &'a Path,
    /// Tables whose rows it is shown, and may change.
    pub declared: &'a [Table],
    pub timeout: Duration,
    /// Bytes of memory it may take, and the most it may write.
    pub memory: u64,
}

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("start {}, which runs the command", program.display())]
    Start { program: PathBuf, source: io::Error },

    #[error("keep the command from looking into this process")]
    Hide { source: io::Error },

    #[error("speak with the command")]
    Talk { source: io::Error },

    #[error("the command came to no end within {} s; it was stopped", after.as_secs())]
    TimedOut { after: Duration },

    #[error("the command failed: {how}")]
    Failed { how: String },

    #[error("{table} {key}: not JSON")]
    NotJson { table: Table, key: RowKey, source: serde_json::Error },

    #[error(transparent)]
    Input(TouchError),

    #[error("line {line} of the command's output: {problem}")]
    Line { line: u64, problem: String },

    #[error("line {line} of the command's output")]
    Row { line: u64, source: TouchError },

    #[error("the command wrote more than {} MiB", most >> 20)]
    TooMuch { most: u64 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    table: String,
    #[serde(default)]
    topic: String,
    id: String,
    object: Option<Value>,
    #[serde(default)]
    remove: bool,
}

/// What the command wants changed: `None` removes the row.
type Wishes = BTreeMap<(Table, RowKey), Option<Bytes>>;

impl Worker {
    /// Runs the command on the rows of the declared tables. Gives the number of rows removed.
    pub(crate) fn exec(
        &self,
        job: &Exec<'_>,
        database: &mut Snapshot,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, ExecError> {
        let wishes = self.hear(job, database, progress)?;
        let mut removed = 0;
        for ((table, key), wish) in wishes {
            match wish {
                Some(value) => database.put(&table, key, value),
                None => {
                    database.remove(&table, &key);
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    fn hear(
        &self,
        job: &Exec<'_>,
        database: &Snapshot,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Wishes, ExecError> {
        check_input(job, database)?;
        hide().map_err(|source| ExecError::Hide { source })?;
        let deadline = Instant::now() + job.timeout;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let seconds = (job.timeout.as_secs() + 1) * cores;
        let limits = [WATCH, &job.memory.to_string(), &seconds.to_string()];
        let (mut process, input, output) = Process::start(self, &limits, job.command, job.folder)
            .map_err(|source| ExecError::Start { program: self.program.clone(), source })?;
        let timed_out = || ExecError::TimedOut { after: job.timeout };
        std::thread::scope(|scope| {
            scope.spawn(move || feed(job, database, input, progress));
            let mut wishes = Wishes::new();
            let heard = listen(job, database, Timed::new(output, deadline), &mut wishes);
            let ended = match heard {
                Ok(()) => process.wait_until(deadline),
                Err(_) => Ok(None),
            };
            // Ends what the command left behind, and frees the feeding thread.
            let (_, said) = process.kill();
            match heard {
                Err(ExecError::Talk { source }) if source.kind() == io::ErrorKind::TimedOut => {
                    return Err(timed_out());
                }
                Err(error) => return Err(error),
                Ok(()) => {}
            }
            match ended {
                Ok(Some(status)) if status.success() => Ok(wishes),
                Ok(Some(status)) => Err(ExecError::Failed { how: how_it_ended(Some(status), &said) }),
                Ok(None) => Err(timed_out()),
                Err(source) => Err(ExecError::Talk { source }),
            }
        })
    }
}

/// From now on no other process of this user may read our memory and environment, where passwords are. Nor is a core
/// written when we crash.
fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

fn rows<'a>(
    job: &'a Exec<'_>,
    database: &'a Snapshot,
) -> impl Iterator<Item = (&'a Table, &'a RowKey, &'a Bytes)> {
    job.declared.iter().flat_map(|table| database.rows(table).map(move |(key, value)| (table, key, value)))
}

fn check_input(job: &Exec<'_>, database: &Snapshot) -> Result<(), ExecError> {
    for (table, key, value) in rows(job, database) {
        check_row(table, key, None, value.len()).map_err(ExecError::Input)?;
        if let Err(source) = serde_json::from_slice::<IgnoredAny>(value) {
            return Err(ExecError::NotJson { table: table.clone(), key: key.clone(), source });
        }
    }
    Ok(())
}

/// Writes every row. A command that stops reading says by its exit code
/// whether that is well.
fn feed(job: &Exec<'_>, database: &Snapshot, input: ChildStdin, progress: &(dyn Fn(u64) + Sync)) {
    let mut input = BufWriter::with_capacity(128 << 10, input);
    let mut line = vec![];
    for (fed, (table, key, value)) in (0_u64..).zip(rows(job, database)) {
        line.clear();
        let named = [("{\"table\":", table.as_str()), (",\"topic\":", &*key.topic), (",\"id\":", &*key.id)];
        for (name, text) in named {
            line.extend_from_slice(name.as_bytes());
            serde_json::to_writer(&mut line, text).expect("text always encodes");
        }
        line.extend_from_slice(b",\"object\":");
        // Valid JSON has line breaks only where spaces may stand.
        line.extend(value.iter().map(|&byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        line.extend_from_slice(b"}\n");
        if input.write_all(&line).is_err() {
            return;
        }
        if fed % REPORT == 0 {
            progress(fed);
        }
    }
    let _ = input.flush();
}

fn listen(
    job: &Exec<'_>,
    database: &Snapshot,
    output: impl Read,
    wishes: &mut Wishes,
) -> Result<(), ExecError> {
    let mut output = BufReader::with_capacity(128 << 10, output);
    let mut text = vec![];
    let mut written = 0;
    for number in 1.. {
        text.clear();
        let length = output
            .by_ref()
            .take(MAX_LINE + 1)
            .read_until(b'\n', &mut text)
            .map_err(|source| ExecError::Talk { source })? as u64;
        if length == 0 {
            return Ok(());
        }
        let bad = |problem| ExecError::Line { line: number, problem };
        if length > MAX_LINE {
            return Err(bad(format!("longer than {MAX_LINE} bytes")));
        }
        written += length;
        if written > job.memory {
            return Err(ExecError::TooMuch { most: job.memory });
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let line: Line = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let table = job.declared.iter().find(|declared| declared.as_str() == line.table);
        let Some(table) = table.cloned() else {
            let table = Table::new(&line.table);
            return Err(ExecError::Row { line: number, source: TouchError::Undeclared { table } });
        };
        let key = RowKey::new(&line.topic, &line.id);
        if line.remove == line.object.is_some() {
            return Err(bad("it takes either an \"object\" or \"remove\": true".to_owned()));
        }
        let wish = wish(database, (&table, &key), line.object.as_ref(), &text)
            .map_err(|source| ExecError::Row { line: number, source })?;
        if wishes.contains_key(&(table.clone(), key.clone())) {
            return Err(bad(format!("{table} {key} is named a second time")));
        }
        if let Some(wish) = wish {
            wishes.insert((table, key), wish);
        }
    }
    Ok(())
}

/// What one line asks for; nothing where the row is that already. `line` is the text that `after` stands in.
fn wish(
    database: &Snapshot,
    (table, key): (&Table, &RowKey),
    after: Option<&Value>,
    line: &[u8],
) -> Result<Option<Option<Bytes>>, TouchError> {
    let before = database.get(table, key);
    let Some(after) = after else {
        return match before {
            Some(_) => Ok(Some(None)),
            None => Err(TouchError::Missing { table: table.clone(), key: key.clone() }),
        };
    };
    // Two numbers that are not kept exactly may be read as the same.
    let same_digits =
        |before: &Bytes| !json::has_fraction(after) || json::inexact(before) == json::inexact(line);
    let is_that = |before: &Bytes| {
        serde_json::from_slice::<Value>(before).is_ok_and(|value| value == *after) && same_digits(before)
    };
    if before.is_some_and(is_that) {
        return Ok(None);
    }
    if let Some(number) = json::inexact_in(line, after) {
        let number = number.to_owned();
        return Err(TouchError::TooLong { table: table.clone(), key: key.clone(), number });
    }
    let mut value = vec![];
    json::write_value(&mut value, after);
    check_row(table, key, after.get("id").and_then(Value::as_str), value.len())?;
    Ok(Some(Some(value.into())))
}
