//! A medium for tests: a disk in memory that can fill up, fail to sync and lose
//! power.
//!
//! The one invariant: after power loss it holds all that was synced, and of the
//! rest any part, sector by sector.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use super::{Site, create};

const SECTOR: usize = 512;

#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Fickle {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    synced: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<Operation>,
    full: bool,
    sync_fails: bool,
    /// Operations until the power goes.
    power: Option<u64>,
}

#[derive(Debug)]
enum Operation {
    Write(usize, Vec<u8>),
    SetLength(usize),
}

impl Fickle {
    /// A disk with an empty store on it.
    pub(in crate::store) fn formatted() -> Fickle {
        let fickle = Fickle::default();
        create(Arc::new(fickle.clone())).unwrap();
        fickle
    }

    pub(in crate::store) fn site(&self, path: &Path) -> Site {
        Site { path: path.into(), medium: Arc::new(self.clone()), cache_bytes: 1 << 20 }
    }

    pub(in crate::store) fn set_full(&self, full: bool) {
        self.state.lock().unwrap().full = full;
    }

    pub(in crate::store) fn set_sync_fails(&self, fails: bool) {
        self.state.lock().unwrap().sync_fails = fails;
    }

    /// The power goes after so many more writes and syncs.
    pub(in crate::store) fn cut_power_after(&self, operations: u64) {
        self.state.lock().unwrap().power = Some(operations);
    }

    /// What a new process finds. `survives` is asked for each sector that was
    /// written and not synced.
    pub(in crate::store) fn after_power_loss(&self, mut survives: impl FnMut() -> bool) -> Fickle {
        let state = self.state.lock().unwrap();
        let mut image = state.synced.clone();
        for operation in &state.unsynced {
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
        let state = State { synced: image.clone(), current: image, ..State::default() };
        Fickle { state: Arc::new(Mutex::new(state)) }
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

impl StorageBackend for Fickle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().unwrap().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        let there = state.current.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.spend()?;
        state.current.resize(length as usize, 0);
        state.unsynced.push(Operation::SetLength(length as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.spend()?;
        if state.sync_fails {
            return Err(io::Error::other("input/output error"));
        }
        state.synced = state.current.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.spend()?;
        if state.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (start, end) = (offset as usize, offset as usize + data.len());
        state.current[start..end].copy_from_slice(data);
        state.unsynced.push(Operation::Write(start, data.to_vec()));
        Ok(())
    }
}
