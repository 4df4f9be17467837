//! Decides which replicas of a node may be rebuilt now.
//!
//! A volume asks for the rebuild of a copy that is back, by a condition of its Replica; here those of one node get their turns, who
//! asked first before others. The volume takes the condition away when the copy is whole, or cannot be rebuilt any more, and its
//! engine has heard so. One whose rebuild does not begin goes behind those that wait.
//!
//! ```text
//! asks ─▶ given ─ its rebuild has begun ─▶ under way ─▶ ends ─ its engine has heard so ─▶ asks no more, or anew
//!           └────────── does not begin, and others wait ──▲
//! ```
//!
//! The invariant: no grant makes them more than the limit, also while an engine may still rebuild what it was told to before, unless it
//! cannot be told otherwise for a minute.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use midflight_api::longhorn::{Condition, ConditionStatus, Replica};
use midflight_api::{NodeName, ReplicaName};

/// Condition of a replica that is not whole: whether it may be rebuilt.
pub const REBUILD: &str = "RebuildPermitted";
/// Its reason once the rebuild has begun.
const UNDER_WAY: &str = "UnderWay";
/// Its reason while the engine may not have heard that the turn is over.
const ENDS: &str = "Ends";
/// The setting with the limit.
pub const LIMIT: &str = "concurrent-replica-rebuild-per-node-limit";

/// How long a turn is kept for a replica whose rebuild does not begin, while others wait.
pub const BEGINS_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// How long a turn that is over counts while the engine cannot be told so.
const HEARD_WITHIN: SignedDuration = SignedDuration::from_secs(60);

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
    pub turn: Turn,
    /// When it asked, was permitted, or lost its turn.
    pub since: Timestamp,
}

/// How far a replica is with its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Asks,
    Given,
    /// Its rebuild was seen to have begun.
    UnderWay,
    /// It is over, and the engine may not have heard so.
    Ends,
}

impl Turn {
    pub fn of(condition: &Condition) -> Turn {
        match (condition.status == ConditionStatus::True, condition.reason.as_str()) {
            (true, UNDER_WAY) => Turn::UnderWay,
            (true, _) => Turn::Given,
            (false, ENDS) => Turn::Ends,
            (false, _) => Turn::Asks,
        }
    }

    /// The condition that says so.
    pub fn condition(self, now: &str) -> Condition {
        let (status, reason) = match self {
            Turn::Asks => (ConditionStatus::False, "Asks"),
            Turn::Given => (ConditionStatus::True, "Permitted"),
            Turn::UnderWay => (ConditionStatus::True, UNDER_WAY),
            Turn::Ends => (ConditionStatus::False, ENDS),
        };
        condition(status, reason, String::new(), now)
    }
}

impl Candidate {
    /// Nothing for a replica that does not ask.
    pub fn of(replica: &Replica) -> Option<Candidate> {
        let condition = replica.status.as_ref()?.instance.conditions.get(REBUILD)?;
        Some(Candidate {
            replica: replica.name_any().into(),
            turn: Turn::of(condition),
            since: condition.last_transition_time.as_str().parse().unwrap_or(Timestamp::MAX),
        })
    }

    /// When one that does not use its turn is to give it up, or one that has lost it counts no more.
    fn until(&self) -> Option<Timestamp> {
        let within = match self.turn {
            Turn::Given => BEGINS_WITHIN,
            Turn::Ends => HEARD_WITHIN,
            Turn::Asks | Turn::UnderWay => return None,
        };
        Some(self.since.checked_add(within).unwrap_or(Timestamp::MAX))
    }

    fn is_late(&self, now: Timestamp) -> bool {
        self.until().is_some_and(|until| until <= now)
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
        let waits = |reason, why: &Wait| condition(ConditionStatus::False, reason, why.to_string(), now);
        match self {
            Verdict::Permitted => Turn::Given.condition(now),
            Verdict::Waits(why @ Wait::TookTooLong) => waits(ENDS, why),
            Verdict::Waits(why) => waits("RebuildLimit", why),
        }
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

/// When somebody who waits may have the turn of another that does not use it, or does not end.
pub fn look_again(seen: &Observed) -> Option<Timestamp> {
    let is_awaited = seen.replicas.iter().any(|one| one.turn == Turn::Asks);
    let ahead = seen.replicas.iter().filter_map(Candidate::until).filter(|until| *until > seen.now);
    ahead.min().filter(|_| is_awaited)
}

/// What each replica is told that asks, or loses its turn.
pub fn decide(seen: &Observed) -> Vec<(ReplicaName, Verdict)> {
    let of = |turn: Turn| seen.replicas.iter().filter(move |one| one.turn == turn);
    let mut asking: Vec<&Candidate> = of(Turn::Asks).collect();
    asking.sort_by_key(|one| (one.since, one.replica.clone()));
    let ending = of(Turn::Ends).filter(|one| !one.is_late(seen.now)).count();
    // Where no rebuild begins, or nobody else waits for another turn, none gains by it.
    let wanted = if seen.limit == 0 { 0 } else { asking.len().saturating_sub(ending) };
    let late = of(Turn::Given).filter(|one| one.is_late(seen.now)).take(wanted);
    // Who loses its turn here holds it until its engine has heard so.
    let held = of(Turn::Given).count() + of(Turn::UnderWay).count() + ending;
    let free = seen.limit.saturating_sub(held);
    let verdict = |place: usize| match seen.limit {
        0 => Verdict::Waits(Wait::Off),
        _ if place < free => Verdict::Permitted,
        limit => Verdict::Waits(Wait::Full { node: seen.node.clone(), limit }),
    };
    let lost = late.map(|one| (one.replica.clone(), Verdict::Waits(Wait::TookTooLong)));
    lost.chain(asking.iter().enumerate().map(|(place, one)| (one.replica.clone(), verdict(place)))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(name: &str, turn: Turn, since: i64) -> Candidate {
        Candidate { replica: name.into(), turn, since: Timestamp::from_second(since).unwrap() }
    }

    fn seen(limit: usize, replicas: Vec<Candidate>) -> Observed {
        Observed { node: "n-1".into(), now: Timestamp::from_second(100).unwrap(), limit, replicas }
    }

    #[test]
    fn turns_are_given_to_who_asked_first_as_far_as_the_limit_goes() {
        let (up, asks) = (|name| one(name, Turn::UnderWay, 1), |name, since| one(name, Turn::Asks, since));
        let idle = |name, since| one(name, Turn::Given, since);
        let ends = |name, since| one(name, Turn::Ends, since);
        #[rustfmt::skip]
        let cases = [
            ("nobody asks",       5, vec![up("a")],                                  vec![]),
            ("there is room",     5, vec![up("a"), asks("b", 2)],                    vec![("b", true)]),
            ("the first of two",  2, vec![up("a"), asks("b", 3), asks("c", 2)],      vec![("c", true), ("b", false)]),
            ("the same moment",   1, vec![asks("c", 2), asks("b", 2)],               vec![("b", true), ("c", false)]),
            ("full",              1, vec![up("a"), asks("b", 2)],                    vec![("b", false)]),
            ("lowered meanwhile", 1, vec![up("a"), up("b"), asks("c", 2)],           vec![("c", false)]),
            ("off",               0, vec![asks("b", 2)],                             vec![("b", false)]),
            ("does not begin",    1, vec![idle("a", 40), asks("b", 90)],             vec![("a", false), ("b", false)]),
            ("may begin yet",     1, vec![idle("a", 41), asks("b", 90)],             vec![("b", false)]),
            ("nobody else waits", 1, vec![idle("a", 1)],                             vec![]),
            ("one waits for two", 2, vec![idle("a", 1), idle("b", 2), asks("c", 3)], vec![("a", false), ("c", false)]),
            ("and still does",    2, vec![ends("a", 99), idle("b", 2), asks("c", 3)], vec![("c", false)]),
            ("told it is over",   1, vec![ends("a", 99), asks("b", 90)],             vec![("b", false)]),
            ("cannot be told",    1, vec![ends("a", 40), asks("b", 90)],             vec![("b", true)]),
            ("has heard so",      1, vec![asks("a", 99), asks("b", 90)],             vec![("b", true), ("a", false)]),
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
        let asks = || vec![one("a", Turn::UnderWay, 1), one("b", Turn::Asks, 2)];
        let told = |limit| decide(&seen(limit, asks()))[0].1.condition("2026-01-01T00:00:00Z").message;
        assert!(told(0).as_str().contains("concurrent-replica-rebuild-per-node-limit is 0"), "{}", told(0));
        assert!(told(1).as_str().starts_with("node n-1 rebuilds"), "{}", told(1));
    }

    #[test]
    fn a_turn_that_is_not_used_is_looked_at_when_it_ends() {
        let when = |replicas| look_again(&seen(1, replicas)).map(Timestamp::as_second);
        let asks = || one("b", Turn::Asks, 90);
        #[rustfmt::skip]
        let cases = [
            ("idle",             vec![one("a", Turn::Given, 50), asks()],                             Some(110)),
            ("nobody waits",     vec![one("a", Turn::Given, 50)],                                     None),
            ("under way",        vec![one("a", Turn::UnderWay, 50), asks()],                          None),
            ("ends",             vec![one("a", Turn::Ends, 60), asks()],                              Some(120)),
            ("counts no more",   vec![one("a", Turn::Ends, 1), one("c", Turn::Given, 70), asks()],    Some(130)),
        ];
        for (name, replicas, expected) in cases {
            assert_eq!(when(replicas), expected, "{name}");
        }
    }

    #[test]
    fn a_condition_tells_how_far_a_turn_is() {
        let now = "2026-01-01T00:00:00Z";
        let told = |condition: &Condition| Turn::of(condition);
        for turn in [Turn::Asks, Turn::Given, Turn::UnderWay, Turn::Ends] {
            assert_eq!(told(&turn.condition(now)), turn);
        }
        assert_eq!(told(&Verdict::Permitted.condition(now)), Turn::Given);
        assert_eq!(told(&Verdict::Waits(Wait::Off).condition(now)), Turn::Asks);
        assert_eq!(told(&Verdict::Waits(Wait::TookTooLong).condition(now)), Turn::Ends);
    }

    proptest! {
        #[test]
        fn no_grant_makes_them_more_than_the_limit(
            limit in 0..5usize,
            under_way in 0..4usize,
            idle in 0..3usize,
            ending in 0..3usize,
            asking in 0..6usize,
        ) {
            let all = |name: &'static str, many: usize, turn, since| {
                (0..many).map(move |number| one(&format!("{name}-{number}"), turn, since))
            };
            let held = all("u", under_way, Turn::UnderWay, 1)
                .chain(all("i", idle, Turn::Given, 1))
                .chain(all("e", ending, Turn::Ends, 99));
            let granted = decide(&seen(limit, held.chain(all("a", asking, Turn::Asks, 2)).collect()));
            let granted = granted.iter().filter(|(_, verdict)| *verdict == Verdict::Permitted).count();
            let held = under_way + idle + ending;
            prop_assert!(granted == 0 || held + granted <= limit);
            prop_assert!(granted == asking.min(limit.saturating_sub(held)));
        }
    }
}
