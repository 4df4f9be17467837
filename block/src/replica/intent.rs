//! Where copies may differ after a crash: regions written since they were last
//! known to be equal everywhere.
//!
//! Invariant: a region is durably noted before its first byte changes.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
};

use super::{disk::Disk, map::MapFile};
use crate::blocks::{Blocks, REGION_BITS, Run};

const FILE: &str = "intent";
/// A region leaves the map when nobody wrote to it since this many flushes ago.
/// The map would otherwise cost a second sync for every write that is flushed.
const QUIET_FLUSHES: usize = 8;
/// Flushes remembered until every copy has completed them.
const MOST_FLUSHES: usize = 256;

#[derive(Debug, Clone)]
pub struct Intent<D: Disk> {
    map: MapFile<D>,
    /// Regions that may be written at once, with the time of their last write.
    durable: BTreeMap<u64, u64>,
    /// Regions noted and not yet synced.
    noted: Vec<u64>,
    /// Rises with every write.
    time: u64,
    /// Number of each flush that not every copy is known to have, and when it came.
    flushes: VecDeque<(u64, u64)>,
    /// When the last flushes came that every copy has, oldest first.
    settled: VecDeque<u64>,
}

impl<D: Disk> Intent<D> {
    /// Opens the map of a folder. A map that cannot be trusted counts as full.
    pub fn open(disk: &D, size: u64) -> io::Result<Intent<D>> {
        let limit = size.div_ceil(1 << REGION_BITS);
        let existed = disk.names()?.iter().any(|name| name == FILE);
        let map = match MapFile::open(disk, FILE, limit)? {
            Some(map) => map,
            None => {
                let mut map = MapFile::create(disk, FILE, 0, limit)?;
                if existed {
                    map.set(Run { first: 0, count: limit })?;
                    map.sync()?;
                }
                map
            }
        };
        let durable = map.bits().iter().map(|region| (region, 0)).collect();
        Ok(Intent {
            map,
            durable,
            noted: Vec::new(),
            time: 0,
            flushes: VecDeque::new(),
            settled: VecDeque::new(),
        })
    }

    /// Regions that may differ from other copies.
    pub fn regions(&self) -> Blocks {
        let mut regions = Blocks::default();
        self.durable.keys().for_each(|region| {
            regions.insert(*region);
        });
        regions
    }

    /// Whether a range may be written now; if not, its regions are noted, and
    /// may be written after the next `synced_map`.
    pub fn admit(&mut self, offset: u64, length: u64) -> io::Result<bool> {
        let run = Run::touched(offset, length, REGION_BITS);
        self.time += 1;
        let mut open = true;
        for region in run.first..run.end() {
            match self.durable.get_mut(&region) {
                Some(last) => *last = self.time,
                None => {
                    open = false;
                    self.map.set(Run { first: region, count: 1 })?;
                    self.noted.push(region);
                }
            }
        }
        Ok(open)
    }

    /// Takes the regions that a sync of the map, begun now, will make durable.
    pub fn begin_sync_map(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.noted)
    }

    pub fn synced_map(&mut self, regions: &[u64]) {
        for region in regions {
            self.durable.insert(*region, self.time);
        }
    }

    /// Notes every region, durable when it returns.
    pub fn note_all(&mut self, size: u64) -> io::Result<()> {
        let count = size.div_ceil(1 << REGION_BITS);
        self.map.set(Run { first: 0, count })?;
        self.map.sync()?;
        self.time += 1;
        self.durable.extend((0..count).map(|region| (region, self.time)));
        Ok(())
    }

    /// The volume is about to be larger.
    pub fn grow(&mut self, size: u64) -> io::Result<()> {
        self.map.grow(size.div_ceil(1 << REGION_BITS))
    }

    pub fn flush_began(&mut self, number: u64) {
        self.flushes.push_back((number, self.time));
        if self.flushes.len() > MOST_FLUSHES {
            self.flushes.pop_front();
        }
    }

    /// Every copy has completed a flush: regions that nobody wrote to for a while
    /// before it are equal everywhere and are let go.
    pub fn settled(&mut self, number: u64) -> io::Result<()> {
        let Some(at) = self.flushes.iter().position(|(known, _)| *known == number) else { return Ok(()) };
        let (_, time) = self.flushes[at];
        self.flushes.drain(..=at);
        self.settled.push_back(time);
        if self.settled.len() <= QUIET_FLUSHES {
            return Ok(());
        }
        let Some(before) = self.settled.pop_front() else { return Ok(()) };
        let quiet: Vec<u64> =
            self.durable.iter().filter(|(_, last)| **last <= before).map(|(region, _)| *region).collect();
        quiet.into_iter().try_for_each(|region| {
            self.durable.remove(&region);
            self.map.clear(region)
        })
    }

    pub fn file(&self) -> D::File {
        self.map.file()
    }
}
