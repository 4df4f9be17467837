//! What other copies of the volume miss: one map of blocks for each that is out
//! of service, marked by every write until it is back.
//!
//! Invariant: a block written since a copy left is in its map; after a crash of
//! this replica, so is all that may have been written and not noted.

use std::{collections::BTreeMap, io};

use super::{disk::Disk, map::MapFile};
use crate::blocks::{BLOCK_BITS, Blocks, Run};

const PREFIX: &str = "absent-";

/// Names a replica in the folders of the others.
pub type ReplicaKey = u64;

#[derive(Debug, Clone)]
pub struct Absent<D: Disk> {
    disk: D,
    limit: u64,
    maps: BTreeMap<ReplicaKey, MapFile<D>>,
}

fn file_name(key: ReplicaKey) -> String {
    format!("{PREFIX}{key:016x}")
}

impl<D: Disk> Absent<D> {
    /// Opens the maps in a folder. `suspect` is where this copy may have been
    /// written before it stopped without having noted it.
    pub fn open(disk: &D, size: u64, suspect: &Blocks) -> io::Result<Absent<D>> {
        let limit = size.div_ceil(1 << BLOCK_BITS);
        let mut maps = BTreeMap::new();
        for name in disk.names()? {
            let Some(key) = name.strip_prefix(PREFIX).and_then(|hex| u64::from_str_radix(hex, 16).ok())
            else {
                continue;
            };
            match MapFile::open(disk, &name, limit)? {
                Some(mut map) => {
                    suspect.runs().into_iter().try_for_each(|run| map.set(run))?;
                    map.sync()?;
                    maps.insert(key, map);
                }
                None => disk.remove(&name)?,
            }
        }
        Ok(Absent { disk: disk.clone(), limit, maps })
    }

    /// A copy that was being rebuilt misses this as well. Whoever has no map of it
    /// does not know the rest and begins none. Durable when it returns.
    pub fn add(&mut self, key: ReplicaKey, more: &Blocks) -> io::Result<()> {
        let Some(map) = self.maps.get_mut(&key) else { return Ok(()) };
        more.runs().into_iter().try_for_each(|run| map.set(run))?;
        map.sync()
    }

    /// A copy has left that was last in service at member version `from`; it
    /// misses `seed`. Durable when `file` and the folder are synced; repeating it adds to the map.
    pub fn begin(&mut self, key: ReplicaKey, from: u64, seed: &Blocks) -> io::Result<()> {
        let known = self.maps.get(&key).is_some_and(|map| map.note() == from);
        if !known {
            let map = MapFile::begin(&self.disk, &file_name(key), from, self.limit)?;
            self.maps.insert(key, map);
        }
        let map = self.maps.get_mut(&key).expect("it was just put there");
        seed.runs().into_iter().try_for_each(|run| map.set(run))
    }

    /// Where the map of a copy is.
    pub fn file(&self, key: ReplicaKey) -> Option<D::File> {
        self.maps.get(&key).map(MapFile::file)
    }

    pub fn mark(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let run = Run::touched(offset, length, BLOCK_BITS);
        self.maps.values_mut().try_for_each(|map| map.set(run))
    }

    /// The version from which the map counts, and what is in it.
    pub fn get(&self, key: ReplicaKey) -> Option<(u64, Blocks)> {
        self.maps.get(&key).map(|map| (map.note(), map.bits()))
    }

    /// A copy is whole again. Durable when the folder is synced; a map that is left by a loss of power counts from a version
    /// that nobody asks for any more.
    pub fn forget(&mut self, key: ReplicaKey) -> io::Result<()> {
        self.maps.remove(&key).map_or(Ok(()), |_| self.disk.remove(&file_name(key)))
    }

    /// A copy that was away itself knows nothing of what others missed meanwhile. Durable when it returns.
    pub fn forget_all(&mut self) -> io::Result<()> {
        let keys: Vec<ReplicaKey> = self.maps.keys().copied().collect();
        if keys.is_empty() {
            return Ok(());
        }
        keys.into_iter().try_for_each(|key| self.forget(key))?;
        self.disk.sync_folder()
    }

    /// What was marked so far is durable when it returns.
    pub fn sync(&self) -> io::Result<()> {
        self.maps.values().try_for_each(MapFile::sync)
    }

    /// The volume is about to be larger.
    pub fn grow(&mut self, size: u64) -> io::Result<()> {
        self.limit = self.limit.max(size.div_ceil(1 << BLOCK_BITS));
        self.maps.values_mut().try_for_each(|map| map.grow(self.limit))
    }

    pub fn files(&self) -> impl Iterator<Item = D::File> {
        self.maps.values().map(MapFile::file)
    }
}
