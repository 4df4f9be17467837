//! Accounts for the rows of the log.
//!
//! A row is live while it is the newest of its object; a superseded row and a
//! deletion are waste. Waste is cleared a little with each commit once there is
//! more of it than of the living, lowest version first.
//!
//! The one invariant: a deletion is cleared only after, or with, every older
//! row of its object, or that object would rise again.

use std::collections::BTreeSet;

use super::record;
use crate::store::history::Event;
use crate::store::key::Version;

/// Below this waste is not worth a thought.
const TOLERATED: usize = 1024;

/// A row on its way into the log.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) version: Version,
    /// The record.
    pub(super) value: Vec<u8>,
    /// Whether its object is there.
    pub(super) present: bool,
    /// The row that was the newest of the object before.
    pub(super) superseded: Option<Version>,
}

impl Row {
    pub(super) fn of(event: &Event) -> Row {
        Row {
            version: event.version,
            value: record::encode(event),
            present: event.after.is_some(),
            superseded: event.before.as_ref().map(|stored| stored.version),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Rows {
    totals: Totals,
    waste: BTreeSet<Version>,
}

/// What all rows come to: how many, and the sum of their hashed versions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    number: u64,
    sum: u64,
}

impl Rows {
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Takes account of a new row: whether its object is there, and which row it supersedes.
    pub(super) fn add(&mut self, version: Version, present: bool, superseded: Option<Version>) {
        self.totals.number += 1;
        self.totals.sum = self.totals.sum.wrapping_add(hash(version));
        self.waste.extend(superseded);
        if !present {
            self.waste.insert(version);
        }
    }

    /// Takes account of new rows and names those to remove in the same commit.
    /// More than the new ones can waste, so that waste does not pile up.
    pub(super) fn turn_over(&mut self, new: &[Row]) -> Vec<Version> {
        let most = 2 * new.len() + 64;
        for row in new {
            self.add(row.version, row.present, row.superseded);
        }
        let live = self.totals.number as usize - self.waste.len();
        let surplus = self.waste.len().saturating_sub(live.max(TOLERATED));
        (0..surplus.min(most)).map_while(|_| self.clear_oldest()).collect()
    }

    fn clear_oldest(&mut self) -> Option<Version> {
        let version = self.waste.pop_first()?;
        self.totals.number -= 1;
        self.totals.sum = self.totals.sum.wrapping_sub(hash(version));
        Some(version)
    }

    /// The row that tells the version of the store and its totals.
    pub(super) fn encode_totals(&self, version: Version) -> [u8; 28] {
        let mut row = [0; 28];
        row[..8].copy_from_slice(&version.get().to_le_bytes());
        row[8..16].copy_from_slice(&self.totals.number.to_le_bytes());
        row[16..24].copy_from_slice(&self.totals.sum.to_le_bytes());
        let crc = crc32fast::hash(&row[..24]);
        row[24..].copy_from_slice(&crc.to_le_bytes());
        row
    }

    pub(super) fn decode_totals(row: &[u8]) -> Option<(Version, Totals)> {
        let (numbers, crc) = row.split_last_chunk::<4>()?;
        if row.len() != 28 || crc32fast::hash(numbers) != u32::from_le_bytes(*crc) {
            return None;
        }
        let number = |at: usize| numbers[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some((Version::new(number(0)?), Totals { number: number(8)?, sum: number(16)? }))
    }
}

/// Spreads neighbouring versions over all bits (the finalizer of splitmix64).
fn hash(version: Version) -> u64 {
    let mut bits = version.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Objects are written and deleted at random; what is cleared is taken
        /// from a log, which must still tell the same as the objects do.
        #[test]
        fn clearing_changes_nothing_that_counts(changes in prop::collection::vec((0..40u8, any::<bool>()), 1..6000)) {
            let mut rows = Rows::default();
            let mut objects: HashMap<u8, Version> = HashMap::new();
            let mut log: std::collections::BTreeMap<Version, (u8, bool)> = Default::default();
            for (index, (object, present)) in changes.into_iter().enumerate() {
                let version = Version::new(index as u64 + 2);
                let before = objects.get(&object).copied();
                if !present && before.is_none() {
                    continue;
                }
                rows.add(version, present, before);
                log.insert(version, (object, present));
                if present { objects.insert(object, version) } else { objects.remove(&object) };
                for cleared in rows.turn_over(&[]) {
                    log.remove(&cleared);
                }
            }
            let mut read_back: HashMap<u8, Version> = HashMap::new();
            for (version, (object, present)) in &log {
                if *present { read_back.insert(*object, *version) } else { read_back.remove(object) };
            }
            prop_assert_eq!(read_back, objects);
            prop_assert_eq!(rows.totals().number, log.len() as u64);
            prop_assert!(rows.waste.len() <= TOLERATED + 1);
            let row = rows.encode_totals(Version::new(9));
            prop_assert_eq!(Rows::decode_totals(&row), Some((Version::new(9), rows.totals())));
        }
    }
}
