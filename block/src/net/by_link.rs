//! Tables of connections: every message is looked up in several of them.
//!
//! Invariant: links are numbered by this process, one after the other, so nobody outside can
//! choose numbers that meet in one place; a hash that guards against that would cost more than the rest
//! of a look-up.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::reactor::LinkId;

pub type ByLink<T> = HashMap<LinkId, T, BuildHasherDefault<Spread>>;

/// Spreads numbers that follow each other.
#[derive(Debug, Default, Clone, Copy)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, hash::BuildHasher};

    use super::*;

    #[test]
    fn links_that_follow_each_other_are_spread_over_a_table() {
        let hash = |number| BuildHasherDefault::<Spread>::default().hash_one(LinkId::from_bits(number));
        for owner in [0, 1, 77] {
            let hashes: Vec<u64> = (1..=256).map(|number| hash(number | owner << 40)).collect();
            let places: HashSet<u64> = hashes.iter().map(|hash| hash % 256).collect();
            let marks: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert_eq!(places.len(), 256, "owner {owner}");
            assert!(marks.len() > 100, "owner {owner}: {} marks", marks.len());
        }
    }
}
