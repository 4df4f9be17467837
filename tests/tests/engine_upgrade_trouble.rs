//! Engine upgrades while other things happen: upstream's cases of trouble, with real processes and a client that
//! judges every block.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use midflight_api::longhorn::{NAMESPACE, Replica};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT as LIMIT;
use midflight_operator::Writer;
use midflight_tests::load::Load;
use midflight_tests::running::{
    attached, detached, modes, nodes_of, runs, status, until_all_run, until_change,
};
use midflight_tests::storage::{NEXT, Program, Storage, THIS, run, slow};
use midflight_tests::{pattern, place};
use serde_json::json;

/// Deletes one replica of a volume, on another node than the first.
async fn lose_replica(storage: &Storage, volume: &str) -> String {
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = replicas.list(&of_volume).await.unwrap();
    let lost = all.iter().find(|replica| replica.spec.instance.node_id != "node-1").unwrap().name_any();
    replicas.delete(&lost, &DeleteParams::default()).await.unwrap();
    let gone = async || Ok(replicas.get_opt(&lost).await?.is_none().then_some(()));
    storage.until(&format!("{lost} is gone"), gone).await.unwrap();
    lost
}

async fn three_replicas(storage: &Storage, volume: &str) {
    let mut nodes = nodes_of(storage, volume).await.unwrap();
    nodes.sort();
    assert_eq!(nodes, ["node-1", "node-2", "node-3"], "{volume}");
}

/// Upstream case 5, where nobody has the volume: an image that looks fine and whose engine does not start.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_fails_is_left_again_also_by_a_volume_that_was_detached() {
    const BROKEN: &str = "midflight.local/engine:broken";
    let storage = Storage::of_two_builds().await.unwrap();
    let program = Program::Failing(place::next().unwrap(), "engine-start");
    storage.add_image(BROKEN, &program, 2).await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    pattern::write(&endpoint, "0x11", "1M").await.unwrap();
    let ask = async |spec: serde_json::Value| storage.change_volume("vol-1", spec).await.unwrap();

    // Asked for while it is attached and taken off its node: it keeps the image that serves.
    ask(json!({ "image": BROKEN })).await;
    until_change(&storage, "vol-1", "failed").await.unwrap();
    ask(json!({ "nodeID": "" })).await;
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    assert_eq!(status(&storage, "vol-1").await.unwrap().current_image, THIS);
    ask(json!({ "image": THIS })).await;
    until_change(&storage, "vol-1", "taken-back").await.unwrap();

    // Asked for while it is detached: it does not come up, says why, and comes up with the image before.
    ask(json!({ "image": BROKEN })).await;
    until_all_run(&storage, &["vol-1"], BROKEN).await.unwrap();
    ask(json!({ "nodeID": "node-1" })).await;
    let says = async || {
        let conditions = status(&storage, "vol-1").await?.conditions;
        let message = conditions.get("Settled").map(|condition| condition.message.to_string());
        Ok(message.filter(|message| message.contains("its engine does not run")))
    };
    storage.until("it says what is wrong", says).await.unwrap();
    ask(json!({ "image": THIS })).await;
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-1", THIS).await.unwrap();
    pattern::read(&storage.endpoint("vol-1").await.unwrap(), "0x11", "1M").await.unwrap();

    // The same, set back while it is detached.
    ask(json!({ "nodeID": "" })).await;
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    for image in [BROKEN, THIS] {
        ask(json!({ "image": image })).await;
        until_all_run(&storage, &["vol-1"], image).await.unwrap();
    }
    ask(json!({ "nodeID": "node-2" })).await;
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-1", THIS).await.unwrap();
    pattern::read(&storage.endpoint("vol-1").await.unwrap(), "0x11", "1M").await.unwrap();
    storage.stop().await;
}

/// Upstream case 11: a volume whose rebuild takes long keeps no other from its change.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_changes_while_another_is_rebuilt() {
    let storage = Storage::of_two_builds().await.unwrap();
    storage.set("concurrent-replica-rebuild-per-node-limit", "1").await.unwrap();
    // At one megabyte per second the rebuild outlasts the change of the other by far.
    let spec = json!({
        "size": (64 << 20).to_string(), "numberOfReplicas": 3, "dataEngine": "v1", "frontend": "nbd", "nodeID": "node-1",
        "replicaRebuildingBandwidthLimit": 1,
    });
    storage.create_volume("rebuilt", spec).await.unwrap();
    storage.until_volume("rebuilt", "attached", "healthy").await.unwrap();
    let content = |verb: &str| format!("{verb} -P 0x11 0 60M");
    let rebuilt = storage.endpoint("rebuilt").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", &content("write"), "-c", "flush", &rebuilt]).await.unwrap();
    let endpoint = attached(&storage, "changed").await.unwrap();
    let load = Load::on(&endpoint, "changed", 1).unwrap();
    lose_replica(&storage, "rebuilt").await;
    let is_rebuilt = async || Ok(modes(&storage, "rebuilt").await?.0.contains("WO").then_some(()));
    storage.until("a replica is rebuilt", is_rebuilt).await.unwrap();

    storage.change_volume("changed", json!({ "image": NEXT })).await.unwrap();
    runs(&storage, "changed", NEXT).await.unwrap();
    assert!(modes(&storage, "rebuilt").await.unwrap().0.contains("WO"), "the other is still being rebuilt");
    load.judge().await.unwrap();

    storage.change_volume("rebuilt", json!({ "replicaRebuildingBandwidthLimit": 0 })).await.unwrap();
    storage.until_volume("rebuilt", "attached", "healthy").await.unwrap();
    three_replicas(&storage, "rebuilt").await;
    run("qemu-io", &["-f", "raw", "-c", &content("read"), &rebuilt]).await.unwrap();
    storage.stop().await;
}

/// Upstream case 12: the engine's instance manager is killed in the middle of the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_ends_although_the_instance_manager_was_killed_in_it() {
    let mut storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    let load = Load::on(&endpoint, "vol-1", 1).unwrap();
    storage.change_volume("vol-1", json!({ "image": NEXT })).await.unwrap();
    until_change(&storage, "vol-1", "moving").await.unwrap();
    storage.kill_manager("node-1").await.unwrap();
    storage.restart_manager(1).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-1", NEXT).await.unwrap();
    load.judge().await.unwrap();
    storage.stop().await;
}

/// Upstream case 14: a replica is rebuilt after a change, and one that is too many does not keep a volume from it.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_rebuilt_after_a_change_and_one_too_many_goes_in_it() {
    let storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    let load = Load::on(&endpoint, "vol-1", 1).unwrap();
    storage.change_volume("vol-1", json!({ "image": NEXT })).await.unwrap();
    runs(&storage, "vol-1", NEXT).await.unwrap();
    lose_replica(&storage, "vol-1").await;
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-1", NEXT).await.unwrap();
    three_replicas(&storage, "vol-1").await;

    storage.change_volume("vol-1", json!({ "image": THIS, "numberOfReplicas": 2 })).await.unwrap();
    runs(&storage, "vol-1", THIS).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    assert_eq!(nodes_of(&storage, "vol-1").await.unwrap().len(), 2);
    load.judge().await.unwrap();
    storage.stop().await;
}

/// Upstream case 14: a control plane that answers late leaves every volume the replicas that it had.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_control_plane_leaves_every_volume_its_three_replicas() {
    const LATE: Duration = Duration::from_millis(500);
    let mut storage = Storage::of_two_builds().await.unwrap();
    let names = ["vol-1", "vol-2", "vol-3", "vol-4"];
    let mut loads = Vec::new();
    for (seed, name) in (1..).zip(names) {
        loads.push(Load::on(&attached(&storage, name).await.unwrap(), name, seed).unwrap());
    }
    storage.replace_operator(Writer::new(slow(&storage.client, LATE))).await;
    storage.set("default-engine-image", NEXT).await.unwrap();
    storage.set(LIMIT, "10").await.unwrap();
    for name in names {
        until_all_run(&storage, &[name], NEXT).await.unwrap();
    }
    for name in names {
        runs(&storage, name, NEXT).await.unwrap();
        storage.until_volume(name, "attached", "healthy").await.unwrap();
        three_replicas(&storage, name).await;
    }
    for load in loads {
        load.judge().await.unwrap();
    }
    storage.stop().await;
}

/// Upstream case 15: what is detached in the middle of an automatic upgrade ends it so, and what is degraded in the middle of it
/// ends it when it is whole again; the others go on.
#[tokio::test(flavor = "multi_thread")]
async fn automatic_upgrades_end_although_volumes_are_detached_or_degraded_in_them() {
    let mut storage = Storage::of_two_builds().await.unwrap();
    let leaves = attached(&storage, "a-leaves").await.unwrap();
    pattern::write(&leaves, "0x11", "1M").await.unwrap();
    let endpoint = attached(&storage, "b-degrades").await.unwrap();
    let load = Load::on(&endpoint, "b-degrades", 1).unwrap();
    detached(&storage, "c-rests").await.unwrap();
    storage.set("default-engine-image", NEXT).await.unwrap();
    storage.set(LIMIT, "2").await.unwrap();
    until_change(&storage, "a-leaves", "moving").await.unwrap();
    storage.change_volume("a-leaves", json!({ "nodeID": "" })).await.unwrap();
    until_change(&storage, "b-degrades", "moving").await.unwrap();
    storage.kill_manager("node-3").await.unwrap();
    storage.until_volume("b-degrades", "attached", "degraded").await.unwrap();
    // The others are not held up by it.
    until_all_run(&storage, &["a-leaves", "c-rests"], NEXT).await.unwrap();
    storage.restart_manager(3).await.unwrap();
    runs(&storage, "b-degrades", NEXT).await.unwrap();
    storage.until_volume("b-degrades", "attached", "healthy").await.unwrap();
    three_replicas(&storage, "b-degrades").await;
    load.judge().await.unwrap();

    storage.until_volume("a-leaves", "detached", "unknown").await.unwrap();
    storage.change_volume("a-leaves", json!({ "nodeID": "node-2" })).await.unwrap();
    storage.until_volume("a-leaves", "attached", "healthy").await.unwrap();
    runs(&storage, "a-leaves", NEXT).await.unwrap();
    pattern::read(&storage.endpoint("a-leaves").await.unwrap(), "0x11", "1M").await.unwrap();
    storage.stop().await;
}
