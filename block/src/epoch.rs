//! The number that decides who may write.
//!
//! Invariant: epochs only grow, also when an upgrade goes back; a message with a
//! lower epoch comes from a process that has lost the volume.

use std::fmt;

use serde::{Deserialize, Serialize};

const INCARNATION_BITS: u32 = 16;

/// Term from the volume's record in the high 48 bits, incarnation from the local
/// supervisor in the low 16. A new term fences every incarnation of the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// What a replica has promised before anyone asked: lower than any engine's.
    pub const NONE: Epoch = Epoch(0);

    pub const fn from_bits(bits: u64) -> Epoch {
        Epoch(bits)
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    /// First incarnation of a term.
    pub const fn of_term(term: u64) -> Epoch {
        Epoch(term << INCARNATION_BITS)
    }

    pub const fn term(self) -> u64 {
        self.0 >> INCARNATION_BITS
    }

    pub const fn incarnation(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// The epoch of the same engine started once more, or `None` when the term
    /// has no incarnation left and the record must give a new one.
    pub fn next_incarnation(self) -> Option<Epoch> {
        (self.incarnation() < u16::MAX).then_some(Epoch(self.0 + 1))
    }

    pub const fn next_term(self) -> Epoch {
        Epoch::of_term(self.term() + 1)
    }

    pub fn fences_out(self, sender: Epoch) -> bool {
        sender < self
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term(), self.incarnation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_term_fences_every_incarnation_of_the_old_one() {
        let old = Epoch::of_term(7);
        let restarted = old.next_incarnation().unwrap();
        assert!(restarted.fences_out(old));
        assert!(old.next_term().fences_out(restarted));
        assert_eq!(restarted.to_string(), "7.1");
        assert_eq!(Epoch::from_bits(old.bits() | 0xffff).next_incarnation(), None);
    }
}
