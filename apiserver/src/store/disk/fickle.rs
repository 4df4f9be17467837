//! A disk for tests, in memory, with the file of a store and its journal: it can fill up, fail to sync and lose
//! power.
//!
//! The one invariant: after power loss it holds all that was synced, and of the
//! rest any part, sector by sector.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use super::{Medium, Site, create};

const SECTOR: usize = 512;

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
    sync_fails: bool,
    /// Operations until the power goes.
    power: Option<u64>,
}

#[derive(Debug, Default)]
struct Content {
    synced: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<Operation>,
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
            let image = file.after_power_loss(&mut survives);
            Content { synced: image.clone(), current: image, unsynced: Vec::new() }
        });
        Fickle { state: Arc::new(Mutex::new(State { files, ..State::default() })) }
    }
}

impl Content {
    fn after_power_loss(&self, survives: &mut impl FnMut() -> bool) -> Vec<u8> {
        let mut image = self.synced.clone();
        for operation in &self.unsynced {
            match operation {
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
        image
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
        file.current.resize(length as usize, 0);
        file.unsynced.push(Operation::SetLength(length as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        if state.sync_fails {
            return Err(io::Error::other("input/output error"));
        }
        let file = &mut state.files[self.which];
        file.synced.clone_from(&file.current);
        file.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (start, end) = (offset as usize, offset as usize + data.len());
        let file = &mut state.files[self.which];
        file.current[start..end].copy_from_slice(data);
        file.unsynced.push(Operation::Write(start, data.to_vec()));
        Ok(())
    }
}
