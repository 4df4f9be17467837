//! What becomes of an instance that has ended.
//!
//! ```text
//! Starting ─▶ Running ─ ended ─▶ Starting (an engine: the next incarnation)
//!     │                  ├─ another has the volume ─▶ Fenced
//!     └ never ran ─▶ Failed
//! ```
//!
//! Invariant: an engine is started again only within its own term, under an epoch
//! that no replica has promised to anyone.

use std::time::Duration;

use super::names::Kind;
use crate::epoch::Epoch;

/// What someone wants of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Serve,
    /// Serve, with particulars that only a new start takes up.
    ServeAnew,
    End,
}

/// Everything `decide` may look at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) kind: Kind,
    pub(super) wish: Wish,
    /// The highest epoch that one of its processes may have, or that it is to be started under first.
    pub(super) ours: Epoch,
    /// Term of the volume's record, if that can be read.
    pub(super) record: Option<u64>,
    /// The highest promise of its replicas, of those that answer.
    pub(super) promised: Option<Epoch>,
    /// Whether it ever could be reached.
    pub(super) ran: bool,
    /// How often in a row it ended soon after its start.
    pub(super) quick_ends: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Again { epoch: Epoch, after: Duration },
    Fenced { by: Epoch },
    Failed,
    Gone,
}

const FREE_ENDS: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Ends that come one after the other are waited between, ever longer.
fn pause(quick_ends: u32) -> Duration {
    match quick_ends.checked_sub(FREE_ENDS) {
        None => Duration::ZERO,
        Some(more) => LONGEST_WAIT.min(FIRST_WAIT * 2u32.pow(more.min(10))),
    }
}

pub(super) fn decide(seen: Seen) -> Next {
    if seen.wish == Wish::End {
        return Next::Gone;
    }
    let after = if seen.wish == Wish::ServeAnew { Duration::ZERO } else { pause(seen.quick_ends) };
    if !seen.ran && seen.wish == Wish::Serve {
        return Next::Failed;
    }
    match seen.kind {
        Kind::Replica => Next::Again { epoch: seen.ours, after },
        Kind::Engine => match start_epoch(seen.ours, seen.record, seen.promised, true) {
            Ok(Some(epoch)) => Next::Again { epoch, after },
            Ok(None) => Next::Failed,
            Err(by) => Next::Fenced { by },
        },
    }
}

/// The epoch an engine starts under; `Err` if another has the volume, `None` if its
/// term has no incarnation left. `used`: it was started under `ours` before.
pub(super) fn start_epoch(
    ours: Epoch,
    record: Option<u64>,
    promised: Option<Epoch>,
    used: bool,
) -> Result<Option<Epoch>, Epoch> {
    let highest = promised.max(record.map(Epoch::of_term)).unwrap_or(Epoch::NONE);
    if highest.term() > ours.term() {
        return Err(highest);
    }
    match promised {
        Some(promised) if promised.term() == ours.term() => Ok(promised.max(ours).next_incarnation()),
        _ if used => Ok(ours.next_incarnation()),
        _ => Ok(Some(ours)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(term: u64, incarnation: u64) -> Epoch {
        Epoch::from_bits(Epoch::of_term(term).bits() + incarnation)
    }

    #[test]
    fn an_engine_comes_back_in_its_term_and_in_no_other() {
        let engine = Seen {
            kind: Kind::Engine,
            wish: Wish::Serve,
            ours: at(5, 1),
            record: Some(5),
            promised: Some(at(5, 1)),
            ran: true,
            quick_ends: 0,
        };
        let again = |epoch| Next::Again { epoch, after: Duration::ZERO };
        #[rustfmt::skip]
        let cases = [
            ("killed",               engine,                                              again(at(5, 2))),
            ("promised higher",      Seen { promised: Some(at(5, 7)), ..engine },         again(at(5, 8))),
            ("nobody answers",       Seen { promised: None, ..engine },                   again(at(5, 2))),
            ("no record to be read", Seen { record: None, ..engine },                     again(at(5, 2))),
            ("older promises",       Seen { promised: Some(at(4, 9)), ..engine },         again(at(5, 2))),
            ("outbid by the record", Seen { record: Some(6), ..engine },                  Next::Fenced { by: at(6, 0) }),
            ("outbid by a promise",  Seen { promised: Some(at(7, 3)), ..engine },         Next::Fenced { by: at(7, 3) }),
            ("never ran",            Seen { ran: false, ..engine },                       Next::Failed),
            ("told to start anew",   Seen { wish: Wish::ServeAnew, ran: false, quick_ends: 9, ..engine }, again(at(5, 2))),
            ("told to end",          Seen { wish: Wish::End, record: Some(6), ..engine }, Next::Gone),
            ("out of incarnations",  Seen { ours: at(5, 0xffff), ..engine },              Next::Failed),
            ("a replica",            Seen { kind: Kind::Replica, ..engine },              again(at(5, 1))),
        ];
        for (name, seen, expected) in cases {
            assert_eq!(decide(seen), expected, "{name}");
        }
    }

    #[test]
    fn ends_in_a_row_are_waited_between_ever_longer() {
        let waits: Vec<Duration> = (0..40).map(pause).collect();
        assert!(waits[..3].iter().all(Duration::is_zero));
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(waits.last(), Some(&LONGEST_WAIT));
    }

    #[test]
    fn the_first_start_uses_what_nobody_has_promised() {
        assert_eq!(start_epoch(at(5, 0), Some(5), Some(at(4, 2)), false), Ok(Some(at(5, 0))));
        assert_eq!(start_epoch(at(5, 0), Some(5), Some(at(5, 0)), false), Ok(Some(at(5, 1))));
        assert_eq!(start_epoch(at(5, 0), Some(6), None, false), Err(at(6, 0)));
    }
}
