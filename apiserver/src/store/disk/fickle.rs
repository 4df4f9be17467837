//! A disk for tests, in memory, with the file of a store and its journal: it can fill up, fail to sync and lose
//! power.
//!
//! The one invariant: after power loss it holds all that was synced, and of the
//! rest any part, sector by sector. What a failed sync was about counts as clean and is lost, as with Linux.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use super::medium::Storage;
use super::{Medium, Site, create};

const SECTOR: usize = 512;
const PAGE: usize = 4096;

#[derive(Debug, Clone, Default)]
pub(crate) struct Fickle {
    state: Arc<Mutex<State>>,
}

/// One of the files on it.
#[derive(Debug, Clone)]
struct File {
    disk: Fickle,
    which: usize,
}

const STORE: usize = 0;
const JOURNAL: usize = 1;

#[derive(Debug, Default)]
struct State {
    files: [Content; 2],
    full: bool,
    /// Pages that files may still take; `None` is no limit.
    room: Option<usize>,
    sync_fails: bool,
    /// Operations until the power goes.
    power: Option<u64>,
}

#[derive(Debug, Default)]
struct Content {
    synced: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<Operation>,
    /// Pages that have a place on the disk.
    pages: BTreeSet<usize>,
}

#[derive(Debug)]
enum Operation {
    Write(usize, Vec<u8>),
    SetLength(usize),
}

impl Fickle {
    /// A disk with an empty store on it.
    pub(crate) fn formatted() -> Fickle {
        let fickle = Fickle::default();
        create(fickle.file(STORE)).unwrap();
        fickle
    }

    fn file(&self, which: usize) -> Medium {
        Arc::new(File { disk: self.clone(), which })
    }

    pub(in crate::store) fn site(&self, path: &Path) -> Site {
        let (medium, journal) = (self.file(STORE), Some(self.file(JOURNAL)));
        Site { path: path.into(), medium, journal, cache_bytes: 1 << 20 }
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.state.lock().unwrap().full = full;
    }

    /// So many bytes more find a place. What has one can be written again.
    pub(in crate::store) fn leave_room(&self, bytes: usize) {
        self.state.lock().unwrap().room = Some(bytes / PAGE);
    }

    pub(in crate::store) fn has_journal(&self) -> bool {
        !self.state.lock().unwrap().files[JOURNAL].current.is_empty()
    }

    pub(crate) fn set_sync_fails(&self, fails: bool) {
        self.state.lock().unwrap().sync_fails = fails;
    }

    /// The power goes after so many more writes and syncs.
    pub(in crate::store) fn cut_power_after(&self, operations: u64) {
        self.state.lock().unwrap().power = Some(operations);
    }

    /// What a new process finds. `survives` is asked for each sector that was
    /// written and not synced.
    pub(crate) fn after_power_loss(&self, mut survives: impl FnMut() -> bool) -> Fickle {
        let state = self.state.lock().unwrap();
        let files = state.files.each_ref().map(|file| {
            let synced = file.after_power_loss(&mut survives);
            Content { current: synced.clone(), synced, ..Content::default() }
        });
        Fickle { state: Arc::new(Mutex::new(State { files, ..State::default() })) }
    }
}

impl Content {
    fn after_power_loss(&self, survives: &mut impl FnMut() -> bool) -> Vec<u8> {
        let mut image = self.synced.clone();
        for operation in &self.unsynced {
            operation.carry_out(&mut image, survives);
        }
        image
    }

    fn sync(&mut self) {
        for operation in self.unsynced.drain(..) {
            operation.carry_out(&mut self.synced, &mut || true);
        }
    }

    fn resize(&mut self, length: usize) {
        self.current.resize(length, 0);
        self.unsynced.push(Operation::SetLength(length));
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.current[offset..offset + data.len()].copy_from_slice(data);
        self.unsynced.push(Operation::Write(offset, data.to_vec()));
    }
}

impl Operation {
    fn carry_out(&self, image: &mut Vec<u8>, survives: &mut impl FnMut() -> bool) {
        match self {
            Operation::SetLength(length) if survives() => image.resize(*length, 0),
            Operation::SetLength(_) => {}
            Operation::Write(offset, data) => {
                for (index, sector) in data.chunks(SECTOR).enumerate().filter(|_| survives()) {
                    let start = offset + index * SECTOR;
                    if image.len() < start + sector.len() {
                        image.resize(start + sector.len(), 0);
                    }
                    image[start..start + sector.len()].copy_from_slice(sector);
                }
            }
        }
    }
}

impl State {
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.power {
            Some(0) => Err(io::Error::other("no power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// How much of `start..end` finds a place.
    fn find_room(&mut self, which: usize, start: usize, end: usize) -> usize {
        for page in start / PAGE..end.div_ceil(PAGE) {
            if self.files[which].pages.contains(&page) {
                continue;
            }
            match &mut self.room {
                Some(0) => return (page * PAGE).saturating_sub(start),
                Some(left) => *left -= 1,
                None => {}
            }
            self.files[which].pages.insert(page);
        }
        end - start
    }
}

impl File {
    fn state(&self) -> MutexGuard<'_, State> {
        self.disk.state.lock().unwrap()
    }
}

impl StorageBackend for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().files[self.which].current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let there = state.files[self.which].current.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        let file = &mut state.files[self.which];
        file.resize(length as usize);
        let freed = file.pages.split_off(&(length as usize).div_ceil(PAGE)).len();
        state.room = state.room.map(|left| left + freed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        let fails = state.sync_fails;
        let file = &mut state.files[self.which];
        if fails {
            file.unsynced.clear();
            return Err(io::Error::other("input/output error"));
        }
        file.sync();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let start = offset as usize;
        let fits = state.find_room(self.which, start, start + data.len());
        state.files[self.which].write(start, &data[..fits]);
        if fits < data.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Storage for File {
    fn read_from_disk(&self) -> io::Result<()> {
        self.sync_data()?;
        let mut state = self.state();
        let file = &mut state.files[self.which];
        file.current.clone_from(&file.synced);
        Ok(())
    }
}
