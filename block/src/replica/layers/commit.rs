//! Changes of the chain that are made durable while the copy goes on to read and write.
//!
//! ```text
//! asked ── a sync begins ──▶ committing ── it has ended ──▶ the layers are what the chain says
//! put   ── a sync begins ──▶ committing ── it has ended ──▶ it is durable that they are
//! ```
//!
//! What is asked is true only when it is durable: until then the layers here are those of before, and read the same as
//! those that the disk may have. What is put is true at once, for as long as the machine runs.
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

/// A change of the chain that the next sync is to make.
#[derive(Debug, Clone)]
pub(super) enum Change<D: Disk> {
    Asked { chain: Chain, frees: Vec<String>, then: Then<D> },
    Put { draft: Draft<D>, frees: Vec<String> },
}

/// What is different when a change that was asked for is made, beside the chain.
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

/// How a sync ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    Out,
    /// All was synced that had been written, but there was no room to change the chain: it is what it was, or will be.
    ButForTheChain,
}

/// What someone who may wait does.
#[derive(Debug, Clone)]
pub(super) struct Commit<D: Disk> {
    draft: Draft<D>,
    is_put: bool,
    frees: Vec<String>,
}

impl<D: Disk> Commit<D> {
    /// Files are removed only when nothing needs them after a loss of power either.
    pub(super) fn carry_out(&self, disk: &D) -> io::Result<Carried> {
        match self.is_put {
            true => self.draft.finish(disk)?,
            false => match self.draft.write(disk) {
                Err(error) if is_full(&error) => return Ok(Carried::ButForTheChain),
                written => written?,
            },
        }
        self.frees.iter().try_for_each(|name| disk.remove_if_there(name))?;
        Ok(Carried::Out)
    }
}

/// What is so when the commit under way has ended.
#[derive(Debug, Clone)]
pub(super) enum Outcome<D: Disk> {
    Durable,
    Changed { draft: Draft<D>, then: Then<D> },
}

/// Whether there was no room on the disk.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The files of a frozen layer.
pub(super) fn files_of(id: u64) -> Vec<String> {
    ["img", "map", "sum"].map(|kind| file_name(id, kind)).into()
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
        let (draft, is_put, frees, outcome) = match change {
            None => return Ok(None),
            Some(Change::Put { draft, frees }) => (draft, true, frees, Outcome::Durable),
            Some(Change::Asked { chain, frees, then }) => {
                let draft = self.chain.draft(chain)?;
                (draft.clone(), false, frees, Outcome::Changed { draft, then })
            }
        };
        self.committing = Some(outcome);
        Ok(Some(Commit { draft, is_put, frees }))
    }

    /// Whether it is open which layout will be durable: a step was ordered, and its sync has not ended.
    pub fn is_stepping(&self) -> bool {
        let step = |outcome: &Outcome<D>| match outcome {
            Outcome::Durable | Outcome::Changed { then: Then::Nothing, .. } => true,
            Outcome::Changed { then: Then::Sealed { .. } | Then::Merged { .. }, .. } => false,
        };
        self.asked.is_some() || self.committing.as_ref().is_some_and(step)
    }

    /// The sync whose plan was made last has ended. Without room for its change the work asks for the same again: one of the two
    /// places of the chain may speak of it already, so what it has written stays.
    pub fn synced(&mut self, carried: Carried) {
        self.head.synced();
        self.spare_synced();
        match self.committing.take() {
            None => self.work_synced(),
            Some(_) if carried == Carried::ButForTheChain => {}
            Some(Outcome::Durable) => {}
            Some(Outcome::Changed { draft, then }) => {
                self.chain.settle(draft);
                self.task = None;
                match then {
                    Then::Nothing => {}
                    Then::Sealed { at, sums } => self.frozen[at].sums = Some(sums),
                    Then::Merged { at } => self.forget_merged(at),
                }
            }
        }
    }
}
