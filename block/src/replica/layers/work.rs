//! What a copy does with its layers when it has time: checksums for what was frozen,
//! and the end of snapshots that were removed.
//!
//! Invariant: a piece of work leaves every read as it was; a layer goes only when
//! the one above it has durably taken all that it held.

use std::io;

use super::{
    BLOCK, Layers, Place, View,
    chain::State,
    file_name, next_data,
    sums::{SumFile, sum},
    sweep,
};
use crate::{blocks::Run, replica::disk::Disk};

/// Blocks done at once: 256 KiB.
const PIECE: u64 = 64;

/// Work under way, on the layer at a place in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Seal { at: usize, next: u64 },
    Merge { at: usize, next: u64 },
}

impl<D: Disk> Layers<D> {
    fn next_task(&self) -> Option<Task> {
        let chain = self.chain.now();
        if !chain.is_whole() {
            return None;
        }
        let removing = chain.frozen.iter().position(|link| link.removing);
        let unsealed = chain.frozen.iter().position(|link| link.state == State::Frozen);
        let merge = removing.map(|at| Task::Merge { at, next: 0 });
        merge.or(unsealed.map(|at| Task::Seal { at, next: 0 }))
    }

    pub fn has_work(&self) -> bool {
        self.task.is_some() || self.next_task().is_some()
    }

    /// Does one piece of the work there is.
    pub fn work(&mut self) -> io::Result<()> {
        let Some(task) = self.task.or_else(|| self.next_task()) else { return Ok(()) };
        self.task = match task {
            Task::Seal { at, next } => self.seal(at, next)?,
            Task::Merge { at, next } => self.merge(at, next)?,
        };
        Ok(())
    }

    pub(super) fn next_piece(&self, at: usize, next: u64) -> io::Result<Option<Run>> {
        let run = self.frozen[at].next_run(&self.disk, next, PIECE)?;
        Ok(run.filter(|run| run.first < self.length_of(at)))
    }

    fn seal(&mut self, at: usize, next: u64) -> io::Result<Option<Task>> {
        let name = file_name(self.chain.now().frozen[at].id, "sum");
        if next == 0 {
            // What an earlier attempt has left does not count.
            let file = self.disk.open(&name)?;
            self.disk.resize(&file, 0)?;
        }
        let sums = SumFile::open(&self.disk, &name, self.length_of(at))?;
        if let Some(run) = self.next_piece(at, next)? {
            let data = self.frozen[at].read_blocks(&self.disk, run.first, run.count)?;
            let values: Vec<u32> = data.chunks(BLOCK as usize).map(sum).collect();
            sums.put(run.first, &values)?;
            return Ok(Some(Task::Seal { at, next: run.end() }));
        }
        sums.sync()?;
        self.disk.sync_folder()?;
        let mut chain = self.chain.now().clone();
        chain.frozen[at].state = State::Sealed;
        self.chain.store(chain)?;
        self.frozen[at].sums = Some(sums);
        Ok(None)
    }

    /// Whether the layer above has a block of its own.
    fn is_above(&self, at: usize, block: u64) -> io::Result<bool> {
        let view = match at + 1 == self.frozen.len() {
            true => View { head: true, frozen: (0, 0) },
            false => View { head: false, frozen: (at + 1, at + 2) },
        };
        Ok(self.place(block, view)? != Place::Nowhere)
    }

    fn merge(&mut self, at: usize, next: u64) -> io::Result<Option<Task>> {
        let Some(run) = self.next_piece(at, next)? else {
            self.finish_merge(at)?;
            return Ok(None);
        };
        for block in run.first..run.end() {
            if self.is_above(at, block)? {
                continue;
            }
            let data = self.frozen[at].read_blocks(&self.disk, block, 1).inspect_err(|_| {
                self.found_damage.set(Some(at));
            })?;
            let above = self.frozen.get(at + 1);
            let (image, size) =
                above.map_or((&self.head.image, self.size()), |above| (&above.image, above.size));
            let length = size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
            // A write that did not come to its end may have left something there.
            match data.iter().all(|byte| *byte == 0) {
                true => self.disk.punch(image, block * BLOCK, length as u64)?,
                false => self.disk.write_at(image, &data[..length], block * BLOCK)?,
            }
            if let Some(sums) = above.and_then(|above| above.sums.as_ref()) {
                sums.put(block, &[sum(&data)])?;
            }
        }
        Ok(Some(Task::Merge { at, next: run.end() }))
    }

    /// All blocks are in the file above: its map learns of them once they are on
    /// disk, then the layer goes.
    fn finish_merge(&mut self, at: usize) -> io::Result<()> {
        match self.frozen.get(at + 1) {
            Some(above) => {
                self.disk.sync(&above.image)?;
                above.sums.iter().try_for_each(SumFile::sync)?;
            }
            None => self.disk.sync(&self.head.image)?,
        }
        let mut next = 0;
        while let Some(run) = self.next_piece(at, next)? {
            next = run.end();
            match self.frozen.get(at + 1) {
                Some(above) => above.map.iter().try_for_each(|map| map.set(run).map(|_| ()))?,
                None => self.head.note(run)?,
            }
        }
        match self.frozen.get(at + 1) {
            Some(above) => above.map.iter().try_for_each(|map| map.sync())?,
            None => self.sync_plan()?.carry_out(&self.disk)?,
        }
        if at == 0 {
            self.clean_above_oldest()?;
        }
        let mut chain = self.chain.now().clone();
        chain.frozen.remove(at);
        self.chain.store(chain)?;
        self.frozen.remove(at);
        if at == 0 {
            // Whoever is the oldest now holds everything.
            match self.frozen.first_mut() {
                Some(oldest) => oldest.map = None,
                None => self.head.map = None,
            }
        }
        sweep(&self.disk, self.chain.now())
    }

    /// The layer that is about to be the oldest will hold everything: what writes
    /// that did not come to their end have left in it becomes holes.
    fn clean_above_oldest(&self) -> io::Result<()> {
        let (image, size) = match self.frozen.get(1) {
            Some(above) => (&above.image, above.size),
            None => (&self.head.image, self.size()),
        };
        let mut next = 0;
        while let Some(run) = next_data(&self.disk, image, next, PIECE)? {
            next = run.end();
            for block in run.first..run.end() {
                if !self.is_above(0, block)? {
                    let length = size.saturating_sub(block * BLOCK).min(BLOCK);
                    self.disk.punch(image, block * BLOCK, length)?;
                }
            }
        }
        self.disk.sync(image)
    }
}
