//! What readers see: the objects, the recent past, and the version they stand at.
//!
//! The one invariant: everything here is durable, and a batch of writes appears
//! at once. Whoever saw an event also sees its object, and the other way round.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::watch;

use super::body::Stored;
use super::history::{Cursor, Event, History, HistoryLimits, TooOld};
use super::key::{Key, Version};
use super::snapshot::{Objects, Snapshot};
use crate::kind::ResourceId;

/// The objects of all resources.
pub(super) type Resources = HashMap<ResourceId, Objects>;

/// The published state, shared by all readers and the one writer.
#[derive(Debug)]
pub(super) struct World {
    state: RwLock<State>,
    /// One bell per watched resource, rung after its events have appeared.
    bells: RwLock<HashMap<ResourceId, watch::Sender<()>>>,
    takes_writes: AtomicBool,
}

#[derive(Debug)]
struct State {
    version: Version,
    resources: Resources,
    history: History,
}

impl World {
    pub(super) fn new(version: Version, resources: Resources, limits: HistoryLimits) -> World {
        let history = History::starting_at(version, limits);
        World {
            state: RwLock::new(State { version, resources, history }),
            bells: RwLock::default(),
            takes_writes: AtomicBool::new(true),
        }
    }

    /// Whether the writer could commit when it last tried.
    pub(super) fn takes_writes(&self) -> bool {
        self.takes_writes.load(Ordering::Acquire)
    }

    pub(super) fn set_takes_writes(&self, takes: bool) {
        self.takes_writes.store(takes, Ordering::Release);
    }

    pub(super) fn version(&self) -> Version {
        self.state().version
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        let path = key.path();
        self.state().resources.get(&key.resource)?.get(&path).cloned()
    }

    pub(super) fn snapshot(&self, resource: &ResourceId) -> Snapshot {
        let state = self.state();
        let objects = state.resources.get(resource).cloned().unwrap_or_default();
        Snapshot::new(resource.clone(), state.version, objects)
    }

    pub(super) fn resources(&self) -> Resources {
        self.state().resources.clone()
    }

    /// Makes a durable batch visible: `resources` replace those of the same
    /// name, `events` are what happened since the last batch.
    pub(super) fn publish(&self, resources: Resources, events: &[Arc<Event>]) {
        let Some(newest) = events.last() else { return };
        let mut gone = Vec::new();
        let mut replaced = Vec::with_capacity(resources.len());
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            for (resource, objects) in resources {
                replaced.push(state.resources.insert(resource, objects));
            }
            for event in events {
                state.history.push(event.clone(), &mut gone);
            }
            state.version = newest.version;
        }
        self.ring(events);
    }

    pub(super) fn seek(&self, resource: &ResourceId, from: Version) -> Result<Cursor, TooOld> {
        self.state().history.seek(resource, from)
    }

    /// The event at the cursor; without one, the version up to which there is none.
    pub(super) fn read(
        &self,
        resource: &ResourceId,
        at: Cursor,
    ) -> Result<Result<Arc<Event>, Version>, Version> {
        let state = self.state();
        Ok(state.history.read(resource, at)?.ok_or(state.version))
    }

    /// A receiver that changes after each batch with events of the resource.
    pub(super) fn listen(&self, resource: &ResourceId) -> watch::Receiver<()> {
        if let Some(bell) = self.bells.read().unwrap_or_else(PoisonError::into_inner).get(resource) {
            return bell.subscribe();
        }
        let mut bells = self.bells.write().unwrap_or_else(PoisonError::into_inner);
        bells.entry(resource.clone()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    fn ring(&self, events: &[Arc<Event>]) {
        let bells = self.bells.read().unwrap_or_else(PoisonError::into_inner);
        let changed: HashSet<&ResourceId> = events.iter().map(|event| &event.key.resource).collect();
        for resource in changed {
            if let Some(bell) = bells.get(resource) {
                bell.send_replace(());
            }
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}
