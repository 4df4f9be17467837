//! How fast a rebuild may go where it was asked to be slow.
//!
//! The engine has no clock: its driver says how much time has passed.
//!
//! Invariant: over any time, no more is copied than the rate allows and one burst.

use std::time::Duration;

/// What may be copied at once after a pause; at least one piece.
const BURST: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Default)]
pub(super) struct Throttle {
    /// Bytes per second; none for as fast as it goes.
    rate: Option<u64>,
    /// Bytes that may be copied now.
    credit: u64,
    /// Whether a piece waits for credit.
    waits: bool,
}

impl Throttle {
    pub(super) fn set(&mut self, rate: Option<u64>) {
        *self = Throttle { rate, credit: 0, waits: self.waits && rate.is_some() };
    }

    /// Bytes per second; none for as fast as it goes.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Whether a piece may begin now; if so it is paid for.
    pub(super) fn admits(&mut self, bytes: u64) -> bool {
        self.waits = self.rate.is_some() && self.credit < bytes;
        if !self.waits && self.rate.is_some() {
            self.credit -= bytes;
        }
        !self.waits
    }

    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Time has passed. A piece is at most `piece` bytes.
    pub(super) fn pass(&mut self, time: Duration, piece: u64) {
        let Some(rate) = self.rate else { return };
        let worth = |time: Duration| (u128::from(rate) * time.as_micros() / 1_000_000) as u64;
        self.credit = (self.credit + worth(time)).min(worth(BURST).max(piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 1000;

    /// Bytes copied in ten seconds by someone who tries every `every`.
    fn copied(rate: Option<u64>, every: Duration) -> u64 {
        let mut throttle = Throttle::default();
        throttle.set(rate);
        let mut copied = 0;
        for _ in 0..(10_000_000 / every.as_micros()) {
            throttle.pass(every, PIECE);
            while copied < 1_000_000 && throttle.admits(PIECE) {
                copied += PIECE;
            }
        }
        copied
    }

    #[test]
    fn copies_what_the_rate_allows_and_no_more() {
        let ms = Duration::from_millis;
        #[rustfmt::skip]
        let cases = [
            ("no limit",                 None,         ms(10),  1_000_000),
            ("slow",                     Some(5_000),  ms(10),     50_000),
            ("slower than a piece",      Some(500),    ms(10),      5_000),
            ("rarely looked at",         Some(5_000),  ms(1000),   10_000),
        ];
        for (name, rate, every, expected) in cases {
            assert_eq!(copied(rate, every), expected, "{name}");
        }
    }

    #[test]
    fn says_that_a_piece_waits_until_it_may_begin() {
        let mut throttle = Throttle::default();
        throttle.set(Some(1000));
        assert!(!throttle.admits(PIECE) && throttle.waits());
        throttle.pass(Duration::from_secs(1), PIECE);
        assert!(throttle.admits(PIECE) && !throttle.waits());
        assert!(!throttle.admits(PIECE) && throttle.waits());
        throttle.set(None);
        assert!(!throttle.waits() && throttle.admits(PIECE));
    }
}
