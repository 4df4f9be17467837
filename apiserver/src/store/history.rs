//! Events of the recent past, kept per resource for watchers.
//!
//! Each resource has its own queue, so that a busy kind does not push a quiet
//! one's events out. Queues are bounded by number, and all together by bytes.
//!
//! The one invariant: a queue holds every event of its resource above `floor`,
//! in version order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::body::Stored;
use super::key::{Key, Version};
use crate::kind::ResourceId;

/// One durable change of one object.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub version: Version,
    pub key: Key,
    /// The object as it was, `None` if it is new.
    pub before: Option<Arc<Stored>>,
    /// The object as it is, `None` if it is deleted.
    pub after: Option<Arc<Stored>>,
    /// The state to show: `after`, or for a deletion the final state with the
    /// version of the deletion.
    pub last: Bytes,
}

impl Event {
    /// Bytes that stay in memory because of this event. `after` belongs to the
    /// live object, or is the `before` of a later event.
    fn weight(&self) -> usize {
        let before = self.before.as_ref().map_or(0, |stored| stored.bytes.len());
        let last = if self.after.is_none() { self.last.len() } else { 0 };
        size_of::<Event>() + before + last
    }
}

/// How much of the past is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryLimits {
    pub(super) events_per_resource: usize,
    pub(super) bytes: usize,
}

#[derive(Debug)]
pub(super) struct History {
    limits: HistoryLimits,
    /// Events up to here are unknown for resources without a queue.
    start: Version,
    queues: HashMap<ResourceId, Queue>,
    bytes: usize,
}

#[derive(Debug)]
struct Queue {
    floor: Version,
    /// How many events were dropped before `events[0]`; gives each a number of its own.
    dropped: u64,
    events: VecDeque<Arc<Event>>,
}

/// Where a reader stands in a queue: the number of the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor(u64);

/// The version asked for is no longer in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {asked} ({oldest})")]
pub struct TooOld {
    pub asked: Version,
    /// The oldest version that a watch could start from.
    pub oldest: Version,
}

impl History {
    pub(super) fn starting_at(start: Version, limits: HistoryLimits) -> History {
        History { limits, start, queues: HashMap::new(), bytes: 0 }
    }

    /// Adds an event and returns those that had to go, to be dropped by the
    /// caller when it holds no lock.
    pub(super) fn push(&mut self, event: Arc<Event>, gone: &mut Vec<Arc<Event>>) {
        self.bytes += event.weight();
        let queue = self.queues.entry(event.key.resource.clone()).or_insert_with(|| Queue::new(self.start));
        queue.events.push_back(event);
        if queue.events.len() > self.limits.events_per_resource {
            let oldest = queue.drop_oldest();
            self.bytes -= oldest.weight();
            gone.push(oldest);
        }
        while self.bytes > self.limits.bytes
            && let Some(queue) = self.queues.values_mut().min_by_key(|queue| queue.oldest())
            && !queue.events.is_empty()
        {
            let oldest = queue.drop_oldest();
            self.bytes -= oldest.weight();
            gone.push(oldest);
        }
    }

    /// Where to read on for events above `from`.
    pub(super) fn seek(&self, resource: &ResourceId, from: Version) -> Result<Cursor, TooOld> {
        let Some(queue) = self.queues.get(resource) else {
            return if from < self.start {
                Err(TooOld { asked: from, oldest: self.start })
            } else {
                Ok(Cursor(0))
            };
        };
        if from < queue.floor {
            return Err(TooOld { asked: from, oldest: queue.floor });
        }
        let skipped = queue.events.partition_point(|event| event.version <= from);
        Ok(Cursor(queue.dropped + skipped as u64))
    }

    /// The event at the cursor, `Ok(None)` if it is yet to happen.
    pub(super) fn read(&self, resource: &ResourceId, at: Cursor) -> Result<Option<Arc<Event>>, Version> {
        let Some(queue) = self.queues.get(resource) else { return Ok(None) };
        match at.0.checked_sub(queue.dropped) {
            Some(index) => Ok(queue.events.get(index as usize).cloned()),
            None => Err(queue.floor),
        }
    }
}

impl Cursor {
    pub(super) fn advance(&mut self) {
        self.0 += 1;
    }
}

impl Queue {
    fn new(floor: Version) -> Queue {
        Queue { floor, dropped: 0, events: VecDeque::new() }
    }

    /// Sorts empty queues last.
    fn oldest(&self) -> Version {
        self.events.front().map_or(Version::new(u64::MAX), |event| event.version)
    }

    fn drop_oldest(&mut self) -> Arc<Event> {
        let oldest = self.events.pop_front().expect("the caller saw an event in the queue");
        self.floor = oldest.version;
        self.dropped += 1;
        oldest
    }
}
