//! Reads sealed layers again, piece by piece, so that damage is found while another
//! copy still has what was lost.
//!
//! Invariant: what is found damaged is treated as if a client had read it.

use std::io;

use super::{Layers, chain::State};
use crate::replica::disk::Disk;

/// Where the next piece is: a layer by its place in the chain, and a block.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scrub {
    at: usize,
    next: u64,
}

impl<D: Disk> Layers<D> {
    /// Whether there is anything to compare with checksums.
    pub fn can_scrub(&self) -> bool {
        self.chain.now().frozen.iter().any(|link| link.state == State::Sealed)
    }

    /// Compares the next piece with its checksums. Other work goes first.
    pub fn scrub(&mut self) -> io::Result<()> {
        if self.has_work() || !self.can_scrub() {
            return Ok(());
        }
        let Scrub { at, next } = self.scrub;
        let sealed = self.chain.now().frozen.get(at).is_some_and(|link| link.state == State::Sealed);
        let piece = if sealed { self.next_piece(at, next)? } else { None };
        let Some(run) = piece else {
            let at = if at < self.frozen.len() { at + 1 } else { 0 };
            self.scrub = Scrub { at, next: 0 };
            return Ok(());
        };
        self.scrub = Scrub { at, next: run.end() };
        self.frozen[at].read_blocks(&self.disk, run.first, run.count).map(drop).inspect_err(|error| {
            if error.kind() == io::ErrorKind::InvalidData {
                self.found_damage.set(Some(at));
            }
        })
    }
}
