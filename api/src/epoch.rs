//! Which process may write to a volume.
//!
//! The invariant: epochs of a volume only grow, and a new term is above every
//! incarnation of the terms before it.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

const INCARNATION_BITS: u32 = 16;
const MAX_TERM: u64 = (1 << (64 - INCARNATION_BITS)) - 1;

/// Rises by one in the volume's record each time another engine, or the same
/// one after a loss, is to have the volume. 0 means that none had it yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(u64);

/// Stands in every message to a replica. One that is lower than what the
/// replica promised comes from a process that has lost the volume. The term is
/// in the high 48 bits, and comes from the volume's record; the incarnation is in the
/// low 16, and is raised by the supervisor that restarts an engine on its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Term {
    pub const FIRST: Term = Term(1);

    /// The term that a record holds, unless the number is beyond 48 bits.
    pub const fn from_number(number: u64) -> Option<Term> {
        if number > MAX_TERM { None } else { Some(Term(number)) }
    }

    pub const fn number(self) -> u64 {
        self.0
    }

    pub const fn next(self) -> Term {
        assert!(self.0 < MAX_TERM, "a volume changes hands fewer than 2^48 times");
        Term(self.0 + 1)
    }

    /// The epoch that opens this term.
    pub const fn epoch(self) -> Epoch {
        Epoch(self.0 << INCARNATION_BITS)
    }
}

impl Epoch {
    pub const FIRST: Epoch = Term::FIRST.epoch();

    pub const fn from_number(number: u64) -> Epoch {
        Epoch(number)
    }

    pub const fn number(self) -> u64 {
        self.0
    }

    pub const fn term(self) -> Term {
        Term(self.0 >> INCARNATION_BITS)
    }

    pub const fn incarnation(self) -> u16 {
        (self.0 & ((1 << INCARNATION_BITS) - 1)) as u16
    }

    /// The epoch of the same engine after a restart by its own supervisor;
    /// none when the incarnations of this term are used up and the record has to change.
    pub const fn restarted(self) -> Option<Epoch> {
        if self.incarnation() == u16::MAX { None } else { Some(Epoch(self.0 + 1)) }
    }

    /// Whether a replica that promised this epoch refuses the sender.
    pub const fn fences_out(self, sender: Epoch) -> bool {
        sender.0 < self.0
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term(), self.incarnation())
    }
}

impl JsonSchema for Term {
    fn schema_name() -> Cow<'static, str> {
        "Term".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "format": "int64", "minimum": 0, "maximum": MAX_TERM })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn takes_apart_what_it_put_together() {
        let epoch = Term::from_number(7).unwrap().epoch().restarted().unwrap();
        assert_eq!((epoch.term().number(), epoch.incarnation()), (7, 1));
        assert_eq!(epoch.to_string(), "7.1");
        assert_eq!(epoch.number(), (7 << 16) + 1);
    }

    #[test]
    fn runs_out_of_incarnations_before_it_reaches_the_next_term() {
        let last = Epoch::from_number((7 << 16) + 0xffff);
        assert_eq!(last.restarted(), None);
        assert_eq!(Term::from_number(1 << 48), None);
    }

    proptest! {
        #[test]
        fn a_new_term_fences_out_every_incarnation_of_the_old(term in 0..MAX_TERM, incarnation: u16) {
            let old = Epoch::from_number((term << INCARNATION_BITS) + u64::from(incarnation));
            prop_assert!(old.term().next().epoch().fences_out(old));
            prop_assert!(old.restarted().is_none_or(|new| new.fences_out(old) && new.term() == old.term()));
            prop_assert!(!old.fences_out(old));
        }
    }
}
