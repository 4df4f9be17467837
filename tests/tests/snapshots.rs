//! Snapshots as objects, on real engines.

use std::time::Duration;

use kube::api::{Api, DeleteParams, ListParams};
use midflight_api::longhorn::{DataEngine, InstanceManager, NAMESPACE};
use midflight_plan::storage::usage::REPLICAS_KNOWN;
use midflight_tests::storage::{Storage, run};
use serde_json::json;
use tokio::time::{sleep, timeout};

const SIZE: u64 = 4 << 20;
/// Bytes that the snapshot holds at the end, and all.
const SNAPSHOT: i64 = 64 << 10;
const TOTAL: i64 = (2 << 20) + SNAPSHOT;

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_come_and_go_under_a_volume_that_stays_as_it_is() {
    let mut storage = Storage::start(2, DataEngine::V2).await.unwrap();
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume("vol-1", spec).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    let write = async |byte: &str| {
        let write = format!("write -P {byte} 1M 64k");
        run("qemu-io", &["-f", "raw", "-c", &write, "-c", "flush", &endpoint]).await.unwrap();
    };
    write("0x11").await;
    let monday = storage.take_snapshot("vol-1", "monday").await.unwrap();
    let status = monday.status.unwrap();
    assert_eq!((status.restore_size, status.user_created), (4 << 20, true));
    assert!(status.children.contains_key("volume-head"), "{status:?}");
    write("0x22").await;
    let tuesday = storage.take_snapshot("vol-1", "tuesday").await.unwrap().status.unwrap();
    assert_eq!(tuesday.parent.as_str(), "monday");
    let known = async || Ok((storage.layers("vol-1").await? == ["monday", "tuesday"]).then_some(()));
    storage.until("the engine's object shows both", known).await.unwrap();

    // One that was taken is not taken again when the volume is where nobody can ask it.
    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    let away = async || {
        let status = storage.snapshots().get("monday").await?.status.unwrap_or_default();
        Ok((!status.ready_to_use && !status.error.is_empty()).then_some(status))
    };
    let away = storage.until("it says that its volume is away", away).await.unwrap();
    assert_eq!(away.creation_time, status.creation_time);
    storage.change_volume("vol-1", json!({ "nodeID": "node-2" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();

    // Deleted while a replica is away: the one that returns has it no more either.
    storage.kill_manager("node-1").await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    storage.remove_snapshot("monday").await.unwrap();
    storage.restart_manager(1).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let kept = async || Ok((storage.layers("vol-1").await? == ["tuesday"]).then_some(()));
    storage.until("the engine has the other one", kept).await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x22 1M 64k", &endpoint]).await.unwrap();

    // What they take is looked at now and then, and copies that nobody knows are named, not removed.
    let left_behind = storage.room("node-1").join("replicas/gone-r-1");
    std::fs::create_dir_all(&left_behind).unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x33 0 2M", "-c", "flush", &endpoint]).await.unwrap();
    let sizes = async || {
        let volume = storage.volumes().get("vol-1").await?.status.unwrap_or_default();
        let snapshot = storage.snapshots().get("tuesday").await?.status.unwrap_or_default();
        anyhow::Ok((snapshot.size, volume.actual_size))
    };
    let measured = async {
        while !matches!(sizes().await.unwrap(), (SNAPSHOT.., TOTAL..)) {
            sleep(Duration::from_millis(200)).await;
        }
    };
    if timeout(Duration::from_secs(150), measured).await.is_err() {
        panic!("{:?} is not what they take", sizes().await);
    }
    let (snapshot, total) = sizes().await.unwrap();
    // A file system may hold some more ready.
    assert!(
        snapshot < 8 * SNAPSHOT && total < TOTAL + (1 << 20),
        "{snapshot} and {total} are more than was written"
    );

    let managers: Api<InstanceManager> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let named = async || {
        let all = managers.list(&ListParams::default()).await?;
        let known = all.iter().filter_map(|manager| manager.status.as_ref()?.conditions.get(REPLICAS_KNOWN));
        Ok(known.into_iter().any(|known| known.message.as_str().contains("gone-r-1")).then_some(()))
    };
    storage.until("the copy that nobody knows is named", named).await.unwrap();
    assert!(left_behind.exists());

    storage.volumes().delete("vol-1", &DeleteParams::default()).await.unwrap();
    let gone = async || Ok(storage.snapshots().get_opt("tuesday").await?.is_none().then_some(()));
    storage.until("the snapshot went with its volume", gone).await.unwrap();
    storage.stop().await;
}
