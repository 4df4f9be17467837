//! Says how far the daemons of a dataset are on their way to what is wanted.
//!
//! The one invariant: a daemon counts as new only where that was seen.

use super::{Policy, dataset::Generation};

/// What a DaemonSet tells of its pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub generation: Generation,
    /// Whether they were counted since the last change of the DaemonSet.
    pub is_fresh: bool,
    /// Nodes that have a daemon.
    pub daemons: u32,
    /// Those of this generation.
    pub updated: u32,
}

impl Counted {
    pub fn outdated(&self) -> u32 {
        let updated = if self.is_fresh { self.updated } else { 0 };
        self.daemons.saturating_sub(updated)
    }

    /// For people; the same words as long as nothing changes for them.
    pub fn in_words(&self, policy: Policy) -> String {
        let Counted { generation, daemons, .. } = self;
        let goes = match policy {
            Policy::Keep => "they stay until they are deleted",
            Policy::ReplaceIdle => "each goes when no workload on its node uses it",
            Policy::Remove => "they go with their dataset",
        };
        match self.outdated() {
            0 => format!("no daemon is older than generation {generation}"),
            outdated => {
                format!("{outdated} of {daemons} daemons are older than generation {generation}: {goes}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_since_the_change_is_old() {
        let counted = |is_fresh, daemons, updated| Counted {
            generation: Generation::FIRST,
            is_fresh,
            daemons,
            updated,
        };
        #[rustfmt::skip]
        let cases = [
            ("none yet",         counted(true,  0, 0), 0),
            ("all new",          counted(true,  3, 3), 0),
            ("some old",         counted(true,  3, 1), 2),
            ("not counted yet",  counted(false, 3, 3), 3),
            ("one goes, too",    counted(true,  2, 3), 0),
        ];
        for (name, counted, expected) in cases {
            assert_eq!(counted.outdated(), expected, "{name}");
        }
        let some = counted(true, 3, 1);
        assert_eq!(counted(true, 3, 3).in_words(Policy::Keep), "no daemon is older than generation 1");
        let told =
            "2 of 3 daemons are older than generation 1: each goes when no workload on its node uses it";
        assert_eq!(some.in_words(Policy::ReplaceIdle), told);
        assert!(some.in_words(Policy::Keep).ends_with("they stay until they are deleted"));
    }
}
