//! A file whose writes can be held back until its contents have been judged.
//!
//! redb repairs a file while it opens it. What it wants to write then is kept
//! in memory, in order; `release` carries it out when the file is found good,
//! otherwise it is forgotten and the file is as it was.
//!
//! The one invariant: after a failed sync nothing is written any more, since
//! nobody knows what the disk holds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use super::medium::Medium;

const BLOCK: u64 = 4096;

/// Up to this size a file is read at once.
const SMALL: u64 = 64 << 20;

#[derive(Debug, Clone)]
pub(super) struct Held {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    medium: Medium,
    /// Length of the file while nothing is written to it.
    length: u64,
    /// The file as it was found, if it is small: it is about to be read several
    /// times, page by page. Given back when writes pass through.
    image: Mutex<Option<Vec<u8>>>,
    released: AtomicBool,
    sync_failed: AtomicBool,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    length: u64,
    operations: Vec<Operation>,
    /// What reads see where operations have written.
    blocks: BTreeMap<u64, Box<[u8]>>,
}

#[derive(Debug)]
enum Operation {
    Write { offset: u64, data: Vec<u8> },
    SetLength(u64),
    Sync,
}

impl Held {
    pub(super) fn new(medium: Medium) -> io::Result<Held> {
        let length = medium.len()?;
        let image = if length <= SMALL { Some(read_all(&medium, length)?) } else { None };
        let pending = Pending { length, ..Pending::default() };
        let shared = Shared {
            medium,
            length,
            image: Mutex::new(image),
            released: AtomicBool::new(false),
            sync_failed: AtomicBool::new(false),
            pending: Mutex::new(pending),
        };
        Ok(Held { shared: Arc::new(shared) })
    }

    /// Carries out what was held back. From now on writes pass through.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut pending = self.pending();
        for operation in std::mem::take(&mut *pending).operations {
            match operation {
                Operation::Write { offset, data } => self.shared.medium.write(offset, &data)?,
                Operation::SetLength(length) => self.shared.medium.set_len(length)?,
                Operation::Sync => self.sync_through()?,
            }
        }
        self.shared.released.store(true, Ordering::Release);
        *self.shared.image() = None;
        Ok(())
    }

    pub(super) fn sync_failed(&self) -> bool {
        self.shared.sync_failed.load(Ordering::Acquire)
    }

    fn sync_through(&self) -> io::Result<()> {
        self.refuse_after_failed_sync()?;
        self.shared.medium.sync_data().inspect_err(|_| self.shared.sync_failed.store(true, Ordering::Release))
    }

    fn refuse_after_failed_sync(&self) -> io::Result<()> {
        if self.sync_failed() {
            return Err(io::Error::other("an earlier sync failed"));
        }
        Ok(())
    }

    fn released(&self) -> bool {
        self.shared.released.load(Ordering::Acquire)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Reads what is in the file itself, zeros behind its end.
    fn read_or_zero(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.length.saturating_sub(offset).min(out.len() as u64) as usize;
        out[there..].fill(0);
        match &*self.image() {
            _ if there == 0 => Ok(()),
            Some(image) => {
                out[..there].copy_from_slice(&image[offset as usize..offset as usize + there]);
                Ok(())
            }
            None => self.medium.read(offset, &mut out[..there]),
        }
    }

    fn image(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Held {
    fn len(&self) -> io::Result<u64> {
        if self.released() { self.shared.medium.len() } else { Ok(self.pending().length) }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.released() {
            return self.shared.medium.read(offset, out);
        }
        self.pending().read(&self.shared, offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        if self.released() {
            self.refuse_after_failed_sync()?;
            return self.shared.medium.set_len(length);
        }
        let mut pending = self.pending();
        pending.set_length(&self.shared, length)?;
        pending.operations.push(Operation::SetLength(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.released() {
            return self.sync_through();
        }
        self.pending().operations.push(Operation::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.released() {
            self.refuse_after_failed_sync()?;
            return self.shared.medium.write(offset, data);
        }
        let mut pending = self.pending();
        pending.write(&self.shared, offset, data)?;
        pending.operations.push(Operation::Write { offset, data: data.to_vec() });
        Ok(())
    }
}

impl Pending {
    fn read(&self, file: &Shared, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset + out.len() as u64;
        if end > self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.read_or_zero(offset, out)?;
        for (&block, content) in self.blocks.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let (from, to) = overlap(block, offset, end);
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&content[(from - block * BLOCK) as usize..(to - block * BLOCK) as usize]);
        }
        Ok(())
    }

    fn write(&mut self, file: &Shared, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        self.length = self.length.max(end);
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let content = match self.blocks.entry(block) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let mut content = vec![0; BLOCK as usize].into_boxed_slice();
                    file.read_or_zero(block * BLOCK, &mut content)?;
                    unknown.insert(content)
                }
            };
            let (from, to) = overlap(block, offset, end);
            content[(from - block * BLOCK) as usize..(to - block * BLOCK) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        Ok(())
    }

    /// What is cut off reads as zero should the file grow again.
    fn set_length(&mut self, file: &Shared, length: u64) -> io::Result<()> {
        let cut = self.length.saturating_sub(length) as usize;
        self.write(file, length, &vec![0; cut])?;
        self.length = length;
        Ok(())
    }
}

fn read_all(medium: &Medium, length: u64) -> io::Result<Vec<u8>> {
    let mut image = vec![0; length as usize];
    medium.read(0, &mut image)?;
    Ok(image)
}

/// The part of `offset..end` that lies in the block.
fn overlap(block: u64, offset: u64, end: u64) -> (u64, u64) {
    (offset.max(block * BLOCK), end.min((block + 1) * BLOCK))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    use super::*;

    fn contents(file: &dyn StorageBackend) -> Vec<u8> {
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read(0, &mut bytes).unwrap();
        bytes
    }

    proptest! {
        /// Steps are writes of a byte over a range, or new lengths (`None`).
        #[test]
        fn shows_what_was_written_and_changes_nothing_until_released(
            start in 0..20_000usize, steps in prop::collection::vec((any::<Option<u8>>(), 0..30_000usize, 0..9000usize), 0..12),
        ) {
            let medium = Arc::new(InMemoryBackend::new());
            medium.set_len(start as u64).unwrap();
            medium.write(0, &vec![7; start]).unwrap();
            let held = Held::new(medium.clone()).unwrap();
            let mut expected = vec![7; start];
            for (byte, at, length) in steps {
                match byte {
                    None => {
                        held.set_len(at as u64).unwrap();
                        expected.resize(at, 0);
                    }
                    Some(byte) => {
                        let end = (at + length).min(expected.len());
                        let at = at.min(end);
                        held.write(at as u64, &vec![byte; end - at]).unwrap();
                        expected[at..end].fill(byte);
                    }
                }
                prop_assert_eq!(&contents(&held), &expected);
            }
            prop_assert_eq!(contents(&*medium), vec![7; start]);
            prop_assert!(held.read(expected.len() as u64, &mut [0]).is_err());
            held.release().unwrap();
            prop_assert_eq!(contents(&*medium), expected);
        }
    }
}
