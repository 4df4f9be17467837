//! Changes of the chain that are made durable while the copy goes on to read and write.
//!
//! ```text
//! asked ── a sync begins ──▶ committing ── it has ended ──▶ the layers are what the chain says
//! ```
//!
//! Until then the layers here are those of before, whatever the disk has: both read the same.
//!
//! Invariant: while one is under way nobody else changes the chain.

use std::io;

use super::{
    Layers,
    chain::{Chain, Draft},
    file_name,
    sums::SumFile,
};
use crate::replica::disk::Disk;

/// What is to be done to the chain.
#[derive(Debug, Clone)]
pub(super) struct Change<D: Disk> {
    pub(super) chain: Chain,
    /// Whether files were made for it.
    pub(super) makes_files: bool,
    /// Layers that are gone with it.
    pub(super) frees: Option<u64>,
    pub(super) then: Then<D>,
}

/// What is different when it is done, beside the chain.
#[derive(Debug, Clone)]
pub(super) enum Then<D: Disk> {
    Nothing,
    /// The layer at a place has checksums.
    Sealed {
        at: usize,
        sums: SumFile<D>,
    },
    /// The layer at a place is gone; the one above has what it held.
    Merged {
        at: usize,
    },
}

/// What someone who may wait does.
#[derive(Debug, Clone)]
pub(super) struct Commit<D: Disk> {
    makes_files: bool,
    draft: Draft<D>,
    frees: Option<u64>,
}

impl<D: Disk> Commit<D> {
    /// Files are removed only when nothing needs them after a loss of power either.
    pub(super) fn carry_out(&self, disk: &D) -> io::Result<()> {
        if self.makes_files {
            disk.sync_folder()?;
        }
        self.draft.write(disk)?;
        let Some(id) = self.frees else { return Ok(()) };
        ["img", "map", "sum"].iter().try_for_each(|kind| disk.remove_if_there(&file_name(id, kind)))
    }
}

/// What is so when the commit under way has ended.
#[derive(Debug, Clone)]
pub(super) struct Outcome<D: Disk> {
    draft: Draft<D>,
    then: Then<D>,
}

impl<D: Disk> Layers<D> {
    /// Whether the chain is being changed by someone who waits for the disk.
    pub(super) fn is_committing(&self) -> bool {
        self.asked.is_some() || self.committing.is_some()
    }

    /// What the sync that begins now has to commit.
    pub(super) fn begin_commit(&mut self) -> io::Result<Option<Commit<D>>> {
        let change = match self.asked.take() {
            Some(change) => Some(change),
            None => self.change_by_work()?,
        };
        let Some(Change { chain, makes_files, frees, then }) = change else { return Ok(None) };
        let draft = self.chain.draft(chain)?;
        self.committing = Some(Outcome { draft: draft.clone(), then });
        Ok(Some(Commit { makes_files, draft, frees }))
    }

    /// The sync whose plan was made last has ended.
    pub fn synced(&mut self) {
        let Some(Outcome { draft, then }) = self.committing.take() else { return self.work_synced() };
        self.chain.settle(draft);
        self.task = None;
        match then {
            Then::Nothing => {}
            Then::Sealed { at, sums } => self.frozen[at].sums = Some(sums),
            Then::Merged { at } => self.forget_merged(at),
        }
    }
}
