//! Pods, DaemonSets and nodes against a real API server, without agents.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::controller::Operator;
use crate::testing::Cluster;
use crate::write::Writer;

const PATIENCE: Duration = Duration::from_secs(150);

struct World {
    cluster: Cluster,
    running: JoinHandle<()>,
}

impl World {
    async fn open() -> World {
        let cluster = Cluster::open().await;
        World { running: run(&cluster), cluster }
    }

    async fn close(self) {
        self.running.abort();
        let _ = self.running.await;
        self.cluster.close().await;
    }

    fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), "default")
    }

    async fn node(&self, name: &str, disk: &str) {
        let nodes: Api<Node> = Api::all(self.client());
        let node = json!({ "metadata": { "name": name, "labels": { "disk": disk } } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    }

    async fn pod(&self, name: &str, more: Value) {
        let mut spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let pod = json!({ "metadata": { "name": name }, "spec": spec });
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    /// Names of pods and their nodes.
    async fn placed(&self) -> Vec<(String, String)> {
        let all = self.pods().list(&ListParams::default()).await.unwrap();
        let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        all.iter().map(|pod| (pod.name_any(), node(pod))).collect()
    }

    async fn nodes_of_pods(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.placed().await.into_iter().map(|(_, node)| node).collect();
        nodes.sort();
        nodes
    }

    /// What an agent would say.
    async fn make_ready(&self, pod: &str) {
        let at = Timestamp::now().to_string();
        let ready = json!({ "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": at },
        ] } });
        self.pods().patch_status(pod, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
    }

    fn sets(&self) -> Api<DaemonSet> {
        Api::namespaced(self.client(), "default")
    }

    async fn set(&self, image: &str, strategy: Value, selector: Value) {
        let set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "d" },
            "spec": {
                "selector": { "matchLabels": { "app": "d" } },
                "updateStrategy": strategy,
                "template": {
                    "metadata": { "labels": { "app": "d" } },
                    "spec": { "nodeSelector": selector, "containers": [{ "name": "c", "image": image }] },
                },
            },
        });
        let how = PatchParams::apply("test").force();
        self.sets().patch("d", &how, &Patch::Apply(set)).await.unwrap();
    }

    async fn counts(&self) -> [i32; 4] {
        let status = self.sets().get("d").await.unwrap().status.unwrap_or_default();
        [
            status.desired_number_scheduled,
            status.current_number_scheduled,
            status.number_ready,
            status.updated_number_scheduled.unwrap_or_default(),
        ]
    }
}

fn run(cluster: &Cluster) -> JoinHandle<()> {
    let mut operator = Operator::new(Arc::new(Writer::new(cluster.client.clone())));
    super::add(&mut operator);
    tokio::spawn(operator.run())
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let reached = async {
        while !holds().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, reached).await.is_ok(), "never: {what}");
}

#[tokio::test]
async fn pods_go_where_there_are_fewest_and_say_why_they_wait() {
    let world = World::open().await;
    world.pod("early", json!({})).await;
    let waiting = async || {
        let pod = world.pods().get("early").await.unwrap();
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.message.as_deref() == Some("0 of 0 nodes take the pod"))
    };
    until("it says why it waits", waiting).await;
    world.node("a", "ssd").await;
    until("it gets the first node", async || world.nodes_of_pods().await == ["a"]).await;
    world.node("b", "hdd").await;
    for (name, selector) in [("one", json!({})), ("two", json!({})), ("ssd", json!({ "disk": "ssd" }))] {
        world.pod(name, json!({ "nodeSelector": selector })).await;
        until("it is placed", async || !world.placed().await.iter().any(|(_, node)| node.is_empty())).await;
    }
    assert_eq!(world.nodes_of_pods().await, ["a", "a", "a", "b"]);
    world.close().await;
}

#[tokio::test]
async fn a_daemon_set_has_one_pod_on_every_node_it_is_for() {
    let world = World::open().await;
    for (name, disk) in [("a", "ssd"), ("b", "ssd"), ("c", "hdd")] {
        world.node(name, disk).await;
    }
    let rolling = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } });
    world.set("one", rolling.clone(), json!({ "disk": "ssd" })).await;
    until("both have a pod", async || world.nodes_of_pods().await == ["a", "b"]).await;
    for (pod, _) in world.placed().await {
        world.make_ready(&pod).await;
    }
    until("the set says so", async || world.counts().await == [2, 2, 2, 2]).await;

    world.set("two", rolling, json!({ "disk": "ssd" })).await;
    let images = async || {
        let all = world.pods().list(&ListParams::default()).await.unwrap();
        let image = |pod: &Pod| {
            pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone()).unwrap_or_default()
        };
        let going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        all.iter().map(|pod| (pod.name_any(), image(pod), going(pod))).collect::<Vec<_>>()
    };
    until("one goes first", async || images().await.iter().filter(|(_, _, going)| *going).count() == 1).await;
    let mut replaced = 0;
    while replaced < 2 {
        let going: Vec<String> =
            images().await.into_iter().filter(|(_, _, going)| *going).map(|(name, ..)| name).collect();
        assert!(going.len() <= 1, "{going:?}");
        for pod in going {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            world.pods().delete(&pod, &now).await.unwrap();
            until("the next comes", async || world.nodes_of_pods().await == ["a", "b"]).await;
            replaced += 1;
            let fresh = images().await.into_iter().filter(|(_, image, _)| image == "two");
            for (pod, ..) in fresh {
                world.make_ready(&pod).await;
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    until("all are new", async || world.counts().await == [2, 2, 2, 2]).await;

    world.set("three", json!({ "type": "OnDelete" }), json!({ "disk": "ssd" })).await;
    until("the set sees it", async || world.counts().await == [2, 2, 2, 0]).await;
    let pods = images().await;
    assert!(pods.iter().all(|(_, image, going)| image == "two" && !going), "nobody deleted one");

    // Its agent lives, and registers it again.
    let nodes: Api<Node> = Api::all(world.client());
    nodes.delete("b", &DeleteParams::default()).await.unwrap();
    until("the set knows", async || world.counts().await[0] == 1).await;
    assert_eq!(images().await, pods, "what runs there serves on");
    world.node("b", "ssd").await;
    until("the set has both", async || world.counts().await == [2, 2, 2, 0]).await;
    assert_eq!(images().await, pods);
    world.close().await;
}

/// Clients hang on such pods: who keeps new ones from a node does not mean those that serve there.
#[tokio::test]
async fn a_taint_leaves_pods_that_are_there_unless_it_ends_them() {
    let world = World::open().await;
    for name in ["a", "b"] {
        world.node(name, "ssd").await;
    }
    world.set("one", json!({ "type": "OnDelete" }), json!({})).await;
    until("both have a pod", async || world.nodes_of_pods().await == ["a", "b"]).await;
    for (pod, _) in world.placed().await {
        world.make_ready(&pod).await;
    }
    until("the set says so", async || world.counts().await == [2, 2, 2, 2]).await;
    let nodes: Api<Node> = Api::all(world.client());
    let taint = async |effect: &str| {
        let taints = json!({ "spec": { "taints": [{ "key": "repair", "effect": effect }] } });
        nodes.patch("b", &PatchParams::default(), &Patch::Merge(taints)).await.unwrap();
    };
    let going = async || {
        let all = world.pods().list(&ListParams::default()).await.unwrap();
        all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count()
    };
    taint("NoSchedule").await;
    until("the set knows", async || world.counts().await == [1, 1, 1, 1]).await;
    assert_eq!((world.nodes_of_pods().await, going().await), (vec!["a".into(), "b".into()], 0));
    taint("NoExecute").await;
    until("its pod goes", async || going().await == 1).await;
    world.close().await;
}

/// A lease of node `a` that was renewed some seconds ago, and holds for some more.
async fn renewed(world: &World, ago: u64, holds: u64) {
    let leases: Api<Lease> = Api::namespaced(world.client(), "kube-node-lease");
    let at = Timestamp::now() - Duration::from_secs(ago);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "a" },
        "spec": { "holderIdentity": "a", "leaseDurationSeconds": holds, "renewTime": format!("{at:.6}") },
    });
    leases.patch("a", &PatchParams::apply("agent").force(), &Patch::Apply(lease)).await.unwrap();
}

/// Whether node `a` is ready, and since when.
async fn ready(world: &World) -> (String, Option<Timestamp>) {
    let node = Api::<Node>::all(world.client()).get("a").await.unwrap();
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").unwrap();
    (ready.status, ready.last_transition_time.map(|at| at.0))
}

#[tokio::test]
async fn a_node_that_is_not_heard_of_is_called_lost() {
    let world = World::open().await;
    world.node("a", "ssd").await;
    renewed(&world, 0, 4).await;
    assert_eq!(ready(&world).await.0, "True");
    until("its lease has run out", async || ready(&world).await.0 == "Unknown").await;
    world.close().await;
}

/// Control was away for longer than a lease: agents that live need a moment to find it again.
#[tokio::test]
async fn whoever_begins_late_lets_every_lease_run_once_more() {
    const HOLDS: u64 = 4;
    let mut world = World::open().await;
    world.running.abort();
    world.node("a", "ssd").await;
    renewed(&world, 600, HOLDS).await;
    // Times of conditions have no fractions.
    let began = Timestamp::now() - Duration::from_secs(1);
    world.running = run(&world.cluster);
    until("its lease has run out", async || ready(&world).await.0 == "Unknown").await;
    let lost = ready(&world).await.1.unwrap();
    assert!(lost >= began + Duration::from_secs(HOLDS), "began at {began}, lost at {lost}");
    world.close().await;
}

/// What claim and volume say: phase of both, and what the claim has.
async fn paired(client: &Client) -> [Value; 4] {
    let claim = Api::<PersistentVolumeClaim>::default_namespaced(client.clone()).get_opt("c").await.unwrap();
    let volume = Api::<PersistentVolume>::all(client.clone()).get_opt("v").await.unwrap();
    let (claim, volume) = (json!(claim), json!(volume));
    let status = &claim["status"];
    [&status["phase"], &volume["status"]["phase"], &status["capacity"]["storage"], &status["accessModes"]]
        .map(Value::clone)
}

#[tokio::test]
async fn claims_and_volumes_that_name_each_other_are_bound() {
    let cluster = Cluster::open().await;
    let writer = Arc::new(Writer::new(cluster.client.clone()));
    let mut operator = Operator::new(Arc::clone(&writer));
    super::add(&mut operator);
    let world = World { running: tokio::spawn(operator.run()), cluster };
    let client = world.client();
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let (make, remove) = (PostParams::default(), DeleteParams::default());
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "c" },
        "spec": {
            "accessModes": ["ReadWriteMany"], "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "s", "volumeName": "v",
        },
    }))
    .unwrap();
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": { "name": "v" },
        "spec": {
            "accessModes": ["ReadWriteMany"], "capacity": { "storage": "2Gi" }, "storageClassName": "s",
            "claimRef": { "namespace": "default", "name": "c" },
            "csi": { "driver": "d", "volumeHandle": "v" },
        },
    }))
    .unwrap();
    let reach = async |expected: [Value; 4]| {
        until(&format!("{expected:?}"), async || paired(&client).await == expected).await;
    };
    let has = [json!("2Gi"), json!(["ReadWriteMany"])];
    let bound = || [json!("Bound"), json!("Bound"), has[0].clone(), has[1].clone()];
    volumes.create(&make, &volume).await.unwrap();
    reach([json!(null), json!("Available"), json!(null), json!(null)]).await;
    claims.create(&make, &claim).await.unwrap();
    reach(bound()).await;
    assert_eq!(writer.issued(), 3, "each is told once");
    claims.delete("c", &remove).await.unwrap();
    reach([json!(null), json!("Released"), json!(null), json!(null)]).await;
    claims.create(&make, &claim).await.unwrap();
    reach(bound()).await;
    volumes.delete("v", &remove).await.unwrap();
    reach([json!("Lost"), json!(null), json!(null), json!(null)]).await;
    volumes.create(&make, &volume).await.unwrap();
    reach(bound()).await;
    world.close().await;
}
