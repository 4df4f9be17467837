//! What threads make of what they see. Nothing here reads a clock or knows of threads, so every rule can be tested as a table.

use std::time::Duration;

/// A call that took so long is one during which others may have waited.
const LONG: Duration = Duration::from_micros(150);
/// A call that came so soon was there already.
const AT_ONCE: Duration = Duration::from_micros(3);
/// So many calls in a row that were there already mean that there are more than can be answered.
const PRESSED: u32 = 16;
/// So many calls in a row that one thread could have answered alone mean that one is too many.
const ALONE: u32 = 256;
/// Longest that the next call is looked for before sleeping.
const WORTH_LOOKING: Duration = Duration::from_micros(200);
/// One look takes less, unless the processor was given to somebody else meanwhile.
const ONE_LOOK: Duration = Duration::from_micros(50);
/// For so many calls nobody looks after the processor was wanted by somebody else.
const HOLD_BACK: u32 = 64;

/// What a call asks of the crew before it is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Quick,
    /// Others must not wait for its end.
    Slow,
}

/// Whether one thread has been enough of late, so that another that waits may rest.
pub(super) fn is_one_enough(alone: u32) -> bool {
    alone > ALONE
}

/// What one thread has learnt from its calls.
#[derive(Debug, Default)]
pub(super) struct Sense {
    was_long: bool,
    /// Calls in a row that were there already.
    pressed: u32,
    gaps: Gaps,
}

/// What the crew has to do about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// Somebody had to wait for this thread.
    pub(super) had_to_wait: bool,
    /// One more should wait for calls.
    pub(super) help: bool,
}

impl Sense {
    /// A call has come, so long after this thread was free for it.
    pub(super) fn came(&mut self, after: Duration, pace: Pace) -> Need {
        self.gaps.came(after);
        let was_there = after < AT_ONCE;
        let had_to_wait = was_there && self.was_long;
        self.pressed = if was_there { self.pressed + 1 } else { 0 };
        let help = pace == Pace::Slow || had_to_wait || self.pressed >= PRESSED;
        if help {
            self.pressed = 0;
        }
        Need { had_to_wait, help }
    }

    /// The call took so long.
    pub(super) fn done(&mut self, took: Duration) {
        self.was_long = took > LONG;
    }

    pub(super) fn is_looking_worthwhile(&self) -> bool {
        self.gaps.are_short()
    }

    /// Whether to look once more, after looks that took so long in all, and the last of them.
    pub(super) fn looks_again(&mut self, all: Duration, last: Duration) -> bool {
        if last > ONE_LOOK {
            self.gaps.hold_back = HOLD_BACK;
            return false;
        }
        all < WORTH_LOOKING
    }
}

/// How soon calls come. A program that asks for one thing after another is answered soonest by somebody who does not sleep: waking up takes
/// longer than most calls do.
#[derive(Debug)]
struct Gaps {
    /// Middling time from one answer to the next call, of late.
    typical: Duration,
    /// Calls for which nobody looks.
    hold_back: u32,
}

impl Default for Gaps {
    fn default() -> Gaps {
        Gaps { typical: WORTH_LOOKING, hold_back: 0 }
    }
}

impl Gaps {
    fn came(&mut self, after: Duration) {
        // However long a pause was, it is one.
        let after = after.min(WORTH_LOOKING * 4);
        self.typical = (self.typical * 7 + after) / 8;
        self.hold_back = self.hold_back.saturating_sub(1);
    }

    fn are_short(&self) -> bool {
        self.hold_back == 0 && self.typical < WORTH_LOOKING / 2
    }
}

/// The crew at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) waiting: usize,
    pub(super) working: usize,
    pub(super) resting: usize,
    /// Calls that were ever begun.
    pub(super) begun: u64,
}

/// What whoever watches the crew does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    /// Nothing can get stuck before another call is begun.
    Sleep,
    LookAgain,
    /// All who are awake are at calls that get nowhere: one more has to wait for others.
    Ring,
}

/// Compares two looks at the crew.
pub(super) fn watch(before: &Seen, now: &Seen) -> Watch {
    if now.begun != before.begun {
        return Watch::LookAgain;
    }
    match now {
        Seen { waiting: 0, working: 1.., resting: 1.., .. } => Watch::Ring,
        _ => Watch::Sleep,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SOON: Duration = Duration::from_micros(10);
    const LATE: Duration = Duration::from_millis(10);
    const SHORT: Duration = Duration::from_micros(5);

    fn calls(sense: &mut Sense, after: Duration, count: usize) {
        for _ in 0..count {
            sense.came(after, Pace::Quick);
        }
    }

    #[test]
    fn another_is_called_where_somebody_waits_for_a_slow_call_or_calls_crowd() {
        let many = PRESSED as usize;
        #[rustfmt::skip]
        let cases = [
            ("calls that come one by one",        vec![(SOON, Pace::Quick, SHORT); 100],            None),
            ("long ones, for which nobody waits", vec![(SOON, Pace::Quick, LATE); 100],             None),
            ("one that is slow by its nature",    vec![(SOON, Pace::Slow, SHORT)],                  Some(0)),
            ("one that was there during another", vec![(SOON, Pace::Quick, LATE), (Duration::ZERO, Pace::Quick, SHORT)], Some(1)),
            ("calls that crowd",                  vec![(Duration::ZERO, Pace::Quick, SHORT); 100],  Some(many - 1)),
        ];
        for (name, calls, expected) in cases {
            let mut sense = Sense::default();
            let help = calls.into_iter().position(|(after, pace, took)| {
                let Need { help, .. } = sense.came(after, pace);
                sense.done(took);
                help
            });
            assert_eq!(help, expected, "{name}");
        }
    }

    #[test]
    fn calls_are_looked_for_only_where_they_come_soon() {
        let mut sense = Sense::default();
        assert!(!sense.is_looking_worthwhile(), "nothing is known yet");
        let mut feed = |after: Duration, count: usize| {
            calls(&mut sense, after, count);
            sense.is_looking_worthwhile()
        };
        assert!(feed(SOON, 20));
        assert!(!feed(LATE, 1), "looking through a long pause is in vain");
        assert!(feed(SOON, 20), "a pause is forgotten");
        assert!(!feed(LATE, 20));
    }

    #[test]
    fn looking_ends_after_a_while_or_when_somebody_else_wants_the_processor() {
        let mut sense = Sense::default();
        calls(&mut sense, SOON, 20);
        assert!(sense.looks_again(SHORT, SHORT));
        assert!(!sense.looks_again(WORTH_LOOKING, SHORT));
        assert!(sense.is_looking_worthwhile(), "a pause alone changes nothing");
        assert!(!sense.looks_again(LATE, LATE));
        assert!(!sense.is_looking_worthwhile());
        calls(&mut sense, SOON, HOLD_BACK as usize);
        assert!(sense.is_looking_worthwhile());
    }

    #[test]
    fn a_call_that_gets_nowhere_holds_up_nobody() {
        let seen = |waiting: usize, working: usize, resting: usize, begun: u64| Seen {
            waiting,
            working,
            resting,
            begun,
        };
        #[rustfmt::skip]
        let cases = [
            ("calls go on",                      seen(0, 1, 3, 7), seen(0, 1, 3, 8), Watch::LookAgain),
            ("nothing is asked",                 seen(1, 0, 3, 7), seen(1, 0, 3, 7), Watch::Sleep),
            ("one call hangs",                   seen(0, 1, 3, 7), seen(0, 1, 3, 7), Watch::Ring),
            ("it hangs, and another waits",      seen(1, 1, 2, 7), seen(1, 1, 2, 7), Watch::Sleep),
            ("the next one hangs, too",          seen(0, 2, 2, 8), seen(0, 2, 2, 8), Watch::Ring),
            ("all hang",                         seen(0, 4, 0, 9), seen(0, 4, 0, 9), Watch::Sleep),
            ("somebody is about to wait",        seen(0, 0, 3, 9), seen(0, 0, 3, 9), Watch::Sleep),
        ];
        for (name, before, now, expected) in cases {
            assert_eq!(watch(&before, &now), expected, "{name}");
        }
    }

    proptest! {
        /// Whatever calls come and however long they take, no time leads to a look that never ends.
        #[test]
        fn looking_has_an_end(looks in proptest::collection::vec(1u64..80, 300)) {
            let (mut sense, mut all) = (Sense::default(), Duration::ZERO);
            let ends = looks.into_iter().map(Duration::from_micros).any(|look| {
                all += look;
                !sense.looks_again(all, look)
            });
            prop_assert!(ends && all < WORTH_LOOKING + Duration::from_micros(80));
        }
    }
}
