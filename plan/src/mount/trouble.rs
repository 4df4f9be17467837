//! Decides which daemons that do not run are made anew, and says what is wrong with them.
//!
//! Such a daemon serves nobody, so it does not have to be idle to go: whoever is on its node waits for it.
//!
//! The one invariant: a daemon that is of what is wanted now is never made anew.

use super::{Policy, dataset::Generation};

/// A daemon that does not run, and whose node says why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Troubled {
    pub pod: String,
    pub node: String,
    pub generation: Generation,
    /// Whether it has run before: it may have had users then, and may serve them again.
    pub has_run: bool,
    /// For people; the same words as long as nothing changes for them.
    pub why: String,
}

impl Troubled {
    /// Whether one of the wanted generation is to come in its place. Where users delete daemons themselves, because it might interrupt somebody, only
    /// one that never ran goes by itself: it can interrupt nobody.
    pub fn is_to_go(&self, wanted: Generation, policy: Policy) -> bool {
        let may_go = match policy {
            Policy::Keep | Policy::Remove => !self.has_run,
            Policy::ReplaceIdle => true,
        };
        may_go && self.generation < wanted
    }
}

/// What is wrong with the daemons of a dataset, in words; nothing if all of them run or are about to.
pub fn in_words(troubled: &[Troubled]) -> Option<String> {
    let first = troubled.iter().min_by_key(|one| &one.node)?;
    let Troubled { node, why, .. } = first;
    Some(match troubled.len() {
        1 => format!("the daemon on {node} does not run: {why}"),
        all => format!("{all} daemons do not run, such as the one on {node}: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn troubled(node: &str, generation: Generation, has_run: bool) -> Troubled {
        let (pod, why) = (format!("data-fuse-{node}"), "its image cannot be pulled".to_owned());
        Troubled { pod, node: node.into(), generation, has_run, why }
    }

    #[test]
    fn a_daemon_that_does_not_run_goes_when_another_is_wanted() {
        use Policy::{Keep, ReplaceIdle};
        let (old, new) = (Generation::FIRST, Generation::FIRST.next());
        #[rustfmt::skip]
        let cases = [
            ("never ran",                 old, false, ReplaceIdle, true),
            ("ran before",                old, true,  ReplaceIdle, true),
            ("never ran, by hand",        old, false, Keep,        true),
            ("ran before, by hand",       old, true,  Keep,        false),
            ("what is wanted",            new, false, ReplaceIdle, false),
            ("what is wanted, by hand",   new, false, Keep,        false),
            ("what is wanted, ran before", new, true, ReplaceIdle, false),
        ];
        for (name, generation, has_run, policy, expected) in cases {
            assert_eq!(troubled("a", generation, has_run).is_to_go(new, policy), expected, "{name}");
        }
    }

    #[test]
    fn the_first_stands_for_the_others() {
        let one = troubled("b", Generation::FIRST, false);
        assert_eq!(in_words(&[]), None);
        let said = "the daemon on b does not run: its image cannot be pulled";
        assert_eq!(in_words(std::slice::from_ref(&one)).as_deref(), Some(said));
        let said = "2 daemons do not run, such as the one on a: its image cannot be pulled";
        assert_eq!(in_words(&[one, troubled("a", Generation::FIRST, false)]).as_deref(), Some(said));
    }
}
