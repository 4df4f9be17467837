//! Volumes move to the default engine image by themselves: real processes, builds that really differ, and every write
//! of every volume looked at.

use std::collections::BTreeSet;

use kube::ResourceExt;
use midflight_api::longhorn::VolumeState;
use midflight_api::settings::ENGINE_UPGRADE_LIMIT as LIMIT;
use midflight_api::{Attempt, Outcome};
use midflight_tests::load::{Fio, Load};
use midflight_tests::running::{
    attached, detached, runs, status, told, until_all_run, until_looked, until_references,
};
use midflight_tests::storage::{NEXT, Program, Storage, THIS};
use midflight_tests::watching::Watching;
use midflight_tests::{pattern, place};
use serde_json::json;

/// What each of two clients has of a volume, in bytes.
const HALF: u64 = 2 << 20;

/// Seed 000, case 1.
#[tokio::test(flavor = "multi_thread")]
async fn ten_volumes_move_and_never_more_than_three_of_a_node_at_once() {
    let storage = Storage::of_two_builds().await.unwrap();
    let names: Vec<String> = (0..10).map(|number| format!("vol-{number}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let (busy, idle) = all.split_at(5);
    let (mut loads, mut fios) = (Vec::new(), Vec::new());
    for (number, name) in (1..).zip(busy) {
        let endpoint = attached(&storage, name).await.unwrap();
        loads.push(Load::on_blocks(&endpoint, name, number, HALF / 4096).unwrap());
        fios.push(Fio::on(&endpoint, HALF, HALF));
    }
    for name in idle {
        detached(&storage, name).await.unwrap();
    }
    for name in &all {
        storage.change_volume(name, json!({ "image": NEXT })).await.unwrap();
    }
    until_all_run(&storage, &all, NEXT).await.unwrap();
    until_references(&storage, NEXT, 10 + 10 + 30).await.unwrap();

    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    until_all_run(&storage, &all, THIS).await.unwrap();
    for name in busy {
        runs(&storage, name, THIS).await.unwrap();
        storage.until_volume(name, "attached", "healthy").await.unwrap();
        let change = status(&storage, name).await.unwrap().engine_change;
        assert!(change.pause_us > 0, "{name}: {change:?}");
    }
    for load in loads {
        load.judge().await.unwrap();
    }
    for fio in fios {
        fio.judge().await.unwrap();
    }
    until_references(&storage, THIS, 10 + 10 + 30).await.unwrap();
    until_references(&storage, NEXT, 0).await.unwrap();
    {
        let seen = watching.seen();
        assert!(seen.most <= 3, "{} of a node were on their way at once", seen.most);
        assert_eq!(seen.moved.len(), 10, "each was seen on its way: {:?}", seen.moved);
    }
    storage.stop().await;
}

/// Seed 000, case 3. Nothing grows while no instance manager answers, so that the moment lasts.
#[tokio::test(flavor = "multi_thread")]
async fn an_expanding_volume_moves_when_it_has_grown_and_is_detached() {
    const GROWN: u64 = 20 << 20;
    let mut storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-0").await.unwrap();
    pattern::write(&endpoint, "0x11", "3M").await.unwrap();
    let load = Load::on_blocks(&endpoint, "vol-0", 1, HALF / 4096).unwrap();
    storage.change_volume("vol-0", json!({ "image": NEXT })).await.unwrap();
    runs(&storage, "vol-0", NEXT).await.unwrap();
    load.judge().await.unwrap();
    until_references(&storage, NEXT, 1 + 1 + 3).await.unwrap();
    storage.change_volume("vol-0", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-0", "detached", "unknown").await.unwrap();
    detached(&storage, "witness").await.unwrap();
    storage.change_volume("witness", json!({ "image": NEXT })).await.unwrap();
    until_all_run(&storage, &["witness"], NEXT).await.unwrap();

    for node in ["node-1", "node-2", "node-3"] {
        storage.kill_manager(node).await.unwrap();
    }
    storage.change_volume("vol-0", json!({ "size": GROWN.to_string() })).await.unwrap();
    let grows = async || Ok(status(&storage, "vol-0").await?.expansion_required.then_some(()));
    storage.until("it has to grow", grows).await.unwrap();
    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    until_all_run(&storage, &["witness"], THIS).await.unwrap();
    let now = status(&storage, "vol-0").await.unwrap();
    assert!(now.expansion_required && now.current_image == NEXT, "{now:?}");

    for number in 1..=3 {
        storage.restart_manager(number).await.unwrap();
    }
    let grown = async || {
        let now = status(&storage, "vol-0").await?;
        Ok((!now.expansion_required && now.state == VolumeState::Detached).then_some(()))
    };
    let grown = storage.until("it has grown and is detached", grown).await;
    grown.unwrap_or_else(|error| panic!("{error:#}\n{}", storage.logs()));
    until_all_run(&storage, &["vol-0"], THIS).await.unwrap();
    assert_eq!(watching.seen().moved_growing, BTreeSet::new(), "nothing moves while it grows");

    storage.change_volume("vol-0", json!({ "nodeID": "node-2" })).await.unwrap();
    storage.until_volume("vol-0", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-0", THIS).await.unwrap();
    let endpoint = storage.endpoint("vol-0").await.unwrap();
    pattern::read(&endpoint, "0x11", "3M").await.unwrap();
    pattern::write(&endpoint, "0x22", "19M").await.unwrap();
    pattern::read(&endpoint, "0x22", "19M").await.unwrap();
    storage.stop().await;
}

/// Seed 000, case 4: what must not be touched is not, until it may.
#[tokio::test(flavor = "multi_thread")]
async fn degraded_and_opted_out_volumes_are_left_alone() {
    let storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    let load = Load::on(&endpoint, "vol-1", 1).unwrap();
    storage.change_volume("vol-1", json!({ "image": NEXT })).await.unwrap();
    runs(&storage, "vol-1", NEXT).await.unwrap();
    until_references(&storage, NEXT, 1 + 1 + 3).await.unwrap();
    storage.change_volume("vol-1", json!({ "numberOfReplicas": 4 })).await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    for name in ["never", "witness"] {
        detached(&storage, name).await.unwrap();
        storage.change_volume(name, json!({ "image": NEXT })).await.unwrap();
    }
    storage.annotate("never", "midflight.dev/engine-upgrade", "never").await.unwrap();
    until_all_run(&storage, &["never", "witness"], NEXT).await.unwrap();

    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    until_all_run(&storage, &["witness"], THIS).await.unwrap();
    until_looked(&storage, "later", NEXT, THIS).await.unwrap();
    assert_eq!(watching.seen().moved, BTreeSet::from(["later", "witness"].map(str::to_owned)));

    storage.change_volume("vol-1", json!({ "numberOfReplicas": 3 })).await.unwrap();
    runs(&storage, "vol-1", THIS).await.unwrap();
    assert_eq!(status(&storage, "never").await.unwrap().current_image, NEXT);
    load.judge().await.unwrap();
    storage.stop().await;
}

/// Seed 000, user experience 2: an image that cannot take over from the engine that runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_take_over_waits_until_the_workload_scales_down_and_up() {
    const NEWER: &str = "midflight.local/engine:newer";
    let storage = Storage::of_two_builds().await.unwrap();
    storage.add_image_speaking(NEWER, &Program::next().unwrap(), 2, 2..=2).await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    let load = Load::on(&endpoint, "vol-1", 1).unwrap();
    storage.set("default-engine-image", NEWER).await.unwrap();
    storage.set(LIMIT, "1").await.unwrap();
    let waits = async || Ok(told(&storage, "vol-1", "EngineUpgradeWaits").await?.pop());
    let note = storage.until("it is told why it waits", waits).await.unwrap();
    assert!(
        note.contains("IncompatibleVersions") && note.contains("scale its workload down and up"),
        "{note}"
    );
    runs(&storage, "vol-1", THIS).await.unwrap();
    load.judge().await.unwrap();

    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    until_all_run(&storage, &["vol-1"], NEWER).await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "node-2" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-1", NEWER).await.unwrap();
    storage.stop().await;
}

/// The next build has a version of the interface that this one does not know, and one that both have.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_moves_forth_and_back_between_builds_that_differ() {
    let storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    let load = Load::on_blocks(&endpoint, "vol-1", 1, HALF / 4096).unwrap();
    let fio = Fio::on(&endpoint, HALF, HALF);
    storage.set(LIMIT, "1").await.unwrap();
    for image in [NEXT, THIS] {
        storage.set("default-engine-image", image).await.unwrap();
        until_all_run(&storage, &["vol-1"], image).await.unwrap();
        runs(&storage, "vol-1", image).await.unwrap();
        let change = status(&storage, "vol-1").await.unwrap().engine_change;
        assert!(change.image == image && change.pause_us > 0, "it moved under its clients: {change:?}");
    }
    load.judge().await.unwrap();
    fio.judge().await.unwrap();
    assert_eq!(storage.endpoint("vol-1").await.unwrap(), endpoint, "clients keep their place");
    storage.stop().await;
}

/// An image that crashes under clients costs one volume an attempt, and halts the rest.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_fails_is_left_again_and_halts_the_others() {
    const BROKEN: &str = "midflight.local/engine:broken";
    let storage = Storage::of_two_builds().await.unwrap();
    let program = Program::Failing(place::next().unwrap(), "engine-serve");
    storage.add_image(BROKEN, &program, 2).await.unwrap();
    let mut loads = Vec::new();
    for (seed, name) in [(1, "vol-1"), (2, "vol-2")] {
        let endpoint = attached(&storage, name).await.unwrap();
        loads.push(Load::on(&endpoint, name, seed).unwrap());
    }
    storage.set("automatic-engine-upgrade-failure-threshold", "1").await.unwrap();
    storage.set("default-engine-image", BROKEN).await.unwrap();
    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "1").await.unwrap();
    let failed = async || {
        let volume = storage.volumes().get("vol-1").await?;
        let attempt = Attempt::of(volume.annotations());
        let is_back = volume.spec.image == THIS;
        Ok(attempt.filter(|attempt| attempt.outcome == Outcome::Failed && is_back))
    };
    let attempt = storage.until("the attempt has failed", failed).await.unwrap();
    assert_eq!((attempt.failures, attempt.to.as_str()), (1, BROKEN));
    runs(&storage, "vol-1", THIS).await.unwrap();
    let halted = async || Ok(told(&storage, LIMIT, "EngineUpgradesHeld").await?.pop());
    let note = storage.until("it is told that the rest is halted", halted).await.unwrap();
    assert!(note.contains("halted: 1 volumes failed to move"), "{note}");
    assert_eq!(watching.seen().moved, BTreeSet::from(["vol-1".to_owned()]), "the rest is halted");
    for load in loads {
        load.judge().await.unwrap();
    }
    storage.stop().await;
}
