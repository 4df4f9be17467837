//! A record in a file, for a volume without a cluster.
//!
//! The file holds a revision, the record and a checksum; it is replaced whole by
//! renaming a synced one over it. A lock beside it makes compare-and-swap one step.
//!
//! Invariant: a reader sees the record before or after a swap, whole; a swap that
//! has returned survives a loss of power.

use std::{
    error::Error,
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::{Record, RecordError, RecordStore, Revision};
use crate::durable;

#[derive(Debug, Clone)]
pub struct FileRecord {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    revision: u64,
    record: Record,
    /// CRC-32 of the record as it is written here.
    check: u32,
}

#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("{} is damaged", .0.display())]
    Damaged(PathBuf),
    #[error("another record is already in {}", .0.display())]
    Exists(PathBuf),
}

fn failed<E: Into<Box<dyn Error + Send + Sync>>>(doing: &'static str) -> impl FnOnce(E) -> RecordError {
    move |source| RecordError { doing, source: source.into() }
}

impl FileRecord {
    pub fn at(path: &Path) -> FileRecord {
        FileRecord { path: path.to_owned() }
    }

    /// Makes the first record of a volume; one that is there stays.
    pub fn create(&self, record: &Record) -> Result<(), RecordError> {
        let _lock = self.lock().map_err(failed("lock"))?;
        if self.path.exists() {
            return Err(failed("create")(Unreadable::Exists(self.path.clone())));
        }
        self.replace(1, record).map_err(failed("create"))
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.path.with_extension("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    fn load(&self) -> Result<Content, RecordError> {
        let raw = std::fs::read(&self.path).map_err(failed("read"))?;
        let content: Content = serde_json::from_slice(&raw).map_err(failed("read"))?;
        if checksum(&content.record).map_err(failed("read"))? != content.check {
            return Err(failed("read")(Unreadable::Damaged(self.path.clone())));
        }
        Ok(content)
    }

    fn replace(&self, revision: u64, record: &Record) -> io::Result<()> {
        let content = Content { revision, record: record.clone(), check: checksum(record)? };
        durable::replace(&self.path, &serde_json::to_vec_pretty(&content)?)
    }
}

fn checksum(record: &Record) -> Result<u32, serde_json::Error> {
    Ok(crc32fast::hash(&serde_json::to_vec(record)?))
}

impl RecordStore for FileRecord {
    fn read(&mut self) -> Result<(Revision, Record), RecordError> {
        let content = self.load()?;
        Ok((Revision(content.revision.to_string()), content.record))
    }

    fn swap(&mut self, seen: &Revision, record: &Record) -> Result<bool, RecordError> {
        let _lock = self.lock().map_err(failed("lock"))?;
        let content = self.load()?;
        if content.revision.to_string() != seen.0 {
            return Ok(false);
        }
        self.replace(content.revision + 1, record).map_err(failed("change"))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn volume(folder: &tempfile::TempDir) -> FileRecord {
        let file = FileRecord::at(&folder.path().join("vol-1.record"));
        file.create(&Record::new(["a".into(), "b".into()])).unwrap();
        file
    }

    #[test]
    fn of_two_swaps_from_one_state_one_wins() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = volume(&folder);
        assert!(file.create(&Record::new(["x".into()])).is_err());
        let (seen, record) = file.read().unwrap();
        assert!(file.swap(&seen, &record.next_term()).unwrap());
        assert!(!file.swap(&seen, &record.next_term().next_term()).unwrap());
        assert_eq!(file.read().unwrap().1.term, 1);
    }

    #[test]
    fn every_term_is_given_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = volume(&folder);
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let mut file = file.clone();
                thread::spawn(move || (0..25).map(|_| file.take_term().unwrap().term).collect::<Vec<_>>())
            })
            .collect();
        let mut terms: Vec<u64> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        terms.sort_unstable();
        assert_eq!(terms, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = volume(&folder);
        let text = std::fs::read_to_string(&file.path).unwrap();
        std::fs::write(&file.path, text.replacen("\"term\": 0", "\"term\": 9", 1)).unwrap();
        assert!(file.read().is_err());
        std::fs::write(&file.path, &text[..text.len() / 2]).unwrap();
        assert!(file.read().is_err());
    }
}
