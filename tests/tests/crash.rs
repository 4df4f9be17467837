//! The controllers are stopped around a write while a volume lives, while its engine image changes under a client, by hand or by
//! itself, while its target moves and a copy leaves and returns, while a node is emptied, while a copy is given up or salvaged, or
//! while it is backed up and restored; whoever comes next brings it to the same end.
//!
//! Every write is numbered. `MIDFLIGHT_CRASHES=all` stops at each of them in each way (the soak does), `MIDFLIGHT_CRASHES=K/N` at
//! the Kth of every N such points, otherwise a few are drawn; `MIDFLIGHT_SEED` draws the same again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "whoever repeats a failed run needs its seed")]

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use midflight_api::longhorn::{DataEngine, Engine, InstanceState, NAMESPACE, Node, Replica, TargetMoveState};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT as LIMIT;
use midflight_api::{Attempt, Outcome, VolumeRecord};
use midflight_operator::{Cut, Moment, Writer};
use midflight_tests::load::Load;
use midflight_tests::running::{nodes_of, status};
use midflight_tests::storage::{NEXT, Storage, THIS};
use serde_json::json;

const SIZE: u64 = 4 << 20;
/// How many points are drawn when not all are tried.
const DRAWN: usize = 4;
const MOMENTS: [Moment; 3] = [Moment::NotSent, Moment::AnswerLost, Moment::Acknowledged];

/// What is left of a volume, apart from names and times.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    replicas: usize,
    engines: usize,
    modes: Vec<String>,
    image: String,
    snapshots: Vec<String>,
}

async fn left(storage: &Storage, volume: &str) -> anyhow::Result<Left> {
    let client = &storage.client;
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let records: Api<VolumeRecord> = Api::namespaced(client.clone(), NAMESPACE);
    let record = records.get_opt(volume).await?.map(|record| record.spec).unwrap_or_default();
    let status =
        storage.volumes().get_opt(volume).await?.and_then(|volume| volume.status).unwrap_or_default();
    Ok(Left {
        replicas: Api::<Replica>::namespaced(client.clone(), NAMESPACE).list(&of_volume).await?.items.len(),
        engines: Api::<Engine>::namespaced(client.clone(), NAMESPACE).list(&of_volume).await?.items.len(),
        modes: record.members.iter().map(|member| member.mode.to_string()).collect(),
        image: status.current_image.to_string(),
        snapshots: storage.snapshots().list(&of_volume).await?.iter().map(ResourceExt::name_any).collect(),
    })
}

async fn delete(storage: &Storage, volume: &str) -> anyhow::Result<()> {
    storage.volumes().delete(volume, &DeleteParams::default()).await?;
    let gone = async || Ok(storage.volumes().get_opt(volume).await?.is_none().then_some(()));
    storage.until("the volume is gone", gone).await?;
    let none = async || {
        let left = storage.snapshots().list(&ListParams::default()).await?;
        Ok(left.items.is_empty().then_some(()))
    };
    storage.until("its snapshots are gone", none).await?;
    for node in ["node-1", "node-2", "node-3"] {
        for folder in ["replicas", "instances"] {
            let left = std::fs::read_dir(storage.room(node).join(folder))?.count();
            anyhow::ensure!(left == 0, "{left} of {folder} are left on {node}");
        }
    }
    Ok(())
}

/// The life of a volume; what there was in the middle of it and at its end.
async fn live(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume(volume, spec).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    storage.take_snapshot(volume, "monday").await?;
    storage.take_snapshot(volume, "tuesday").await?;
    storage.remove_snapshot("monday").await?;
    let kept = async || Ok((storage.layers(volume).await? == ["tuesday"]).then_some(()));
    storage.until("the engine has the snapshot that was kept", kept).await?;
    let attached = left(storage, volume).await?;
    storage.change_volume(volume, json!({ "size": (2 * SIZE).to_string(), "numberOfReplicas": 3 })).await?;
    storage
        .until("it has grown and has three replicas", async || {
            let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
            let size = engines.get(&format!("{volume}-e-0")).await?.status.unwrap_or_default().current_size;
            let whole = left(storage, volume).await?.modes == ["rw", "rw", "rw"];
            Ok((size.bytes() == 2 * SIZE && whole).then_some(()))
        })
        .await?;
    storage.change_volume(volume, json!({ "nodeID": "" })).await?;
    storage.until_volume(volume, "detached", "unknown").await?;
    let detached = left(storage, volume).await?;
    delete(storage, volume).await?;
    Ok([attached, detached, left(storage, volume).await?])
}

/// An attached volume of this build's image, as it stands, and a client of it.
async fn begin_on_this_image(storage: &Storage, volume: &str) -> anyhow::Result<(Left, Load)> {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 2, "dataEngine": "v1", "frontend": "nbd", "nodeID": "node-1",
        "image": THIS,
    });
    storage.create_volume(volume, spec).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    let load = Load::on(&storage.endpoint(volume).await?, volume, 1)?;
    Ok((left(storage, volume).await?, load))
}

/// A volume whose engine image changes under a client.
async fn upgrade(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    let (before, load) = begin_on_this_image(storage, volume).await?;
    storage.change_volume(volume, json!({ "image": NEXT })).await?;
    let there = async || Ok((left(storage, volume).await?.image == NEXT).then_some(()));
    storage.until("the volume runs the new image", there).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    load.judge().await?;
    let after = left(storage, volume).await?;
    delete(storage, volume).await?;
    Ok([before, after, left(storage, volume).await?])
}

/// A volume that moves to the default image by itself, under a client.
async fn upgrade_by_itself(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    let (before, load) = begin_on_this_image(storage, volume).await?;
    storage.set("default-engine-image", NEXT).await?;
    storage.set(LIMIT, "1").await?;
    let done = async || {
        let object = storage.volumes().get(volume).await?;
        let attempt = Attempt::of(object.annotations());
        let is_done = attempt.is_some_and(|attempt| attempt.outcome == Outcome::Done);
        Ok((is_done && left(storage, volume).await?.image == NEXT).then_some(()))
    };
    storage.until("the volume has moved, and says so", done).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    load.judge().await?;
    let after = left(storage, volume).await?;
    storage.set(LIMIT, "0").await?;
    storage.set("default-engine-image", THIS).await?;
    delete(storage, volume).await?;
    Ok([before, after, left(storage, volume).await?])
}

/// A volume whose target moves away and home under a client, and one of whose copies leaves and returns.
async fn visit(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume(volume, spec).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    let load = Load::on(&storage.endpoint(volume).await?, volume, 1)?;
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let all = replicas.list(&of_volume).await?;
    let leaving = all.iter().find(|replica| replica.spec.instance.node_id == "node-1").unwrap().name_any();
    let tell = async |state: &str| {
        let change = Patch::Merge(json!({ "spec": { "desireState": state } }));
        replicas.patch(&leaving, &PatchParams::default(), &change).await.map(drop)
    };
    let aim = async |node: &str| {
        storage.change_volume(volume, json!({ "targetNodeID": node })).await?;
        let there = async || {
            let status = storage.volumes().get(volume).await?.status.unwrap_or_default();
            let is_done = status.target_move.state == TargetMoveState::Done;
            Ok((status.current_target_node_id == node && is_done).then_some(()))
        };
        storage.until(&format!("the target is on {node}"), there).await
    };
    tell("stopped").await?;
    let gone = async || {
        let status = replicas.get(&leaving).await?.status.unwrap_or_default();
        Ok((status.instance.current_state == InstanceState::Stopped).then_some(()))
    };
    storage.until("the copy has left", gone).await?;
    aim("node-2").await?;
    let mut away = left(storage, volume).await?;
    away.modes.sort();
    aim("node-1").await?;
    tell("running").await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    load.judge().await?;
    let home = left(storage, volume).await?;
    delete(storage, volume).await?;
    Ok([away, home, left(storage, volume).await?])
}

/// A copy leaves a node that is emptied, for another, and one is let go that is too many.
async fn leave_a_node(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume(volume, spec).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    let load = Load::on(&storage.endpoint(volume).await?, volume, 1)?;
    let holders = async || {
        let all = nodes_of(storage, volume).await?;
        anyhow::Ok(all.into_iter().filter(|node| node != "node-1").collect::<Vec<_>>())
    };
    let nodes: Api<Node> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let emptied = holders().await?.remove(0);
    let empty = async |asked: bool| {
        let change =
            Patch::Merge(json!({ "spec": { "evictionRequested": asked, "allowScheduling": !asked } }));
        nodes.patch(&emptied, &PatchParams::default(), &change).await.map(drop)
    };
    empty(true).await?;
    let moved = async || {
        let left = left(storage, volume).await?;
        let is_whole = left.modes == ["rw", "rw"] && left.replicas == 2;
        Ok((is_whole && !holders().await?.contains(&emptied)).then_some(()))
    };
    storage.until("the copy has left the node", moved).await?;
    empty(false).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    let emptied = left(storage, volume).await?;
    storage.change_volume(volume, json!({ "numberOfReplicas": 1 })).await?;
    let alone = async || {
        let left = left(storage, volume).await?;
        Ok((left.modes == ["rw"] && left.replicas == 1).then_some(()))
    };
    storage.until("one copy is left", alone).await?;
    load.judge().await?;
    let alone = left(storage, volume).await?;
    delete(storage, volume).await?;
    Ok([emptied, alone, left(storage, volume).await?])
}

/// The nodes of a volume's copies: first one that others than its first node have, then the other.
async fn holders(storage: &Storage, volume: &str) -> anyhow::Result<[String; 2]> {
    let mut nodes = nodes_of(storage, volume).await?;
    nodes.sort_by_key(|node| node == "node-1");
    <[String; 2]>::try_from(nodes).map_err(|nodes| anyhow::anyhow!("two copies are on {nodes:?}"))
}

async fn restart_manager(storage: &mut Storage, node: &str) -> anyhow::Result<()> {
    storage.restart_manager(node.trim_start_matches("node-").parse()?).await
}

/// Until a volume has this many objects of replicas, and two copies in service.
async fn until_two_serve(storage: &Storage, volume: &str, objects: usize) -> anyhow::Result<Left> {
    let two = async || {
        let left = left(storage, volume).await?;
        Ok((left.modes == ["rw", "rw"] && left.replicas == objects).then_some(left))
    };
    let serve = storage.until("two copies serve", two).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    Ok(serve)
}

/// A copy does not come back in time and is given up for another; when its node is back, what it left there goes.
async fn give_up(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    storage.set("replica-replenishment-wait-interval", "1").await?;
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume(volume, spec).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    let load = Load::on(&storage.endpoint(volume).await?, volume, 1)?;
    let [lost, _] = holders(storage, volume).await?;
    storage.kill_manager(&lost).await?;
    let without = until_two_serve(storage, volume, 3).await?;
    restart_manager(storage, &lost).await?;
    let after = until_two_serve(storage, volume, 2).await?;
    anyhow::ensure!(!nodes_of(storage, volume).await?.contains(&lost), "{lost} has a copy");
    load.judge().await?;
    delete(storage, volume).await?;
    Ok([without, after, left(storage, volume).await?])
}

/// The copy with all data is lost, and somebody asks for the older one.
async fn salvage(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume(volume, spec).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    let [older, whole] = holders(storage, volume).await?;
    storage.kill_manager(&older).await?;
    storage.until_volume(volume, "attached", "degraded").await?;
    storage.change_volume(volume, json!({ "nodeID": "" })).await?;
    storage.until_volume(volume, "detached", "unknown").await?;
    storage.kill_manager(&whole).await?;
    restart_manager(storage, &older).await?;
    storage.change_volume(volume, json!({ "nodeID": older })).await?;
    let waits = async || {
        let settled = status(storage, volume).await?.conditions.get("Settled").cloned();
        Ok(settled.filter(|settled| settled.message.as_str().contains("spec.salvageRequested")).map(drop))
    };
    storage.until("it says that nothing can serve it", waits).await?;
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let all = replicas.list(&of_volume).await?;
    let chosen = all.iter().find(|replica| replica.spec.instance.node_id == older.as_str());
    let chosen = chosen.context("it has an object")?.name_any();
    let ask = Patch::Merge(json!({ "spec": { "salvageRequested": true } }));
    replicas.patch(&chosen, &PatchParams::default(), &ask).await?;
    let served = until_two_serve(storage, volume, 3).await?;
    let records: Api<VolumeRecord> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let over = async || {
        let is_asked = replicas.get(&chosen).await?.spec.instance.salvage_requested;
        let is_noted = !records.get(volume).await?.spec.salvaged.is_empty();
        Ok((!is_asked && !is_noted).then_some(()))
    };
    storage.until("the wish is forgotten", over).await?;
    restart_manager(storage, &whole).await?;
    let after = until_two_serve(storage, volume, 2).await?;
    delete(storage, volume).await?;
    Ok([served, after, left(storage, volume).await?])
}

/// A backup is made, restored, followed and removed.
async fn back_up(storage: &mut Storage, volume: &str) -> anyhow::Result<[Left; 3]> {
    let spec = |more: serde_json::Value| {
        let mut spec = json!({ "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd" });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let (copy, spare) = (format!("{volume}-copy"), format!("{volume}-spare"));
    storage.create_volume(volume, spec(json!({ "size": SIZE.to_string(), "nodeID": "node-1" }))).await?;
    storage.until_volume(volume, "attached", "healthy").await?;
    let load = Load::on(&storage.endpoint(volume).await?, volume, 1)?;
    storage.take_snapshot(volume, "monday").await?;
    let url = storage.back_up("monday", "b-1").await?.status.unwrap_or_default().url;
    load.judge().await?;
    storage.create_volume(&copy, spec(json!({ "fromBackup": url }))).await?;
    storage.create_volume(&spare, spec(json!({ "fromBackup": url, "Standby": true }))).await?;
    for one in [&copy, &spare] {
        let restored = async || {
            let status = storage.volumes().get(one).await?.status.unwrap_or_default();
            Ok((status.restore_initiated && !status.restore_required).then_some(()))
        };
        storage.until("it holds the backup", restored).await?;
    }
    storage.until_volume(&copy, "detached", "unknown").await?;
    storage.change_volume(&spare, json!({ "Standby": false })).await?;
    storage.until_volume(&spare, "detached", "unknown").await?;
    let left = [left(storage, volume).await?, left(storage, &copy).await?, left(storage, &spare).await?];
    storage.backups().delete("b-1", &DeleteParams::default()).await?;
    let gone = async || Ok(storage.backups().get_opt("b-1").await?.is_none().then_some(()));
    storage.until("the backup is gone", gone).await?;
    let kept =
        std::fs::read_dir(storage.room("backups").join("volumes").join(volume)).map_or(0, Iterator::count);
    anyhow::ensure!(kept == 0, "{kept} backups are left");
    for one in [&copy, &spare] {
        storage.volumes().delete(one, &DeleteParams::default()).await?;
        let gone = async || Ok(storage.volumes().get_opt(one).await?.is_none().then_some(()));
        storage.until("the volume is gone", gone).await?;
    }
    delete(storage, volume).await?;
    Ok(left)
}

/// A number below `bound`.
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// Which of all points are to be tried, as the first and the distance to the next; a few are drawn if that is not said.
fn part() -> Option<(usize, usize)> {
    let which = std::env::var("MIDFLIGHT_CRASHES").ok()?;
    if which == "all" {
        return Some((0, 1));
    }
    let (part, parts) = which.split_once('/').expect("MIDFLIGHT_CRASHES is all, or K/N");
    let (part, parts): (usize, usize) = (part.parse().unwrap(), parts.parse().unwrap());
    assert!((1..=parts).contains(&part), "MIDFLIGHT_CRASHES={which}");
    Some((part - 1, parts))
}

/// Plays a scenario with controllers that stop nowhere, then with such that stop at one write.
async fn the_end_is_the_same(
    mut storage: Storage,
    scenario: impl AsyncFn(&mut Storage, &str) -> anyhow::Result<[Left; 3]>,
) {
    let writer = storage.replace_operator(Writer::new(storage.client.clone())).await;
    let clean = scenario(&mut storage, "vol-clean").await.unwrap();
    let writes = writer.issued();
    assert!(writes > 20, "only {writes} writes");

    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = std::env::var("MIDFLIGHT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    let mut state = seed;
    let drawn = std::iter::repeat_with(|| {
        let moment = MOMENTS[usize::try_from(draw(&mut state, 3)).unwrap()];
        Cut { write: draw(&mut state, writes), moment }
    });
    let all = (0..writes).flat_map(|write| MOMENTS.map(|moment| Cut { write, moment }));
    let cuts: Vec<Cut> = match part() {
        Some((first, every)) => all.skip(first).step_by(every).collect(),
        None => drawn.take(DRAWN).collect(),
    };
    println!("{} of {} points, MIDFLIGHT_SEED={seed}", cuts.len(), 3 * writes);
    for (number, cut) in cuts.into_iter().enumerate() {
        storage.replace_operator(Writer::with_cut(storage.client.clone(), cut)).await;
        let ended = scenario(&mut storage, &format!("vol-{number}")).await;
        let ended = ended.unwrap_or_else(|error| panic!("{cut:?}, MIDFLIGHT_SEED={seed}: {error:#}"));
        assert_eq!(ended, clean, "{cut:?}, MIDFLIGHT_SEED={seed}");
    }
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_lives_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    Box::pin(the_end_is_the_same(storage, live)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_changes_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::of_two_builds().await.unwrap();
    Box::pin(the_end_is_the_same(storage, upgrade)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_moves_by_itself_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::of_two_builds().await.unwrap();
    Box::pin(the_end_is_the_same(storage, upgrade_by_itself)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_moves_and_a_copy_returns_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    Box::pin(the_end_is_the_same(storage, visit)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_emptied_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    Box::pin(the_end_is_the_same(storage, leave_a_node)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_given_up_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    Box::pin(the_end_is_the_same(storage, give_up)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_salvaged_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    Box::pin(the_end_is_the_same(storage, salvage)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_made_and_restored_the_same_wherever_the_controllers_stopped() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    Box::pin(the_end_is_the_same(storage, back_up)).await;
}
