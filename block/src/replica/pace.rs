//! How work on the layers makes way for requests.
//!
//! Invariant: while requests come, at most a fifth of the time goes into work that can wait.

use std::time::{Duration, Instant};

/// So long after a request others are expected.
const BUSY_FOR: Duration = Duration::from_millis(100);
/// For every moment of work so many of rest.
const RESTS: u32 = 4;

/// When the next piece of work may be done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// When the last request came.
    heard: Option<Instant>,
    rested: Option<Instant>,
}

impl Pace {
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// A piece of work was done.
    pub(super) fn worked(&mut self, began: Instant, ended: Instant) {
        let is_busy = self.heard.is_some_and(|heard| ended < heard + BUSY_FOR);
        self.rested = is_busy.then(|| ended + (ended - began) * RESTS);
    }

    /// When there is time for the next piece.
    pub(super) fn next(&self, now: Instant) -> Instant {
        self.rested.map_or(now, |rested| rested.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_rests_while_requests_come() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // When a request came, when a piece of work began and ended, and when the next may begin.
        let cases = [
            ("nobody asked ever", None, (0, 5), 5),
            ("somebody asks", Some(4), (3, 5), 13),
            ("and asked just now", Some(0), (90, 99), 135),
            ("but not for long", Some(0), (95, 100), 100),
        ];
        for (name, heard, (began, ended), next) in cases {
            let mut pace = Pace::default();
            heard.into_iter().for_each(|heard| pace.heard(at(heard)));
            assert_eq!(pace.next(at(began)), at(began), "{name}: the first is done at once");
            pace.worked(at(began), at(ended));
            assert_eq!(pace.next(at(ended)), at(next), "{name}");
            assert_eq!(pace.next(at(next + 7)), at(next + 7), "{name}: what is due is due now");
        }
    }
}
