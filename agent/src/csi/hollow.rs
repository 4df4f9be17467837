//! A node that is none: the calls of kubelet are those of the plugin, with a real API behind them; its
//! mounts are a table in memory. For figures of thousands of nodes on one machine.
//!
//! Invariant: what is asked of the API is what the plugin of a real node would ask.

use std::{
    fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use tonic::Request;

use super::{
    CsiConfig, Images,
    client::{self, CallError, Places, Volume},
    mounts::{Mounted, Mounts},
    node::NodeService,
    proto::node_server::Node,
    volume::Attributes,
};

/// Nobody is waited for: whoever drives the node brings the daemon first.
const PATIENCE: Duration = Duration::from_millis(1);

/// The node and its plugin, with one workload.
pub struct HollowNode {
    service: NodeService,
    table: Arc<Mutex<Vec<Mounted>>>,
    attributes: Attributes,
    volume: Volume,
    at: Places,
}

impl HollowNode {
    /// A node of that name, whose files are in a folder.
    pub fn new(name: &str, client: Client, folder: &Path, volume: Volume) -> io::Result<HollowNode> {
        let table = Arc::default();
        let config = CsiConfig {
            node: name.to_owned(),
            socket: folder.join("csi.sock"),
            root: folder.to_owned(),
            state: folder.join("state"),
            patience: PATIENCE,
            look_at_idle_every: Duration::MAX,
        };
        let context = volume.attributes.clone().into_iter().collect();
        let attributes = Attributes::of(&context, folder).map_err(io::Error::other)?;
        let service = NodeService::open(config, client, Mounts::Hollow(Arc::clone(&table)), Images::Kubelet)?;
        let at = Places { staging: folder.join("staging"), target: folder.join("workload") };
        Ok(HollowNode { service, table, attributes, volume, at })
    }

    /// What pods of a DaemonSet do when the node is labelled: write down what they are, and mount.
    pub fn daemon_comes(&self, image: &str) -> io::Result<()> {
        let metadata = self.attributes.metadata();
        fs::create_dir_all(&metadata)?;
        fs::write(metadata.join("image-version"), image)?;
        let mounted = Mounted { device: image.to_owned(), at: self.attributes.mount.clone() };
        self.table.lock().unwrap_or_else(PoisonError::into_inner).push(mounted);
        Ok(())
    }

    /// The label has gone, and with it the pod.
    pub fn daemon_goes(&self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|mounted| mounted.at != self.attributes.mount);
    }

    /// Image of the daemon that the workload uses.
    pub fn used(&self) -> Option<String> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.iter().find(|mounted| mounted.at == self.at.target).map(|mounted| mounted.device.clone())
    }

    pub async fn stage(&self) -> Result<(), CallError> {
        Ok(self.service.node_stage_volume(Request::new(self.volume.stage(&self.at))).await.map(drop)?)
    }

    pub async fn publish(&self) -> Result<(), CallError> {
        Ok(self.service.node_publish_volume(Request::new(self.volume.publish(&self.at))).await.map(drop)?)
    }

    pub async fn unpublish(&self) -> Result<(), CallError> {
        let request = client::unpublish(&self.volume.handle, &self.at);
        Ok(self.service.node_unpublish_volume(Request::new(request)).await.map(drop)?)
    }

    pub async fn unstage(&self) -> Result<(), CallError> {
        let request = client::unstage(&self.volume.handle, &self.at);
        Ok(self.service.node_unstage_volume(Request::new(request)).await.map(drop)?)
    }
}
