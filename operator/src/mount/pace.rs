//! How often it is told how the daemons of a dataset stand, however often that changes.
//!
//! The invariant: what was held back is told when its time has come; nothing that a successor needs is here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use midflight_plan::mount::progress::Standing;

use crate::controller::Key;

/// News is told so often at most.
const NEWS_EVERY: Duration = Duration::from_secs(5);
/// What is no news: so late at the latest.
const REST_EVERY: Duration = Duration::from_secs(300);

/// What was last told of each, and when.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<HashMap<Key, (Instant, Standing)>>);

impl Pace {
    /// How long to wait before it is told; nothing where it may be told now.
    pub(super) fn wait(&self, key: &Key, standing: Standing, now: Instant) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, told) = all.get(key)?;
        let every = if standing.is_news_after(told) { NEWS_EVERY } else { REST_EVERY };
        Some(every.saturating_sub(now.saturating_duration_since(*last))).filter(|wait| !wait.is_zero())
    }

    /// It was told, and whoever is told has heard it.
    pub(super) fn told(&self, key: &Key, standing: Standing, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What may be told again needs no memory.
        all.retain(|_, (last, _)| now.saturating_duration_since(*last) < REST_EVERY);
        all.insert(key.clone(), (now, standing));
    }
}

#[cfg(test)]
mod tests {
    use midflight_plan::mount::dataset::Generation;
    use midflight_plan::mount::progress::Counted;

    use super::*;

    fn standing(nodes: u32, ready: u32, outdated: u32) -> Standing {
        let updated = nodes - outdated;
        let counted = Counted { generation: Generation::FIRST, is_fresh: true, daemons: nodes, updated };
        Standing { wish: 1, counted, desired: nodes, ready, troubled: 0 }
    }

    fn tell(pace: &Pace, key: &Key, standing: Standing, now: Instant) -> Option<Duration> {
        let wait = pace.wait(key, standing, now);
        if wait.is_none() {
            pace.told(key, standing, now);
        }
        wait
    }

    #[test]
    fn what_changes_often_is_told_now_and_then() {
        let pace = Pace::default();
        let (one, two, begin) = (Key::new("a", "one"), Key::new("a", "two"), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let wait = |seconds| Some(Duration::from_secs(seconds));
        let (all, few, most) = (standing(100, 100, 0), standing(100, 50, 0), standing(100, 99, 0));
        #[rustfmt::skip]
        let cases = [
            (&one, all, 0, None), (&one, few, 1, wait(4)), (&two, few, 1, None), (&one, few, 5, None),
            (&one, all, 6, wait(4)), (&one, all, 10, None), (&one, most, 20, wait(290)), (&one, few, 20, None),
            (&one, all, 30, None), (&one, most, 330, None),
        ];
        for (key, standing, seconds, expected) in cases {
            assert_eq!(tell(&pace, key, standing, at(seconds)), expected, "{key} at {seconds}");
        }
    }

    /// However slowly the nodes of a large cluster follow, what is told of them costs little beside the two writes of each node.
    #[test]
    fn an_upgrade_of_many_nodes_is_told_in_few_writes() {
        const NODES: u32 = 5000;
        for seconds_apart in [0, 1, 7, 30] {
            let (pace, key, mut now, mut told) = (Pace::default(), Key::new("a", "one"), Instant::now(), 0);
            for done in 0..=NODES {
                let left = NODES - done;
                for ready in [NODES, NODES - 1, NODES] {
                    told += u32::from(tell(&pace, &key, standing(NODES, ready, left), now).is_none());
                    now += Duration::from_secs(seconds_apart) / 3;
                }
            }
            assert!(told > 0 && told < NODES / 8, "{told} writes, {seconds_apart} s apart");
        }
    }
}
