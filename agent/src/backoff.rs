//! How long to wait before the next attempt: twice as long each time, up to a limit.

use std::time::Duration;

/// Counts failures in a row.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    pub fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most, failures: 0 }
    }

    /// The wait after one more failure.
    pub fn failed(&mut self) -> Duration {
        let wait = self.first.saturating_mul(2u32.saturating_pow(self.failures)).min(self.most);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit_and_starts_over_after_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(500));
        let waits: Vec<_> = (0..5).map(|_| backoff.failed()).collect();
        assert_eq!(waits, [ms(100), ms(200), ms(400), ms(500), ms(500)]);
        backoff.succeeded();
        assert_eq!(backoff.failed(), ms(100));
        backoff.failures = u32::MAX;
        assert_eq!(backoff.failed(), ms(500));
    }
}
