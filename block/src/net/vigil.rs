//! How long a loop looks for the next event before it sleeps.
//!
//! To be woken costs more than most requests, most of all where an idle CPU is a
//! virtual one that has to be fetched back. So a loop whose last events came soon
//! after it began to wait looks for the next one for as long; one that waited in vain
//! sleeps at once. Between two looks it lets others run.
//!
//! Where several messages come at once there is something to do for everyone: whoever looks
//! takes the CPU from those whom it waits for, and a scheduler that makes those who give way
//! wait for a whole turn, as recent ones do, turns microseconds into milliseconds.
//!
//! Invariant: where others keep the CPU busy, or messages come several at once, nobody looks;
//! and nobody ever looks for longer than `LONGEST` at a time.

use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_micros(10);
const LONGEST: Duration = Duration::from_micros(200);
/// Letting others run takes longer only where they do not wait as well.
const CROWDED: Duration = Duration::from_micros(300);
const SLEEP_AFTER_CROWD: Duration = Duration::from_millis(100);
/// Waits without a look after several messages have come at once.
const SLEEPS_AFTER_SEVERAL: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct Vigil {
    limit: Duration,
    crowded_until: Option<Instant>,
    /// Waits that are left without a look.
    sleeps: u32,
}

impl Vigil {
    /// For how long to look in the wait that begins now, at most.
    pub(super) fn limit(&mut self, now: Instant) -> Duration {
        if self.sleeps > 0 {
            self.sleeps -= 1;
            return Duration::ZERO;
        }
        match self.crowded_until {
            Some(until) if now < until => Duration::ZERO,
            Some(_) | None => self.limit,
        }
    }

    /// Several messages have come at once.
    pub(super) fn had_several(&mut self) {
        self.sleeps = SLEEPS_AFTER_SEVERAL;
    }

    /// Others had the CPU for this long.
    pub(super) fn gave_way(&mut self, now: Instant, took: Duration) {
        if took >= CROWDED {
            self.crowded_until = Some(now + SLEEP_AFTER_CROWD);
        }
    }

    /// The event came after this long.
    pub(super) fn learn(&mut self, waited: Duration) {
        if waited > LONGEST {
            self.limit = Duration::ZERO;
        } else if waited > self.limit {
            self.limit = (2 * self.limit).clamp(SHORTEST, LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_as_long_as_it_has_paid_lately() {
        let us = Duration::from_micros;
        #[rustfmt::skip]
        let cases = [
            ("at first nobody looks",      vec![],                     us(0)),
            ("a quick event",              vec![us(8)],                us(10)),
            ("quicker ones",               vec![us(8), us(3), us(3)],  us(10)),
            ("slower ones",                vec![us(8), us(30)],        us(20)),
            ("never for longer",           vec![us(200); 10],          us(200)),
            ("a pause",                    vec![us(8), us(201)],       us(0)),
        ];
        for (name, waits, expected) in cases {
            let mut vigil = Vigil::default();
            waits.into_iter().for_each(|waited| vigil.learn(waited));
            assert_eq!(vigil.limit(Instant::now()), expected, "{name}");
        }
    }

    #[test]
    fn sleeps_while_messages_come_several_at_once() {
        let (mut vigil, now) = (Vigil::default(), Instant::now());
        vigil.learn(SHORTEST);
        assert_eq!(vigil.limit(now), SHORTEST);
        vigil.had_several();
        assert!((0..SLEEPS_AFTER_SEVERAL).all(|_| vigil.limit(now).is_zero()));
        assert_eq!(vigil.limit(now), SHORTEST);
    }

    #[test]
    fn gives_up_for_a_while_where_others_need_the_cpu() {
        let (mut vigil, now) = (Vigil::default(), Instant::now());
        vigil.learn(SHORTEST);
        vigil.gave_way(now, CROWDED / 2);
        assert_eq!(vigil.limit(now), SHORTEST);
        vigil.gave_way(now, CROWDED);
        assert_eq!(vigil.limit(now), Duration::ZERO);
        assert_eq!(vigil.limit(now + SLEEP_AFTER_CROWD), SHORTEST);
    }
}
