//! Volumes made of objects alone, on real instance managers and frontends, used by real NBD clients.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kube::api::DeleteParams;
use midflight_api::longhorn::DataEngine;
use midflight_tests::noise::noise;
use midflight_tests::storage::{Program, Storage, run};
use serde_json::json;

const SIZE: usize = 8 << 20;
const IMAGE: &str = "midflight.local/engine:one";

/// Lives a volume through: made, attached, a node lost and back, grown, moved to another node, deleted.
async fn live(engine: DataEngine) {
    let mut storage = Storage::start(3, engine).await.unwrap();
    if engine == DataEngine::V1 {
        storage.add_image(IMAGE, &Program::this().unwrap(), 1).await.unwrap();
        storage.set("default-engine-image", IMAGE).await.unwrap();
    }
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": engine, "frontend": "nbd",
    });
    storage.create_volume("vol-1", spec).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "node-1" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();

    let endpoint = storage.endpoint("vol-1").await.unwrap();
    assert!(endpoint.starts_with("nbd+unix:///vol-1?socket="), "{endpoint}");
    let (written, read) = (storage.room("written"), storage.room("read"));
    let mut data = noise(1, SIZE);
    std::fs::write(&written, &data).unwrap();
    run("nbdcopy", &["--flush", written.to_str().unwrap(), &endpoint]).await.unwrap();

    storage.kill_manager("node-2").await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &endpoint]).await.unwrap();
    data[1 << 20..(1 << 20) + (64 << 10)].fill(0x5a);

    storage.restart_manager(2).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    storage.kill_manager("node-3").await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    run("nbdcopy", &[&endpoint, read.to_str().unwrap()]).await.unwrap();
    assert!(std::fs::read(&read).unwrap() == data, "the volume holds something else");
    storage.restart_manager(3).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();

    storage.change_volume("vol-1", json!({ "size": (2 * SIZE).to_string() })).await.unwrap();
    let grown = async || {
        let status = storage.volumes().get("vol-1").await?.status.unwrap_or_default();
        let info = run("nbdinfo", &["--size", &endpoint]).await?;
        Ok((!status.expansion_required && info.trim() == (2 * SIZE).to_string()).then_some(()))
    };
    storage.until("the volume has grown", grown).await.unwrap();
    data.resize(2 * data.len(), 0);

    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "node-3" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("nbdcopy", &[&endpoint, read.to_str().unwrap()]).await.unwrap();
    assert!(std::fs::read(&read).unwrap() == data, "the volume holds something else on another node");

    storage.volumes().delete("vol-1", &DeleteParams::default()).await.unwrap();
    let gone = async || Ok(storage.volumes().get_opt("vol-1").await?.is_none().then_some(()));
    storage.until("the volume is gone", gone).await.unwrap();
    for node in ["node-1", "node-2", "node-3"] {
        for folder in ["replicas", "instances"] {
            let left = std::fs::read_dir(storage.room(node).join(folder)).unwrap().count();
            assert_eq!(left, 0, "{folder} on {node}");
        }
    }
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_v2_volume_outlives_a_node_and_keeps_its_data() {
    live(DataEngine::V2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_v1_volume_outlives_a_node_and_keeps_its_data() {
    live(DataEngine::V1).await;
}
