//! Snapshots kept for clients that read a list page by page.
//!
//! The one invariant: bounded by number and by age, oldest out first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::key::Version;
use super::snapshot::Snapshot;
use crate::kind::ResourceId;

#[derive(Debug)]
pub(super) struct Retained {
    most: usize,
    age: Duration,
    kept: Mutex<VecDeque<(Instant, Snapshot)>>,
}

impl Retained {
    pub(super) fn new(most: usize, age: Duration) -> Retained {
        Retained { most, age, kept: Mutex::default() }
    }

    /// Keeps the snapshot. One that is kept already starts a new life: its
    /// reader is still at it.
    pub(super) fn keep(&self, snapshot: &Snapshot, now: Instant) {
        let mut kept = self.kept(now);
        kept.retain(|(_, other)| !same(other, snapshot.resource(), snapshot.version()));
        while kept.len() >= self.most {
            kept.pop_front();
        }
        kept.push_back((now, snapshot.clone()));
    }

    pub(super) fn find(&self, resource: &ResourceId, version: Version, now: Instant) -> Option<Snapshot> {
        let kept = self.kept(now);
        kept.iter()
            .find(|(_, snapshot)| same(snapshot, resource, version))
            .map(|(_, snapshot)| snapshot.clone())
    }

    /// What is left after those too old have gone.
    fn kept(&self, now: Instant) -> MutexGuard<'_, VecDeque<(Instant, Snapshot)>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.front().is_some_and(|(since, _)| now.saturating_duration_since(*since) > self.age) {
            kept.pop_front();
        }
        kept
    }
}

fn same(snapshot: &Snapshot, resource: &ResourceId, version: Version) -> bool {
    snapshot.version() == version && snapshot.resource() == resource
}
