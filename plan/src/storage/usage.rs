//! Decides what is to be said of the room that volumes take on disks.
//!
//! Every node is looked at now and then, and most of what is found has changed a little. A volume that rests is told
//! exactly; one that is written to only when it has moved by much.
//!
//! The invariant: nothing is written for a volume that takes what was said of it.

use std::collections::{BTreeMap, BTreeSet};

/// A volume that is written to is told anew when it has moved by this part of what was said, or by [`LEAST`].
const PART: u64 = 16;
const LEAST: u64 = 1 << 20;
/// The free room of a disk is told anew when it has moved by this part of the disk, for everybody writes there.
const PART_OF_DISK: u64 = 100;

/// Condition of an instance manager: holds unless its folder has copies that no replica stands for. There is none before one was found.
pub const REPLICAS_KNOWN: &str = "ReplicasKnown";

/// What a copy takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Taken {
    /// What clients write to.
    pub head: u64,
    /// Each snapshot, by name.
    pub snapshots: BTreeMap<String, u64>,
}

impl Taken {
    pub fn total(&self) -> u64 {
        self.snapshots.values().fold(self.head, |all, one| all.saturating_add(*one))
    }
}

/// Whether a volume is to be told of anew: what was said, what was found at the look before, what was found now.
pub fn is_news(said: u64, before: Option<u64>, now: u64) -> bool {
    let rests = before == Some(now);
    said != now && (rests || said.abs_diff(now) >= (said / PART).max(LEAST))
}

/// Whether the free room of a disk is to be told of anew.
pub fn is_news_of_disk(said: u64, size: u64, now: u64) -> bool {
    said != now && said.abs_diff(now) >= size / PART_OF_DISK
}

/// Copies that no replica stands for, now and at the look before: one that has just been made or removed is not left behind.
pub fn left_behind(before: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<String> {
    before.intersection(now).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_told_exactly_when_it_rests_and_roughly_while_it_is_written_to() {
        const M: u64 = 1 << 20;
        #[rustfmt::skip]
        let cases = [
            ("empty",                        0,       None,           0,           false),
            ("first look, little",           0,       None,           4096,        false),
            ("the same again",               0,       Some(4096),     4096,        true),
            ("as it was said",               4096,    Some(4096),     4096,        false),
            ("first look, much",             0,       None,           M,           true),
            ("a little more",                64 * M,  Some(64 * M),   66 * M,      false),
            ("more and more",                64 * M,  Some(66 * M),   67 * M,      false),
            ("by a sixteenth",               64 * M,  Some(67 * M),   68 * M,      true),
            ("less, by a sixteenth",         64 * M,  Some(64 * M),   60 * M,      true),
            ("it rests where nobody was told", 64 * M, Some(66 * M),  66 * M,      true),
        ];
        for (case, said, before, now, expected) in cases {
            assert_eq!(is_news(said, before, now), expected, "{case}");
        }
    }

    #[test]
    fn a_disk_is_told_anew_when_a_hundredth_of_it_is_other_than_was_said() {
        #[rustfmt::skip]
        let cases = [(500, 500, false), (500, 495, false), (500, 490, true), (500, 510, true), (500, 0, true)];
        for (said, now, expected) in cases {
            assert_eq!(is_news_of_disk(said, 1000, now), expected, "{said} {now}");
        }
        assert!(is_news_of_disk(0, 0, 7), "of a disk whose size is not known everything is news");
    }

    #[test]
    fn only_what_nobody_knew_twice_is_left_behind() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert!(left_behind(&set(&[]), &set(&["a"])).is_empty());
        assert_eq!(left_behind(&set(&["a", "b"]), &set(&["b", "c"])), ["b"]);
    }

    #[test]
    fn a_copy_takes_what_its_layers_take() {
        let taken = Taken { head: 1, snapshots: [("a".to_owned(), 2), ("b".to_owned(), 4)].into() };
        assert_eq!(taken.total(), 7);
    }
}
