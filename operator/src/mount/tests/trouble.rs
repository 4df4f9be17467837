//! Daemons that do not run, as nodes tell of them.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{all, change, events, eventually, until, until_said, until_standing, with_dataset};

/// Brings a daemon to a node.
async fn label_node(client: &Client, name: &str) {
    let node = json!({ "metadata": { "name": name, "labels": { "fluid.io/f-default-data": "true" } } });
    let node = serde_json::from_value(node).unwrap();
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
}

async fn daemons(client: &Client) -> Vec<Pod> {
    let pods = Api::<Pod>::default_namespaced(client.clone());
    pods.list(&ListParams::default().labels("role=juicefs-fuse")).await.unwrap().items
}

/// Ends daemons that were deleted, as their nodes would.
async fn nodes_end_daemons(client: &Client) {
    let pods = Api::<Pod>::default_namespaced(client.clone());
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    for pod in daemons(client).await.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
        pods.delete(pod.metadata.name.as_deref().unwrap(), &at_once).await.unwrap();
    }
}

/// Waits for the daemon of the only node to be of a generation, and gives its name.
async fn daemon_of(client: &Client, generation: &str) -> String {
    let is_it =
        |pod: &Pod| json!(pod)["metadata"]["labels"]["fuse.runtime.fluid.io/generation"] == generation;
    let mut name = None;
    eventually(&format!("the daemon is of generation {generation}"), async || {
        nodes_end_daemons(client).await;
        let daemons = daemons(client).await;
        name = daemons.first().filter(|pod| is_it(pod)).and_then(|pod| pod.metadata.name.clone());
        name.is_some()
    })
    .await;
    name.unwrap()
}

/// What the node of a daemon would say of its only container.
async fn node_says(client: &Client, pod: &str, state: &Value) {
    let container = json!({
        "name": "juicefs-fuse", "image": "fuse", "imageID": "", "ready": false, "restartCount": 0, "state": state,
    });
    let status = Patch::Merge(json!({ "status": { "phase": "Pending", "containerStatuses": [container] } }));
    let pods = Api::<Pod>::default_namespaced(client.clone());
    pods.patch_status(pod, &PatchParams::default(), &status).await.unwrap();
}

/// A workload that waits for it keeps its node from being idle for ever.
#[tokio::test]
async fn a_daemon_whose_image_cannot_be_had_is_made_anew_when_the_image_is_corrected() {
    for strategy in ["OnIdle", "OnDelete"] {
        let (cluster, running) = with_dataset().await;
        let client = &cluster.client;
        change(client, json!({ "updateStrategy": strategy })).await;
        label_node(client, "node-1").await;
        let first = daemon_of(client, "1").await;
        node_says(client, &first, &json!({ "waiting": { "reason": "ImagePullBackOff" } })).await;
        change(client, json!({ "imageTag": "2" })).await;
        until(client, &all("fuse:2", "2", strategy)).await;
        let second = daemon_of(client, "2").await;

        // One that runs stays, whatever is wanted.
        node_says(client, &second, &json!({ "running": {} })).await;
        change(client, json!({ "imageTag": "3" })).await;
        until(client, &all("fuse:3", "3", strategy)).await;
        assert_eq!(daemon_of(client, "2").await, second, "{strategy}");
        running.abort();
        cluster.close().await;
    }
}

/// Its next workload hangs, and somebody has to know why.
#[tokio::test]
async fn a_dataset_says_why_its_daemon_does_not_run() {
    let (cluster, running) = with_dataset().await;
    let client = &cluster.client;
    label_node(client, "node-1").await;
    let daemon = daemon_of(client, "1").await;
    node_says(client, &daemon, &json!({ "waiting": { "reason": "ErrImagePull" } })).await;
    let words = "the daemon on node-1 does not run: its image fuse:1 cannot be had; publish it, or name another in the runtime";
    until_standing(client, ["Bound", "False", words]).await;
    until_said(client, words).await;
    let told = format!("FuseDoesNotRun: {words}");
    eventually("it is told once", async || {
        events(client, "JuiceFSRuntime").await.iter().filter(|event| **event == told).count() == 1
    })
    .await;
    change(client, json!({ "imageTag": "2" })).await;
    daemon_of(client, "2").await;
    until_standing(client, ["Bound", "True", "workloads can mount the claim of its name"]).await;
    running.abort();
    cluster.close().await;
}
