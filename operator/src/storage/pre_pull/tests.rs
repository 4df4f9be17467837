//! Seed 001's test plan, against a real API server and nodes whose kubelet is the test.

mod crash;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{Image, ImageState, NAMESPACE, Setting};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::storage::pods;
use crate::testing::Cluster;
use crate::write::Writer;
use crate::{bootstrap, run};

const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_EVERY: Duration = Duration::from_millis(10);

struct Fleet {
    cluster: Cluster,
    running: JoinHandle<()>,
}

impl Fleet {
    async fn open(nodes: &[&str], at_once: &str) -> Fleet {
        let cluster = Cluster::open().await;
        let standing = bootstrap(&cluster.client).await.unwrap();
        let writer = Arc::new(Writer::new(cluster.client.clone()));
        for (setting, value) in [
            ("default-instance-manager-image", "registry.example/manager:v1"),
            ("default-share-manager-image", "registry.example/share:v1"),
            ("pre-pull-max-nodes-at-once", at_once),
        ] {
            set(&cluster.client, setting, value).await;
        }
        let running = tokio::spawn(async move { run(writer, &standing).await });
        let fleet = Fleet { cluster, running };
        for node in nodes {
            fleet.add_node(node).await;
        }
        fleet
    }

    fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    async fn add_node(&self, name: &str) {
        let nodes: Api<Node> = Api::all(self.client());
        let node = json!({ "metadata": { "name": name } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        self.node_is(name, "True").await;
    }

    /// Whether a node is ready, as its controller says.
    async fn node_is(&self, name: &str, ready: &str) {
        let nodes: Api<Node> = Api::all(self.client());
        let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// State and nodes of every Image, by its image.
    async fn images(&self) -> BTreeMap<String, (ImageState, BTreeMap<String, bool>)> {
        let images: Api<Image> = Api::namespaced(self.client(), NAMESPACE);
        let shown = |image: Image| {
            let status = image.status.clone().unwrap_or_default();
            let nodes = status.node_deployment_map.into_iter().map(|(node, there)| (node.to_string(), there));
            (image.spec.image().to_string(), (status.state, nodes.collect()))
        };
        images.list(&ListParams::default()).await.unwrap().into_iter().map(shown).collect()
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds().await {
            assert!(Instant::now() < deadline, "never: {what}; {:?}", self.images().await);
            sleep(LOOK_EVERY).await;
        }
    }

    /// Both images are in a state, and on these nodes.
    async fn until_all(&self, tag: &str, state: ImageState, nodes: &[(&str, bool)]) {
        let nodes: BTreeMap<String, bool> =
            nodes.iter().map(|(node, there)| ((*node).to_owned(), *there)).collect();
        let expected: BTreeMap<_, _> = ["manager", "share"]
            .map(|name| (format!("registry.example/{name}:{tag}"), (state, nodes.clone())))
            .into();
        self.until(&format!("{expected:?}"), async || self.images().await == expected).await;
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    async fn all_pods(&self) -> Vec<Pod> {
        let ours = ListParams::default().labels(&format!("{}={}", pods::COMPONENT, pods::PRE_PULL));
        self.pods().list(&ours).await.unwrap().items
    }

    async fn pods_by_node(&self) -> BTreeMap<String, Pod> {
        self.all_pods()
            .await
            .into_iter()
            .map(|pod| (pod.spec.as_ref().unwrap().node_name.clone().unwrap(), pod))
            .collect()
    }

    /// What a kubelet says of every container of its pod that holds an image of this tag.
    async fn say(&self, node: &str, tag: &str, ready: bool, state: Value) {
        let has_tag = |pod: &Pod| {
            let containers = &pod.spec.as_ref().unwrap().containers;
            containers.iter().all(|container| container.image.as_deref().unwrap_or_default().ends_with(tag))
        };
        self.until(&format!("{node} has a pod of {tag}"), async || {
            self.pods_by_node()
                .await
                .get(node)
                .is_some_and(|pod| pod.metadata.deletion_timestamp.is_none() && has_tag(pod))
        })
        .await;
        let pod = self.pods_by_node().await.remove(node).unwrap();
        let containers = &pod.spec.as_ref().unwrap().containers;
        let statuses: Vec<Value> = containers
            .iter()
            .map(|container| {
                json!({ "name": container.name, "image": container.image, "ready": ready, "restartCount": 0,
                    "imageID": format!("registry.example/x@sha256:{tag}"), "state": state })
            })
            .collect();
        let conditions = json!([{ "type": "Ready", "status": if ready { "True" } else { "False" } }]);
        let status = json!({ "status": { "phase": "Running", "conditions": conditions, "containerStatuses": statuses } });
        self.pods()
            .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    async fn ready(&self, node: &str, tag: &str) {
        self.say(node, tag, true, json!({ "running": {} })).await;
    }

    /// A kubelet that has ended the pods that were deleted.
    async fn bury(&self) {
        let all = self.all_pods().await.into_iter();
        for pod in all.filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            let _ = self.pods().delete(&pod.name_any(), &now).await;
        }
    }

    /// Waits until a node has a pod of the second images, while kubelets end those that were deleted.
    async fn until_renewed(&self, node: &str) {
        let is_new = |pod: &Pod| {
            let images = pods::images(pod);
            pod.metadata.deletion_timestamp.is_none()
                && images.iter().all(|image| image.as_str().ends_with(":v2"))
        };
        self.until(&format!("{node} has a pod of the new images"), async || {
            self.bury().await;
            self.pods_by_node().await.get(node).is_some_and(is_new)
        })
        .await;
    }

    async fn set_is_there(&self) -> bool {
        let sets: Api<DaemonSet> = Api::namespaced(self.client(), NAMESPACE);
        sets.get_opt(pods::PRE_PULL).await.unwrap().is_some()
    }

    async fn close(self) {
        self.running.abort();
        self.cluster.close().await;
    }
}

async fn set(client: &Client, name: &str, value: &str) {
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    settings.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "value": value }))).await.unwrap();
}

#[tokio::test]
async fn a_fresh_install_pulls_and_holds_the_images_on_every_node() {
    let fleet = Fleet::open(&["node-1", "node-2"], "0").await;
    fleet.until_all("v1", ImageState::Deploying, &[("node-1", false), ("node-2", false)]).await;
    assert!(fleet.set_is_there().await);
    fleet.ready("node-1", "v1").await;
    fleet.until_all("v1", ImageState::Deploying, &[("node-1", true), ("node-2", false)]).await;
    let waiting = json!({ "waiting": { "reason": "ErrImagePull", "message": "the registry is away" } });
    fleet.say("node-2", "v1", false, waiting).await;
    fleet.until_all("v1", ImageState::Error, &[("node-1", true), ("node-2", false)]).await;
    let images: Api<Image> = Api::namespaced(fleet.client(), NAMESPACE);
    let image = images.list(&ListParams::default()).await.unwrap().items.remove(0);
    let status = image.status.as_ref().unwrap();
    let expected = format!("{} on node-2: ErrImagePull: the registry is away", image.spec.image());
    assert_eq!(status.conditions.get("Ready").unwrap().message.as_str(), expected);
    assert_eq!(status.owner_id.as_str(), "node-1");
    fleet.ready("node-2", "v1").await;
    fleet.until_all("v1", ImageState::Deployed, &[("node-1", true), ("node-2", true)]).await;
    assert!(fleet.set_is_there().await, "it stays, so that the images do");

    fleet.add_node("node-3").await;
    fleet
        .until_all("v1", ImageState::Deploying, &[("node-1", true), ("node-2", true), ("node-3", false)])
        .await;
    let nodes: Api<Node> = Api::all(fleet.client());
    nodes.delete("node-3", &DeleteParams::default()).await.unwrap();
    fleet.until_all("v1", ImageState::Deployed, &[("node-1", true), ("node-2", true)]).await;

    let listed = json!({ "status": { "images": [{ "names": ["registry.example/other@sha256:else"] }] } });
    let lost = fleet.pods_by_node().await["node-1"].uid();
    nodes.patch_status("node-1", &PatchParams::default(), &Patch::Merge(listed)).await.unwrap();
    fleet
        .until("a node that lost its images pulls them again", async || {
            fleet.bury().await;
            fleet.pods_by_node().await.get("node-1").is_some_and(|pod| pod.uid() != lost)
        })
        .await;
    fleet.until_all("v1", ImageState::Deploying, &[("node-1", false), ("node-2", true)]).await;
    fleet.close().await;
}

#[tokio::test]
async fn an_upgrade_replaces_images_and_pods_and_the_setting_switches_it_off() {
    let fleet = Fleet::open(&["node-1"], "0").await;
    fleet.ready("node-1", "v1").await;
    fleet.until_all("v1", ImageState::Deployed, &[("node-1", true)]).await;

    set(&fleet.client(), "default-instance-manager-image", "registry.example/manager:v2").await;
    set(&fleet.client(), "default-share-manager-image", "registry.example/share:v2").await;
    fleet
        .until("the old pod goes", async || {
            fleet.bury().await;
            let images = fleet.images().await;
            images.len() == 2 && images.keys().all(|image| image.ends_with(":v2"))
        })
        .await;
    fleet
        .until("a pod of the new images comes", async || {
            fleet.bury().await;
            let pods = fleet.pods_by_node().await;
            let new = |pod: &Pod| {
                pod.spec
                    .as_ref()
                    .unwrap()
                    .containers
                    .iter()
                    .all(|container| container.image.as_deref().unwrap().ends_with(":v2"))
            };
            pods.get("node-1").is_some_and(|pod| pod.metadata.deletion_timestamp.is_none() && new(pod))
        })
        .await;
    fleet.until_all("v2", ImageState::Deploying, &[("node-1", false)]).await;
    fleet.ready("node-1", "v2").await;
    fleet.until_all("v2", ImageState::Deployed, &[("node-1", true)]).await;

    set(&fleet.client(), "start-pre-pull-manager-images", "false").await;
    fleet.until_all("v2", ImageState::Unknown, &[]).await;
    fleet.until("the DaemonSet goes", async || !fleet.set_is_there().await).await;
    set(&fleet.client(), "start-pre-pull-manager-images", "true").await;
    fleet.until("the DaemonSet is back", async || fleet.set_is_there().await).await;
    fleet.close().await;
}

#[tokio::test]
async fn nodes_pull_wave_by_wave() {
    let fleet = Fleet::open(&["node-1", "node-2", "node-3"], "1").await;
    for node in ["node-1", "node-2", "node-3"] {
        fleet
            .until(&format!("{node} has its turn"), async || fleet.pods_by_node().await.contains_key(node))
            .await;
        let pulling = fleet
            .pods_by_node()
            .await
            .into_values()
            .filter(|pod| pod.status.as_ref().is_none_or(|status| status.container_statuses.is_none()));
        assert_eq!(pulling.count(), 1, "one at a time");
        fleet.ready(node, "v1").await;
    }
    fleet
        .until_all("v1", ImageState::Deployed, &[("node-1", true), ("node-2", true), ("node-3", true)])
        .await;
    fleet.close().await;
}

/// With one node at a time: one that is away and one on which the pull fails keep no other from its turn, at first and when images
/// change.
#[tokio::test]
async fn a_node_that_fails_or_is_away_keeps_no_other_from_its_turn() {
    let fleet = Fleet::open(&["node-1", "node-2", "node-3"], "1").await;
    let waiting = json!({ "waiting": { "reason": "ErrImagePull", "message": "the registry is away" } });
    fleet.ready("node-1", "v1").await;
    fleet.say("node-2", "v1", false, waiting.clone()).await;
    fleet.until("node-3 has its turn", async || fleet.pods_by_node().await.contains_key("node-3")).await;
    // It goes before it has pulled, and another comes.
    fleet.node_is("node-3", "Unknown").await;
    fleet.add_node("node-4").await;
    fleet.ready("node-4", "v1").await;
    let nodes = [("node-1", true), ("node-2", false), ("node-3", false), ("node-4", true)];
    fleet.until_all("v1", ImageState::Error, &nodes).await;

    for (setting, image) in [("instance", "manager"), ("share", "share")] {
        let image = format!("registry.example/{image}:v2");
        set(&fleet.client(), &format!("default-{setting}-manager-image"), &image).await;
    }
    for node in ["node-1", "node-2", "node-4"] {
        fleet.until_renewed(node).await;
        match node {
            "node-1" => fleet.say(node, "v2", false, waiting.clone()).await,
            _ => fleet.ready(node, "v2").await,
        }
    }
    let nodes = [("node-1", false), ("node-2", true), ("node-3", false), ("node-4", true)];
    fleet.until_all("v2", ImageState::Error, &nodes).await;
    fleet.node_is("node-3", "True").await;
    fleet.until_renewed("node-3").await;
    fleet.ready("node-3", "v2").await;
    fleet.ready("node-1", "v2").await;
    fleet.until_all("v2", ImageState::Deployed, &nodes.map(|(node, _)| (node, true))).await;
    fleet.close().await;
}
