//! Reads sealed layers again, piece by piece, so that damage is found while another
//! copy still has what was lost.
//!
//! Invariant: what is found damaged is treated as if a client had read it.

use std::io;

use super::{Fetch, Layers, Patience, chain::State};
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

    fn is_sealed(&self, at: usize) -> bool {
        self.chain.now().frozen.get(at).is_some_and(|link| link.state == State::Sealed)
    }

    /// What the next piece reads.
    pub fn fetch_scrub(&self) -> io::Result<Fetch<D>> {
        let Scrub { at, next } = self.scrub;
        if self.is_sealed(at) { self.fetch_piece(at, next) } else { Ok(Fetch::default()) }
    }

    /// Compares the next piece with its checksums. Other work goes first.
    pub fn scrub(&mut self, patience: Patience) -> io::Result<()> {
        if self.has_work() || self.is_committing() || !self.can_scrub() {
            return Ok(());
        }
        let Scrub { at, next } = self.scrub;
        let piece = if self.is_sealed(at) { self.next_piece(at, next)? } else { None };
        let Some(run) = piece else {
            let at = if at < self.frozen.len() { at + 1 } else { 0 };
            self.scrub = Scrub { at, next: 0 };
            return Ok(());
        };
        self.read_blocks(at, (run.first, run.count), patience)?;
        self.scrub = Scrub { at, next: run.end() };
        Ok(())
    }
}
