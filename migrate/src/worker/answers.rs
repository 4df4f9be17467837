//! Hears what a worker answers about the rows of a chunk.
//!
//! The one invariant: an answer is taken only within the time that a row may take, and only while all answers
//! together stay within the memory they may have.

use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;

use bytes::Bytes;

use super::jq::{Chunk, Fate, Jq, JqError, Shared};
use super::process::Timed;
use super::wire::{ReadWire, flag, tag};
use crate::record::{RowKey, Table};

/// How the answers to a chunk ended too early: at which row, and why.
pub(super) struct Failure {
    row: usize,
    why: Why,
}

enum Why {
    Broken(io::Error),
    Told(JqError),
}

impl Failure {
    pub(super) fn explain(self, job: &Jq<'_>, chunk: &Chunk<'_>, how: impl FnOnce() -> String) -> JqError {
        let table = job.filters[chunk.filter].0.clone();
        let key = chunk.rows[self.row].0.clone();
        match self.why {
            Why::Told(error) => error,
            Why::Broken(error) => match error.kind() {
                io::ErrorKind::TimedOut => JqError::Stalled { table, key, after: job.stall },
                io::ErrorKind::UnexpectedEof => JqError::Ended { table, key, memory: job.memory, how: how() },
                _ => JqError::Talk { source: error },
            },
        }
    }
}

pub(super) struct Answers<R> {
    from: BufReader<R>,
}

impl<R: Read + AsFd> Answers<Timed<R>> {
    pub(super) fn of(timed: Timed<R>) -> Answers<Timed<R>> {
        Answers { from: BufReader::with_capacity(256 << 10, timed) }
    }

    pub(super) fn read(&mut self, shared: &Shared<'_>, chunk: &Chunk<'_>) -> Result<Vec<Fate>, Failure> {
        let job = shared.job;
        // All new values of a chunk share one allocation.
        let mut values = vec![];
        let mut drafts = Vec::with_capacity(chunk.rows.len());
        for (row, (key, before)) in chunk.rows.iter().enumerate() {
            self.from.get_mut().extend(job.stall);
            let draft = self.one(job, chunk, key, &mut values).map_err(|why| Failure { row, why })?;
            if !shared.fits(before, &draft) {
                let (table, key) = (job.filters[chunk.filter].0.clone(), (*key).clone());
                let why = Why::Told(JqError::TooMuch { table, key, most: job.memory });
                return Err(Failure { row, why });
            }
            drafts.push(draft);
        }
        let values = Bytes::from(values);
        Ok(drafts.into_iter().map(|draft| draft.finish(&values)).collect())
    }

    fn one(
        &mut self,
        job: &Jq<'_>,
        chunk: &Chunk<'_>,
        key: &RowKey,
        values: &mut Vec<u8>,
    ) -> Result<Draft, Why> {
        let table = &job.filters[chunk.filter].0;
        match self.from.u8()? {
            tag::KEEP => Ok(Draft::Keep),
            tag::FAILED => {
                let problem = self.from.text()?;
                Err(Why::Told(JqError::Row { table: table.clone(), key: key.clone(), problem }))
            }
            tag::OUTPUTS => {
                let count = self.from.u32()?;
                let mut outputs = Vec::with_capacity(count.min(16));
                for _ in 0..count {
                    outputs.push(self.output(job, table, key, values)?);
                }
                Ok(match outputs.as_slice() {
                    [(None, None, range)] => Draft::Replace(range.clone()),
                    _ => Draft::Become(
                        outputs
                            .into_iter()
                            .map(|(to, at, range)| {
                                (
                                    to.unwrap_or_else(|| table.clone()),
                                    at.unwrap_or_else(|| key.clone()),
                                    range,
                                )
                            })
                            .collect(),
                    ),
                })
            }
            other => {
                let problem = format!("an answer that begins with {other}");
                Err(Why::Broken(io::Error::new(io::ErrorKind::InvalidData, problem)))
            }
        }
    }

    /// Where an output goes, as far as that is elsewhere, and its bytes.
    fn output(
        &mut self,
        job: &Jq<'_>,
        table: &Table,
        key: &RowKey,
        values: &mut Vec<u8>,
    ) -> Result<(Option<Table>, Option<RowKey>, Range), Why> {
        let flags = self.from.u8()?;
        let mut name = |of| if flags & of == 0 { Ok(None) } else { self.from.text().map(Some) };
        let (to, topic, id) = (name(flag::TABLE)?, name(flag::TOPIC)?, name(flag::ID)?);
        let start = values.len();
        let length = self.from.append(values)?;
        let to = match to {
            Some(to) => match job.declared.iter().find(|declared| declared.as_str() == to) {
                Some(declared) => Some(declared.clone()).filter(|declared| declared != table),
                None => {
                    let (table, key) = (table.clone(), key.clone());
                    return Err(Why::Told(JqError::Undeclared { table, key, to }));
                }
            },
            None => None,
        };
        let at = match (topic, id) {
            (None, None) => None,
            (Some(topic), id) => Some(RowKey::new(&topic, id.as_deref().unwrap_or(&key.id))),
            (None, Some(id)) => Some(key.beside(&id)),
        };
        Ok((to, at.filter(|at| at != key), start..start + length))
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Why {
        Why::Broken(error)
    }
}

type Range = std::ops::Range<usize>;

/// A fate whose values are not shared out yet.
pub(super) enum Draft {
    Keep,
    Replace(Range),
    Become(Vec<(Table, RowKey, Range)>),
}

impl Draft {
    fn finish(self, values: &Bytes) -> Fate {
        match self {
            Draft::Keep => Fate::Keep,
            Draft::Replace(range) => Fate::Replace(values.slice(range)),
            Draft::Become(rows) => Fate::Become(
                rows.into_iter().map(|(table, key, range)| (table, key, values.slice(range))).collect(),
            ),
        }
    }
}
