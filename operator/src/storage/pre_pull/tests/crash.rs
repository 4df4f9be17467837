//! The controller of pre-pulled images is ended around every one of its writes, in every way, and another goes on.

use std::sync::Arc;

use super::*;
use crate::controller::Operator;
use crate::storage::PrePull;
use crate::workload;
use crate::write::{Cut, Moment};

const NODES: [&str; 2] = ["node-1", "node-2"];
const MOMENTS: [Moment; 3] = [Moment::NotSent, Moment::AnswerLost, Moment::Acknowledged];

/// Runs the controller and no other, until the writer ends.
async fn pre_pull(writer: Arc<Writer>) {
    let mut operator = Operator::new(writer);
    let images = PrePull::new(&mut operator);
    operator.add(images);
    operator.run().await;
}

/// What brings pods to nodes. It is not what is ended here.
async fn pods_of_sets(writer: Arc<Writer>) {
    let mut operator = Operator::new(writer);
    workload::add(&mut operator);
    operator.run().await;
}

impl Fleet {
    /// What the kubelets do meanwhile: pods that were deleted end, those that are new run.
    async fn attend(&self) {
        self.bury().await;
        for pod in self.all_pods().await {
            let has_run = pod.status.as_ref().is_some_and(|status| status.container_statuses.is_some());
            if has_run || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let containers = &pod.spec.as_ref().unwrap().containers;
            let running = |container: &k8s_openapi::api::core::v1::Container| {
                let image = container.image.clone().unwrap_or_default();
                json!({ "name": container.name, "image": image, "ready": true, "restartCount": 0,
                    "imageID": format!("{image}@sha256:1"), "state": { "running": {} } })
            };
            let statuses: Vec<Value> = containers.iter().map(running).collect();
            let conditions = json!([{ "type": "Ready", "status": "True" }]);
            let status = json!({ "status": { "phase": "Running", "conditions": conditions, "containerStatuses": statuses } });
            // It may have been deleted since.
            let _ = self
                .pods()
                .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
                .await;
        }
    }

    /// Waits until both images are in a state on all nodes, while the kubelets work.
    async fn until_attended(&self, tag: &str, state: ImageState) {
        let there = |nodes: &BTreeMap<String, bool>| match state {
            ImageState::Unknown => nodes.is_empty(),
            _ => NODES.iter().all(|node| nodes.get(*node) == Some(&true)),
        };
        self.until(&format!("{tag} is {state}"), async || {
            self.attend().await;
            let images = self.images().await;
            images.len() == 2
                && images
                    .iter()
                    .all(|(image, (is, nodes))| image.ends_with(tag) && *is == state && there(nodes))
                && self.set_is_there().await == (state != ImageState::Unknown)
        })
        .await;
    }
}

/// A change of the images, then off, then on again.
async fn round(fleet: &Fleet, tag: &str) {
    for name in ["instance", "share"] {
        let image = format!("registry.example/{name}{tag}");
        set(&fleet.client(), &format!("default-{name}-manager-image"), &image).await;
    }
    fleet.until_attended(tag, ImageState::Deployed).await;
    set(&fleet.client(), "start-pre-pull-manager-images", "false").await;
    fleet.until_attended(tag, ImageState::Unknown).await;
    set(&fleet.client(), "start-pre-pull-manager-images", "true").await;
    fleet.until_attended(tag, ImageState::Deployed).await;
}

#[tokio::test]
async fn the_controller_may_end_around_every_write() {
    let cluster = Cluster::open().await;
    bootstrap(&cluster.client).await.unwrap();
    set(&cluster.client, "pre-pull-max-nodes-at-once", "1").await;
    let running = tokio::spawn(pods_of_sets(Arc::new(Writer::new(cluster.client.clone()))));
    let fleet = Fleet { cluster, running };
    for node in NODES {
        fleet.add_node(node).await;
    }
    for write in 0.. {
        let mut issued = 0;
        for (number, moment) in MOMENTS.into_iter().enumerate() {
            let client = fleet.client();
            let writer = Arc::new(Writer::with_cut(client.clone(), Cut { write, moment }));
            let first = Arc::clone(&writer);
            let controllers = tokio::spawn(async move {
                pre_pull(first).await;
                pre_pull(Arc::new(Writer::new(client))).await;
            });
            round(&fleet, &format!(":v{write}-{number}")).await;
            controllers.abort();
            issued = issued.max(writer.issued());
        }
        if issued <= write {
            assert!(write >= 12, "only {write} writes were cut");
            break;
        }
    }
    fleet.close().await;
}
