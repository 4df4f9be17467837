//! Volumes that are attached are served again when their cluster, or what serves them to clients, was started anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use midflight_api::longhorn::{Engine, NAMESPACE};
use midflight_tests::cluster::Cluster;
use midflight_tests::endpoint::Endpoint;
use midflight_tests::pattern;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(150);

async fn endpoint(cluster: &Cluster, volume: &str) -> String {
    let client = Endpoint::from_kubeconfig(&cluster.kubeconfig()).await.unwrap().client();
    let engines: Api<Engine> = Api::namespaced(client, NAMESPACE);
    let engine = engines.get(&format!("{volume}-e-0")).await.unwrap();
    engine.status.unwrap_or_default().endpoint.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_were_attached_are_served_after_down_and_up() {
    let volumes = [("one", "v1"), ("two", "v2")];
    let cluster = Cluster::up(1).await.unwrap();
    for (name, engine) in volumes {
        let create =
            ["volume", "create", name, "--size", "8Mi", "--replicas", "1", "--engine", engine, "--wait"];
        cluster.midflight(&create).await.unwrap();
        cluster.midflight(&["volume", "attach", name, "--node", "node-1", "--wait"]).await.unwrap();
        pattern::write(&endpoint(&cluster, name).await, "0x2a", "1M").await.unwrap();
    }
    cluster.midflight(&["down"]).await.unwrap();
    cluster.start().await.unwrap();
    for (name, _) in volumes {
        until_served(&cluster, name).await;
    }
}

async fn until_served(cluster: &Cluster, volume: &str) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = pattern::read(&endpoint(cluster, volume).await, "0x2a", "1M").await {
        assert!(Instant::now() < deadline, "{volume} is not served: {error:#}");
        sleep(Duration::from_millis(200)).await;
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The frontend that comes after them knows of no volume, and the controllers have run all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_served_again_when_frontend_and_keeper_are_replaced_together() {
    let cluster = Cluster::up(1).await.unwrap();
    let create = ["volume", "create", "one", "--size", "8Mi", "--replicas", "1", "--wait"];
    cluster.midflight(&create).await.unwrap();
    cluster.midflight(&["volume", "attach", "one", "--node", "node-1", "--wait"]).await.unwrap();
    pattern::write(&endpoint(&cluster, "one").await, "0x2a", "1M").await.unwrap();
    let client = Endpoint::from_kubeconfig(&cluster.kubeconfig()).await.unwrap().client();
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let both = ListParams::default().labels("longhorn.io/component in (frontend,keeper)");
    let old = pods.list(&both).await.unwrap().items;
    assert_eq!(old.len(), 2);
    for pod in &old {
        pods.delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    }
    let is_new = |pod: &Pod| is_ready(pod) && old.iter().all(|old| old.uid() != pod.uid());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = pods.list(&both).await.unwrap().items;
        if now.len() == 2 && now.iter().all(is_new) {
            break;
        }
        assert!(Instant::now() < deadline, "they are not replaced");
        sleep(Duration::from_millis(50)).await;
    }
    until_served(&cluster, "one").await;
}
