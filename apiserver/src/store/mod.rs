//! Objects, kept: durable, ordered, compare-and-swap.
//!
//! ```text
//! write ──▶ queue ──▶ writer thread ──stage──▶ ledger
//!                          │ commit (one fsync for all that waited)
//!                          ▼
//!                        disk ──▶ world ──▶ get, snapshot, watch
//! ```
//!
//! Reads never touch the disk: all objects are in memory as JSON ready to be
//! sent. The file is read once, when the store is opened.
//!
//! The one invariant: nothing is acknowledged, shown or numbered for others
//! before it is durable, and versions only grow.

mod body;
mod change;
mod disk;
mod error;
mod history;
mod key;
mod ledger;
mod offline;
mod retained;
mod snapshot;
mod watch;
mod world;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

pub use self::body::{Body, Stored};
pub use self::change::{Change, Guard, Rule, WriteError};
pub use self::disk::FORMAT;
#[cfg(test)]
pub(crate) use self::disk::fickle::Fickle;
pub use self::error::OpenError;
pub use self::history::{Event, TooOld};
pub use self::key::{Key, Version};
pub use self::offline::Offline;
pub use self::snapshot::{Entry, Snapshot};
pub use self::watch::Watch;

use self::disk::{Disk, Site};
use self::history::HistoryLimits;
use self::retained::Retained;
use self::world::World;
use self::writer::{Request, Writer};
use crate::kind::ResourceId;

/// How much the store may keep besides the objects.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Events kept for watchers, for each resource.
    pub history_events: usize,
    /// Bytes that events keep in memory, for all resources.
    pub history_bytes: usize,
    /// Snapshots kept for lists that are read page by page.
    pub retained_snapshots: usize,
    pub retained_age: Duration,
    /// Pages of the file kept in memory.
    pub cache_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            history_events: 10_000,
            history_bytes: 32 << 20,
            retained_snapshots: 64,
            retained_age: Duration::from_secs(300),
            cache_bytes: 8 << 20,
        }
    }
}

/// Changes that may wait for the writer before callers of `write` wait too.
const QUEUE: usize = 1024;

/// A handle of an open store. Clones speak to the same store, which closes when
/// the last one is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cluster: Uuid,
    world: Arc<World>,
    retained: Retained,
    /// `None` only while closing.
    queue: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
}

impl Store {
    /// Opens the store in the file `path`, or makes a new one.
    pub fn open(path: &Path, options: &StoreOptions) -> Result<Store, OpenError> {
        Store::start(Site::claim(path, options.cache_bytes)?, options, writer::REST)
    }

    /// `rest` is how long a failed commit keeps writers away.
    fn start(site: Site, options: &StoreOptions, rest: Duration) -> Result<Store, OpenError> {
        let path = site.path().to_owned();
        let (disk, loaded) = Disk::open(site).map_err(|failed| failed.1)?;
        let limits =
            HistoryLimits { events_per_resource: options.history_events, bytes: options.history_bytes };
        let world = Arc::new(World::new(loaded.version, loaded.resources, limits));
        let (queue, requests) = mpsc::channel(QUEUE);
        let writer = Writer::new(disk, world.clone(), requests, rest);
        let writer = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::Io { path, source })?;
        let retained = Retained::new(options.retained_snapshots, options.retained_age);
        let inner =
            Inner { cluster: loaded.cluster, world, retained, queue: Some(queue), writer: Some(writer) };
        Ok(Store { inner: Arc::new(inner) })
    }

    /// A name this store was given when it was made.
    pub fn cluster(&self) -> Uuid {
        self.inner.cluster
    }

    /// The version of the latest write.
    pub fn version(&self) -> Version {
        self.inner.world.version()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        self.inner.world.get(key)
    }

    /// All objects of a resource as they are now.
    pub fn snapshot(&self, resource: &ResourceId) -> Snapshot {
        self.inner.world.snapshot(resource)
    }

    /// A snapshot that was kept with `retain`, if it is not too long ago.
    pub fn snapshot_at(&self, resource: &ResourceId, version: Version) -> Option<Snapshot> {
        self.inner.retained.find(resource, version, Instant::now())
    }

    /// Keeps the snapshot for a client that will ask for its next page.
    pub fn retain(&self, snapshot: &Snapshot) {
        self.inner.retained.keep(snapshot, Instant::now());
    }

    /// Makes one change if all guards hold. It is durable when this returns
    /// `Ok`. A caller that stops waiting does not stop the change.
    pub async fn write(&self, change: Change, guards: Vec<Guard>) -> Result<Arc<Stored>, WriteError> {
        let closed = || WriteError::Unavailable { reason: "its writer has ended".into() };
        let (answer, answered) = oneshot::channel();
        let queue = self.inner.queue.as_ref().ok_or_else(closed)?;
        queue.send(Request { change, guards, answer }).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Whether the store takes writes.
    pub fn is_open(&self) -> bool {
        self.inner.queue.as_ref().is_some_and(|queue| !queue.is_closed()) && self.inner.world.takes_writes()
    }

    /// The events of a resource with versions above `from`.
    pub fn watch(&self, resource: &ResourceId, from: Version) -> Result<Watch, TooOld> {
        Watch::new(self.inner.world.clone(), resource, from)
    }
}

impl Drop for Inner {
    /// Waits for the writer, so that the file is free for the next to open it.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has said so; there is nothing to add.
            let _ = writer.join();
        }
    }
}

/// A store on a disk in memory. The path is where its mark goes.
#[cfg(test)]
pub(crate) fn open_on(disk: &Fickle, path: &Path) -> Result<Store, OpenError> {
    Store::start(disk.site(path), &StoreOptions::default(), Duration::ZERO)
}

#[cfg(test)]
mod tests;
