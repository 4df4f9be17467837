//! Which blocks a layer holds: one bit for each, in a file of sectors that carry
//! their own checksum.
//!
//! Sectors are what a disk writes whole, so a torn write leaves each one old or
//! new. Only what was looked at last is kept in memory.
//!
//! Invariant: a sector whose checksum is wrong is an error, never a guess.

use std::{cell::RefCell, collections::HashMap, io};

use super::super::disk::Disk;
use crate::blocks::Run;

pub(super) const SECTOR: usize = 512;
const BODY: usize = SECTOR - 4;
/// Blocks that one sector speaks of.
const PER_SECTOR: u64 = BODY as u64 * 8;
const MAGIC: &[u8; 8] = b"mflayer1";
/// Sectors kept in memory: two megabytes.
const MOST_CACHED: usize = 4096;

pub(super) type Sector = [u8; SECTOR];

#[derive(Debug, Clone)]
pub(super) struct BitFile<D: Disk> {
    disk: D,
    file: D::File,
    limit: u64,
    cache: RefCell<HashMap<u64, Sector>>,
}

pub(super) fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn checksum(number: u64, body: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(body);
    hasher.finalize().to_le_bytes()
}

/// Puts the checksum of a numbered sector into its last bytes.
pub(super) fn seal(number: u64, sector: &mut Sector) {
    let check = checksum(number, &sector[..BODY]);
    sector[BODY..].copy_from_slice(&check);
}

/// A sector that was never written is all zeroes.
pub(super) fn is_whole(number: u64, sector: &Sector) -> bool {
    sector.iter().all(|byte| *byte == 0) || checksum(number, &sector[..BODY]) == sector[BODY..]
}

/// A run by sectors: the number of each, and which of its bits.
fn parts(run: Run) -> impl Iterator<Item = (u64, Run)> {
    let (first, end) = (run.first, run.end());
    let numbers = first / PER_SECTOR..end.div_ceil(PER_SECTOR);
    numbers.filter(move |_| first < end).map(move |number| {
        let start = number * PER_SECTOR;
        let from = first.max(start);
        (number, Run { first: from - start, count: end.min(start + PER_SECTOR) - from })
    })
}

fn raise(sector: &mut Sector, bits: Run) {
    for bit in bits.first..bits.end() {
        sector[(bit / 8) as usize] |= 1 << (bit % 8);
    }
}

fn bytes(limit: u64) -> u64 {
    (1 + limit.div_ceil(PER_SECTOR)) * SECTOR as u64
}

impl<D: Disk> BitFile<D> {
    /// Makes an empty one for `limit` blocks; `note` is kept with it.
    pub(super) fn create(disk: &D, name: &str, limit: u64, note: u64) -> io::Result<BitFile<D>> {
        let file = disk.open(name)?;
        disk.resize(&file, 0)?;
        let mut bits = BitFile { disk: disk.clone(), file, limit: 0, cache: RefCell::default() };
        bits.grow(limit)?;
        bits.set_note(note)?;
        Ok(bits)
    }

    /// Opens one with its note.
    pub(super) fn open(disk: &D, name: &str, limit: u64) -> io::Result<(BitFile<D>, u64)> {
        let file = disk.open(name)?;
        if disk.size(&file)? < SECTOR as u64 {
            return Err(damaged(format!("{name} has no header")));
        }
        let mut header = [0; SECTOR];
        disk.read_at(&file, &mut header, 0)?;
        if !is_whole(u64::MAX, &header) || &header[..8] != MAGIC {
            return Err(damaged(format!("the header of {name} is damaged")));
        }
        let note = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
        let mut bits = BitFile { disk: disk.clone(), file, limit: 0, cache: RefCell::default() };
        bits.grow(limit)?;
        Ok((bits, note))
    }

    /// The same bits for someone who writes to the file while others have another: nothing of it is in memory.
    pub(super) fn over(disk: &D, file: &D::File) -> BitFile<D> {
        BitFile { disk: disk.clone(), file: file.clone(), limit: 0, cache: RefCell::default() }
    }

    /// Forgets what was read before someone else wrote to the file.
    pub(super) fn read_anew(self) -> BitFile<D> {
        BitFile { cache: RefCell::default(), ..self }
    }

    pub(super) fn set_note(&self, note: u64) -> io::Result<()> {
        let mut header = [0; SECTOR];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&note.to_le_bytes());
        seal(u64::MAX, &mut header);
        self.disk.write_at(&self.file, &header, 0)
    }

    /// Makes room for more blocks.
    pub(super) fn grow(&mut self, limit: u64) -> io::Result<()> {
        self.limit = self.limit.max(limit);
        if self.disk.size(&self.file)? < bytes(self.limit) {
            self.disk.resize(&self.file, bytes(self.limit))?;
        }
        Ok(())
    }

    pub(super) fn sectors(&self) -> u64 {
        self.limit.div_ceil(PER_SECTOR)
    }

    pub(super) fn sector(&self, number: u64) -> io::Result<Sector> {
        if let Some(sector) = self.cache.borrow().get(&number) {
            return Ok(*sector);
        }
        let mut sector = [0; SECTOR];
        self.disk.read_at(&self.file, &mut sector, (1 + number) * SECTOR as u64)?;
        if !is_whole(number, &sector) {
            return Err(damaged(format!("sector {number} of a layer's map is damaged")));
        }
        self.remember(number, sector);
        Ok(sector)
    }

    fn remember(&self, number: u64, sector: Sector) {
        let mut cache = self.cache.borrow_mut();
        if cache.len() >= MOST_CACHED {
            cache.clear();
        }
        cache.insert(number, sector);
    }

    pub(super) fn put_sector(&self, number: u64, mut sector: Sector) -> io::Result<()> {
        seal(number, &mut sector);
        self.disk.write_at(&self.file, &sector, (1 + number) * SECTOR as u64)?;
        self.remember(number, sector);
        Ok(())
    }

    pub(super) fn has(&self, block: u64) -> io::Result<bool> {
        if block >= self.limit {
            return Ok(false);
        }
        let bit = block % PER_SECTOR;
        Ok(self.sector(block / PER_SECTOR)?[(bit / 8) as usize] >> (bit % 8) & 1 != 0)
    }

    /// Sets bits, written and not synced; says whether one was not set.
    pub(super) fn set(&self, run: Run) -> io::Result<bool> {
        let mut is_new = false;
        for (number, part) in parts(run) {
            let before = self.sector(number)?;
            let mut sector = before;
            raise(&mut sector, part);
            if sector[..BODY] != before[..BODY] {
                self.put_sector(number, sector)?;
                is_new = true;
            }
        }
        Ok(is_new)
    }

    /// Sets many, in whatever order they come, and writes each sector once. Not synced.
    pub(super) fn set_all(&self, runs: &[Run]) -> io::Result<()> {
        let mut runs = runs.to_vec();
        runs.sort_unstable_by_key(|run| run.first);
        let mut open: Option<(u64, Sector)> = None;
        for (number, part) in runs.into_iter().flat_map(parts) {
            let mut sector = match open.take() {
                Some((known, sector)) if known == number => sector,
                other => {
                    other.map_or(Ok(()), |(number, sector)| self.put_sector(number, sector))?;
                    self.sector(number)?
                }
            };
            raise(&mut sector, part);
            open = Some((number, sector));
        }
        open.map_or(Ok(()), |(number, sector)| self.put_sector(number, sector))
    }

    /// What a sector has that the same one of another file lacks.
    pub(super) fn lacking(&self, other: &BitFile<D>, number: u64) -> io::Result<Vec<Run>> {
        let (ours, theirs) = (self.sector(number)?, other.sector(number)?);
        if ours == theirs {
            return Ok(Vec::new());
        }
        let is_lacking = |bit: &u64| {
            let (byte, mask) = ((bit / 8) as usize, 1 << (bit % 8));
            ours[byte] & !theirs[byte] & mask != 0
        };
        let first = number * PER_SECTOR;
        Ok((0..PER_SECTOR).filter(is_lacking).map(|bit| Run { first: first + bit, count: 1 }).collect())
    }

    /// The first run of set bits at or after `from`, at most `most` of them.
    pub(super) fn next_run(&self, from: u64, most: u64) -> io::Result<Option<Run>> {
        let mut first = from;
        while first < self.limit {
            let sector = self.sector(first / PER_SECTOR)?;
            if sector.iter().all(|byte| *byte == 0) {
                first = (first / PER_SECTOR + 1) * PER_SECTOR;
                continue;
            }
            if !self.has(first)? {
                first += 1;
                continue;
            }
            let mut count = 1;
            while count < most && self.has(first + count)? {
                count += 1;
            }
            return Ok(Some(Run { first, count }));
        }
        Ok(None)
    }

    pub(super) fn file(&self) -> D::File {
        self.file.clone()
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.disk.sync(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::memory::MemoryDisk, *};

    #[test]
    fn many_bits_are_set_by_one_write_for_each_sector_and_what_another_file_lacks_is_found() {
        let disk = MemoryDisk::default();
        let (live, durable) = ("live", "map");
        let [live, durable] = [live, durable].map(|name| BitFile::create(&disk, name, 20_000, 7).unwrap());
        let runs =
            [(9000, 3), (5, 1), (4060, 10), (7, 2), (4061, 1)].map(|(first, count)| Run { first, count });
        for run in runs {
            live.set(run).unwrap();
        }
        let lacking = |durable: &BitFile<MemoryDisk>| -> Vec<u64> {
            let runs = (0..live.sectors()).flat_map(|number| live.lacking(durable, number).unwrap());
            runs.flat_map(|run| run.first..run.end()).collect()
        };
        let all: Vec<u64> = [5, 7, 8].into_iter().chain(4060..4070).chain(9000..9003).collect();
        assert_eq!(lacking(&durable), all);
        BitFile::over(&disk, &durable.file()).set_all(&runs).unwrap();
        let durable = durable.read_anew();
        assert_eq!(lacking(&durable), [0; 0]);
        assert!(durable.has(8).unwrap() && !durable.has(6).unwrap() && !durable.has(9003).unwrap());
        BitFile::over(&disk, &durable.file()).set_all(&[]).unwrap();
    }

    #[test]
    fn bits_are_found_again_and_a_flipped_one_is_an_error() {
        let disk = MemoryDisk::default();
        let bits = BitFile::create(&disk, "map", 20_000, 7).unwrap();
        assert!(bits.set(Run { first: 4060, count: 10 }).unwrap());
        assert!(!bits.set(Run { first: 4061, count: 2 }).unwrap());
        let (bits, note) = BitFile::open(&disk, "map", 20_000).unwrap();
        assert_eq!(note, 7);
        assert!(!bits.has(4059).unwrap() && bits.has(4069).unwrap() && !bits.has(4070).unwrap());
        assert_eq!(bits.next_run(0, 100).unwrap(), Some(Run { first: 4060, count: 10 }));
        assert_eq!(bits.next_run(4065, 3).unwrap(), Some(Run { first: 4065, count: 3 }));
        assert_eq!(bits.next_run(4070, 3).unwrap(), None);
        for at in [SECTOR as u64 + 100, 2 * SECTOR as u64 + 2] {
            let file = disk.open("map").unwrap();
            let mut byte = [0];
            disk.read_at(&file, &mut byte, at).unwrap();
            disk.write_at(&file, &[byte[0] ^ 1], at).unwrap();
            let (bits, _) = BitFile::open(&disk, "map", 20_000).unwrap();
            assert!(bits.has(at * 8 - 4096).is_err(), "{at}");
            disk.write_at(&file, &byte, at).unwrap();
        }
    }
}
