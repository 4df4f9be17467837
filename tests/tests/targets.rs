//! What a node upgrade asks of volumes and instance managers, through objects alone: targets move under clients, copies leave
//! and come back, an instance manager of another build takes the place of one. Real processes, real clients.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stderr, reason = "the pause of each move is what people want to know")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use midflight_api::longhorn::{
    DataEngine, Engine, InstanceManager, InstanceManagerState, NAMESPACE, Replica, TargetMove, VolumeStatus,
};
use midflight_plan::storage::instance_manager;
use midflight_tests::follow::follow;
use midflight_tests::load::{Fio, Load};
use midflight_tests::storage::{Storage, run};
use serde_json::json;

const SIZE: usize = 8 << 20;
const HALF: u64 = SIZE as u64 / 2;
const NEXT: &str = "midflight.local/instance-manager:next";

async fn attached(storage: &Storage, name: &str, node: &str) -> String {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v2", "frontend": "nbd", "nodeID": node,
    });
    storage.create_volume(name, spec).await.unwrap();
    storage.until_volume(name, "attached", "healthy").await.unwrap();
    storage.endpoint(name).await.unwrap()
}

async fn status(storage: &Storage, name: &str) -> anyhow::Result<VolumeStatus> {
    Ok(storage.volumes().get(name).await?.status.unwrap_or_default())
}

/// Waits until the target is seen on a node and its move stands so.
async fn until_moved(storage: &Storage, name: &str, node: &str, state: &str) -> TargetMove {
    let reached = async || {
        let status = status(storage, name).await?;
        let is_there = status.current_target_node_id == node && status.target_move.state.as_str() == state;
        Ok(is_there.then_some(status.target_move))
    };
    let reached = storage.until(&format!("the target of {name} is on {node}, {state}"), reached).await;
    let now = status(storage, name).await.unwrap();
    let moved = reached.with_context(|| format!("{now:#?}\n{}", storage.logs())).unwrap();
    eprintln!(
        "{name}: {} -> {} {}: paused {} us, longest request {} us, {} sent again",
        moved.from, node, moved.state, moved.pause_us, moved.longest_wait_us, moved.replayed
    );
    moved
}

/// Waits until vol-1 says why it is not settled.
async fn until_told(storage: &Storage, why: &str) {
    let told = async || {
        let conditions = status(storage, "vol-1").await?.conditions;
        Ok(conditions.get("Settled").is_some_and(|now| now.message.as_str().contains(why)).then_some(()))
    };
    storage.until(&format!("vol-1 says: {why}"), told).await.unwrap();
}

async fn aim(storage: &Storage, name: &str, node: &str) {
    storage.change_volume(name, json!({ "targetNodeID": node })).await.unwrap();
}

/// Nodes on which an engine of the volume is.
async fn engines(storage: &Storage, volume: &str) -> Vec<String> {
    let managers: Api<InstanceManager> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = managers.list(&ListParams::default()).await.unwrap();
    let with = all.items.into_iter().filter(|manager| {
        let engines = manager.status.iter().flat_map(|status| status.instance_engines.keys());
        engines.into_iter().any(|name| name.starts_with(&format!("{volume}-e-")))
    });
    with.map(|manager| manager.spec.node_id.to_string()).collect()
}

/// Waits until the Engine says that its target is on a node: where, and whether others reach it by a port.
async fn until_engine_says(storage: &Storage, volume: &str, node: &str, asked: &str) {
    let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let number: u8 = node.strip_prefix("node-").unwrap().parse().unwrap();
    let address = format!("127.0.0.{}", number + 1);
    let read = async || {
        let engine = engines.get(&format!("{volume}-e-0")).await?;
        let status = engine.status.unwrap_or_default().instance;
        let is_remote = status.target_port > 0;
        Ok::<_, anyhow::Error>((
            engine.spec.instance.target_node_id.to_string(),
            [status.target_ip.to_string(), status.storage_target_ip.to_string()],
            status.current_target_node_id.to_string(),
            (is_remote, status.target_instance_replacement_created),
        ))
    };
    let expected = (asked.to_owned(), [address.clone(), address], node.to_owned(), (node != "node-1", false));
    let says = async || Ok((read().await? == expected).then_some(()));
    let reached = storage.until("the engine says where its target is", says).await;
    let now = read().await.unwrap();
    reached.with_context(|| format!("{now:?}")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_moves_away_and_home_under_a_client() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    let endpoint = attached(&storage, "vol-1", "node-1").await;
    let load = Load::on_blocks(&endpoint, "vol-1", 1, HALF / 4096).unwrap();
    let fio = Fio::on(&endpoint, HALF, HALF);
    storage.take_snapshot("vol-1", "before").await.unwrap();
    let replacements: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let watch = follow(
        Api::namespaced(storage.client.clone(), NAMESPACE),
        Arc::clone(&replacements),
        |seen: &mut BTreeSet<String>, engine: &Engine| {
            let status = engine.status.clone().unwrap_or_default().instance;
            let is_created = status.target_instance_replacement_created;
            seen.extend(is_created.then(|| status.target_ip.to_string()));
        },
    )
    .await;
    let ways = [("node-2", "node-2"), ("node-1", "node-1"), ("node-3", "node-3"), ("node-1", "")];
    for (number, (node, target)) in ways.into_iter().enumerate() {
        aim(&storage, "vol-1", target).await;
        let moved = until_moved(&storage, "vol-1", node, "done").await;
        assert!(moved.pause_us > 0, "{moved:?}");
        assert_eq!(engines(&storage, "vol-1").await, [node]);
        until_engine_says(&storage, "vol-1", node, target).await;
        let snapshot = format!("move-{number}");
        storage.take_snapshot("vol-1", &snapshot).await.unwrap();
        storage.remove_snapshot(&snapshot).await.unwrap();
        let kept = async || Ok((storage.layers("vol-1").await? == ["before"]).then_some(()));
        storage.until("the engine has the snapshot from before the move", kept).await.unwrap();
    }
    watch.abort();
    let replacements = replacements.lock().unwrap().clone();
    let expected: BTreeSet<String> = ["127.0.0.2", "127.0.0.3", "127.0.0.4"].map(str::to_owned).into();
    assert_eq!(replacements, expected, "each target was there before it took over, and was told so");
    storage.remove_snapshot("before").await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    load.judge().await.unwrap();
    let passes = fio.judge().await.unwrap();
    eprintln!("{passes} passes of fio");

    aim(&storage, "vol-1", "node-2").await;
    until_moved(&storage, "vol-1", "node-2", "done").await;
    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    let cleared = async || {
        let volume = storage.volumes().get("vol-1").await?;
        let status = volume.status.unwrap_or_default();
        Ok((volume.spec.target_node_id.is_empty() && status.current_target_node_id.is_empty()).then_some(()))
    };
    storage.until("the target is nowhere", cleared).await.unwrap();
    assert!(engines(&storage, "vol-1").await.is_empty());
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_temporary_target_is_killed_serves_from_its_own_node() {
    let mut storage = Storage::start(3, DataEngine::V2).await.unwrap();
    let endpoint = attached(&storage, "vol-1", "node-1").await;
    let load = Load::on(&endpoint, "vol-1", 1).unwrap();
    aim(&storage, "vol-1", "node-2").await;
    until_moved(&storage, "vol-1", "node-2", "done").await;
    storage.kill_manager("node-2").await.unwrap();
    let moved = until_moved(&storage, "vol-1", "node-1", "failed").await;
    assert_eq!(moved.reason.as_str(), "NodeLost");
    storage.restart_manager(2).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let alone = async || Ok((engines(&storage, "vol-1").await == ["node-1"]).then_some(()));
    storage.until("the only engine is at home", alone).await.unwrap();
    // It is asked for again.
    aim(&storage, "vol-1", "").await;
    until_moved(&storage, "vol-1", "node-1", "taken-back").await;
    aim(&storage, "vol-1", "node-2").await;
    until_moved(&storage, "vol-1", "node-2", "done").await;
    load.judge().await.unwrap();
    storage.stop().await;
}

/// The replica of a volume on a node.
async fn replica_on(storage: &Storage, volume: &str, node: &str) -> Replica {
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let all = replicas.list(&of_volume).await.unwrap();
    all.items.into_iter().find(|replica| replica.spec.instance.node_id == node).unwrap()
}

async fn tell(storage: &Storage, replica: &Replica, state: &str) {
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let change = Patch::Merge(json!({ "spec": { "desireState": state } }));
    replicas.patch(&replica.name_any(), &PatchParams::default(), &change).await.unwrap();
}

async fn until_replica(storage: &Storage, replica: &Replica, state: &str) {
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let stands = async || {
        let status = replicas.get(&replica.name_any()).await?.status.unwrap_or_default();
        Ok((status.instance.current_state.as_str() == state).then_some(()))
    };
    storage.until(&format!("the replica is {state}"), stands).await.unwrap();
}

async fn rebuilt_bytes(storage: &Storage, volume: &str) -> i64 {
    let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
    engines.get(&format!("{volume}-e-0")).await.unwrap().status.unwrap_or_default().rebuilt_bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_leaves_and_returns_with_what_was_written_meanwhile() {
    const WRITTEN: i64 = 256 << 10;
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    let endpoint = attached(&storage, "vol-1", "node-1").await;
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x11 0 8M", "-c", "flush", &endpoint]).await.unwrap();
    let replica = replica_on(&storage, "vol-1", "node-2").await;
    tell(&storage, &replica, "stopped").await;
    until_replica(&storage, &replica, "stopped").await;
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    until_told(&storage, "told to leave").await;
    assert!(storage.room("node-2").join("replicas").join(replica.name_any()).exists(), "its data stays");
    assert_eq!(replica_on(&storage, "vol-1", "node-2").await.spec.failed_at, "", "it has not failed");

    run("qemu-io", &["-f", "raw", "-c", "write -P 0x22 1M 256k", "-c", "flush", &endpoint]).await.unwrap();
    tell(&storage, &replica, "running").await;
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let told = async || Ok(Some(rebuilt_bytes(&storage, "vol-1").await).filter(|copied| *copied >= WRITTEN));
    let copied = storage.until("the engine tells what it copied", told).await.unwrap();
    eprintln!("{WRITTEN} bytes were written meanwhile, {copied} copied");
    assert!(copied <= 2 * WRITTEN, "{copied} bytes copied");

    // What it has is all there is.
    for node in ["node-1", "node-3"] {
        let other = replica_on(&storage, "vol-1", node).await;
        tell(&storage, &other, "stopped").await;
        until_replica(&storage, &other, "stopped").await;
    }
    let read = ["read -P 0x11 0 1M", "read -P 0x22 1M 256k", "read -P 0x11 1280k 6912k"];
    let commands: Vec<&str> = read.iter().flat_map(|one| ["-c", one]).collect();
    run("qemu-io", &[&["-f", "raw"], &commands[..], &[&*endpoint]].concat()).await.unwrap();
    tell(&storage, &replica, "stopped").await;
    until_told(&storage, "the last in service").await;
    storage.stop().await;
}

async fn manager(storage: &Storage, node: &str, image: &str) -> anyhow::Result<Option<InstanceManager>> {
    let managers: Api<InstanceManager> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let name = instance_manager::name(&node.into(), &image.into(), DataEngine::V2);
    Ok(managers.get_opt(&name).await?)
}

async fn until_manager(storage: &Storage, node: &str, image: &str, state: InstanceManagerState) {
    let stands = async || {
        let status = manager(storage, node, image).await?.and_then(|manager| manager.status);
        Ok((status.unwrap_or_default().current_state == state).then_some(()))
    };
    let reached = storage.until(&format!("the manager of {node} is {state}"), stands).await;
    reached.with_context(|| storage.logs()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_manager_of_the_next_build_takes_the_place_of_the_old_one_under_a_client() {
    let mut storage = Storage::start(3, DataEngine::V2).await.unwrap();
    let endpoint = attached(&storage, "vol-1", "node-1").await;
    let old = status(&storage, "vol-1").await.unwrap().current_image.to_string();
    let load = Load::on(&endpoint, "vol-1", 1).unwrap();
    storage.set("default-instance-manager-image", NEXT).await.unwrap();
    for node in ["node-1", "node-2", "node-3"] {
        until_manager(&storage, node, NEXT, InstanceManagerState::Stopped).await;
        until_manager(&storage, node, &old, InstanceManagerState::Running).await;
    }

    let replica = replica_on(&storage, "vol-1", "node-1").await;
    tell(&storage, &replica, "stopped").await;
    until_replica(&storage, &replica, "stopped").await;
    aim(&storage, "vol-1", "node-2").await;
    until_moved(&storage, "vol-1", "node-2", "done").await;
    let managers: Api<InstanceManager> = Api::namespaced(storage.client.clone(), NAMESPACE);
    if let Some(manager) = manager(&storage, "node-1", &old).await.unwrap() {
        managers.delete(&manager.name_any(), &DeleteParams::default()).await.unwrap();
    }
    storage.follow_manager(1, NEXT).await.unwrap();
    until_manager(&storage, "node-1", NEXT, InstanceManagerState::Running).await;
    assert!(manager(&storage, "node-1", &old).await.unwrap().is_none(), "the old one is gone");

    assert_eq!(status(&storage, "vol-1").await.unwrap().current_image, old.as_str());
    aim(&storage, "vol-1", "node-1").await;
    until_moved(&storage, "vol-1", "node-1", "done").await;
    tell(&storage, &replica, "running").await;
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let says = async || Ok((status(&storage, "vol-1").await?.current_image == NEXT).then_some(()));
    storage.until("the volume runs the new image", says).await.unwrap();
    load.judge().await.unwrap();
    storage.stop().await;
}

/// Tells the node of images that it has.
async fn list_images(storage: &Storage, node: &str, names: &[&str]) {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(storage.client.clone());
    let status = Patch::Merge(json!({ "status": { "images": [{ "names": names, "sizeBytes": 1 }] } }));
    nodes.patch_status(node, &PatchParams::default(), &status).await.unwrap();
}

/// What `midflight upgrade nodes --to` does with a name that nobody has published, and with the right one afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_no_node_has_takes_no_instance_manager_away_and_can_be_corrected() {
    const TYPO: &str = "midflight.local/instance-manager:tpyo";
    let mut storage = Storage::start(1, DataEngine::V2).await.unwrap();
    let spec =
        json!({ "size": SIZE.to_string(), "numberOfReplicas": 1, "dataEngine": "v2", "frontend": "nbd" });
    storage.create_volume("vol-1", spec).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    let old = status(&storage, "vol-1").await.unwrap().current_image.to_string();
    storage.set("default-instance-manager-image", TYPO).await.unwrap();
    until_manager(&storage, "node-1", TYPO, InstanceManagerState::Stopped).await;
    storage.change_volume("vol-1", json!({ "nodeID": "node-1" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    until_manager(&storage, "node-1", &old, InstanceManagerState::Running).await;

    storage.set("default-instance-manager-image", NEXT).await.unwrap();
    let gone = async || Ok(manager(&storage, "node-1", TYPO).await?.is_none().then_some(()));
    storage.until("the one that never began is gone", gone).await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    until_manager(&storage, "node-1", &old, InstanceManagerState::Running).await;
    list_images(&storage, "node-1", &[NEXT]).await;
    storage.follow_manager(1, NEXT).await.unwrap();
    until_manager(&storage, "node-1", NEXT, InstanceManagerState::Running).await;
    storage.change_volume("vol-1", json!({ "nodeID": "node-1" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    storage.stop().await;
}
