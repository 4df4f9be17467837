//! How often something is told of an object, however often it changes.
//!
//! The invariant: what was held back is told when its time has come; nothing that a successor needs is here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::controller::Key;

#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    /// When it was last told.
    told: Mutex<HashMap<Key, Instant>>,
}

impl Pace {
    pub(super) fn new(every: Duration) -> Pace {
        Pace { every, told: Mutex::default() }
    }

    /// Whether it may be told now, which counts as told; else how long to wait.
    pub(super) fn tell(&self, key: &Key, now: Instant) -> Result<(), Duration> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        // What may be told again needs no memory.
        told.retain(|_, last| now.saturating_duration_since(*last) < self.every);
        match told.get(key) {
            Some(last) => Err(self.every - now.saturating_duration_since(*last)),
            None => {
                told.insert(key.clone(), now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_often_is_told_now_and_then() {
        let pace = Pace::new(Duration::from_secs(5));
        let (one, two, begin) = (Key::new("a", "one"), Key::new("a", "two"), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let wait = |seconds| Err(Duration::from_secs(seconds));
        #[rustfmt::skip]
        let cases = [(&one, 0, Ok(())), (&one, 1, wait(4)), (&two, 1, Ok(())), (&one, 4, wait(1)), (&one, 5, Ok(())), (&one, 6, wait(4))];
        for (key, seconds, expected) in cases {
            assert_eq!(pace.tell(key, at(seconds)), expected, "{key} at {seconds}");
        }
    }
}
