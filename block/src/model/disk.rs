//! A disk that is part of the state: its content is put in place for the time of
//! one step, and the handles that a core holds mean whatever is in place.
//!
//! Invariant: outside `with` no disk is in place, so a core cannot reach another
//! state's files.

use std::{
    cell::RefCell,
    collections::{BTreeMap, hash_map::DefaultHasher},
    fmt,
    hash::Hasher,
    io,
    sync::Arc,
};

use super::kept::Kept;
use crate::replica::disk::Disk;

const PAGE: u64 = 4096;

#[derive(Clone)]
struct Page {
    bytes: Arc<[u8; PAGE as usize]>,
    digest: u64,
}

impl Page {
    fn new(bytes: [u8; PAGE as usize]) -> Page {
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        Page { bytes: Arc::new(bytes), digest: hasher.finish() }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.fmt(f)
    }
}

/// Pages that are not all zeroes.
#[derive(Debug, Clone, Default)]
struct Content {
    size: u64,
    pages: BTreeMap<u64, Page>,
}

impl Content {
    fn read(&self, buffer: &mut [u8], offset: u64) {
        buffer.fill(0);
        let end = offset + buffer.len() as u64;
        for (number, page) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let (from, until) = (offset.max(number * PAGE), end.min((number + 1) * PAGE));
            let part = &page.bytes[(from - number * PAGE) as usize..(until - number * PAGE) as usize];
            buffer[(from - offset) as usize..(until - offset) as usize].copy_from_slice(part);
        }
    }

    fn write(&mut self, data: &[u8], offset: u64) {
        let end = offset + data.len() as u64;
        self.size = self.size.max(end);
        for number in offset / PAGE..end.div_ceil(PAGE) {
            let mut bytes = self.pages.get(&number).map_or([0; PAGE as usize], |page| *page.bytes);
            let (from, until) = (offset.max(number * PAGE), end.min((number + 1) * PAGE));
            let into = (from - number * PAGE) as usize..(until - number * PAGE) as usize;
            bytes[into].copy_from_slice(&data[(from - offset) as usize..(until - offset) as usize]);
            if bytes.iter().all(|byte| *byte == 0) {
                self.pages.remove(&number);
            } else {
                self.pages.insert(number, Page::new(bytes));
            }
        }
    }

    fn resize(&mut self, size: u64) {
        if size < self.size {
            let zeroes = vec![0; (self.size - size) as usize];
            self.write(&zeroes, size);
        }
        self.size = size;
    }
}

#[derive(Debug, Clone, Default)]
struct Entry {
    now: Content,
    durable: Content,
    /// Whether the folder was synced since the file was made.
    named: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    entries: BTreeMap<String, Entry>,
}

impl Files {
    /// What was not synced is gone.
    pub(super) fn lose_power(&mut self) {
        self.entries.retain(|_, entry| entry.named);
        self.entries.values_mut().for_each(|entry| entry.now = entry.durable.clone());
    }

    /// One byte of a file; zero where there is none.
    pub(super) fn byte(&self, name: &str, offset: u64) -> u8 {
        let mut byte = [0];
        self.entries.get(name).iter().for_each(|entry| entry.now.read(&mut byte, offset));
        byte[0]
    }

    pub(super) fn set_byte(&mut self, name: &str, offset: u64, byte: u8) {
        self.entries.entry(name.to_owned()).or_default().now.write(&[byte], offset);
    }
}

thread_local! {
    static IN_PLACE: RefCell<Option<Files>> = const { RefCell::new(None) };
}

/// Whatever disk is in place.
#[derive(Debug, Clone)]
pub(super) struct StateDisk;

/// Puts a disk in place while `act` runs.
pub(super) fn with<R>(files: &mut Kept<Files>, act: impl FnOnce() -> R) -> R {
    files.change(|files| {
        IN_PLACE.set(Some(std::mem::take(files)));
        let result = act();
        *files = IN_PLACE.take().expect("the disk is still in place");
        result
    })
}

fn on_disk<R>(act: impl FnOnce(&mut Files) -> R) -> R {
    IN_PLACE.with_borrow_mut(|files| act(files.as_mut().expect("a disk is in place")))
}

fn on_file<R>(name: &str, act: impl FnOnce(&mut Entry) -> R) -> R {
    on_disk(|files| act(files.entries.entry(name.to_owned()).or_default()))
}

impl Disk for StateDisk {
    type File = String;

    fn open(&self, name: &str) -> io::Result<String> {
        on_file(name, |_| Ok(name.to_owned()))
    }

    fn size(&self, file: &String) -> io::Result<u64> {
        on_file(file, |entry| Ok(entry.now.size))
    }

    fn resize(&self, file: &String, size: u64) -> io::Result<()> {
        on_file(file, |entry| {
            entry.now.resize(size);
            Ok(())
        })
    }

    fn read_at(&self, file: &String, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        on_file(file, |entry| match offset + buffer.len() as u64 <= entry.now.size {
            true => {
                entry.now.read(buffer, offset);
                Ok(())
            }
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        })
    }

    /// Everything is in memory: when a read is done does not matter to the protocol.
    fn read_cached(&self, file: &String, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(file, buffer, offset)
    }

    fn write_at(&self, file: &String, data: &[u8], offset: u64) -> io::Result<()> {
        on_file(file, |entry| {
            entry.now.write(data, offset);
            Ok(())
        })
    }

    fn punch(&self, file: &String, offset: u64, length: u64) -> io::Result<()> {
        self.write_at(file, &vec![0; length as usize], offset)
    }

    fn sync(&self, file: &String) -> io::Result<()> {
        on_file(file, |entry| {
            entry.durable = entry.now.clone();
            Ok(())
        })
    }

    fn sync_folder(&self) -> io::Result<()> {
        on_disk(|files| files.entries.values_mut().for_each(|entry| entry.named = true));
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(on_disk(|files| files.entries.keys().cloned().collect()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        on_disk(|files| files.entries.remove(name));
        Ok(())
    }

    fn next_data(&self, file: &String, from: u64) -> io::Result<Option<(u64, u64)>> {
        let size = self.size(file)?;
        Ok((from < size).then_some((from, size)))
    }
}
