//! A head that is ready before it is needed, so that a freeze makes and syncs no files while writes wait for it.
//!
//! Nothing names its files until the freeze: a start, or a change that sweeps, removes them.
//!
//! Invariant: a chain names it only when it is durable, and empty.

use std::io;

use super::{Head, Layers, file_name};
use crate::{replica::disk::Disk, wire::layout::Step};

#[derive(Debug, Clone)]
pub(super) struct Spare<D: Disk> {
    id: u64,
    size: u64,
    head: Head<D>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Made,
    /// A sync is under way that makes it durable.
    Syncing,
    Durable,
}

impl<D: Disk> Layers<D> {
    /// Makes ready for a step that is to come. Says whether a sync is wanted for that.
    pub fn prepare(&mut self, step: &Step) -> io::Result<bool> {
        let Step::Freeze { head, .. } = step else { return Ok(false) };
        let (id, size) = (*head, self.size());
        if self.has_layer(id) {
            return Ok(false);
        }
        if self.spare.as_ref().is_none_or(|spare| (spare.id, spare.size) != (id, size)) {
            self.take_spare(id)?;
            let head = Head::make(&self.disk, (id, size), true, self.boot)?;
            self.spare = Some(Spare { id, size, head, stage: Stage::Made });
        }
        Ok(self.spare.as_ref().is_some_and(|spare| spare.stage != Stage::Durable))
    }

    /// The spare for a freeze, if it is the right one and ready. Another one goes; one of the same name is made anew.
    pub(super) fn take_spare(&mut self, id: u64) -> io::Result<Option<Head<D>>> {
        let Some(spare) = self.spare.take() else { return Ok(None) };
        if spare.id != id {
            let names = ["img", "map", "live"].map(|kind| file_name(spare.id, kind));
            names.iter().try_for_each(|name| self.disk.remove_if_there(name))?;
            return Ok(None);
        }
        let is_ready = spare.size == self.size() && spare.stage == Stage::Durable;
        Ok(is_ready.then_some(spare.head))
    }

    /// Its files, if the sync that begins now is to make it durable.
    pub(super) fn sync_spare(&mut self) -> Vec<D::File> {
        match &mut self.spare {
            Some(spare) if spare.stage == Stage::Made => {
                spare.stage = Stage::Syncing;
                spare.head.files()
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// The last sync has ended.
    pub(super) fn spare_synced(&mut self) {
        if let Some(spare) = self.spare.as_mut().filter(|spare| spare.stage == Stage::Syncing) {
            spare.stage = Stage::Durable;
        }
    }
}
