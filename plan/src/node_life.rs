//! Decides when a node that is not heard of counts as lost.
//!
//! The one invariant: a node whose lease holds is never called lost.

use jiff::{SignedDuration, Timestamp};

/// Everything that is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub now: Timestamp,
    /// When its agent was last heard of, and for how long that holds; nothing if it never was.
    pub lease: Option<(Timestamp, SignedDuration)>,
    /// Whether the API says already that nobody knows how it is.
    pub lost: bool,
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
    let Some((renewed, holds)) = seen.lease else { return Action::Nothing };
    let until = renewed.checked_add(holds).unwrap_or(Timestamp::MAX);
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
        let lease = |renewed: i64| Some((at(renewed), SignedDuration::from_secs(40)));
        #[rustfmt::skip]
        let cases = [
            ("never heard of",   None,       false, Action::Nothing),
            ("just heard of",    lease(100), false, Action::LookAt(at(140))),
            ("lease runs out",   lease(60),  false, Action::CallLost),
            ("said already",     lease(60),  true,  Action::Nothing),
            ("back again",       lease(99),  true,  Action::LookAt(at(139))),
            ("clock ran ahead",  lease(500), false, Action::LookAt(at(540))),
        ];
        for (case, lease, lost, expected) in cases {
            assert_eq!(decide(&Observed { now: at(100), lease, lost }), expected, "{case}");
        }
    }
}
