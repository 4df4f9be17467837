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

/// All that is told of the daemons of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Which of the user's wishes it speaks of.
    pub wish: i64,
    pub counted: Counted,
    /// Nodes that should have a daemon.
    pub desired: u32,
    pub ready: u32,
    /// Daemons that do not run, and whose node says why.
    pub troubled: u32,
}

impl Standing {
    /// Whether those who were told an earlier standing should hear of this one soon. On thousands of nodes a daemon comes or goes all the
    /// time: telling of each would cost more than replacing them does.
    pub fn is_news_after(&self, told: &Standing) -> bool {
        const SHARE: u32 = 16;
        let is_asked = self.wish != told.wish || self.counted.generation != told.counted.generation;
        let begins = |number: fn(&Standing) -> u32| number(self) > 0 && number(told) == 0;
        let begins = begins(|of| of.counted.outdated()) || begins(|of| of.troubled);
        let all = self.desired.max(self.counted.daemons);
        let numbers =
            |of: &Standing| [of.desired, of.ready, of.troubled, of.counted.daemons, of.counted.outdated()];
        let mut moved = numbers(self).into_iter().zip(numbers(told)).map(|(now, then)| now.abs_diff(then));
        let is_much = moved.any(|by| by > 0 && by.saturating_mul(SHARE) >= all);
        let heals = self.troubled == 0 && told.troubled > 0;
        is_asked || begins || is_much || heals || (self.is_done() && !told.is_done())
    }

    fn is_done(&self) -> bool {
        self.counted.outdated() == 0 && self.ready >= self.desired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_with_every_node_is_no_news_in_a_large_cluster() {
        let standing = |wish, nodes, ready, outdated| Standing {
            wish,
            counted: Counted {
                generation: Generation::FIRST,
                is_fresh: true,
                daemons: nodes,
                updated: nodes - outdated,
            },
            desired: nodes,
            ready,
            troubled: 0,
        };
        let troubled = |troubled| Standing { troubled, ..standing(1, 5000, 4000, 0) };
        #[rustfmt::skip]
        let cases = [
            ("the same",                standing(1, 5000, 5000, 0),    standing(1, 5000, 5000, 0),    false),
            ("one restarts",            standing(1, 5000, 5000, 0),    standing(1, 5000, 4999, 0),    false),
            ("one of few restarts",     standing(1, 3, 3, 0),          standing(1, 3, 2, 0),          true),
            ("an upgrade begins",       standing(1, 5000, 5000, 0),    standing(1, 5000, 5000, 1),    true),
            ("one is done",             standing(1, 5000, 5000, 4000), standing(1, 5000, 5000, 3999), false),
            ("many are done",           standing(1, 5000, 5000, 4000), standing(1, 5000, 5000, 3600), true),
            ("the last is done",        standing(1, 5000, 5000, 1),    standing(1, 5000, 5000, 0),    true),
            ("the last is not ready",   standing(1, 5000, 5000, 1),    standing(1, 5000, 4999, 0),    false),
            ("all are ready",           standing(1, 5000, 4999, 0),    standing(1, 5000, 5000, 0),    true),
            ("one cannot run",          troubled(0),                   troubled(1),                   true),
            ("another cannot run",      troubled(9),                   troubled(10),                  false),
            ("all can run again",       troubled(9),                   troubled(0),                   true),
            ("the user wants it other", standing(1, 5000, 5000, 9),    standing(2, 5000, 5000, 9),    true),
        ];
        for (name, told, now, expected) in cases {
            assert_eq!(now.is_news_after(&told), expected, "{name}");
        }
    }

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
