//! Cleans up behind deleted owners, namespaces and definitions, and lets old
//! events go.
//!
//! ```text
//! store events ──▶ observe ──▶ graph ──▶ decide ──▶ act ──▶ store
//! ```
//!
//! The one invariant: an object is collected only if, at the moment it is
//! deleted, no owner it names exists; what the graph remembers only says where
//! to look.

mod act;
mod again;
mod decide;
mod expire;
mod graph;
mod namespaces;
mod observe;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::error::{ApiError, Reason};
use crate::kind::ResourceId;
use crate::server::{Shared, reason};
use crate::store::Key;

use again::Unfinished;
use graph::Graph;
use observe::{Seen, Told};

/// Observations that may wait before those who observe wait too.
const QUEUE: usize = 1024;
const EXPIRY_CHECK: Duration = Duration::from_secs(60);

/// Works until the server stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let stopping = shared.stopping.clone();
    tokio::select! {
        () = stopping.cancelled() => {}
        () = Collector::new(shared, QUEUE).work() => {}
    }
}

struct Collector {
    shared: Arc<Shared>,
    graph: Graph,
    observers: HashMap<ResourceId, AbortOnDropHandle<()>>,
    told: mpsc::Receiver<Told>,
    tell: mpsc::Sender<Told>,
    /// Objects to look at, each once.
    due: VecDeque<Key>,
    waiting: HashSet<Key>,
    /// Looked at, and not done yet.
    unfinished: Unfinished,
}

impl Collector {
    fn new(shared: Arc<Shared>, queue: usize) -> Collector {
        let (tell, told) = mpsc::channel(queue);
        Collector {
            shared,
            graph: Graph::default(),
            observers: HashMap::new(),
            told,
            tell,
            due: VecDeque::new(),
            waiting: HashSet::new(),
            unfinished: Unfinished::default(),
        }
    }

    async fn work(mut self) {
        let mut changed = self.shared.registry.changes();
        let mut retry = tokio::time::interval(again::SOON);
        let mut expiry = tokio::time::interval(EXPIRY_CHECK);
        self.follow_registry();
        loop {
            tokio::select! {
                biased;
                Some(told) = self.told.recv() => self.take_note(told),
                Ok(()) = changed.changed() => self.follow_registry(),
                () = std::future::ready(()), if !self.due.is_empty() => self.work_off().await,
                _ = retry.tick(), if !self.unfinished.is_empty() => {
                    for key in self.unfinished.take_due(Instant::now()) {
                        self.enqueue(key);
                    }
                }
                _ = expiry.tick() => expire::expire(&self.shared).await,
            }
        }
    }

    /// Observes every resource there is, and no other.
    fn follow_registry(&mut self) {
        let catalogue = self.shared.registry.load();
        let resources: HashSet<&ResourceId> = catalogue.resources().collect();
        self.observers.retain(|resource, _| resources.contains(resource));
        for resource in resources {
            if !self.observers.contains_key(resource) {
                let task = observe::observe(self.shared.store.clone(), resource.clone(), self.tell.clone());
                self.observers.insert(resource.clone(), AbortOnDropHandle::new(tokio::spawn(task)));
            }
        }
    }

    fn take_note(&mut self, told: Told) {
        let due = match told {
            Told::Object(seen) => self.graph.note(seen),
            Told::Relisted(resource) => {
                tracing::info!(resource = %resource.plural, "fell behind; looking again at all that is owned or leaving");
                let store = &self.shared.store;
                self.graph.relisted(&resource, |key| {
                    let stored = store.get(key)?;
                    Seen::of(key.clone(), &stored.bytes, false).map(|seen| seen.uid)
                })
            }
        };
        for key in due {
            self.enqueue(key);
        }
    }

    fn enqueue(&mut self, key: Key) {
        if !self.unfinished.rests(&key, Instant::now()) && self.waiting.insert(key.clone()) {
            self.due.push_back(key);
        }
    }

    async fn work_off(&mut self) {
        let Some(key) = self.due.pop_front() else { return };
        self.waiting.remove(&key);
        // A mistake of ours about one object must not keep all others from being collected.
        let settled = AssertUnwindSafe(act::settle(&self.shared, &self.graph, &key)).catch_unwind().await;
        let settled = settled.unwrap_or_else(|panic| {
            let message = format!("ran into a defect of the server: {}", reason(&*panic));
            Err(ApiError::new(Reason::InternalError, message))
        });
        match settled {
            Ok(act::Settled::Done) => self.unfinished.done(&key),
            Ok(act::Settled::Later) => self.unfinished.later(key, Instant::now()),
            Err(error) => {
                let object = key.to_string();
                let again_in = self.unfinished.failed(key, Instant::now());
                tracing::warn!(object, %error, ?again_in, "could not collect");
            }
        }
    }
}
