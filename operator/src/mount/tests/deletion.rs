//! Datasets that are deleted while workloads use them.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use midflight_api::fluid::{Dataset, JuiceFSRuntime};
use serde_json::{Value, json};

use super::{events, eventually, until_standing, with_dataset};

async fn make_user(client: &Client, name: &str, claim: &str) {
    let pod = json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": "node-1", "containers": [{ "name": "main", "image": "i" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
        },
    });
    let pods = Api::<Pod>::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

async fn end_user(client: &Client, name: &str) {
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    Api::<Pod>::default_namespaced(client.clone()).delete(name, &at_once).await.unwrap();
}

/// Whether all is there that serves the dataset.
async fn is_served(client: &Client) -> [bool; 3] {
    let set = Api::<DaemonSet>::default_namespaced(client.clone()).get_opt("data-fuse").await.unwrap();
    let claim =
        Api::<PersistentVolumeClaim>::default_namespaced(client.clone()).get_opt("data").await.unwrap();
    let volume = Api::<PersistentVolume>::all(client.clone()).get_opt("default-data").await.unwrap();
    [set.is_some(), claim.is_some(), volume.is_some()]
}

#[tokio::test]
async fn a_dataset_that_was_deleted_serves_until_its_last_workload_has_gone() {
    let (cluster, running) = with_dataset().await;
    let client = &cluster.client;
    let room: Value = json!({
        "metadata": { "name": "room" },
        "spec": {
            "accessModes": ["ReadWriteMany"], "capacity": { "storage": "1Gi" },
            "claimRef": { "namespace": "default", "name": "room" },
            "csi": {
                "driver": "fuse.csi.fluid.io", "volumeHandle": "default.data.room",
                "volumeAttributes": { "runtime_namespace": "default", "runtime_name": "data" },
            },
        },
    });
    let volumes = Api::<PersistentVolume>::all(client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(room).unwrap()).await.unwrap();
    make_user(client, "one", "data").await;
    make_user(client, "two", "room").await;
    make_user(client, "zero", "other").await;

    let datasets = Api::<Dataset>::default_namespaced(client.clone());
    let runtimes = Api::<JuiceFSRuntime>::default_namespaced(client.clone());
    let gone = DeleteParams::background();
    datasets.delete("data", &gone).await.unwrap();
    runtimes.delete("data", &gone).await.unwrap();
    let words = |users: &str| format!("it was deleted, and goes when nobody uses it any more: pod {users}");
    until_standing(client, ["Bound", "True", &words("default/one and others")]).await;
    end_user(client, "one").await;
    until_standing(client, ["Bound", "True", &words("default/two")]).await;
    assert_eq!(is_served(client).await, [true; 3]);
    assert!(runtimes.get_opt("data").await.unwrap().is_some());
    let told = format!("DeletionWaits: {}", words("default/one and others"));
    eventually("it is told once", async || events(client, "Dataset").await == [told.clone()]).await;

    end_user(client, "two").await;
    eventually("both are gone, and all that served", async || {
        datasets.get_opt("data").await.unwrap().is_none()
            && runtimes.get_opt("data").await.unwrap().is_none()
            && is_served(client).await == [false; 3]
    })
    .await;
    running.abort();
    cluster.close().await;
}
