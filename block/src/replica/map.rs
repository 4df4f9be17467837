//! A set of blocks in a file.
//!
//! One page of header, then pages of bits, each with a checksum of its own. A
//! page that is torn counts as full: more may be copied than needed, never less.
//!
//! Invariant: a bit that was set and synced is set after any crash, until it is
//! cleared on purpose.

use std::{collections::BTreeMap, fmt, io, ops::Range};

use super::disk::Disk;
use crate::blocks::{Blocks, Run};

const PAGE: usize = 4096;
const BITS_PER_PAGE: u64 = (PAGE as u64 - 4) * 8;
const MAGIC: &[u8; 8] = b"mfblkmap";
const VERSION: u32 = 1;

#[derive(Clone)]
pub struct MapFile<D: Disk> {
    disk: D,
    file: D::File,
    /// What its owner wants to remember with it.
    note: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    limit: u64,
}

/// Shows what is in it, not its pages.
impl<D: Disk> fmt::Debug for MapFile<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, note, limit, bits) = (&self.file, self.note, self.limit, self.bits().runs());
        write!(f, "MapFile {{ file: {file:?}, note: {note}, limit: {limit}, bits: {bits:?} }}")
    }
}

impl<D: Disk> MapFile<D> {
    /// Opens the map of that name for `limit` members; `None` when there is none
    /// or its header cannot be trusted.
    pub fn open(disk: &D, name: &str, limit: u64) -> io::Result<Option<MapFile<D>>> {
        let file = disk.open(name)?;
        let size = disk.size(&file)?;
        if size < PAGE as u64 {
            return Ok(None);
        }
        let mut page = vec![0; PAGE];
        disk.read_at(&file, &mut page, 0)?;
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        let version = u32::from_le_bytes(page[8..12].try_into().expect("four bytes"));
        if !sealed(&page) || &page[..8] != MAGIC || version != VERSION || word(24) < limit {
            return Ok(None);
        }
        let mut map = MapFile { disk: disk.clone(), file, note: word(16), pages: BTreeMap::new(), limit };
        for number in 0..pages(limit) {
            map.read_page(number)?;
        }
        Ok(Some(map))
    }

    /// Makes an empty map, durable when it returns.
    pub fn create(disk: &D, name: &str, note: u64, limit: u64) -> io::Result<MapFile<D>> {
        let map = MapFile::begin(disk, name, note, limit)?;
        map.sync()?;
        disk.sync_folder()?;
        Ok(map)
    }

    /// Makes an empty map; neither it nor its name is synced.
    pub fn begin(disk: &D, name: &str, note: u64, limit: u64) -> io::Result<MapFile<D>> {
        let file = disk.open(name)?;
        disk.resize(&file, 0)?;
        disk.resize(&file, (1 + pages(limit)) * PAGE as u64)?;
        disk.write_at(&file, &header(note, limit), 0)?;
        Ok(MapFile { disk: disk.clone(), file, note, pages: BTreeMap::new(), limit })
    }

    /// Makes room for more members; durable when it returns. A map that has more
    /// room than its volume needs is as good.
    pub fn grow(&mut self, limit: u64) -> io::Result<()> {
        if limit <= self.limit {
            return Ok(());
        }
        self.disk.resize(&self.file, (1 + pages(limit)) * PAGE as u64)?;
        self.disk.write_at(&self.file, &header(self.note, limit), 0)?;
        self.limit = limit;
        self.sync()
    }

    fn read_page(&mut self, number: u64) -> io::Result<()> {
        let mut page = vec![0; PAGE];
        self.disk.read_at(&self.file, &mut page, (1 + number) * PAGE as u64)?;
        if page.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        if !sealed(&page) {
            page.fill(0xff);
        }
        self.pages.insert(number, page);
        Ok(())
    }

    fn write_page(&mut self, number: u64) -> io::Result<()> {
        let Some(page) = self.pages.get_mut(&number) else { return Ok(()) };
        seal(page);
        self.disk.write_at(&self.file, page, (1 + number) * PAGE as u64)
    }

    /// Written, not synced. What could not be written is not set here either: it will be tried again.
    pub fn set(&mut self, run: Run) -> io::Result<()> {
        let mut first = run.first;
        while first < run.end() {
            let at = first / BITS_PER_PAGE;
            let (from, end) = (at * BITS_PER_PAGE, run.end().min((at + 1) * BITS_PER_PAGE));
            self.set_in_page(at, first - from..end - from)?;
            first = end;
        }
        Ok(())
    }

    fn set_in_page(&mut self, number: u64, bits: Range<u64>) -> io::Result<()> {
        let is_set = |page: &Vec<u8>| bits.clone().all(|bit| page[(bit / 8) as usize] >> (bit % 8) & 1 != 0);
        let before = self.pages.get(&number);
        if before.is_some_and(is_set) {
            return Ok(());
        }
        let mut page = before.cloned().unwrap_or_else(|| vec![0; PAGE]);
        for bit in bits {
            page[(bit / 8) as usize] |= 1 << (bit % 8);
        }
        seal(&mut page);
        self.disk.write_at(&self.file, &page, (1 + number) * PAGE as u64)?;
        self.pages.insert(number, page);
        Ok(())
    }

    /// Written, not synced.
    pub fn clear(&mut self, number: u64) -> io::Result<()> {
        let bit = number % BITS_PER_PAGE;
        let at = number / BITS_PER_PAGE;
        if let Some(page) = self.pages.get_mut(&at) {
            page[(bit / 8) as usize] &= !(1 << (bit % 8));
        }
        self.write_page(at)
    }

    pub fn note(&self) -> u64 {
        self.note
    }

    pub fn bits(&self) -> Blocks {
        let mut blocks = Blocks::default();
        for (at, page) in &self.pages {
            let end = BITS_PER_PAGE.min(self.limit - at * BITS_PER_PAGE);
            let has = |bit: u64| page[(bit / 8) as usize] >> (bit % 8) & 1 != 0;
            let mut bit = 0;
            while let Some(first) = (bit..end).find(|bit| has(*bit)) {
                bit = (first..end).find(|bit| !has(*bit)).unwrap_or(end);
                blocks.insert_all(Run { first: at * BITS_PER_PAGE + first, count: bit - first });
            }
        }
        blocks
    }

    pub fn file(&self) -> D::File {
        self.file.clone()
    }

    pub fn sync(&self) -> io::Result<()> {
        self.disk.sync(&self.file)
    }
}

fn pages(limit: u64) -> u64 {
    limit.div_ceil(BITS_PER_PAGE)
}

fn header(note: u64, limit: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..8].copy_from_slice(MAGIC);
    page[8..12].copy_from_slice(&VERSION.to_le_bytes());
    page[16..24].copy_from_slice(&note.to_le_bytes());
    page[24..32].copy_from_slice(&limit.to_le_bytes());
    seal(&mut page);
    page
}

fn seal(page: &mut [u8]) {
    let check = crc32fast::hash(&page[..PAGE - 4]);
    page[PAGE - 4..].copy_from_slice(&check.to_le_bytes());
}

fn sealed(page: &[u8]) -> bool {
    crc32fast::hash(&page[..PAGE - 4]).to_le_bytes() == page[PAGE - 4..]
}

#[cfg(test)]
mod tests {
    use super::{super::memory::MemoryDisk, *};

    /// A revert of 100 GiB marks every block of it while the engine waits.
    #[test]
    fn a_long_run_is_set_page_by_page() {
        let disk = MemoryDisk::default();
        let blocks = (100 << 30) / 4096;
        let mut map = MapFile::create(&disk, "map", 7, blocks).unwrap();
        let began = std::time::Instant::now();
        map.set(Run { first: 1, count: blocks - 1 }).unwrap();
        assert_eq!(map.bits().runs(), [Run { first: 1, count: blocks - 1 }]);
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[test]
    fn what_could_not_be_written_is_written_when_there_is_room_again() {
        let disk = MemoryDisk::default();
        let mut map = MapFile::create(&disk, "map", 7, 100).unwrap();
        disk.set_full(true);
        assert!(map.set(Run { first: 3, count: 1 }).is_err());
        disk.set_full(false);
        map.set(Run { first: 3, count: 1 }).unwrap();
        map.sync().unwrap();
        disk.lose_power(|| false);
        let map = MapFile::open(&disk, "map", 100).unwrap().unwrap();
        assert_eq!(map.bits().runs(), [Run { first: 3, count: 1 }]);
    }

    #[test]
    fn what_was_set_and_synced_is_there_and_a_torn_page_is_full() {
        let disk = MemoryDisk::default();
        assert!(MapFile::open(&disk, "map", 40_000).unwrap().is_none());
        let mut map = MapFile::create(&disk, "map", 7, 40_000).unwrap();
        map.set(Run { first: 32_730, count: 10 }).unwrap();
        map.sync().unwrap();
        map.clear(32_731).unwrap();
        disk.lose_power(|| false);
        let map = MapFile::open(&disk, "map", 40_000).unwrap().unwrap();
        assert_eq!(map.bits().runs(), [Run { first: 32_730, count: 10 }]);
        assert_eq!(map.note(), 7);

        let file = disk.open("map").unwrap();
        disk.write_at(&file, &[1; 8], 2 * 4096 + 100).unwrap();
        let map = MapFile::open(&disk, "map", 40_000).unwrap().unwrap();
        assert_eq!(map.bits().runs(), [Run { first: 32_730, count: 40_000 - 32_730 }]);
        disk.write_at(&file, &[1; 8], 100).unwrap();
        assert!(MapFile::open(&disk, "map", 40_000).unwrap().is_none());
    }
}
