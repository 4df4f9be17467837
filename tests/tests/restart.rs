//! A cluster that was taken down with volumes attached serves them when it is up again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use kube::api::Api;
use midflight_api::longhorn::{Engine, NAMESPACE};
use midflight_tests::cluster::Cluster;
use midflight_tests::endpoint::Endpoint;
use midflight_tests::pattern;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(120);

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
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = pattern::read(&endpoint(&cluster, name).await, "0x2a", "1M").await {
            assert!(Instant::now() < deadline, "{name} is not served: {error:#}");
            sleep(Duration::from_millis(200)).await;
        }
    }
}
