//! What a copy does with its layers when it has time: checksums for what was frozen,
//! and the end of snapshots that were removed.
//!
//! Invariant: a piece of work leaves every read as it was; a layer goes only when
//! the one above it has durably taken all that it held.

use std::io;

use super::{
    BLOCK, BitFile, Change, Fetch, Frozen, Layers, Patience, Place,
    chain::State,
    commit::{Then, files_of},
    file_name, next_data,
    reading::View,
    sums::{SumFile, sum},
};
use crate::{blocks::Run, replica::disk::Disk};

/// Blocks done at once: 256 KiB.
const PIECE: u64 = 64;

/// Work under way, on the layer at a place in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    job: Job,
    at: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Seal,
    Merge,
}

/// ```text
/// Pieces ── the last one is written ──▶ Written ── a sync has ended that began after it, and changed the chain ──▶ done
///                                          └── merged into a frozen layer ──▶ Durable ── its map knows ──▶ Noted ── a sync ──▶ done
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Pieces { next: u64 },
    Written,
    Durable,
    Noted,
}

/// What a piece of work leaves to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worked {
    Piece,
    /// It goes on when what `sync_plan` now has is durable and `synced` was called.
    WantsSync,
}

impl<D: Disk> Layers<D> {
    fn next_task(&self) -> Option<Task> {
        let chain = self.chain.now();
        if !chain.is_whole() {
            return None;
        }
        let removing = chain.frozen.iter().position(|link| link.removing).map(|at| (Job::Merge, at));
        let unsealed = chain.frozen.iter().position(|link| link.state == State::Frozen);
        let (job, at) = removing.or(unsealed.map(|at| (Job::Seal, at)))?;
        Some(Task { job, at, stage: Stage::Pieces { next: 0 } })
    }

    fn this_task(&self) -> Option<Task> {
        self.task.or_else(|| self.next_task())
    }

    pub fn has_work(&self) -> bool {
        self.this_task().is_some()
    }

    /// Does one piece of the work there is.
    pub fn work(&mut self, patience: Patience) -> io::Result<Worked> {
        let Some(task) = self.this_task() else { return Ok(Worked::Piece) };
        let stage = match (task.stage, task.job) {
            (Stage::Pieces { next }, Job::Seal) => self.seal(task.at, next, patience)?,
            (Stage::Pieces { next }, Job::Merge) => self.merge(task.at, next, patience)?,
            (Stage::Durable, _) => {
                self.note_merged(task.at)?;
                Stage::Noted
            }
            (stage @ (Stage::Written | Stage::Noted), _) => stage,
        };
        self.task = Some(Task { stage, ..task });
        Ok(match stage {
            Stage::Pieces { .. } | Stage::Durable => Worked::Piece,
            Stage::Written | Stage::Noted => Worked::WantsSync,
        })
    }

    /// The sync that the work wanted has ended.
    pub(super) fn work_synced(&mut self) {
        if let Some(task) = self.task.as_mut().filter(|task| task.stage == Stage::Written) {
            task.stage = Stage::Durable;
        }
    }

    /// Whether the work under way has written to the head and waits for that.
    pub(super) fn fills_head(&self) -> bool {
        match self.task {
            Some(Task { job: Job::Merge, at, stage: Stage::Written }) => at + 1 == self.frozen.len(),
            Some(Task { job: Job::Seal | Job::Merge, .. }) | None => false,
        }
    }

    /// Files beside the head's that the work under way has written and waits for.
    pub(super) fn written_by_work(&self) -> io::Result<Vec<D::File>> {
        let Some(Task { job, at, stage }) = self.task else { return Ok(Vec::new()) };
        let above = self.frozen.get(at + 1);
        match (job, stage) {
            (Job::Seal, Stage::Written) => Ok(vec![self.disk.open(&self.sums_name(at))?]),
            (Job::Merge, Stage::Written) => {
                let files =
                    |above: &Frozen<D>| [Some(above.image.clone()), above.sums.as_ref().map(SumFile::file)];
                Ok(above.into_iter().flat_map(files).flatten().collect())
            }
            (Job::Merge, Stage::Noted) => {
                let files =
                    |above: &Frozen<D>| [Some(above.image.clone()), above.map.as_ref().map(BitFile::file)];
                Ok(above.into_iter().flat_map(files).flatten().collect())
            }
            (Job::Seal, Stage::Noted) | (_, Stage::Pieces { .. } | Stage::Durable) => Ok(Vec::new()),
        }
    }

    /// Whether the work under way has made files.
    pub(super) fn has_made_files(&self) -> bool {
        matches!(self.task, Some(Task { job: Job::Seal, stage: Stage::Written, .. }))
    }

    /// The end of the work under way, if it is there when what it has written is durable. The map of a frozen layer
    /// must not speak of blocks before they are: it takes another sync.
    pub(super) fn change_by_work(&self) -> io::Result<Option<Change<D>>> {
        let Some(Task { job, at, stage }) = self.task else { return Ok(None) };
        let into_head = at + 1 == self.frozen.len();
        match (job, stage) {
            (Job::Seal, Stage::Written) => self.sealed(at).map(Some),
            (Job::Merge, Stage::Written) if into_head => Ok(Some(self.merged(at))),
            (Job::Merge, Stage::Noted) => Ok(Some(self.merged(at))),
            (Job::Merge, Stage::Written)
            | (Job::Seal, Stage::Noted)
            | (_, Stage::Pieces { .. } | Stage::Durable) => Ok(None),
        }
    }

    /// What the next piece of work reads.
    pub fn fetch_work(&self) -> io::Result<Fetch<D>> {
        match self.this_task() {
            Some(Task { at, stage: Stage::Pieces { next }, .. }) => self.fetch_piece(at, next),
            Some(Task { stage: Stage::Written | Stage::Durable | Stage::Noted, .. }) | None => {
                Ok(Fetch::default())
            }
        }
    }

    pub(super) fn fetch_piece(&self, at: usize, next: u64) -> io::Result<Fetch<D>> {
        let mut fetch = Fetch::default();
        if let Some(run) = self.next_piece(at, next)? {
            self.fetch_blocks(at, (run.first, run.end()), &mut fetch);
        }
        Ok(fetch)
    }

    pub(super) fn next_piece(&self, at: usize, next: u64) -> io::Result<Option<Run>> {
        let run = self.frozen[at].next_run(&self.disk, next, PIECE)?;
        Ok(run.filter(|run| run.first < self.length_of(at)))
    }

    fn sums_name(&self, at: usize) -> String {
        file_name(self.chain.now().frozen[at].id, "sum")
    }

    fn seal(&mut self, at: usize, next: u64, patience: Patience) -> io::Result<Stage> {
        let name = self.sums_name(at);
        if next == 0 {
            // What an earlier attempt has left does not count.
            let file = self.disk.open(&name)?;
            self.disk.resize(&file, 0)?;
        }
        let sums = SumFile::open(&self.disk, &name, self.length_of(at))?;
        let Some(run) = self.next_piece(at, next)? else { return Ok(Stage::Written) };
        let data = self.read_blocks(at, (run.first, run.count), patience)?;
        let values: Vec<u32> = data.chunks(BLOCK as usize).map(sum).collect();
        sums.put(run.first, &values)?;
        Ok(Stage::Pieces { next: run.end() })
    }

    fn sealed(&self, at: usize) -> io::Result<Change<D>> {
        let sums = SumFile::open(&self.disk, &self.sums_name(at), self.length_of(at))?;
        let mut chain = self.chain.now().clone();
        chain.frozen[at].state = State::Sealed;
        Ok(Change::Asked { chain, frees: Vec::new(), then: Then::Sealed { at, sums } })
    }

    /// Whether the layer above has a block of its own.
    fn is_above(&self, at: usize, block: u64) -> io::Result<bool> {
        let view = match at + 1 == self.frozen.len() {
            true => View { head: true, frozen: (0, 0) },
            false => View { head: false, frozen: (at + 1, at + 2) },
        };
        Ok(self.place(block, view)? != Place::Nowhere)
    }

    fn merge(&mut self, at: usize, next: u64, patience: Patience) -> io::Result<Stage> {
        let Some(run) = self.next_piece(at, next)? else {
            if at + 1 == self.frozen.len() {
                self.head.touch();
                self.note_merged(at)?;
            }
            return Ok(Stage::Written);
        };
        for block in run.first..run.end() {
            if self.is_above(at, block)? {
                continue;
            }
            let data = self.read_blocks(at, (block, 1), patience).inspect_err(|error| {
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.found_damage.set(Some(at));
                }
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
        Ok(Stage::Pieces { next: run.end() })
    }

    /// All blocks are in the file above: its map learns of them, and what else is in that
    /// file goes if it is about to be the oldest.
    fn note_merged(&mut self, at: usize) -> io::Result<()> {
        let mut next = 0;
        while let Some(run) = self.next_piece(at, next)? {
            next = run.end();
            match self.frozen.get(at + 1) {
                Some(above) => above.map.iter().try_for_each(|map| map.set(run).map(|_| ()))?,
                None => self.head.note(run)?,
            }
        }
        if at == 0 {
            self.clean_above_oldest()?;
        }
        Ok(())
    }

    /// The layer goes.
    fn merged(&self, at: usize) -> Change<D> {
        let mut chain = self.chain.now().clone();
        let gone = chain.frozen.remove(at);
        Change::Asked { chain, frees: files_of(gone.id), then: Then::Merged { at } }
    }

    /// The layer is gone from the chain.
    pub(super) fn forget_merged(&mut self, at: usize) {
        self.frozen.remove(at);
        if at == 0 {
            // Whoever is the oldest now holds everything.
            match self.frozen.first_mut() {
                Some(oldest) => oldest.map = None,
                None => self.head.map = None,
            }
        }
        // What was found damaged in it went with it to the one above.
        let found = self.found_damage.take();
        self.found_damage.set(found.map(|found| if found > at { found - 1 } else { found }));
    }

    /// The layer that is about to be the oldest will hold everything: what writes
    /// that did not come to their end have left in it becomes holes. Not synced.
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
        Ok(())
    }
}
