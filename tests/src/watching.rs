//! Sees every write of every volume, so that a limit is asserted at each of them and not now and then.
//!
//! The one invariant: a watch that has ended is never taken for one in which nothing happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use futures::{StreamExt, pin_mut};
use kube::ResourceExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use midflight_api::NodeName;
use midflight_api::longhorn::Volume;
use midflight_plan::engine_upgrade as plan;
use tokio::task::AbortHandle;

use crate::storage::Storage;

/// What a watch has seen of all volumes, write by write.
#[derive(Debug, Default)]
pub struct Seen {
    volumes: BTreeMap<String, Volume>,
    /// The most volumes of one node that were on their way after any write.
    pub most: usize,
    /// Volumes that were ever on their way.
    pub moved: BTreeSet<String>,
    /// Volumes that were on their way while they had to grow.
    pub moved_growing: BTreeSet<String>,
    /// Why nothing more is seen.
    ended: Option<String>,
}

impl Seen {
    fn take(&mut self, volume: Volume) {
        self.volumes.insert(volume.name_any(), volume);
        let mut nodes: BTreeMap<NodeName, usize> = BTreeMap::new();
        for (name, volume) in &self.volumes {
            let volume = plan::Volume::of(volume, plan::Replicas::default());
            if volume.is_upgrading() {
                *nodes.entry(volume.seat().cloned().unwrap_or_default()).or_default() += 1;
                self.moved.insert(name.clone());
                self.moved_growing.extend(volume.expanding.then(|| name.clone()));
            }
        }
        self.most = self.most.max(nodes.values().copied().max().unwrap_or_default());
    }
}

/// Sees every write of volumes from now on; ends with the test.
pub struct Watching {
    seen: Arc<Mutex<Seen>>,
    task: AbortHandle,
}

impl Watching {
    pub async fn begin(storage: &Storage) -> anyhow::Result<Watching> {
        let volumes = storage.volumes();
        let list = volumes.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.clone().context("the list has a version")?;
        let mut seen = Seen::default();
        list.into_iter().for_each(|volume| seen.take(volume));
        let seen = Arc::new(Mutex::new(seen));
        let shared = Arc::clone(&seen);
        let events = volumes.watch(&WatchParams::default().timeout(290), &version).await?.boxed();
        let task = tokio::spawn(async move {
            pin_mut!(events);
            while let Some(event) = events.next().await {
                let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    Ok(WatchEvent::Added(volume) | WatchEvent::Modified(volume)) => seen.take(volume),
                    Ok(WatchEvent::Deleted(volume)) => drop(seen.volumes.remove(&volume.name_any())),
                    Ok(WatchEvent::Bookmark(_)) => {}
                    Ok(WatchEvent::Error(status)) => seen.ended = Some(format!("{status:?}")),
                    Err(error) => seen.ended = Some(error.to_string()),
                }
            }
            let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
            seen.ended.get_or_insert_with(|| "the server ended it".to_owned());
        });
        Ok(Watching { seen, task: task.abort_handle() })
    }

    /// What was seen so far, of all that happened. A watch that has ended has missed something.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(seen.ended, None, "the watch of the volumes has ended");
        seen
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}
