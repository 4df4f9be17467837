//! Sees every write of every volume, in order.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, bail};
use futures::{StreamExt, stream::BoxStream};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{NAMESPACE, Volume};

use super::hollow::NEW;

/// How long the server may keep one watch open, in seconds.
const ONE_WATCH: u32 = 290;

/// A watch that begins with the state of now.
pub(super) struct Watching {
    volumes: Api<Volume>,
    version: String,
    events: BoxStream<'static, kube::Result<WatchEvent<Volume>>>,
}

/// What was seen until all had moved.
pub(super) struct Seen {
    pub(super) first: Instant,
    pub(super) last: Instant,
    pub(super) most_at_once: u32,
    /// All writes of volumes but those of the engines.
    pub(super) writes_of_controller: u64,
}

pub(super) async fn begin(client: &Client) -> anyhow::Result<Watching> {
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let list = volumes.list_metadata(&ListParams::default().limit(1)).await.context("look at the volumes")?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let events = open(&volumes, &version).await?;
    Ok(Watching { volumes, version, events })
}

async fn open(
    volumes: &Api<Volume>,
    version: &str,
) -> anyhow::Result<BoxStream<'static, kube::Result<WatchEvent<Volume>>>> {
    let parameters = WatchParams::default().timeout(ONE_WATCH);
    Ok(volumes.watch(&parameters, version).await.context("watch the volumes")?.boxed())
}

impl Watching {
    /// Reads on until so many volumes run the new image and nothing more is to be written about them.
    pub(super) async fn until_all_moved(mut self, volumes: u32) -> anyhow::Result<Seen> {
        let (mut first, mut moved, mut closed) = (None, 0, 0);
        let (mut most_at_once, mut writes) = (0, 0);
        let mut going: HashMap<String, String> = HashMap::new();
        let mut on_node: HashMap<String, u32> = HashMap::new();
        loop {
            let Some(event) = self.events.next().await else {
                self.events = open(&self.volumes, &self.version).await?;
                continue;
            };
            let volume = match event.context("watch the volumes")? {
                WatchEvent::Added(volume) | WatchEvent::Modified(volume) => volume,
                WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(status) => bail!("the watch was too slow: {}", status.message),
            };
            self.version = volume.resource_version().unwrap_or_default();
            let status = volume.status.as_ref();
            let node = status.map(|status| status.owner_id.to_string()).unwrap_or_default();
            let (name, upgrading) = (volume.name_any(), volume.is_upgrading());
            match (upgrading, going.contains_key(&name)) {
                (true, false) => {
                    first.get_or_insert_with(Instant::now);
                    writes += 1;
                    let count = on_node.entry(node.clone()).or_default();
                    *count += 1;
                    most_at_once = most_at_once.max(*count);
                    going.insert(name, node);
                }
                (false, true) => {
                    moved += u32::from(status.is_some_and(|status| status.current_image == NEW));
                    if let Some(count) = going.remove(&name).and_then(|node| on_node.get_mut(&node)) {
                        *count -= 1;
                    }
                }
                (true, true) => writes += 1,
                (false, false) => {
                    writes += 1;
                    closed += 1;
                }
            }
            if moved == volumes && closed >= volumes {
                let last = Instant::now();
                return Ok(Seen {
                    first: first.unwrap_or(last),
                    last,
                    most_at_once,
                    writes_of_controller: writes,
                });
            }
        }
    }
}
