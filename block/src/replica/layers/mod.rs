//! The bytes of one copy: a live head over frozen layers.
//!
//! ```text
//! head      ·  7  ·  ·  9     takes writes
//! frozen    3  ·  ·  4  ·     a snapshot; its blocks are checked once it is sealed
//! frozen    1  2  0  0  5     the oldest layer holds every block, holes are zeroes
//! ```
//!
//! A block is where its newest layer has it. A copy without snapshots has no maps
//! and is one sparse file.
//!
//! `chain` says which layers there are, `bits` what a layer holds, `sums` what its
//! blocks must be, `reading` finds a block in them, `change` freezes, reverts and adopts,
//! `work` seals and merges, `commit` makes a change durable while writes go on,
//! `spare` has a head ready, `scrub` looks for damage, `taken` tells others how much room all of it takes.
//!
//! Invariant: a block whose bit is durable in the head has its data on disk: after a
//! loss of power a block reads as what it was at the last flush or later, never as
//! a hole in the head.

mod bits;
mod chain;
mod change;
mod commit;
mod reading;
mod scrub;
mod spare;
mod sums;
mod taken;
#[cfg(test)]
mod tests;
mod work;

use std::{cell::Cell, collections::BTreeSet, io};

use self::{
    bits::BitFile,
    chain::{Chain, ChainFile},
    commit::{Change, Commit, Outcome},
    reading::Place,
    scrub::Scrub,
    spare::Spare,
    sums::SumFile,
    work::Task,
};
pub use self::{
    chain::FORMATS,
    commit::{Carried, is_full},
    reading::{Fetch, Patience, Sight},
    taken::{Taken, is_there, taken},
    work::Worked,
};
use super::disk::Disk;
use crate::{
    blocks::{BLOCK_BITS, Blocks, Run},
    wire::layout::Layout,
};

pub(super) const BLOCK: u64 = 1 << BLOCK_BITS;

#[derive(Debug, Clone)]
pub struct Layers<D: Disk> {
    disk: D,
    /// The present run of the machine.
    boot: u64,
    chain: ChainFile<D>,
    head: Head<D>,
    /// As in the chain.
    frozen: Vec<Frozen<D>>,
    task: Option<Task>,
    /// A change of the chain that the next sync is to make.
    asked: Option<Change<D>>,
    /// What becomes of the layers when the sync under way has ended.
    committing: Option<Outcome<D>>,
    /// The head that the next freeze takes.
    spare: Option<Spare<D>>,
    scrub: Scrub,
    /// The layer in which a read met damage.
    found_damage: Cell<Option<usize>>,
}

#[derive(Debug, Clone)]
struct Head<D: Disk> {
    image: D::File,
    /// What it holds, unless it is the only layer.
    map: Option<HeadMap<D>>,
    synced: Synced,
}

/// How far all that was written to the head is on its way to the disk. What the work on the layers puts there counts
/// when the map is told of it: before, nobody reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Synced {
    No,
    /// When the sync under way has ended, unless something is written before.
    Soon,
    Yes,
}

/// What the head holds: `live` is written with the data and counts while the
/// machine runs, `durable` is written after the data has been synced.
#[derive(Debug, Clone)]
struct HeadMap<D: Disk> {
    live: BitFile<D>,
    durable: BitFile<D>,
    /// What `live` has and `durable` lacks, in the order in which it came.
    lagging: Vec<Run>,
    /// Whether a process before this one may have written to `durable` and not synced it.
    is_left: bool,
}

#[derive(Debug, Clone)]
struct Frozen<D: Disk> {
    image: D::File,
    size: u64,
    /// None for the oldest layer: it holds everything.
    map: Option<BitFile<D>>,
    sums: Option<SumFile<D>>,
}

/// What makes everything durable that was written before it was made, or only what the work on the layers has written.
#[derive(Debug, Clone)]
pub struct SyncPlan<D: Disk> {
    data: Vec<D::File>,
    /// Whether files were made.
    names: bool,
    /// Told of the blocks when their data is on disk.
    map: Option<D::File>,
    blocks: Vec<Run>,
    /// Made when all of that is on disk.
    commit: Option<Commit<D>>,
}

impl<D: Disk> SyncPlan<D> {
    pub fn carry_out(&self, disk: &D) -> io::Result<Carried> {
        self.data.iter().try_for_each(|file| disk.sync(file))?;
        if self.names {
            disk.sync_folder()?;
        }
        if let Some(map) = &self.map {
            let map = BitFile::over(disk, map);
            map.set_all(&self.blocks)?;
            map.sync()?;
        }
        match &self.commit {
            Some(commit) => commit.carry_out(disk),
            None => Ok(Carried::Out),
        }
    }

    fn of(data: Vec<D::File>) -> SyncPlan<D> {
        SyncPlan { data, names: false, map: None, blocks: Vec::new(), commit: None }
    }

    pub fn and(mut self, files: impl Iterator<Item = D::File>) -> SyncPlan<D> {
        self.data.extend(files);
        self
    }
}

fn file_name(id: u64, kind: &str) -> String {
    format!("layer-{id:016x}.{kind}")
}

fn blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK)
}

impl<D: Disk> Layers<D> {
    /// Opens the layers in a folder, making an empty head of `size` bytes if there
    /// are none.
    pub fn open(disk: &D, size: u64, boot: u64) -> io::Result<Layers<D>> {
        let mut chain = ChainFile::open(disk, size)?;
        if chain.is_new() {
            create_image(disk, chain.now().head, size)?;
            disk.sync_folder()?;
            chain.store(chain.now().clone())?;
        }
        let now = chain.now().clone();
        sweep(disk, &now)?;
        let mut frozen = Vec::new();
        for (at, link) in now.frozen.iter().enumerate() {
            let limit = blocks(link.size);
            let map = match at {
                0 => None,
                _ => Some(BitFile::open(disk, &file_name(link.id, "map"), limit)?.0),
            };
            // What is damaged is not served for that, after a restart either.
            let sums = match link.has_sums() {
                true => Some(SumFile::open(disk, &file_name(link.id, "sum"), limit)?),
                false => None,
            };
            let image = disk.open(&file_name(link.id, "img"))?;
            frozen.push(Frozen { image, size: link.size, map, sums });
        }
        let head = match now.adopting {
            true => Head::create(disk, &now, boot)?,
            false => Head::open(disk, &now, boot)?,
        };
        let found_damage = Cell::new(None);
        Ok(Layers {
            disk: disk.clone(),
            boot,
            chain,
            head,
            frozen,
            task: None,
            asked: None,
            committing: None,
            spare: None,
            scrub: Scrub::default(),
            found_damage,
        })
    }

    pub fn size(&self) -> u64 {
        self.chain.now().size
    }

    /// The volume this is a copy of, if the folder says so.
    pub fn volume(&self) -> Option<&str> {
        self.chain.now().volume.as_deref()
    }

    pub fn layout(&self) -> Layout {
        self.chain.now().layout()
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        self.head.touch();
        if self.head.map.is_none() || data.is_empty() {
            return self.disk.write_at(&self.head.image, data, offset);
        }
        self.raise_edges(offset, end)?;
        self.disk.write_at(&self.head.image, data, offset)?;
        self.head.note(Run::touched(offset, data.len() as u64, BLOCK_BITS))
    }

    /// Makes an extent read as zeroes.
    pub fn clear(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.head.touch();
        if self.head.map.is_some() {
            self.raise_edges(offset, offset + length)?;
        }
        self.disk.punch(&self.head.image, offset, length)?;
        self.head.note(Run::touched(offset, length, BLOCK_BITS))
    }

    /// A block that is changed in part gets the rest from below first.
    fn raise_edges(&mut self, offset: u64, end: u64) -> io::Result<()> {
        let last = (end - 1) / BLOCK;
        let partial = |block: u64| {
            let stop = ((block + 1) * BLOCK).min(self.size());
            offset > block * BLOCK || end < stop
        };
        let mut edges = vec![offset / BLOCK];
        edges.extend((last != offset / BLOCK).then_some(last));
        edges.retain(|block| partial(*block));
        for block in edges {
            if self.place(block, self.live())? == Place::Head {
                continue;
            }
            let length = (self.size() - block * BLOCK).min(BLOCK);
            let mut whole = vec![0; length as usize];
            self.read_view(self.live(), block * BLOCK, &mut whole, Patience::Wait)?;
            self.disk.write_at(&self.head.image, &whole, block * BLOCK)?;
        }
        Ok(())
    }

    /// What makes durable what the work on the layers waits for, or a step of the layout; and all else that was written so
    /// far and is not durable yet, if someone flushes. `synced` is to be called when it was carried out.
    pub fn sync_plan(&mut self, flushes: bool) -> io::Result<SyncPlan<D>> {
        let with_head = flushes && !self.head.is_synced() || self.fills_head();
        let mut plan = match with_head {
            true => self.head.sync_plan(),
            false => SyncPlan::of(Vec::new()),
        };
        plan.data.extend(self.written_by_work()?);
        let spare = self.sync_spare();
        plan.names = self.has_made_files() || !spare.is_empty();
        plan.data.extend(spare);
        plan.commit = self.begin_commit()?;
        Ok(plan)
    }

    /// Blocks that a layer has, by its place in the layout.
    pub fn blocks_of(&self, place: usize) -> io::Result<Blocks> {
        let mut found = Blocks::default();
        let view = self.own(place);
        for layer in &self.frozen[view.frozen.0..view.frozen.1] {
            let mut from = 0;
            while let Some(run) = layer.next_run(&self.disk, from, u64::MAX)? {
                found.insert_all(run);
                from = run.end();
            }
        }
        if view.head {
            let mut from = 0;
            while let Some(run) = self.head.next_run(&self.disk, from, self.size())? {
                found.insert_all(run);
                from = run.end();
            }
        }
        Ok(found)
    }
}

impl<D: Disk> Frozen<D> {
    fn has(&self, block: u64) -> io::Result<bool> {
        match &self.map {
            _ if block * BLOCK >= self.size => Ok(false),
            Some(map) => map.has(block),
            None => Ok(true),
        }
    }

    /// Blocks that it holds from one on; of the oldest layer those with data.
    fn next_run(&self, disk: &D, from: u64, most: u64) -> io::Result<Option<Run>> {
        match &self.map {
            Some(map) => map.next_run(from, most),
            None => next_data(disk, &self.image, from, most),
        }
    }
}

fn next_data<D: Disk>(disk: &D, image: &D::File, from: u64, most: u64) -> io::Result<Option<Run>> {
    let Some((start, end)) = disk.next_data(image, from * BLOCK)? else { return Ok(None) };
    let first = (start / BLOCK).max(from);
    Ok(Some(Run { first, count: (blocks(end) - first).min(most) }))
}

impl<D: Disk> Head<D> {
    /// An empty head above the frozen layers, durable.
    fn create(disk: &D, chain: &Chain, boot: u64) -> io::Result<Head<D>> {
        let head = Head::make(disk, (chain.head, chain.size), !chain.frozen.is_empty(), boot)?;
        head.files().iter().try_for_each(|file| disk.sync(file))?;
        disk.sync_folder()?;
        Ok(head)
    }

    /// An empty head of a name and size. Nothing is synced.
    fn make(disk: &D, (id, size): (u64, u64), has_map: bool, boot: u64) -> io::Result<Head<D>> {
        let image = new_image(disk, id, size)?;
        let create = |kind: &str, note| BitFile::create(disk, &file_name(id, kind), blocks(size), note);
        let map = match has_map {
            false => None,
            true => {
                let (durable, live) = (create("map", 0)?, create("live", boot)?);
                Some(HeadMap { live, durable, lagging: Vec::new(), is_left: false })
            }
        };
        Ok(Head { image, map, synced: Synced::Yes })
    }

    /// What has to be durable of a new one.
    fn files(&self) -> Vec<D::File> {
        let map = self.map.as_ref().map(|map| map.durable.file());
        [Some(self.image.clone()), map].into_iter().flatten().collect()
    }

    fn open(disk: &D, chain: &Chain, boot: u64) -> io::Result<Head<D>> {
        let image = disk.open(&file_name(chain.head, "img"))?;
        let map = match chain.frozen.is_empty() {
            true => None,
            false => Some(HeadMap::open(disk, chain, boot)?),
        };
        // What processes before have left nobody knows.
        Ok(Head { image, map, synced: Synced::No })
    }

    /// What makes durable all that was written to it so far.
    fn sync_plan(&mut self) -> SyncPlan<D> {
        self.synced = match self.synced {
            Synced::No | Synced::Soon => Synced::Soon,
            Synced::Yes => Synced::Yes,
        };
        let data = SyncPlan::of(vec![self.image.clone()]);
        let Some(map) = &mut self.map else { return data };
        let (blocks, is_left) = (std::mem::take(&mut map.lagging), std::mem::take(&mut map.is_left));
        let file = (is_left || !blocks.is_empty()).then(|| map.durable.file());
        SyncPlan { map: file, blocks, ..data }
    }

    /// The last sync has ended.
    fn synced(&mut self) {
        self.synced = match self.synced {
            Synced::No => Synced::No,
            Synced::Soon | Synced::Yes => Synced::Yes,
        };
    }

    /// Something is about to be written to it.
    fn touch(&mut self) {
        self.synced = Synced::No;
    }

    /// Whether everything that was written to it is durable.
    fn is_synced(&self) -> bool {
        self.synced == Synced::Yes
    }

    fn note(&mut self, run: Run) -> io::Result<()> {
        self.touch();
        if let Some(map) = &mut self.map
            && map.live.set(run)?
        {
            map.lag_behind(run);
        }
        Ok(())
    }

    fn next_run(&self, disk: &D, from: u64, most: u64) -> io::Result<Option<Run>> {
        match &self.map {
            Some(map) => map.live.next_run(from, most),
            None => next_data(disk, &self.image, from, most),
        }
    }
}

impl<D: Disk> HeadMap<D> {
    /// While the machine has run on, the live map has everything. After a loss of
    /// power only the durable one can be trusted.
    fn open(disk: &D, chain: &Chain, boot: u64) -> io::Result<HeadMap<D>> {
        let limit = blocks(chain.size);
        let (durable, _) = BitFile::open(disk, &file_name(chain.head, "map"), limit)?;
        let live_name = file_name(chain.head, "live");
        let live = BitFile::open(disk, &live_name, limit).ok().filter(|(_, note)| *note == boot && boot != 0);
        let live = match live {
            Some((live, _)) => live,
            None => {
                let live = BitFile::create(disk, &live_name, limit, 0)?;
                for number in 0..durable.sectors() {
                    let sector = durable.sector(number)?;
                    if sector.iter().any(|byte| *byte != 0) {
                        live.put_sector(number, sector)?;
                    }
                }
                live.set_note(boot)?;
                live
            }
        };
        let mut map = HeadMap { live, durable, lagging: Vec::new(), is_left: true };
        for number in 0..map.live.sectors() {
            for run in map.live.lacking(&map.durable, number)? {
                map.lag_behind(run);
            }
        }
        Ok(map)
    }

    fn lag_behind(&mut self, run: Run) {
        match self.lagging.last_mut() {
            Some(last) if last.end() == run.first => last.count += run.count,
            _ => self.lagging.push(run),
        }
    }
}

fn create_image<D: Disk>(disk: &D, id: u64, size: u64) -> io::Result<D::File> {
    let image = new_image(disk, id, size)?;
    disk.sync(&image)?;
    Ok(image)
}

/// Not synced.
fn new_image<D: Disk>(disk: &D, id: u64, size: u64) -> io::Result<D::File> {
    let image = disk.open(&file_name(id, "img"))?;
    disk.resize(&image, 0)?;
    disk.resize(&image, size)?;
    Ok(image)
}

/// Removes what a change that did not happen has left behind.
fn sweep<D: Disk>(disk: &D, chain: &Chain) -> io::Result<()> {
    let mut known: BTreeSet<String> = ["img", "map", "live"].map(|kind| file_name(chain.head, kind)).into();
    for link in &chain.frozen {
        known.extend(["img", "map", "sum"].map(|kind| file_name(link.id, kind)));
    }
    for name in disk.names()? {
        if name.starts_with("layer-") && !known.contains(&name) {
            disk.remove(&name)?;
        }
    }
    Ok(())
}
