//! Decides which replicas of a node may be rebuilt now.
//!
//! A volume asks for the rebuild of a copy that is back, by a condition of its Replica; here those of one node get their turns, who
//! asked first before others. The volume takes the condition away when the copy is whole, or cannot be rebuilt any more. One whose
//! rebuild does not begin goes behind those that wait.
//!
//! The invariant: no grant makes them more than the limit.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use midflight_api::longhorn::{Condition, ConditionStatus, Replica};
use midflight_api::{NodeName, ReplicaName};

/// Condition of a replica that is not whole: whether it may be rebuilt.
pub const REBUILD: &str = "RebuildPermitted";
/// Its reason once the rebuild has begun.
const UNDER_WAY: &str = "UnderWay";
/// The setting with the limit.
pub const LIMIT: &str = "concurrent-replica-rebuild-per-node-limit";

/// How long a turn is kept for a replica whose rebuild does not begin, while others wait.
pub const BEGINS_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// A node and those of its replicas that are rebuilt, or ask to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub node: NodeName,
    pub now: Timestamp,
    pub limit: usize,
    pub replicas: Vec<Candidate>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub replica: ReplicaName,
    pub is_permitted: bool,
    /// Whether its rebuild was seen to have begun.
    pub is_under_way: bool,
    /// When it asked, or was permitted.
    pub since: Timestamp,
}

impl Candidate {
    /// Nothing for a replica that does not ask.
    pub fn of(replica: &Replica) -> Option<Candidate> {
        let condition = replica.status.as_ref()?.instance.conditions.get(REBUILD)?;
        Some(Candidate {
            replica: replica.name_any().into(),
            is_permitted: condition.status == ConditionStatus::True,
            is_under_way: condition.reason == UNDER_WAY,
            since: condition.last_transition_time.as_str().parse().unwrap_or(Timestamp::MAX),
        })
    }
}

/// Whether a replica was told that it may be rebuilt.
pub fn is_permitted(replica: &Replica) -> bool {
    replica.status.as_ref().is_some_and(|status| status.instance.conditions.holds(REBUILD))
}

/// What a replica is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Permitted,
    Waits(Wait),
}

/// Why a replica is not rebuilt yet. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("no rebuild begins: the setting concurrent-replica-rebuild-per-node-limit is 0")]
    Off,
    #[error(
        "node {node} rebuilds as many replicas as the setting concurrent-replica-rebuild-per-node-limit lets it: {limit}"
    )]
    Full { node: NodeName, limit: usize },
    #[error("its rebuild did not begin within {} s, so others have their turn first; its engine may not reach it", BEGINS_WITHIN.as_secs())]
    TookTooLong,
}

impl Verdict {
    /// The condition that says so.
    pub fn condition(&self, now: &str) -> Condition {
        let (status, reason, message) = match self {
            Verdict::Permitted => (ConditionStatus::True, "Permitted", String::new()),
            Verdict::Waits(why) => (ConditionStatus::False, "RebuildLimit", why.to_string()),
        };
        condition(status, reason, message, now)
    }
}

/// What a volume says of a copy that it would have rebuilt, and of one that is rebuilt already.
pub fn asks(is_under_way: bool, now: &str) -> Condition {
    match is_under_way {
        true => condition(ConditionStatus::True, UNDER_WAY, String::new(), now),
        false => condition(ConditionStatus::False, "Asks", String::new(), now),
    }
}

fn condition(status: ConditionStatus, reason: &str, message: String, now: &str) -> Condition {
    Condition {
        kind: REBUILD.into(),
        status,
        reason: reason.into(),
        message: message.into(),
        last_transition_time: now.into(),
        ..Condition::default()
    }
}

/// Replicas that hold a turn and do not use it, and when each is to give it up.
fn idle(seen: &Observed) -> impl Iterator<Item = (&Candidate, Timestamp)> {
    let idle = seen.replicas.iter().filter(|one| one.is_permitted && !one.is_under_way);
    idle.map(|one| (one, one.since.checked_add(BEGINS_WITHIN).unwrap_or(Timestamp::MAX)))
}

/// When somebody who waits may have the turn of another that does not use it.
pub fn look_again(seen: &Observed) -> Option<Timestamp> {
    let is_awaited = seen.replicas.iter().any(|one| !one.is_permitted);
    idle(seen).map(|(_, until)| until).min().filter(|_| is_awaited)
}

/// What each replica is told that asks, or loses its turn.
pub fn decide(seen: &Observed) -> Vec<(ReplicaName, Verdict)> {
    let mut asking: Vec<&Candidate> = seen.replicas.iter().filter(|one| !one.is_permitted).collect();
    asking.sort_by_key(|one| (one.since, one.replica.clone()));
    let late = idle(seen).filter(|(_, until)| *until <= seen.now).map(|(one, _)| one);
    // Where no rebuild begins, or nobody else waits, none gains by it.
    let late: Vec<&Candidate> = late.take(if seen.limit == 0 { 0 } else { asking.len() }).collect();
    let under_way = seen.replicas.iter().filter(|one| one.is_permitted).count() - late.len();
    let free = seen.limit.saturating_sub(under_way);
    let verdict = |place: usize| match seen.limit {
        0 => Verdict::Waits(Wait::Off),
        _ if place < free => Verdict::Permitted,
        limit => Verdict::Waits(Wait::Full { node: seen.node.clone(), limit }),
    };
    let lost = late.iter().map(|one| (one.replica.clone(), Verdict::Waits(Wait::TookTooLong)));
    lost.chain(asking.iter().enumerate().map(|(place, one)| (one.replica.clone(), verdict(place)))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(name: &str, is_permitted: bool, since: i64) -> Candidate {
        let since = Timestamp::from_second(since).unwrap();
        Candidate { replica: name.into(), is_permitted, is_under_way: is_permitted, since }
    }

    fn seen(limit: usize, replicas: Vec<Candidate>) -> Observed {
        Observed { node: "n-1".into(), now: Timestamp::from_second(100).unwrap(), limit, replicas }
    }

    #[test]
    fn turns_are_given_to_who_asked_first_as_far_as_the_limit_goes() {
        let (up, asks) = (|name| one(name, true, 1), |name, since| one(name, false, since));
        let idle = |name, since| Candidate { is_under_way: false, ..one(name, true, since) };
        #[rustfmt::skip]
        let cases = [
            ("nobody asks",       5, vec![up("a")],                                  vec![]),
            ("there is room",     5, vec![up("a"), asks("b", 2)],                    vec![("b", true)]),
            ("the first of two",  2, vec![up("a"), asks("b", 3), asks("c", 2)],      vec![("c", true), ("b", false)]),
            ("the same moment",   1, vec![asks("c", 2), asks("b", 2)],               vec![("b", true), ("c", false)]),
            ("full",              1, vec![up("a"), asks("b", 2)],                    vec![("b", false)]),
            ("lowered meanwhile", 1, vec![up("a"), up("b"), asks("c", 2)],           vec![("c", false)]),
            ("off",               0, vec![asks("b", 2)],                             vec![("b", false)]),
            ("does not begin",    1, vec![idle("a", 40), asks("b", 90)],             vec![("a", false), ("b", true)]),
            ("may begin yet",     1, vec![idle("a", 41), asks("b", 90)],             vec![("b", false)]),
            ("nobody else waits", 1, vec![idle("a", 1)],                             vec![]),
            ("one waits for two", 2, vec![idle("a", 1), idle("b", 2), asks("c", 3)], vec![("a", false), ("c", true)]),
            ("off, and idle",     0, vec![idle("a", 1), asks("b", 2)],               vec![("b", false)]),
        ];
        for (name, limit, replicas, expected) in cases {
            let told = decide(&seen(limit, replicas));
            let told: Vec<(&str, bool)> = told
                .iter()
                .map(|(replica, verdict)| (replica.as_str(), *verdict == Verdict::Permitted))
                .collect();
            assert_eq!(told, expected, "{name}");
        }
    }

    #[test]
    fn whoever_waits_is_told_why() {
        let asks = || vec![one("a", true, 1), one("b", false, 2)];
        let told = |limit| decide(&seen(limit, asks()))[0].1.condition("2026-01-01T00:00:00Z").message;
        assert!(told(0).as_str().contains("concurrent-replica-rebuild-per-node-limit is 0"), "{}", told(0));
        assert!(told(1).as_str().starts_with("node n-1 rebuilds"), "{}", told(1));
    }

    #[test]
    fn a_turn_that_is_not_used_is_looked_at_when_it_ends() {
        let idle = Candidate { is_under_way: false, ..one("a", true, 50) };
        let when = |replicas| look_again(&seen(1, replicas)).map(Timestamp::as_second);
        assert_eq!(when(vec![idle.clone(), one("b", false, 90)]), Some(110));
        assert_eq!(when(vec![idle]), None);
        assert_eq!(when(vec![one("a", true, 50), one("b", false, 90)]), None);
    }

    proptest! {
        #[test]
        fn no_grant_makes_them_more_than_the_limit(limit in 0..5usize, under_way in 0..6usize, asking in 0..6usize) {
            let up = (0..under_way).map(|number| one(&format!("u-{number}"), true, 1));
            let asks = (0..asking).map(|number| one(&format!("a-{number}"), false, 2));
            let granted = decide(&seen(limit, up.chain(asks).collect()));
            let granted = granted.iter().filter(|(_, verdict)| *verdict == Verdict::Permitted).count();
            prop_assert!(granted == 0 || under_way + granted <= limit);
            prop_assert!(granted == asking.min(limit.saturating_sub(under_way)));
        }
    }
}
