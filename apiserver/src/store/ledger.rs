//! Decides what each change of a batch does.
//!
//! Works on the published objects plus what earlier changes of the same batch
//! did to them. Nothing here touches disk or readers.
//!
//! The one invariant: each accepted change takes the next version, and a
//! refused one takes none.

use std::collections::HashMap;
use std::sync::Arc;

use super::body::{Body, Stored};
use super::change::{Change, Guard, WriteError};
use super::history::Event;
use super::key::{Key, Version};
use super::world::Resources;

/// The state as it will be when the batch is durable.
#[derive(Debug)]
pub(super) struct Ledger {
    version: Version,
    resources: Resources,
    events: Vec<Arc<Event>>,
}

impl Ledger {
    pub(super) fn new(version: Version, resources: Resources) -> Ledger {
        Ledger { version, resources, events: Vec::new() }
    }

    /// Takes the change up, or says why not. The answer may be given to its
    /// caller only when the batch is durable: it may speak of earlier changes.
    pub(super) fn stage(&mut self, change: Change, guards: &[Guard]) -> Result<Arc<Stored>, WriteError> {
        if let Some(broken) = guards.iter().find(|guard| !guard.holds(self.get(&guard.key))) {
            return Err(WriteError::GuardFailed { key: broken.key.clone() });
        }
        let current = self.get(change.key()).cloned();
        match (change, current) {
            (Change::Create { key, body }, None) => Ok(self.put(key, &body, None)),
            (Change::Create { .. }, Some(_)) => Err(WriteError::Exists),
            (Change::Replace { .. } | Change::Delete { .. }, None) => Err(WriteError::Missing),
            (Change::Replace { expected, .. } | Change::Delete { expected, .. }, Some(current))
                if current.version != expected =>
            {
                Err(WriteError::Conflict { current })
            }
            (Change::Replace { key, body, .. }, Some(current)) => Ok(self.put(key, &body, Some(current))),
            (Change::Delete { key, last, .. }, Some(current)) => Ok(self.remove(key, &last, current)),
        }
    }

    /// What has been staged since the last call, and the objects of the
    /// resources it touched.
    pub(super) fn take(&mut self) -> (Vec<Arc<Event>>, Resources) {
        let events = std::mem::take(&mut self.events);
        let mut touched = HashMap::new();
        for event in &events {
            let resource = &event.key.resource;
            if !touched.contains_key(resource) {
                touched.insert(resource.clone(), self.resources.get(resource).cloned().unwrap_or_default());
            }
        }
        (events, touched)
    }

    fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        self.resources.get(&key.resource)?.get(&key.path())
    }

    fn put(&mut self, key: Key, body: &Body, before: Option<Arc<Stored>>) -> Arc<Stored> {
        let stored = self.number(body);
        self.resources.entry(key.resource.clone()).or_default().insert(key.path(), stored.clone());
        let (version, last) = (stored.version, stored.bytes.clone());
        self.events.push(Arc::new(Event { version, key, before, after: Some(stored.clone()), last }));
        stored
    }

    fn remove(&mut self, key: Key, last: &Body, before: Arc<Stored>) -> Arc<Stored> {
        let stored = self.number(last);
        if let Some(objects) = self.resources.get_mut(&key.resource) {
            objects.remove(&key.path());
        }
        let (version, last) = (stored.version, stored.bytes.clone());
        self.events.push(Arc::new(Event { version, key, before: Some(before), after: None, last }));
        stored
    }

    fn number(&mut self, body: &Body) -> Arc<Stored> {
        self.version = self.version.next();
        Arc::new(Stored { version: self.version, bytes: body.at(self.version) })
    }
}
