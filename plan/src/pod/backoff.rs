//! How long to wait before something that failed is tried again, from how often it failed.

use std::time::Duration;

/// Twice as long each time, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    first: Duration,
    most: Duration,
    /// After that long without a failure, none is counted.
    pub forgotten_after: Duration,
}

/// Between starts of a container that keeps ending: the first is at once.
pub const CRASH: Ladder = Ladder {
    first: Duration::from_secs(1),
    most: Duration::from_secs(300),
    forgotten_after: Duration::from_secs(600),
};

/// Between tries to pull an image.
pub const PULL: Ladder = Ladder {
    first: Duration::from_secs(1),
    most: Duration::from_secs(300),
    forgotten_after: Duration::from_secs(600),
};

/// Between tries to start a container that lacks something, such as a volume: what it lacks may come at any moment.
pub const START: Ladder = Ladder {
    first: Duration::from_secs(1),
    most: Duration::from_secs(4),
    forgotten_after: Duration::from_secs(600),
};

/// How many failures in a row there are at most between two that people are told of.
const TOLD_AT_LEAST_EVERY: u32 = 64;

/// Whether people are told of a failure after so many in a row: ever more seldom.
pub fn is_told(failures: u32) -> bool {
    match failures < TOLD_AT_LEAST_EVERY {
        true => failures.is_power_of_two(),
        false => failures.is_multiple_of(TOLD_AT_LEAST_EVERY),
    }
}

impl Ladder {
    /// The wait after a failure that had `earlier` ones before it.
    pub fn wait(self, earlier: u32) -> Duration {
        match earlier {
            0 => Duration::ZERO,
            more => self.first.saturating_mul(2u32.saturating_pow(more - 1)).min(self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_try_is_at_once_and_no_wait_is_longer_than_the_limit() {
        let waits: Vec<u64> = (0..5).map(|earlier| CRASH.wait(earlier).as_secs()).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8]);
        assert_eq!(CRASH.wait(u32::MAX), CRASH.most);
    }

    #[test]
    fn failures_are_told_ever_more_seldom_and_never_in_silence() {
        let told: Vec<u32> = (0..=192).filter(|failures| is_told(*failures)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16, 32, 64, 128, 192]);
    }
}
