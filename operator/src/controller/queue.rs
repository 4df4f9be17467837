//! Which key has its turn, and when.
//!
//! The invariant: a key has one turn at a time, and a change that comes during a turn leads to another.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// The first wait after a failure; each further one in a row doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is done; another turn is due after this time, if any.
    Done(Option<Duration>),
    /// It was too early: try again after this time.
    Early(Duration),
    /// It failed: try again, later each time.
    Failed,
}

/// Keys and when they are due.
#[derive(Debug)]
pub(super) struct Queue<K> {
    due: BTreeSet<(Instant, K)>,
    keys: HashMap<K, Place>,
}

/// Where one key stands. One that is neither due, running nor failing has no place.
#[derive(Debug, Default)]
struct Place {
    due: Option<Instant>,
    running: bool,
    failures: u32,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Queue { due: BTreeSet::new(), keys: HashMap::new() }
    }
}

impl<K: Clone + Ord + Hash> Queue<K> {
    /// Gives a key a turn at this time, or earlier if it is due before.
    pub(super) fn add(&mut self, key: K, at: Instant) {
        let place = self.keys.entry(key.clone()).or_default();
        match place.due {
            Some(due) if due <= at => return,
            Some(due) => {
                self.due.remove(&(due, key.clone()));
            }
            None => {}
        }
        place.due = Some(at);
        if !place.running {
            self.due.insert((at, key));
        }
    }

    /// Begins the turn of the key that has been due for longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        let next = self.due.first().filter(|(at, _)| *at <= now)?.clone();
        self.due.remove(&next);
        let (_, key) = next;
        let place = self.keys.get_mut(&key).expect("a key that is due has a place");
        place.due = None;
        place.running = true;
        Some(key)
    }

    /// When the next key is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends the turn of a key. Returns how long it waits if it failed.
    pub(super) fn end(&mut self, key: K, ended: Ended, now: Instant) -> Option<Duration> {
        let place = self.keys.get_mut(&key).expect("a key that runs has a place");
        place.running = false;
        let (mut again, wait) = match ended {
            Ended::Done(after) => {
                place.failures = 0;
                (after.map(|after| now + after), None)
            }
            Ended::Early(after) => (Some(now + after), None),
            Ended::Failed => {
                let wait = FIRST_WAIT.saturating_mul(1 << place.failures.min(16)).min(LONGEST_WAIT);
                place.failures += 1;
                (Some(now + wait), Some(wait))
            }
        };
        // What changed during a turn that failed waits with it: otherwise a failure that itself
        // changes something would spin.
        let meanwhile = place.due.take().filter(|_| wait.is_none());
        again = again.into_iter().chain(meanwhile).min();
        match again {
            Some(at) => self.add(key, at),
            None if place.failures == 0 => {
                self.keys.remove(&key);
            }
            None => {}
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_key_has_one_turn_at_a_time_and_none_is_missed() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add("a", now);
        queue.add("a", now);
        queue.add("b", now + MS);
        assert_eq!(queue.take(now), Some("a"));
        assert_eq!(queue.take(now), None, "b is not due yet");
        queue.add("a", now);
        assert_eq!(queue.take(now + MS), Some("b"));
        assert_eq!(queue.take(now + MS), None, "a has its turn");
        queue.end("a", Ended::Done(None), now + MS);
        assert_eq!(queue.take(now + MS), Some("a"), "it changed during its turn");
        queue.end("a", Ended::Done(None), now + MS);
        queue.end("b", Ended::Done(None), now + MS);
        assert_eq!(queue.next_due(), None);
        assert!(queue.keys.is_empty(), "what is done is forgotten");
    }

    #[test]
    fn the_earlier_of_two_times_counts() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add("a", now + 10 * MS);
        queue.add("a", now + 20 * MS);
        assert_eq!(queue.next_due(), Some(now + 10 * MS));
        queue.add("a", now);
        assert_eq!(queue.take(now), Some("a"));
        queue.add("a", now + 5 * MS);
        queue.end("a", Ended::Done(Some(30 * MS)), now);
        assert_eq!(queue.next_due(), Some(now + 5 * MS));
    }

    #[test]
    fn failures_wait_longer_each_time_and_success_forgets_them() {
        let mut queue = Queue::default();
        let mut now = Instant::now();
        queue.add("a", now);
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert_eq!(queue.take(now), Some("a"));
            queue.add("a", now);
            waits.push(queue.end("a", Ended::Failed, now).unwrap());
            now = queue.next_due().unwrap();
        }
        assert_eq!(waits[..3], [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT]);
        assert_eq!(waits[11], LONGEST_WAIT);
        queue.take(now);
        queue.end("a", Ended::Done(None), now);
        queue.add("a", now);
        queue.take(now);
        assert_eq!(queue.end("a", Ended::Failed, now), Some(FIRST_WAIT));
    }
}
