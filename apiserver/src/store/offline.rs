//! A store that nobody serves, for work on all of it at once, such as moving
//! its objects to a new schema.
//!
//! The one invariant: the changes of one `write` all happen, or none does.

use std::io;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::StoreOptions;
use super::body::Stored;
use super::change::{Change, WriteError};
use super::disk::{CommitError, Disk, Site};
use super::error::OpenError;
use super::key::{Key, Version, split_path};
use super::ledger::Ledger;
use super::world::Resources;

/// Holds the lock of the store: no server can run meanwhile.
#[derive(Debug)]
pub struct Offline {
    disk: Disk,
    cluster: Uuid,
    version: Version,
    resources: Resources,
}

impl Offline {
    /// Opens a store that is there.
    pub fn open(path: &Path) -> Result<Offline, OpenError> {
        if !path.exists() {
            return Err(OpenError::Io { path: path.into(), source: io::ErrorKind::NotFound.into() });
        }
        Offline::open_or_create(path)
    }

    /// Opens a store, and makes an empty one where there is none.
    pub fn open_or_create(path: &Path) -> Result<Offline, OpenError> {
        let site = Site::claim(path, StoreOptions::default().cache_bytes)?;
        let (disk, loaded) = Disk::open(site).map_err(|failed| failed.1)?;
        let (cluster, version, resources) = (loaded.cluster, loaded.version, loaded.resources);
        Ok(Offline { disk, cluster, version, resources })
    }

    pub fn cluster(&self) -> Uuid {
        self.cluster
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Every object, of every resource.
    pub fn records(&self) -> impl Iterator<Item = (Key, &Arc<Stored>)> {
        self.resources.iter().flat_map(|(resource, objects)| {
            objects.iter().map(|(path, stored)| {
                let (namespace, name) = split_path(path);
                (Key::new(resource.clone(), namespace, name), stored)
            })
        })
    }

    /// Makes all changes in one commit. The first that is refused refuses all.
    pub fn write(&mut self, changes: Vec<Change>) -> Result<Version, WriteError> {
        let mut ledger = Ledger::new(self.version, self.resources.clone());
        for change in changes {
            ledger.stage(change, &[])?;
        }
        let (events, touched) = ledger.take();
        self.disk.commit_whole(&events).map_err(|error| {
            let (CommitError::Failed(cause) | CommitError::SyncFailed(cause)) = error;
            WriteError::Unavailable { reason: cause.to_string().into() }
        })?;
        self.resources.extend(touched);
        self.version = events.last().map_or(self.version, |event| event.version);
        Ok(self.version)
    }
}
