//! Kubelet's side: what is asked of a plugin for one workload, and the way to its socket.
//!
//! Invariant: a call that failed may be made again; the plugin sees to it that nothing is done twice.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint},
};

use super::{
    mounts::Access,
    proto::{
        NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
        NodeUnstageVolumeRequest, VolumeCapability,
        node_client::NodeClient,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
    },
};

/// A plugin may wait for a daemon; longer than that nobody waits for it.
const LONGEST_CALL: Duration = Duration::from_secs(120);

/// A volume, as its PersistentVolume names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub handle: String,
    pub attributes: BTreeMap<String, String>,
    pub access: Access,
}

/// Where kubelet has a volume: once for the node, and for one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    pub staging: PathBuf,
    pub target: PathBuf,
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Volume {
    fn capability(&self) -> VolumeCapability {
        let mode = match self.access {
            Access::ReadWrite => Mode::MultiNodeMultiWriter,
            Access::ReadOnly => Mode::MultiNodeReaderOnly,
        };
        VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    pub(super) fn stage(&self, at: &Places) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.handle.clone(),
            staging_target_path: text(&at.staging),
            volume_capability: Some(self.capability()),
            volume_context: self.attributes.clone().into_iter().collect(),
        }
    }

    pub(super) fn publish(&self, at: &Places) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.handle.clone(),
            staging_target_path: text(&at.staging),
            target_path: text(&at.target),
            volume_capability: Some(self.capability()),
            readonly: self.access == Access::ReadOnly,
            volume_context: self.attributes.clone().into_iter().collect(),
        }
    }
}

pub(super) fn unpublish(handle: &str, at: &Places) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest { volume_id: handle.to_owned(), target_path: text(&at.target) }
}

pub(super) fn unstage(handle: &str, at: &Places) -> NodeUnstageVolumeRequest {
    NodeUnstageVolumeRequest { volume_id: handle.to_owned(), staging_target_path: text(&at.staging) }
}

/// Why a call was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("reach the CSI plugin at {}", socket.display())]
    Reach { socket: PathBuf, source: tonic::transport::Error },
    #[error("{code:?}: {message}")]
    Refused { code: tonic::Code, message: String },
}

impl CallError {
    /// Whether the same call may succeed later, with nothing changed.
    pub fn is_transient(&self) -> bool {
        use tonic::Code::{Aborted, Cancelled, DeadlineExceeded, FailedPrecondition, Unavailable, Unknown};
        match self {
            CallError::Reach { .. } => true,
            CallError::Refused { code, .. } => {
                matches!(
                    code,
                    Aborted | Cancelled | DeadlineExceeded | FailedPrecondition | Unavailable | Unknown
                )
            }
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        CallError::Refused { code: status.code(), message: status.message().to_owned() }
    }
}

/// A plugin that listens on a socket.
#[derive(Debug, Clone)]
pub struct Plugin {
    node: NodeClient<Channel>,
}

impl Plugin {
    pub async fn reach(socket: &Path) -> Result<Plugin, CallError> {
        let path = socket.to_owned();
        let connect = tower::service_fn(move |_: http::Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) as io::Result<_> }
        });
        let endpoint = Endpoint::from_static("http://localhost").timeout(LONGEST_CALL);
        let channel = endpoint.connect_with_connector(connect).await;
        let channel = channel.map_err(|source| CallError::Reach { socket: socket.to_owned(), source })?;
        Ok(Plugin { node: NodeClient::new(channel) })
    }

    pub async fn stage(&mut self, volume: &Volume, at: &Places) -> Result<(), CallError> {
        Ok(self.node.node_stage_volume(Request::new(volume.stage(at))).await.map(drop)?)
    }

    pub async fn publish(&mut self, volume: &Volume, at: &Places) -> Result<(), CallError> {
        Ok(self.node.node_publish_volume(Request::new(volume.publish(at))).await.map(drop)?)
    }

    pub async fn unpublish(&mut self, handle: &str, at: &Places) -> Result<(), CallError> {
        Ok(self.node.node_unpublish_volume(Request::new(unpublish(handle, at))).await.map(drop)?)
    }

    pub async fn unstage(&mut self, handle: &str, at: &Places) -> Result<(), CallError> {
        Ok(self.node.node_unstage_volume(Request::new(unstage(handle, at))).await.map(drop)?)
    }
}
