//! Decides when a node's FUSE daemon goes, and when a new one may be asked for.
//!
//! A daemon comes and goes with a label of its node. Between the moment the label is taken away
//! and the moment the daemon has gone, it still serves its mount: nobody may be given that one,
//! and the label must not come back, or the old daemon would stay.
//!
//! The one invariant: a daemon that somebody uses is never sent away, and a node is never
//! labelled while a daemon that was sent away is still there.

pub mod dataset;
pub mod meeting;
pub mod progress;
pub mod trouble;
mod version;

use std::collections::BTreeMap;

use jiff::Timestamp;
use midflight_api::fluid::{GENERATION_LABEL, UPDATE_STRATEGY_ANNOTATION};

use meeting::Refused;
pub use version::Version;

/// What becomes of a daemon when no workload on its node uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// It stays; users delete it when they want another.
    #[default]
    Keep,
    /// It goes if it is not what is wanted now.
    ReplaceIdle,
    /// It goes: its dataset has gone.
    Remove,
}

impl Policy {
    /// What a dataset's claim says.
    pub fn of_claim(annotations: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> Policy {
        if replaces_idle(annotations, labels) { Policy::ReplaceIdle } else { Policy::Keep }
    }
}

/// Whether a dataset's claim has idle daemons replaced. One that Fluid's own controller made says nothing of a strategy; there daemons tell
/// their generation where `cleanPolicy` is `OnFuseChanged`, and what is not told never differs.
pub fn replaces_idle(annotations: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    match annotations.get(UPDATE_STRATEGY_ANNOTATION).map(String::as_str) {
        Some(strategy) => strategy == "OnIdle",
        None => labels.contains_key(GENERATION_LABEL),
    }
}

/// What is known of a volume on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub policy: Policy,
    pub wanted: Version,
    /// What the daemon that serves says of itself; absent if none serves.
    pub running: Option<Version>,
    /// Workloads that use the mount.
    pub users: usize,
    /// Other volumes of the same daemon that are staged on the node: their workloads come or are there.
    pub neighbours: usize,
    /// Whether the daemon was sent away.
    pub leaving: bool,
    /// Whether the daemon that is wanted could come in its place, as far as the node knows.
    pub can_follow: bool,
    /// The daemon of this node that a first workload refused last.
    pub refused: Option<Refused>,
    pub now: Timestamp,
}

impl Seen {
    /// Whether the daemon would go for another one, so that it matters whether that one can come.
    pub fn asks_for_successor(&self) -> bool {
        self.policy == Policy::ReplaceIdle && !self.leaving && self.is_to_go()
    }

    fn is_to_go(&self) -> bool {
        let unwanted = match self.policy {
            Policy::Keep => false,
            Policy::ReplaceIdle => {
                let is_behind = |running: &Version| running.is_behind(&self.wanted);
                self.can_follow && !self.is_resigned() && self.running.as_ref().is_some_and(is_behind)
            }
            Policy::Remove => true,
        };
        unwanted && self.users == 0 && self.neighbours == 0
    }

    /// Whether the daemon came in the place of one that was refused for the same wish, and is as that was: so would the next one be.
    fn is_resigned(&self) -> bool {
        let (Some(refused), Some(running)) = (&self.refused, &self.running) else { return false };
        refused.comes_again(running, &self.wanted, self.now)
    }
}

/// What to do before a workload comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Label the node.
    Label,
    /// Take the label away and wait until the daemon has gone; then look again.
    SendAway,
    /// The daemon was sent away and is still there: wait; then look again.
    AwaitEnd,
}

pub fn arrive(seen: &Seen) -> Arrival {
    match seen.running {
        // Gone, or there never was one.
        None => Arrival::Label,
        Some(_) if seen.leaving => Arrival::AwaitEnd,
        // Whoever comes although the dataset has gone gets what is there.
        Some(_) if seen.policy != Policy::Remove && seen.is_to_go() => Arrival::SendAway,
        Some(_) => Arrival::Label,
    }
}

/// What to do when the last workload has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The daemon stays for the next one.
    Keep,
    /// Take the label away, so that the daemon goes.
    SendAway,
}

/// Why nothing is done yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{users} workloads on this node still use the mount")]
pub struct InUse {
    pub users: usize,
}

pub fn depart(seen: &Seen) -> Result<Departure, InUse> {
    // Whoever uses the mount then is theirs; the last of them decides.
    if seen.neighbours > 0 {
        return Ok(Departure::Keep);
    }
    if seen.users > 0 {
        return Err(InUse { users: seen.users });
    }
    // Sent away before, and interrupted: once more does no harm.
    if seen.leaving || seen.is_to_go() { Ok(Departure::SendAway) } else { Ok(Departure::Keep) }
}

/// What to do with a daemon for which no workload is staged, looked at now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// It waits for the next workload, or is used past the plugin.
    Keep,
    /// Take the label away, so that the daemon goes.
    SendAway,
    /// It was sent away and has gone: there is nothing left to look at.
    Forget,
}

pub fn rest(seen: &Seen) -> Rest {
    match seen.running {
        None if seen.leaving => Rest::Forget,
        _ if seen.neighbours > 0 || seen.users > 0 => Rest::Keep,
        _ if seen.leaving || seen.is_to_go() => Rest::SendAway,
        _ => Rest::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "fuse:1";
    const NEW: &str = "fuse:2";

    fn version(image: &str) -> Version {
        Version { image: Some(image.to_owned()), generation: None }
    }

    fn seen(policy: Policy, running: Option<&str>, users: usize, leaving: bool) -> Seen {
        let (wanted, running) = (version(NEW), running.map(version));
        let (neighbours, can_follow, refused, now) = (0, true, None, Timestamp::UNIX_EPOCH);
        Seen { policy, wanted, running, users, neighbours, leaving, can_follow, refused, now }
    }

    /// An old daemon was refused already, for that wish.
    fn resigned_for(wish: &str, seen: Seen) -> Seen {
        let (wish, version) = (version(wish), version(OLD));
        Seen { refused: Some(Refused { wish, version, has_gone: true, at: seen.now }), ..seen }
    }

    fn resigned(seen: Seen) -> Seen {
        resigned_for(NEW, seen)
    }

    /// The same, and nobody has seen that one go.
    fn refused_now(seen: Seen) -> Seen {
        let seen = resigned(seen);
        Seen { refused: seen.refused.map(|refused| Refused { has_gone: false, ..refused }), ..seen }
    }

    fn an_hour_later(seen: Seen) -> Seen {
        Seen { now: seen.now + meeting::INSISTS_AGAIN_AFTER, ..seen }
    }

    fn with_neighbour(seen: Seen) -> Seen {
        Seen { neighbours: 1, ..seen }
    }

    type Pairs = &'static [(&'static str, &'static str)];

    #[test]
    fn a_claim_says_what_becomes_of_idle_daemons() {
        const SET: Pairs = &[(GENERATION_LABEL, "2")];
        let map = |pairs: Pairs| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        #[rustfmt::skip]
        let cases: [(Pairs, Pairs, Policy); 5] = [
            (&[],                                         &[], Policy::Keep),
            (&[(UPDATE_STRATEGY_ANNOTATION, "OnDelete")], SET, Policy::Keep),
            (&[(UPDATE_STRATEGY_ANNOTATION, "OnIdle")],   SET, Policy::ReplaceIdle),
            (&[(UPDATE_STRATEGY_ANNOTATION, "OnIdle")],   &[], Policy::ReplaceIdle),
            (&[],                                         SET, Policy::ReplaceIdle),
        ];
        for (annotations, labels, expected) in cases {
            assert_eq!(
                Policy::of_claim(&map(annotations), &map(labels)),
                expected,
                "{annotations:?} {labels:?}"
            );
        }
    }

    /// A workload that comes gets the old one, instead of waiting for one that cannot come.
    #[test]
    fn nobody_lets_go_of_a_daemon_for_one_that_cannot_come() {
        use Policy::{Remove, ReplaceIdle};
        let without = |seen: Seen| Seen { can_follow: false, ..seen };
        let old = || seen(ReplaceIdle, Some(OLD), 0, false);
        assert!(old().asks_for_successor());
        assert_eq!(depart(&without(old())), Ok(Departure::Keep));
        assert_eq!(arrive(&without(old())), Arrival::Label);
        assert_eq!(rest(&without(old())), Rest::Keep);
        let others = [
            ("up to date", seen(ReplaceIdle, Some(NEW), 0, false)),
            ("used", seen(ReplaceIdle, Some(OLD), 1, false)),
            ("by hand", seen(Policy::Keep, Some(OLD), 0, false)),
            ("dataset gone", seen(Remove, Some(OLD), 0, false)),
            ("sent away already", seen(ReplaceIdle, Some(OLD), 0, true)),
            ("the next one would be the same", resigned(old())),
        ];
        for (name, seen) in others {
            assert!(!seen.asks_for_successor(), "{name}");
        }
        assert_eq!(depart(&without(seen(Remove, Some(OLD), 0, false))), Ok(Departure::SendAway));
        assert_eq!(arrive(&without(seen(ReplaceIdle, Some(OLD), 0, true))), Arrival::AwaitEnd);
    }

    #[test]
    fn an_idle_daemon_that_is_not_wanted_goes() {
        use {
            Departure::*,
            Policy::{Remove, ReplaceIdle},
        };
        #[rustfmt::skip]
        let cases = [
            ("up to date",          seen(ReplaceIdle,  Some(NEW), 0, false),                         Ok(Keep)),
            ("old",                 seen(ReplaceIdle,  Some(OLD), 0, false),                         Ok(SendAway)),
            ("old, by hand",        seen(Policy::Keep, Some(OLD), 0, false),                         Ok(Keep)),
            ("old and used",        seen(ReplaceIdle,  Some(OLD), 2, false),                         Err(InUse { users: 2 })),
            ("new and used",        seen(ReplaceIdle,  Some(NEW), 1, false),                         Err(InUse { users: 1 })),
            ("none there",          seen(ReplaceIdle,  None,      0, false),                         Ok(Keep)),
            ("sent away, crashed",  seen(ReplaceIdle,  Some(OLD), 0, true),                          Ok(SendAway)),
            ("another volume",      with_neighbour(seen(ReplaceIdle, Some(OLD), 0, false)),          Ok(Keep)),
            ("another in use",      with_neighbour(seen(ReplaceIdle, Some(OLD), 2, false)),          Ok(Keep)),
            ("dataset gone",        seen(Remove,       Some(NEW), 0, false),                         Ok(SendAway)),
            ("gone, none there",    seen(Remove,       None,      0, false),                         Ok(SendAway)),
            ("gone and used",       seen(Remove,       Some(NEW), 1, false),                         Err(InUse { users: 1 })),
            ("gone, another",       with_neighbour(seen(Remove, Some(NEW), 0, false)),               Ok(Keep)),
            ("old again",           resigned(seen(ReplaceIdle, Some(OLD), 0, false)),                Ok(Keep)),
            ("not seen gone",       refused_now(seen(ReplaceIdle, Some(OLD), 0, false)),             Ok(SendAway)),
            ("another wish",        resigned_for("fuse:3", seen(ReplaceIdle, Some(OLD), 0, false)),  Ok(SendAway)),
            ("long ago",            an_hour_later(resigned(seen(ReplaceIdle, Some(OLD), 0, false))), Ok(SendAway)),
            ("again, dataset gone", resigned(seen(Remove, Some(OLD), 0, false)),                     Ok(SendAway)),
        ];
        for (name, seen, expected) in cases {
            assert_eq!(depart(&seen), expected, "{name}");
        }
    }

    #[test]
    fn nobody_gets_a_daemon_that_goes() {
        use {
            Arrival::*,
            Policy::{Remove, ReplaceIdle},
        };
        #[rustfmt::skip]
        let cases = [
            ("none there",             seen(ReplaceIdle,  None,      0, false),                         Label),
            ("sent away and gone",     seen(ReplaceIdle,  None,      0, true),                          Label),
            ("sent away, still there", seen(ReplaceIdle,  Some(OLD), 0, true),                          AwaitEnd),
            ("up to date",             seen(ReplaceIdle,  Some(NEW), 0, false),                         Label),
            ("idle before the change", seen(ReplaceIdle,  Some(OLD), 0, false),                         SendAway),
            ("old, used by another",   seen(ReplaceIdle,  Some(OLD), 1, false),                         Label),
            ("old, by hand",           seen(Policy::Keep, Some(OLD), 0, false),                         Label),
            ("the dataset has gone",   seen(Remove,       Some(OLD), 0, false),                         Label),
            ("old, another volume",    with_neighbour(seen(ReplaceIdle, Some(OLD), 0, false)),          Label),
            ("old, and old again",     resigned(seen(ReplaceIdle, Some(OLD), 0, false)),                Label),
            ("older than that",        resigned(seen(ReplaceIdle, Some("fuse:0"), 0, false)),           SendAway),
            ("old again, sent away",   resigned(seen(ReplaceIdle, Some(OLD), 0, true)),                 AwaitEnd),
            ("old, not seen gone",     refused_now(seen(ReplaceIdle, Some(OLD), 0, false)),             SendAway),
            ("old again, long ago",    an_hour_later(resigned(seen(ReplaceIdle, Some(OLD), 0, false))), SendAway),
        ];
        for (name, seen, expected) in cases {
            assert_eq!(arrive(&seen), expected, "{name}");
        }
    }

    #[test]
    fn a_daemon_at_rest_goes_once_it_is_outdated() {
        use Policy::{Remove, ReplaceIdle};
        #[rustfmt::skip]
        let cases = [
            ("up to date",          seen(ReplaceIdle,  Some(NEW), 0, false),                         Rest::Keep),
            ("old",                 seen(ReplaceIdle,  Some(OLD), 0, false),                         Rest::SendAway),
            ("old, by hand",        seen(Policy::Keep, Some(OLD), 0, false),                         Rest::Keep),
            ("old, used by others", seen(ReplaceIdle,  Some(OLD), 1, false),                         Rest::Keep),
            ("a workload comes",    with_neighbour(seen(ReplaceIdle, Some(OLD), 0, false)),          Rest::Keep),
            ("not started yet",     seen(ReplaceIdle,  None,      0, false),                         Rest::Keep),
            ("sent away, crashed",  seen(ReplaceIdle,  Some(OLD), 0, true),                          Rest::SendAway),
            ("sent away and gone",  seen(ReplaceIdle,  None,      0, true),                          Rest::Forget),
            ("dataset gone",        seen(Remove,       Some(NEW), 0, false),                         Rest::SendAway),
            ("gone with its pod",   seen(Remove,       None,      0, false),                         Rest::SendAway),
            ("old again",           resigned(seen(ReplaceIdle, Some(OLD), 0, false)),                Rest::Keep),
            ("another wish",        resigned_for("fuse:3", seen(ReplaceIdle, Some(OLD), 0, false)),  Rest::SendAway),
            ("long ago",            an_hour_later(resigned(seen(ReplaceIdle, Some(OLD), 0, false))), Rest::SendAway),
        ];
        for (name, seen, expected) in cases {
            assert_eq!(rest(&seen), expected, "{name}");
        }
    }
}
