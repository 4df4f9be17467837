//! A set of blocks, or of any numbered pieces of a volume.
//!
//! Memory follows what is in it: 128 bytes for each 1024 neighbours that hold
//! at least one member.
//!
//! Invariant: `runs` gives every member once, in order.

use std::collections::BTreeMap;

/// The granule of dirty maps.
pub const BLOCK_BITS: u32 = 12;
/// The granule of the write-intent map.
pub const REGION_BITS: u32 = 22;

const PER_LEAF: u64 = 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    leaves: BTreeMap<u64, Box<[u64; 16]>>,
}

/// Neighbouring members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub first: u64,
    pub count: u64,
}

impl Run {
    /// The pieces of `1 << bits` bytes that a range of bytes touches.
    pub fn touched(offset: u64, length: u64, bits: u32) -> Run {
        let first = offset >> bits;
        let end = (offset + length).div_ceil(1 << bits);
        Run { first, count: end.saturating_sub(first) }
    }

    pub fn end(self) -> u64 {
        self.first + self.count
    }
}

impl Blocks {
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// How many pieces of memory it takes.
    pub fn leaves(&self) -> usize {
        self.leaves.len()
    }

    pub fn contains(&self, number: u64) -> bool {
        let bit = number % PER_LEAF;
        self.leaves
            .get(&(number / PER_LEAF))
            .is_some_and(|leaf| leaf[(bit / 64) as usize] >> (bit % 64) & 1 != 0)
    }

    pub fn contains_all(&self, run: Run) -> bool {
        (run.first..run.end()).all(|number| self.contains(number))
    }

    /// Says whether it was not there before.
    pub fn insert(&mut self, number: u64) -> bool {
        let bit = number % PER_LEAF;
        let leaf = self.leaves.entry(number / PER_LEAF).or_default();
        let word = &mut leaf[(bit / 64) as usize];
        let before = *word;
        *word |= 1 << (bit % 64);
        *word != before
    }

    pub fn insert_all(&mut self, run: Run) {
        let mut at = run.first;
        while at < run.end() {
            let leaf = self.leaves.entry(at / PER_LEAF).or_default();
            let end = run.end().min((at / PER_LEAF + 1) * PER_LEAF);
            while at < end {
                let count = (64 - at % 64).min(end - at);
                leaf[(at % PER_LEAF / 64) as usize] |= (u64::MAX >> (64 - count)) << (at % 64);
                at += count;
            }
        }
    }

    pub fn remove(&mut self, number: u64) {
        let bit = number % PER_LEAF;
        if let Some(leaf) = self.leaves.get_mut(&(number / PER_LEAF)) {
            leaf[(bit / 64) as usize] &= !(1 << (bit % 64));
            if leaf.iter().all(|word| *word == 0) {
                self.leaves.remove(&(number / PER_LEAF));
            }
        }
    }

    pub fn extend(&mut self, other: &Blocks) {
        for (at, leaf) in &other.leaves {
            let mine = self.leaves.entry(*at).or_default();
            mine.iter_mut().zip(leaf.iter()).for_each(|(mine, theirs)| *mine |= theirs);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.leaves.iter().flat_map(|(at, leaf)| {
            let base = at * PER_LEAF;
            (0..PER_LEAF)
                .filter(|bit| leaf[(bit / 64) as usize] >> (bit % 64) & 1 != 0)
                .map(move |bit| base + bit)
        })
    }

    pub fn len(&self) -> u64 {
        self.leaves.values().flat_map(|leaf| leaf.iter()).map(|word| u64::from(word.count_ones())).sum()
    }

    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for number in self.iter() {
            match runs.last_mut() {
                Some(run) if run.end() == number => run.count += 1,
                _ => runs.push(Run { first: number, count: 1 }),
            }
        }
        runs
    }

    /// Takes out the first members that are neighbours, at most `most` of them.
    pub fn take_run(&mut self, most: u64) -> Option<Run> {
        let first = self.iter().next()?;
        let count = (first..first + most).take_while(|number| self.contains(*number)).count() as u64;
        (first..first + count).for_each(|number| self.remove(number));
        Some(Run { first, count })
    }

    /// Sixteen bytes for each run. When there are too many, neighbours are merged
    /// over the gaps between them: more may be in it, never less.
    pub fn encode(&self, most_runs: usize) -> Vec<u8> {
        let mut runs = self.runs();
        let mut gap = 1;
        while runs.len() > most_runs {
            let mut merged: Vec<Run> = Vec::new();
            for run in runs {
                match merged.last_mut() {
                    Some(last) if run.first - last.end() <= gap => last.count = run.end() - last.first,
                    _ => merged.push(run),
                }
            }
            runs = merged;
            gap *= 2;
        }
        runs.iter().flat_map(|run| [run.first.to_le_bytes(), run.count.to_le_bytes()]).flatten().collect()
    }

    /// Reads what `encode` wrote; nothing at or beyond `limit` is taken in.
    pub fn decode(raw: &[u8], limit: u64) -> Blocks {
        let mut blocks = Blocks::default();
        for pair in raw.chunks_exact(16) {
            let word = |at: usize| u64::from_le_bytes(pair[at..at + 8].try_into().expect("eight bytes"));
            let end = word(0).saturating_add(word(8)).min(limit);
            blocks.insert_all(Run { first: word(0), count: end.saturating_sub(word(0)) });
        }
        blocks
    }

    /// The same bytes in finer pieces.
    pub fn refine(&self, from_bits: u32, to_bits: u32, limit: u64) -> Blocks {
        let factor = 1u64 << (from_bits - to_bits);
        let mut fine = Blocks::default();
        for run in self.runs() {
            let (first, end) = (run.first * factor, (run.end() * factor).min(limit));
            fine.insert_all(Run { first, count: end.saturating_sub(first) });
        }
        fine
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_run_is_its_members(first in 0..3000u64, count in 0..3000u64) {
            let run = Run { first, count };
            let (mut at_once, mut one_by_one) = (Blocks::default(), Blocks::default());
            at_once.insert_all(run);
            (first..run.end()).for_each(|number| { one_by_one.insert(number); });
            prop_assert_eq!(at_once, one_by_one);
        }

        #[test]
        fn a_set_is_a_set(numbers in proptest::collection::btree_set(0..5000u64, 0..200), gone in 0..5000u64) {
            let mut blocks = Blocks::default();
            numbers.iter().for_each(|number| { blocks.insert(*number); });
            blocks.remove(gone);
            let expected: BTreeSet<u64> = numbers.into_iter().filter(|number| *number != gone).collect();
            prop_assert_eq!(blocks.iter().collect::<BTreeSet<_>>(), expected.clone());
            prop_assert_eq!(blocks.len(), expected.len() as u64);
            prop_assert_eq!(&Blocks::decode(&blocks.encode(usize::MAX), 5000), &blocks);
            let few = Blocks::decode(&blocks.encode(3), 5000);
            prop_assert!(blocks.iter().all(|number| few.contains(number)));
            let mut taken = BTreeSet::new();
            while let Some(run) = blocks.take_run(7) {
                prop_assert!(run.count <= 7);
                taken.extend(run.first..run.end());
            }
            prop_assert_eq!(taken, expected);
        }
    }

    #[test]
    fn regions_refine_to_blocks() {
        let mut regions = Blocks::default();
        regions.insert(1);
        let blocks = regions.refine(REGION_BITS, BLOCK_BITS, 1024 + 10);
        assert_eq!(blocks.runs(), [Run { first: 1024, count: 10 }]);
        assert_eq!(Run::touched(4095, 2, BLOCK_BITS), Run { first: 0, count: 2 });
        assert_eq!(Run::touched(4096, 0, BLOCK_BITS).count, 0);
    }
}
