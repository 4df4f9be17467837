//! When to look again at what could not be finished.
//!
//! ```text
//! waits for something ──▶ looked at again soon, always after the same time
//! failed              ──▶ each time after twice as long, whatever is seen of it meanwhile
//! ```
//!
//! The one invariant: what fails again and again, such as a deletion that a webhook refuses, costs less and
//! less, and is never given up.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::Key;

/// How often waiting objects are looked for here, and the shortest time that one waits.
pub(super) const SOON: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Unfinished(HashMap<Key, Rest>);

#[derive(Debug)]
struct Rest {
    until: Instant,
    failures: u32,
    /// Given out to be looked at; what is known of its failures is kept until that is over.
    taken: bool,
}

impl Unfinished {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// It waits for others.
    pub(super) fn later(&mut self, key: Key, now: Instant) {
        self.0.insert(key, Rest { until: now + SOON, failures: 0, taken: false });
    }

    /// It could not be done; returns how long it rests.
    pub(super) fn failed(&mut self, key: Key, now: Instant) -> Duration {
        let failures = self.0.get(&key).map_or(0, |rest| rest.failures);
        let wait = SOON.saturating_mul(1 << failures.min(16)).min(LONGEST);
        self.0.insert(key, Rest { until: now + wait, failures: failures.saturating_add(1), taken: false });
        wait
    }

    pub(super) fn done(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Whether it failed and is not to be looked at yet.
    pub(super) fn rests(&self, key: &Key, now: Instant) -> bool {
        self.0.get(key).is_some_and(|rest| rest.failures > 0 && !rest.taken && rest.until > now)
    }

    /// Those whose time has come, each once.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Key> {
        let due = self.0.iter_mut().filter(|(_, rest)| !rest.taken && rest.until <= now);
        due.map(|(key, rest)| {
            rest.taken = true;
            key.clone()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::ResourceId;

    fn key(name: &str) -> Key {
        Key::new(ResourceId { group: "".into(), plural: "configmaps".into() }, Some("default"), name)
    }

    #[test]
    fn what_fails_rests_longer_each_time_and_what_waits_does_not() {
        let mut unfinished = Unfinished::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..9 {
            let wait = unfinished.failed(key("refused"), now);
            assert!(unfinished.rests(&key("refused"), now));
            assert_eq!(unfinished.take_due(now), []);
            now += wait;
            assert_eq!(unfinished.take_due(now), [key("refused")]);
            assert_eq!(unfinished.take_due(now), [], "it is being looked at");
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);

        unfinished.later(key("refused"), now);
        assert!(!unfinished.rests(&key("refused"), now), "what waits is looked at whenever it is seen");
        assert_eq!(unfinished.take_due(now + SOON), [key("refused")]);
        assert_eq!(unfinished.failed(key("refused"), now), SOON, "its failures are forgotten");
        unfinished.done(&key("refused"));
        assert!(unfinished.is_empty());
    }
}
