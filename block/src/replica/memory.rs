//! The file system's twin in memory: it can lose what was not synced, tear what
//! was being written, and fail.
//!
//! Invariant: after `lose_power` a file holds what was synced, and any part, cut
//! at sectors, of what was written since; a name that was made or removed since the
//! folder was synced may be there or not.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::disk::Disk;

const SECTOR: usize = 512;
const PAGE: u64 = 4096;

#[derive(Debug, Clone, Default)]
struct Content {
    durable: Vec<u8>,
    now: Vec<u8>,
    /// Ranges changed since the last sync, in order.
    unsynced: Vec<(u64, Vec<u8>)>,
    /// Whether the folder was synced since the file was made.
    named: bool,
}

#[derive(Debug, Clone, Default)]
struct State {
    files: BTreeMap<String, Content>,
    /// The next operations of each kind fail.
    fail_sync: bool,
    fail_read: bool,
    fail_write: bool,
    full: bool,
    images_full: bool,
    /// How often an image was written to.
    image_writes: u64,
    /// How often something was synced.
    syncs: u64,
    /// Files removed since the folder was synced.
    removed: Vec<(String, Content)>,
    /// Changes left until the machine stops, if that is planned.
    left: Option<u64>,
    /// Pages read or written since the cache was emptied, if it ever was; others have to be waited for.
    warm: Option<BTreeSet<(String, u64)>>,
}

impl State {
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("the machine has stopped")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// From now on these pages are in the cache.
    fn warm(&mut self, file: &str, pages: Range<u64>) {
        if let Some(warm) = &mut self.warm {
            warm.extend(pages.map(|page| (file.to_owned(), page)));
        }
    }
}

fn pages(buffer: &[u8], offset: u64) -> Range<u64> {
    offset / PAGE..(offset + buffer.len() as u64).div_ceil(PAGE)
}

#[derive(Debug, Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<State>>);

impl MemoryDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another disk with the same content.
    pub fn copy(&self) -> MemoryDisk {
        MemoryDisk(Arc::new(Mutex::new(self.state().clone())))
    }

    /// From now on every sync fails.
    pub fn fail_sync(&self) {
        self.state().fail_sync = true;
    }

    /// From now on every read of an image fails.
    pub fn fail_read(&self) {
        self.state().fail_read = true;
    }

    /// From now on every write fails.
    pub fn fail_write(&self) {
        self.state().fail_write = true;
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        let mut state = self.state();
        (state.fail_sync, state.fail_read, state.fail_write) = (false, false, false);
        (state.full, state.images_full) = (false, false);
    }

    /// Rises with every write to an image.
    pub fn image_writes(&self) -> u64 {
        self.state().image_writes
    }

    /// Rises with every sync.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// From now on (or no longer) there is no room for writes.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// From now on there is no room in images, while what was noted before can be noted anew.
    pub fn fill_images(&self) {
        self.state().images_full = true;
    }

    /// After this many changes the machine stops: everything fails.
    pub fn stop_after(&self, changes: u64) {
        self.state().left = Some(changes);
    }

    /// The machine runs again, with what its memory held.
    pub fn go_on(&self) {
        self.state().left = None;
    }

    /// Nothing is in the cache any more.
    pub fn chill(&self) {
        self.state().warm = Some(BTreeSet::new());
    }

    /// Turns a bit of a file over, as a bad disk does.
    pub fn flip(&self, name: &str, bit: u64) {
        let mut state = self.state();
        let content = state.files.get_mut(name).expect("the file is there");
        content.now[(bit / 8) as usize] ^= 1 << (bit % 8);
        content.durable = content.now.clone();
    }

    /// Forgets what was not synced, except for what `keep` says of each sector.
    pub fn lose_power(&self, mut keep: impl FnMut() -> bool) {
        let mut state = self.state();
        state.left = None;
        for (name, content) in std::mem::take(&mut state.removed) {
            if keep() {
                state.files.entry(name).or_insert(content);
            }
        }
        state.files.retain(|_, content| content.named || keep());
        for content in state.files.values_mut() {
            let mut after = content.durable.clone();
            after.resize(content.now.len(), 0);
            for (offset, data) in std::mem::take(&mut content.unsynced) {
                for (number, sector) in data.chunks(SECTOR).enumerate() {
                    let at = offset as usize + number * SECTOR;
                    if keep() && at + sector.len() <= after.len() {
                        after[at..at + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            content.now = after.clone();
            content.durable = after;
        }
    }

    fn change(&self, file: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        if state.full || state.images_full && file.ends_with(".img") {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if state.fail_write {
            return Err(io::Error::other("this disk has failed"));
        }
        state.image_writes += u64::from(file.ends_with(".img"));
        state.warm(file, pages(data, offset));
        let content = state.files.entry(file.to_owned()).or_default();
        let end = offset as usize + data.len();
        if content.now.len() < end {
            content.now.resize(end, 0);
        }
        content.now[offset as usize..end].copy_from_slice(data);
        // A disk writes whole sectors, with all that was in them.
        let first = offset as usize / SECTOR * SECTOR;
        let last = end.div_ceil(SECTOR) * SECTOR;
        let sectors = content.now[first..last.min(content.now.len())].to_vec();
        content.unsynced.push((first as u64, sectors));
        Ok(())
    }
}

impl Disk for MemoryDisk {
    type File = String;

    fn open(&self, name: &str) -> io::Result<String> {
        self.state().files.entry(name.to_owned()).or_default();
        Ok(name.to_owned())
    }

    fn size(&self, file: &String) -> io::Result<u64> {
        Ok(self.state().files[file].now.len() as u64)
    }

    fn resize(&self, file: &String, size: u64) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        let content = state.files.entry(file.clone()).or_default();
        content.unsynced.retain(|(offset, data)| offset + data.len() as u64 <= size);
        content.now.resize(size as usize, 0);
        content.durable.resize(size as usize, 0);
        Ok(())
    }

    fn read_at(&self, file: &String, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.fail_read && file.ends_with(".img") {
            return Err(io::Error::other("this disk has failed"));
        }
        state.warm(file, pages(buffer, offset));
        let now = &state.files[file].now;
        let from = offset as usize;
        let part = now.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn read_cached(&self, file: &String, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let is_warm = |warm: &BTreeSet<(String, u64)>| {
            pages(buffer, offset).all(|page| warm.contains(&(file.clone(), page)))
        };
        if self.state().warm.as_ref().is_some_and(|warm| !is_warm(warm)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.read_at(file, buffer, offset)
    }

    fn write_at(&self, file: &String, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(file, offset, data)
    }

    fn punch(&self, file: &String, offset: u64, length: u64) -> io::Result<()> {
        self.change(file, offset, &vec![0; length as usize])
    }

    fn sync(&self, file: &String) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        if state.fail_sync {
            return Err(io::Error::other("this disk has failed"));
        }
        state.syncs += 1;
        let content = state.files.entry(file.clone()).or_default();
        content.durable = content.now.clone();
        content.unsynced.clear();
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        state.syncs += 1;
        state.removed.clear();
        state.files.values_mut().for_each(|content| content.named = true);
        Ok(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state().files.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.spend()?;
        if let Some(content) = state.files.remove(name) {
            state.removed.push((name.to_owned(), content));
        }
        Ok(())
    }

    fn next_data(&self, file: &String, from: u64) -> io::Result<Option<(u64, u64)>> {
        let size = self.state().files[file].now.len() as u64;
        Ok((from < size).then_some((from, size)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_synced_is_lost_with_the_power() {
        let disk = MemoryDisk::default();
        let file = disk.open("a").unwrap();
        disk.write_at(&file, &[1; 1024], 0).unwrap();
        disk.sync(&file).unwrap();
        disk.sync_folder().unwrap();
        disk.write_at(&file, &[2; 1024], 0).unwrap();
        let mut turn = false;
        disk.lose_power(|| {
            turn = !turn;
            turn
        });
        let mut seen = [0; 1024];
        disk.read_at(&file, &mut seen, 0).unwrap();
        assert_eq!((seen[0], seen[600]), (2, 1), "torn between sectors");
    }
}
