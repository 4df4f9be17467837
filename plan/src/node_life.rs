//! Decides when a node that is not heard of counts as lost.
//!
//! The one invariant: a node whose lease holds is never called lost, and no lease ends sooner than its time after it was seen:
//! whoever begins late has not waited for anybody yet.

use jiff::{SignedDuration, Timestamp};

/// Everything that is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub now: Timestamp,
    /// Nothing if its agent was never heard of.
    pub lease: Option<Lease>,
    /// Whether the API says already that nobody knows how it is.
    pub lost: bool,
}

/// What an agent last let be heard of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub renewed: Timestamp,
    /// When the observer saw it first: not before it has begun.
    pub seen: Timestamp,
    /// For how long it holds.
    pub holds: SignedDuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Say that nobody knows how the node is.
    CallLost,
    /// All is said; look again then.
    LookAt(Timestamp),
    Nothing,
}

pub fn decide(seen: &Observed) -> Action {
    // A node that somebody else keeps has no lease.
    let Some(lease) = seen.lease else { return Action::Nothing };
    let until = lease.renewed.max(lease.seen).checked_add(lease.holds).unwrap_or(Timestamp::MAX);
    match seen.now >= until {
        true if seen.lost => Action::Nothing,
        true => Action::CallLost,
        false => Action::LookAt(until),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_for_longer_than_a_lease_is_loss() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let holds = SignedDuration::from_secs(40);
        let lease = |renewed: i64, seen: i64| Some(Lease { renewed: at(renewed), seen: at(seen), holds });
        #[rustfmt::skip]
        let cases = [
            ("never heard of",       None,            false, Action::Nothing),
            ("just heard of",        lease(100, 100), false, Action::LookAt(at(140))),
            ("lease runs out",       lease(60, 60),   false, Action::CallLost),
            ("said already",         lease(60, 60),   true,  Action::Nothing),
            ("back again",           lease(99, 99),   true,  Action::LookAt(at(139))),
            ("clock ran ahead",      lease(500, 99),  false, Action::LookAt(at(540))),
            ("its clock is behind",  lease(10, 99),   false, Action::LookAt(at(139))),
            ("control begins late",  lease(10, 100),  false, Action::LookAt(at(140))),
            ("nobody came since",    lease(10, 60),   false, Action::CallLost),
            ("lost before that",     lease(10, 100),  true,  Action::LookAt(at(140))),
        ];
        for (case, lease, lost, expected) in cases {
            assert_eq!(decide(&Observed { now: at(100), lease, lost }), expected, "{case}");
        }
    }
}
