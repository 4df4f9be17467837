//! Whether the daemon that would come in the place of another has an image on this node.
//!
//! Invariant: nobody lets go of a daemon that serves for one whose image the node was seen not to get.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use midflight_plan::mount::Seen;

use super::{node::NodeService, volume::Daemon};
use crate::node::{FIELD_MANAGER, LONGEST_NOTE};

/// Workloads that come and go wait meanwhile; what takes longer goes on by itself, and the next look finds it.
const BROUGHT_WITHIN: Duration = Duration::from_millis(500);

/// Reason of an event: a daemon stays because the image of the next one cannot be had.
const FUSE_IMAGE_MISSING: &str = "FuseImageMissing";

/// Brings an image to the node, or tells why it cannot be had.
type Bring = dyn Fn(String) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// Who brings images to this node.
#[derive(Clone)]
pub(crate) enum Images {
    /// Kubelet, whom nobody can ask: every image counts as one that can be had.
    Kubelet,
    /// Somebody who can be asked.
    Agent(Arc<Bring>),
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Images::Kubelet => "Kubelet",
            Images::Agent(_) => "Agent",
        })
    }
}

impl Images {
    /// Whether an image is on the node; one that is still on its way is not.
    async fn bring(&self, image: &str) -> Result<bool, String> {
        let Images::Agent(bring) = self else { return Ok(true) };
        match tokio::time::timeout(BROUGHT_WITHIN, bring(image.to_owned())).await {
            Ok(brought) => brought.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

impl NodeService {
    /// What was seen, and whether another daemon could come where this one would go for it.
    pub(super) async fn with_successor(
        &self,
        seen: Seen,
        daemon: &Daemon,
        about: Option<&ObjectReference>,
    ) -> Seen {
        let Some(image) = seen.wanted.image.clone().filter(|_| seen.asks_for_successor()) else {
            return seen;
        };
        let brought = self.images.bring(&image).await;
        if brought == Ok(false) {
            return Seen { can_follow: false, ..seen };
        }
        let can_follow = brought.is_ok();
        let trouble = brought.err().map(|why| {
            format!(
                "the idle daemon on {} stays, since its successor's image {image} cannot be had: {why}",
                self.config.node
            )
        });
        if let Some(note) = self.new_trouble_of(daemon, FUSE_IMAGE_MISSING, trouble) {
            tracing::warn!(daemon = daemon.as_str(), note);
            let news = News { reason: FUSE_IMAGE_MISSING, action: "Keep", note };
            tell(self.cluster.client(), &self.config.node, about, news).await;
        }
        Seen { can_follow, ..seen }
    }
}

/// What people are told of a daemon.
pub(super) struct News {
    pub(super) reason: &'static str,
    /// What was done because of it.
    pub(super) action: &'static str,
    pub(super) note: String,
}

/// Tells people, once: what is not heard is in the log.
pub(super) async fn tell(client: &Client, node: &str, about: Option<&ObjectReference>, news: News) {
    let Some(about) = about else { return };
    let News { reason, action, mut note } = news;
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(node.to_owned()) };
    let (reason, action) = (reason.to_owned(), action.to_owned());
    let event = Event { type_: EventType::Warning, reason, note: Some(note), action, secondary: None };
    if let Err(error) = Recorder::new(client.clone(), reporter).publish(&event, about).await {
        tracing::debug!(%error, "an event was not written");
    }
}
