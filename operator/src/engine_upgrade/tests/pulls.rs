//! An engine image that nodes cannot pull: its object says which node, which image and why, volumes keep the image that
//! they have, and nothing is counted as being on its way. The test is the kubelet.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use midflight_api::longhorn::{Condition, ConditionStatus};
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
        self.until_ready_says(&format!("{state}: {message}"), |is, ready| {
            is == state && ready.message == message
        })
        .await;
    }

    /// Waits until state and condition of the image are as they should be.
    async fn until_ready_says(&self, what: &str, holds: impl Fn(&str, &Condition) -> bool) {
        let images: Api<EngineImage> = self.api();
        let mut last = (String::new(), Condition::default());
        let reached = timeout(PATIENCE, async {
            while !holds(&last.0, &last.1) {
                sleep(Duration::from_millis(5)).await;
                let image = images.get_opt(&engine_image::name(&NEW.into())).await.unwrap();
                let status = image.and_then(|image| image.status).unwrap_or_default();
                let ready = status.conditions.get("ready").cloned();
                last = (status.state.to_string(), ready.unwrap_or_default());
            }
        });
        assert!(reached.await.is_ok(), "{last:?} instead of {what}");
    }

    /// The node runs the new binary since so long, and it does not end.
    async fn starts(&self, node: &str, since: &str) {
        let container = json!({ "name": INSTALLER, "image": NEW, "imageID": "id", "ready": false,
            "restartCount": 0, "state": { "running": { "startedAt": since } } });
        let status =
            json!({ "phase": "Pending", "initContainerStatuses": [container], "containerStatuses": [] });
        self.say(node, status).await;
    }

    fn run_controllers(&mut self, figures: &Figures) {
        let running = controllers(Arc::new(Writer::new(self.client())), figures.clone());
        self.tasks.0.push(tokio::spawn(running).abort_handle());
    }
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_says_so_and_costs_no_volume_anything() {
    let mut fleet = Fleet::with_nodes().await;
    fleet.volume_on(&["node-1"], "here", "node-1", attached("node-1")).await;
    fleet.volume_on(&["node-1", "node-2"], "both", "node-1", attached("node-1")).await;
    fleet.hollow_engine(&[]);
    let figures = Figures::default();
    fleet.run_controllers(&figures);

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

/// Nothing waits in silence: not for a binary that hangs, and not for one whose words cannot be read.
#[tokio::test]
async fn an_image_whose_binary_is_not_heard_says_so_until_it_is() {
    let mut fleet = Fleet::with_nodes().await;
    fleet.run_controllers(&Figures::default());
    fleet.pulls("node-1").await;
    fleet
        .until_ready_says("that its log cannot be read", |state, ready| {
            state == "deploying"
                && ready.reason == "Unheard"
                && ready.message.as_str().contains("cannot be read")
        })
        .await;
    fleet.starts("node-1", "2020-01-01T00:00:00Z").await;
    fleet
        .until_ready_says("that it is silent", |state, ready| {
            let said = ready.message.as_str();
            let is_said = said.contains("has not answered") && said.contains("What helps: ");
            state == "error" && ready.status == ConditionStatus::False && ready.reason == "Unheard" && is_said
        })
        .await;
    fleet.until_told(&engine_image::name(&NEW.into()), &["Unheard"]).await;

    fleet.pulls("node-1").await;
    fleet.pulls("node-2").await;
    fleet.answers().await;
    fleet
        .until_ready_says("that it is ready", |state, ready| {
            state == "deployed" && ready.status == ConditionStatus::True && ready.reason.is_empty()
        })
        .await;
    fleet.close().await;
}

/// An older version of Midflight has made it, from another template.
#[tokio::test]
async fn the_set_of_an_older_version_is_brought_up_to_date() {
    let mut fleet = Fleet::with_nodes().await;
    fleet.run_controllers(&Figures::default());
    fleet.pulls("node-1").await;
    let sets: Api<DaemonSet> = fleet.api();
    let name = format!("engine-image-{}", engine_image::name(&NEW.into()));
    let made = sets.get(&name).await.unwrap();
    let install = json!({ "name": INSTALLER, "image": NEW, "args": ["as", "it", "was"] });
    let older = json!({ "metadata": { "annotations": { "midflight.dev/template": null } },
        "spec": { "template": { "spec": { "initContainers": [install] } } } });
    sets.patch(&name, &PatchParams::default(), &Patch::Merge(older)).await.unwrap();
    let template = |set: &DaemonSet| set.spec.as_ref().map(|spec| spec.template.clone());
    let mut last = None;
    let reached = timeout(PATIENCE, async {
        while last != template(&made) {
            sleep(Duration::from_millis(5)).await;
            last = template(&sets.get(&name).await.unwrap());
        }
    });
    assert!(reached.await.is_ok(), "{last:?}");
    let pods: Api<Pod> = fleet.api();
    let of_image = format!("{}={}", OF_IMAGE, engine_image::name(&NEW.into()));
    let is_right = |pod: &Pod| {
        let install = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()?.first().cloned());
        install.is_some_and(|install| install.args.iter().flatten().any(|part| part == "engine-image"))
    };
    let replaced = timeout(PATIENCE, async {
        while !pods.list(&ListParams::default().labels(&of_image)).await.unwrap().iter().all(is_right) {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(replaced.await.is_ok(), "pods follow");
    let images: Api<EngineImage> = fleet.api();
    let status = images.get(&engine_image::name(&NEW.into())).await.unwrap().status.unwrap_or_default();
    assert!(status.node_deployment_map["node-1"], "the binary is there all the time");
    fleet.close().await;
}
