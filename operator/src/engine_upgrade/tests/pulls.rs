//! An engine image that nodes cannot pull: its object says which node, which image and why, volumes keep the image that
//! they have, and nothing is counted as being on its way. The test is the kubelet.

use k8s_openapi::api::core::v1::{Node, Pod};
use midflight_plan::storage::engine_image;

use super::*;
use crate::controller::Operator;
use crate::engine_upgrade::EngineUpgrades;
use crate::storage::{EngineImages, Nodes};
use crate::workload;

/// What pods of an engine image are known by, and their containers: one puts the binary there, one holds the image.
const OF_IMAGE: &str = "longhorn.io/engine-image";
const INSTALLER: &str = "install";
const HOLDER: &str = "hold";

async fn controllers(writer: Arc<Writer>, figures: Figures) {
    let mut operator = Operator::counting(writer, figures);
    let images = EngineImages::new(&mut operator);
    operator.add(images);
    let upgrades = EngineUpgrades::new(&mut operator);
    operator.add(upgrades);
    let nodes = Nodes::new(&mut operator);
    operator.add(nodes);
    workload::add(&mut operator);
    operator.run().await;
}

impl Fleet {
    /// Two nodes, volumes of an old image that is on both, and a new default image.
    async fn with_nodes() -> Fleet {
        let fleet = Fleet::empty().await;
        let nodes: Api<Node> = Api::all(fleet.client());
        for name in &NODES[..2] {
            let node = json!({ "metadata": { "name": name } });
            nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
            let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
            nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
        }
        let images: Api<EngineImage> = fleet.api();
        let old =
            json!({ "metadata": { "name": engine_image::name(&OLD.into()) }, "spec": { "image": OLD } });
        let there = json!({ "nodeDeploymentMap": { "node-1": true, "node-2": true }, "version": "1",
            "cliAPIVersion": 1, "cliAPIMinVersion": 1, "controllerAPIVersion": 5, "controllerAPIMinVersion": 3 });
        make(&images, old, there).await;
        fleet.set("default-engine-image", NEW).await;
        fleet
    }

    /// What a kubelet says of the pod that brings the new image to its node.
    async fn say(&self, node: &str, status: Value) {
        let pods: Api<Pod> = self.api();
        let of_image = format!("{}={}", OF_IMAGE, engine_image::name(&NEW.into()));
        let mut there = None;
        let found = timeout(PATIENCE, async {
            while there.is_none() {
                let all = pods.list(&ListParams::default().labels(&of_image)).await.unwrap();
                let is_here = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node);
                there = all.into_iter().find(is_here).map(|pod| pod.name_any());
                sleep(Duration::from_millis(5)).await;
            }
        });
        found.await.expect("the image has a pod on the node");
        let status = Patch::Merge(json!({ "status": status }));
        pods.patch_status(&there.unwrap(), &PatchParams::default(), &status).await.unwrap();
    }

    async fn fails(&self, node: &str) {
        let waiting = json!({ "reason": "ErrImagePull", "message": "the registry does not have it" });
        let container = json!({ "name": INSTALLER, "image": NEW, "imageID": "", "ready": false,
            "restartCount": 0, "state": { "waiting": waiting } });
        self.say(node, json!({ "phase": "Pending", "initContainerStatuses": [container] })).await;
    }

    async fn pulls(&self, node: &str) {
        let container = json!({ "name": HOLDER, "image": NEW, "imageID": "id", "ready": true,
            "restartCount": 0, "state": { "running": {} } });
        let status =
            json!({ "phase": "Running", "initContainerStatuses": [], "containerStatuses": [container] });
        self.say(node, status).await;
    }

    /// Notes what the binary of the new image says of itself; nobody here has its log.
    async fn answers(&self) {
        let images: Api<EngineImage> = self.api();
        let about = json!({ "version": "2", "cliAPIVersion": 1, "cliAPIMinVersion": 1,
            "controllerAPIVersion": 6, "controllerAPIMinVersion": 3 });
        let about = Patch::Merge(json!({ "status": about }));
        let name = engine_image::name(&NEW.into());
        images.patch_status(&name, &PatchParams::default(), &about).await.unwrap();
    }

    /// Waits until the image stands so: its state, and what is said of it.
    async fn until_image(&self, state: &str, message: &str) {
        let images: Api<EngineImage> = self.api();
        let mut last = (String::new(), String::new());
        let reached = timeout(PATIENCE, async {
            while last != (state.to_owned(), message.to_owned()) {
                sleep(Duration::from_millis(5)).await;
                let image = images.get_opt(&engine_image::name(&NEW.into())).await.unwrap();
                let status = image.and_then(|image| image.status).unwrap_or_default();
                let ready = status.conditions.get("ready").map(|ready| ready.message.to_string());
                last = (status.state.to_string(), ready.unwrap_or_default());
            }
        });
        assert!(reached.await.is_ok(), "{last:?} instead of {state}: {message}");
    }
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_says_so_and_costs_no_volume_anything() {
    let mut fleet = Fleet::with_nodes().await;
    fleet.volume_on(&["node-1"], "here", "node-1", attached("node-1")).await;
    fleet.volume_on(&["node-1", "node-2"], "both", "node-1", attached("node-1")).await;
    fleet.hollow_engine(&[]);
    let figures = Figures::default();
    let running = controllers(Arc::new(Writer::new(fleet.client())), figures.clone());
    fleet.tasks.0.push(tokio::spawn(running).abort_handle());

    fleet.fails("node-1").await;
    fleet.fails("node-2").await;
    let why = "ErrImagePull: the registry does not have it";
    fleet.until_image("error", &format!("{NEW} on node-1: {why}; node-2: {why}")).await;
    let image = engine_image::name(&NEW.into());
    fleet.until_told(&image, &["PullFailed"]).await;
    fleet.set(LIMIT, "1").await;
    fleet.until_told(LIMIT, &["EngineUpgradesHeld"]).await;
    let all = fleet.seen.lock().unwrap().volumes.clone();
    assert!(runs(&all["here"], OLD) && runs(&all["both"], OLD), "nothing has begun");

    fleet.pulls("node-1").await;
    fleet.until_image("error", &format!("{NEW} on node-2: {why}")).await;
    fleet.until_told("here", &["EngineUpgradeWaits"]).await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["here"], OLD), "nobody knows yet what it can do");
    fleet.answers().await;
    fleet.until("the volume whose node has it moves", |all| done(&all["here"])).await;
    fleet.until_told("both", &["EngineUpgradeWaits"]).await;
    let none = timeout(PATIENCE, async {
        while figures.upgrades_under_way.get() != 0 {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(none.await.is_ok(), "nothing is counted");
    assert!(runs(&fleet.seen.lock().unwrap().volumes["both"], OLD));

    fleet.pulls("node-2").await;
    fleet.until("the other follows", |all| done(&all["both"])).await;
    fleet.until_image("deployed", "").await;
    fleet.close().await;
}
