//! One copy of a volume, with the notes that every change leaves: where copies may
//! differ after a crash, and what absent copies miss.
//!
//! Invariant: a read returns, for every byte, the last write applied to it; no
//! byte changes before its region is durably noted.

use std::io;

use bytes::Bytes;

use super::{
    absent::{Absent, ReplicaKey},
    disk::Disk,
    intent::Intent,
    layers::{Carried, Layers, Patience, SyncPlan, Worked},
};
use crate::{
    blocks::{BLOCK_BITS, Blocks, REGION_BITS},
    extent::Extent,
    wire::layout::{Layout, Step},
};

#[derive(Debug, Clone)]
pub struct Store<D: Disk> {
    layers: Layers<D>,
    intent: Intent<D>,
    pub absent: Absent<D>,
}

impl<D: Disk> Store<D> {
    /// Opens the copy in a folder, making an empty one of `size` bytes if there is
    /// none. `boot` names the present run of the machine.
    pub fn open(disk: &D, size: u64, boot: u64) -> io::Result<Store<D>> {
        let layers = Layers::open(disk, size, boot)?;
        let size = layers.size();
        let intent = Intent::open(disk, size)?;
        let suspect = intent.regions().refine(REGION_BITS, BLOCK_BITS, size.div_ceil(1 << BLOCK_BITS));
        let absent = Absent::open(disk, size, &suspect)?;
        Ok(Store { layers, intent, absent })
    }

    pub fn size(&self) -> u64 {
        self.layers.size()
    }

    pub fn layout(&self) -> Layout {
        self.layers.layout()
    }

    /// Snapshots and what else the layers are asked that changes nothing.
    pub fn layers(&self) -> &Layers<D> {
        &self.layers
    }

    /// How many blocks the volume has.
    pub fn blocks(&self) -> u64 {
        self.size().div_ceil(1 << BLOCK_BITS)
    }

    pub fn read(&self, extent: Extent) -> io::Result<Bytes> {
        self.layers.read(extent)
    }

    /// Whether an extent may be changed now. If not, it may be after the sync of
    /// the intent map that `begin_note` begins.
    pub fn admit(&mut self, extent: Extent) -> io::Result<bool> {
        self.intent.admit(extent.offset(), u64::from(extent.length()))
    }

    pub fn begin_note(&mut self) -> Vec<u64> {
        self.intent.begin_sync_map()
    }

    pub fn noted(&mut self, regions: &[u64]) {
        self.intent.synced_map(regions);
    }

    pub fn intent_file(&self) -> D::File {
        self.intent.file()
    }

    /// The map of what another copy misses.
    pub fn absent_file(&self, key: ReplicaKey) -> Option<D::File> {
        self.absent.file(key)
    }

    /// Regions in which this copy may differ from others after a crash.
    pub fn regions(&self) -> Blocks {
        self.intent.regions()
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.absent.mark(offset, data.len() as u64)?;
        self.layers.write(offset, data)
    }

    /// Makes an extent read as zeroes.
    pub fn clear(&mut self, extent: Extent) -> io::Result<()> {
        if extent.length() == 0 {
            return Ok(());
        }
        self.absent.mark(extent.offset(), u64::from(extent.length()))?;
        self.layers.clear(extent.offset(), u64::from(extent.length()))
    }

    /// What makes durable what the work on the layers or a step waits for; and all else that was written so far, if
    /// someone flushes.
    pub fn sync_plan(&mut self, flushes: bool) -> io::Result<SyncPlan<D>> {
        let plan = self.layers.sync_plan(flushes)?;
        Ok(if flushes { plan.and(self.absent.files()) } else { plan })
    }

    /// A flush of this number has arrived; what was written before it will be
    /// durable when it is answered.
    pub fn flush_began(&mut self, number: u64) {
        self.intent.flush_began(number);
    }

    /// Every copy has completed the flush of this number.
    pub fn settled(&mut self, number: u64) -> io::Result<()> {
        self.intent.settled(number)
    }

    /// Begins a step of the layout that is durable when the next sync has ended, if it is one of those; says whether.
    /// Nobody else may be syncing.
    pub fn begin_step(&mut self, step: &Step) -> io::Result<bool> {
        self.layers.begin_step(step)
    }

    /// Makes ready for a step that is to come. Says whether a sync is wanted for that.
    pub fn prepare(&mut self, step: &Step) -> io::Result<bool> {
        self.layers.prepare(step)
    }

    /// Makes a step of the layout; nobody else may be syncing. A revert changes every
    /// block: absent copies miss them all, and until all copies are known to have
    /// made it, any may differ.
    pub fn take_step(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Freeze { .. } | Step::Remove { .. } | Step::Finalize { .. } => {}
            Step::Revert { .. } => {
                self.intent.note_all(self.size())?;
                self.absent.mark(0, self.size())?;
                self.absent.sync()?;
            }
            Step::Expand { size } => {
                self.intent.grow(*size)?;
                self.absent.grow(*size)?;
            }
        }
        self.layers.take_step(step)
    }

    /// Takes the layers of another copy over, to be copied from it; see `Layers::adopt`.
    pub fn adopt(&mut self, wanted: &Layout) -> io::Result<Option<usize>> {
        self.absent.forget_all()?;
        self.intent.grow(wanted.size)?;
        self.absent.grow(wanted.size)?;
        self.layers.adopt(wanted)
    }

    pub fn fill(&mut self, place: usize, extent: Extent, data: Option<&[u8]>) -> io::Result<()> {
        self.layers.fill(place, extent, data)
    }

    pub fn filled(&mut self) -> io::Result<()> {
        self.layers.filled()
    }

    pub fn has_work(&self) -> bool {
        self.layers.has_work()
    }

    pub fn work(&mut self, patience: Patience) -> io::Result<Worked> {
        self.layers.work(patience)
    }

    /// The sync whose plan was made last has ended. What was found damaged meanwhile is noted now.
    pub fn synced(&mut self, carried: Carried) -> io::Result<()> {
        self.layers.synced(carried);
        self.layers.note_damage()
    }

    pub fn can_scrub(&self) -> bool {
        self.layers.can_scrub()
    }

    pub fn scrub(&mut self, patience: Patience) -> io::Result<()> {
        self.layers.scrub(patience)
    }

    pub fn note_damage(&mut self) -> io::Result<()> {
        self.layers.note_damage()
    }
}
