//! The storage controllers against a real API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use midflight_api::longhorn::{EngineImage, NAMESPACE, Node, Setting, Volume};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::testing::Cluster;
use crate::write::{Cut, Moment, Writer};
use crate::{bootstrap, run};

const PATIENCE: Duration = Duration::from_secs(150);

/// Names of the images there are, with how many refer to each.
type Images = BTreeMap<String, i32>;

async fn images(cluster: &Cluster) -> Images {
    let images: Api<EngineImage> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let all = images.list(&ListParams::default()).await.unwrap();
    all.into_iter()
        .map(|image| (image.spec.image.to_string(), image.status.map_or(-1, |status| status.ref_count)))
        .collect()
}

async fn until(cluster: &Cluster, expected: &[(&str, i32)]) {
    let expected: Images = expected.iter().map(|(image, count)| ((*image).to_owned(), *count)).collect();
    let mut last = Images::new();
    let reached = async {
        while last != expected {
            sleep(Duration::from_millis(5)).await;
            last = images(cluster).await;
        }
    };
    let reached = timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "{last:?} instead of {expected:?}");
}

async fn set(cluster: &Cluster, name: &str, value: &str) {
    let settings: Api<Setting> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    settings.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "value": value }))).await.unwrap();
}

#[tokio::test]
async fn the_default_engine_image_has_an_object_and_uses_are_counted() {
    let cluster = Cluster::open().await;
    let standing = bootstrap(&cluster.client).await.unwrap();
    set(&cluster, "default-engine-image", "midflight.local/engine:one").await;
    let writer = Arc::new(Writer::new(cluster.client.clone()));
    let running = tokio::spawn(async move { run(writer, &standing).await });
    until(&cluster, &[("midflight.local/engine:one", 0)]).await;

    let volumes: Api<Volume> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let mut volume = Volume::new("vol-1", Default::default());
    volume.spec.size = midflight_api::Size::from_bytes(1 << 30);
    volume.spec.image = "midflight.local/engine:one".into();
    volumes.create(&PostParams::default(), &volume).await.unwrap();
    until(&cluster, &[("midflight.local/engine:one", 1)]).await;

    set(&cluster, "default-engine-image", "midflight.local/engine:two").await;
    until(&cluster, &[("midflight.local/engine:one", 1), ("midflight.local/engine:two", 0)]).await;
    volumes.delete("vol-1", &DeleteParams::default()).await.unwrap();
    until(&cluster, &[("midflight.local/engine:one", 0), ("midflight.local/engine:two", 0)]).await;

    let long_ago = json!({ "status": { "noRefSince": "2020-01-01T00:00:00Z" } });
    let all: Api<EngineImage> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    for image in all.list(&ListParams::default()).await.unwrap() {
        let patch = Patch::Merge(&long_ago);
        all.patch_status(&image.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
    until(&cluster, &[("midflight.local/engine:two", 0)]).await;
    running.abort();
    cluster.close().await;
}

#[tokio::test]
async fn the_default_engine_image_has_its_object_wherever_the_operator_ended() {
    for (write, moment) in (0..2).flat_map(|write| {
        [Moment::NotSent, Moment::AnswerLost, Moment::Acknowledged].map(|moment| (write, moment))
    }) {
        let cluster = Cluster::open().await;
        let standing = bootstrap(&cluster.client).await.unwrap();
        set(&cluster, "default-engine-image", "midflight.local/engine:one").await;
        let writer = Arc::new(Writer::with_cut(cluster.client.clone(), Cut { write, moment }));
        if moment == Moment::AnswerLost {
            let standing = standing.clone();
            tokio::spawn(async move { run(writer, &standing).await });
        } else {
            timeout(PATIENCE, run(writer, &standing)).await.expect("the cut ends the operator");
            let writer = Arc::new(Writer::new(cluster.client.clone()));
            tokio::spawn(async move { run(writer, &standing).await });
        }
        until(&cluster, &[("midflight.local/engine:one", 0)]).await;
        cluster.close().await;
    }
}

/// What storage says of a node: whether it is ready, why not, and what its disk has free.
async fn told_of(cluster: &Cluster, node: &str) -> Option<(String, String, i64)> {
    let nodes: Api<Node> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let status = nodes.get_opt(node).await.unwrap()?.status?;
    let ready = status.conditions.get("Ready")?;
    let free = status.disk_status.values().map(|disk| disk.storage_available).sum();
    Some((ready.status.to_string(), ready.reason.to_string(), free))
}

#[tokio::test]
async fn a_node_whose_object_was_deleted_is_said_to_be_gone() {
    let cluster = Cluster::open().await;
    let standing = bootstrap(&cluster.client).await.unwrap();
    let machines: Api<core::Node> = Api::all(cluster.client.clone());
    let machine = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1" } });
    machines.create(&PostParams::default(), &serde_json::from_value(machine).unwrap()).await.unwrap();
    let status = json!({ "status": { "capacity": { "ephemeral-storage": "1Ki" },
        "conditions": [{ "type": "Ready", "status": "True" }] } });
    machines.patch_status("node-1", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let writer = Arc::new(Writer::new(cluster.client.clone()));
    let running = tokio::spawn(async move { run(writer, &standing).await });
    let until = async |expected: (&str, &str, i64)| {
        let expected = Some((expected.0.to_owned(), expected.1.to_owned(), expected.2));
        let reached = async {
            while told_of(&cluster, "node-1").await != expected {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "{:?} instead of {expected:?}", told_of(&cluster, "node-1").await);
    };
    until(("True", "", 1024)).await;
    machines.delete("node-1", &DeleteParams::default()).await.unwrap();
    until(("False", "KubernetesNodeGone", 1024)).await;
    let events: Api<core::Event> = Api::all(cluster.client.clone());
    let told = async {
        while !events.list(&ListParams::default()).await.unwrap().iter().any(|event| {
            event.reason.as_deref() == Some("KubernetesNodeGone")
                && event.involved_object.name.as_deref() == Some("node-1")
        }) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("an event tells of it");
    running.abort();
    cluster.close().await;
}
