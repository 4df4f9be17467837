//! Makes batches durable before redb has them: one append and one sync, where a commit of redb writes many pages.
//!
//! ```text
//! title   magic (8) | name of the store (16) | name of the journal (16) | crc32 (4) | zeros up to a whole page
//! frame   crc32 (4) | length of its rows (4) | rows | zeros up to a whole page      little endian
//! row     version (8) | length of the record (4) | record
//! ```
//!
//! Rows stay until there is no room for more; then redb gets all of them in one commit and the journal begins anew behind its
//! title. The crc of a frame covers the journal's name and the version at which it began, so what is left of an earlier round
//! reads as the end. No two frames share a page: what was acknowledged is never written again. The title is written once, in one
//! sector, before the store counts on the journal.
//!
//! The one invariant: what is read back is all that was acknowledged since the journal began, and after it at most
//! the one batch that was under way.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::StorageBackend;
use uuid::Uuid;

use super::medium::{Medium, OnFile, is_full};
use super::place;
use super::rows::Row;
use crate::store::key::Version;

/// Its length, which never changes: a sync then has no metadata to write. Also bounds how long a write can wait for
/// redb to take over what others wrote before it.
const LENGTH: usize = 512 << 10;
const PAGE: usize = 4096;
const HEADER: usize = 8;
const MAGIC: [u8; 8] = *b"mfjournl";
const TITLE: usize = 44;

/// Whose a journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Title {
    pub(super) store: Uuid,
    pub(super) name: Uuid,
}

/// What lies where a store has its journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No journal was begun here, or not so far that a store could count on it.
    Nothing,
    Journal(Title),
    /// Something else, or a journal that was damaged.
    Unreadable,
}

/// Where a journal began: what makes its frames its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) name: Uuid,
    pub(super) began_at: Version,
}

/// Records by version.
pub(super) type Records = Vec<(Version, Vec<u8>)>;

#[derive(Debug)]
pub(super) struct Journal {
    medium: Medium,
    round: Round,
    /// Where the next frame goes.
    end: usize,
    sync_failed: bool,
}

impl Journal {
    /// The journal that a store has, if it has one.
    pub(super) fn find(store: &Path) -> io::Result<Option<Medium>> {
        match open(&path(store), false) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the file of a journal.
    pub(super) fn make(store: &Path) -> io::Result<Medium> {
        open(&path(store), true)
    }

    /// A journal without frames; all of its room is there. `None` if the disk has no room for one.
    pub(super) fn begin(medium: Medium, title: Title, at: Version) -> io::Result<Option<Journal>> {
        match prepare(&medium, title) {
            Ok(()) => {
                let round = Round { name: title.name, began_at: at };
                Ok(Some(Journal { medium, round, end: PAGE, sync_failed: false }))
            }
            Err(error) if is_full(&error) => {
                // What there is belongs to the store.
                medium.set_len(0)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn name(&self) -> Uuid {
        self.round.name
    }

    /// Everything in it is elsewhere: it starts behind its title again.
    pub(super) fn begin_anew(&mut self, at: Version) {
        self.round.began_at = at;
        self.end = PAGE;
    }

    pub(super) fn sync_failed(&self) -> bool {
        self.sync_failed
    }

    /// Makes the rows durable; `false` if there is no room for them.
    pub(super) fn append(&mut self, rows: &[Row]) -> io::Result<bool> {
        if self.sync_failed {
            return Err(io::Error::other("an earlier sync failed"));
        }
        let bytes: usize = rows.iter().map(|row| 12 + row.value.len()).sum();
        let whole = (HEADER + bytes).next_multiple_of(PAGE);
        if whole > LENGTH - self.end {
            return Ok(false);
        }
        let mut frame = Vec::with_capacity(whole);
        frame.extend_from_slice(&[0; HEADER]);
        for Row { version, value, .. } in rows {
            frame.extend_from_slice(&version.get().to_le_bytes());
            frame.extend_from_slice(&length_of(value.len()));
            frame.extend_from_slice(value);
        }
        frame[4..HEADER].copy_from_slice(&length_of(bytes));
        let crc = self.round.checksum(&frame[4..]);
        frame[..4].copy_from_slice(&crc.to_le_bytes());
        frame.resize(whole, 0);
        self.medium.write(self.end as u64, &frame)?;
        self.medium.sync_data().inspect_err(|_| self.sync_failed = true)?;
        self.end += whole;
        Ok(true)
    }
}

/// Takes the room of a whole journal. A length alone does not tell that it is there: whoever gave it that may have been
/// stopped before it was durable.
fn prepare(medium: &Medium, title: Title) -> io::Result<()> {
    if medium.len()? < LENGTH as u64 {
        medium.set_len(LENGTH as u64)?;
    }
    let mut blank = vec![0; LENGTH];
    blank[..TITLE].copy_from_slice(&title.encode());
    medium.write(0, &blank)?;
    medium.sync_data()
}

/// Whose journal this is.
pub(super) fn look(medium: &dyn StorageBackend) -> io::Result<Found> {
    let mut bytes = [0; TITLE];
    let there = medium.len()?.min(TITLE as u64) as usize;
    medium.read(0, &mut bytes[..there])?;
    if bytes == [0; TITLE] {
        return Ok(Found::Nothing);
    }
    let uuid =
        |at: usize| Uuid::from_bytes(bytes[at..at + 16].try_into().expect("the slice has sixteen bytes"));
    let title = Title { store: uuid(8), name: uuid(24) };
    Ok(if bytes == title.encode() { Found::Journal(title) } else { Found::Unreadable })
}

/// The rows that were added since the journal began, as version and record; `None` if some of its room is missing.
pub(super) fn read(medium: &dyn StorageBackend, round: Round) -> io::Result<Option<Records>> {
    if medium.len()? < LENGTH as u64 {
        return Ok(None);
    }
    let mut bytes = vec![0; LENGTH - PAGE];
    medium.read(PAGE as u64, &mut bytes)?;
    let mut rows = Records::new();
    let mut rest = &bytes[..];
    while let Some((frame, whole)) = round.first_frame(rest) {
        let expected = rows.last().map_or(round.began_at, |(version, _)| *version).next();
        let Some(more) = split(frame).filter(|rows| rows.first().is_some_and(|row| row.0 == expected)) else {
            break;
        };
        rows.extend(more);
        rest = &rest[whole..];
    }
    Ok(Some(rows))
}

impl Title {
    fn encode(self) -> [u8; TITLE] {
        let mut bytes = [0; TITLE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(self.store.as_bytes());
        bytes[24..40].copy_from_slice(self.name.as_bytes());
        let crc = crc32fast::hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl Round {
    /// The rows of the frame that begins here, and how much room it takes.
    fn first_frame(self, bytes: &[u8]) -> Option<(&[u8], usize)> {
        let (crc, covered) = bytes.split_first_chunk::<4>()?;
        let (length, rows) = covered.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let rows = rows.get(..length)?;
        let is_ours = self.checksum(&covered[..4 + length]) == u32::from_le_bytes(*crc);
        is_ours.then_some((rows, (HEADER + length).next_multiple_of(PAGE)))
    }

    fn checksum(self, covered: &[u8]) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        crc.update(self.name.as_bytes());
        crc.update(&self.began_at.get().to_le_bytes());
        crc.update(covered);
        crc.finalize()
    }
}

fn split(mut frame: &[u8]) -> Option<Records> {
    let mut rows = Vec::new();
    while !frame.is_empty() {
        let (version, rest) = frame.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rows.push((Version::new(u64::from_le_bytes(*version)), value.to_vec()));
        frame = rest;
    }
    Some(rows)
}

fn length_of(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("it fits into the journal").to_le_bytes()
}

/// Where the journal of a store lies.
pub(super) fn path(store: &Path) -> PathBuf {
    place::beside(store, ".journal")
}

fn open(path: &Path, create: bool) -> io::Result<Medium> {
    let mut options = OpenOptions::new();
    let file: File = options.read(true).write(true).create(create).truncate(false).mode(0o600).open(path)?;
    Ok(Arc::new(OnFile(file)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    use super::*;

    fn row(version: u64, length: usize) -> Row {
        Row {
            version: Version::new(version),
            value: vec![version as u8; length],
            present: true,
            superseded: None,
        }
    }

    fn round(began_at: u64) -> Round {
        Round { name: Uuid::from_u128(7), began_at: Version::new(began_at) }
    }

    fn title() -> Title {
        Title { store: Uuid::from_u128(6), name: round(1).name }
    }

    fn begin(medium: &Medium) -> Journal {
        Journal::begin(medium.clone(), title(), Version::new(1)).unwrap().expect("memory has room")
    }

    /// Fills a journal with batches of rows of these lengths, version after version, and gives what it took.
    fn fill(journal: &mut Journal, began_at: u64, batches: &[Vec<usize>]) -> Vec<(Version, Vec<u8>)> {
        let mut kept = Vec::new();
        let mut version = began_at;
        for lengths in batches {
            let rows: Vec<Row> = (version + 1..).zip(lengths).map(|(at, &length)| row(at, length)).collect();
            if !journal.append(&rows).unwrap() {
                break;
            }
            version += rows.len() as u64;
            kept.extend(rows.into_iter().map(|row| (row.version, row.value)));
        }
        kept
    }

    fn batches() -> impl Strategy<Value = Vec<Vec<usize>>> {
        prop::collection::vec(prop::collection::vec(0..9000usize, 1..5), 0..40)
    }

    proptest! {
        #[test]
        fn tells_what_it_was_told_in_this_round_alone(first in batches(), second in batches(), began in 1..1000u64) {
            let medium: Medium = Arc::new(InMemoryBackend::new());
            prop_assert_eq!(read(&*medium, round(1)).unwrap(), None);
            prop_assert_eq!(look(&*medium).unwrap(), Found::Nothing);
            let mut journal = begin(&medium);
            prop_assert_eq!(read(&*medium, round(1)).unwrap(), Some(vec![]));
            let kept = fill(&mut journal, 1, &first);
            prop_assert_eq!(&read(&*medium, round(1)).unwrap().unwrap(), &kept);
            // It began one version earlier or later, or is another's.
            prop_assert_eq!(read(&*medium, round(2)).unwrap(), Some(vec![]));
            let another = Round { name: Uuid::from_u128(8), ..round(1) };
            prop_assert_eq!(read(&*medium, another).unwrap(), Some(vec![]));

            let newest = 1 + kept.len() as u64 + began;
            journal.begin_anew(Version::new(newest));
            prop_assert_eq!(read(&*medium, round(newest)).unwrap(), Some(vec![]));
            let kept = fill(&mut journal, newest, &second);
            prop_assert_eq!(read(&*medium, round(newest)).unwrap().unwrap(), kept);
            prop_assert_eq!(look(&*medium).unwrap(), Found::Journal(title()));
        }

        #[test]
        fn a_changed_byte_ends_it(lengths in batches(), at in 0..LENGTH, change in 1..=255u8) {
            let medium: Medium = Arc::new(InMemoryBackend::new());
            let mut journal = begin(&medium);
            let kept = fill(&mut journal, 1, &lengths);
            let mut byte = [0];
            medium.read(at as u64, &mut byte).unwrap();
            medium.write(at as u64, &[byte[0] ^ change]).unwrap();
            prop_assert_eq!(look(&*medium).unwrap() == Found::Unreadable, at < TITLE);
            let found = read(&*medium, round(1)).unwrap().unwrap();
            prop_assert!(kept.starts_with(&found));
            // What lies before the page that was changed is still told.
            let untouched: Vec<_> = fill_up_to(&lengths, at / PAGE * PAGE);
            prop_assert!(found.len() >= untouched.len(), "{} of {}", found.len(), untouched.len());
        }
    }

    /// The rows of the frames that end at or before this byte.
    fn fill_up_to(batches: &[Vec<usize>], byte: usize) -> Vec<usize> {
        let mut end = PAGE;
        let mut rows = Vec::new();
        for lengths in batches {
            end += (HEADER + lengths.iter().map(|length| 12 + length).sum::<usize>()).next_multiple_of(PAGE);
            if end > byte.min(LENGTH) {
                break;
            }
            rows.extend(lengths);
        }
        rows
    }

    #[test]
    fn what_does_not_fit_is_left_out_whole() {
        let medium: Medium = Arc::new(InMemoryBackend::new());
        let mut journal = begin(&medium);
        assert!(!journal.append(&[row(2, LENGTH - PAGE)]).unwrap());
        assert!(journal.append(&[row(2, LENGTH - 2 * PAGE - HEADER - 12)]).unwrap());
        assert!(!journal.append(&[row(3, PAGE)]).unwrap());
        assert!(journal.append(&[row(3, PAGE - HEADER - 12)]).unwrap(), "to the last byte");
        assert!(!journal.append(&[row(4, 0)]).unwrap());
        assert_eq!(read(&*medium, round(1)).unwrap().unwrap().len(), 2);
    }
}
