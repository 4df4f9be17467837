//! Volumes move to the default engine image by themselves: real processes, builds that really differ, and every write
//! of every volume looked at.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::Api;
use midflight_api::longhorn::{EngineImage, NAMESPACE};
use midflight_api::{Attempt, Outcome};
use midflight_plan::storage::engine_image;
use midflight_tests::load::Load;
use midflight_tests::place;
use midflight_tests::running::{attached, detached, runs, status, told};
use midflight_tests::storage::{NEXT, Program, Storage, THIS};
use midflight_tests::watching::Watching;
use serde_json::json;

const LIMIT: &str = "concurrent-automatic-engine-upgrade-per-node-limit";

/// Volumes, engines and replicas that refer to an image, as its object says.
async fn references(storage: &Storage, image: &str) -> anyhow::Result<i32> {
    let images: Api<EngineImage> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let object = images.get(&engine_image::name(&image.into())).await?;
    Ok(object.status.unwrap_or_default().ref_count)
}

/// Waits until every one of these volumes runs the image.
async fn until_all_run(storage: &Storage, volumes: &[String], image: &str) {
    let all = async || {
        for volume in volumes {
            if status(storage, volume).await?.current_image != image {
                return Ok(None);
            }
        }
        Ok(Some(()))
    };
    let reached = storage.until(&format!("all run {image}"), all).await;
    reached.unwrap_or_else(|error| panic!("{error:#}\n{}", storage.logs()));
}

/// Seed 000, case 1.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::print_stderr, reason = "the pause of each volume is what people want to know")]
async fn ten_volumes_move_and_never_more_than_three_of_a_node_at_once() {
    let storage = Storage::of_two_builds().await.unwrap();
    let names: Vec<String> = (0..10).map(|number| format!("vol-{number}")).collect();
    let (busy, idle) = names.split_at(5);
    let mut loads = Vec::new();
    for (number, name) in (1..).zip(busy) {
        let endpoint = attached(&storage, name).await.unwrap();
        loads.push(Load::on(&endpoint, name, number).unwrap());
    }
    for name in idle {
        detached(&storage, name).await.unwrap();
    }
    storage.set("default-engine-image", NEXT).await.unwrap();
    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    until_all_run(&storage, &names, NEXT).await;
    for name in busy {
        runs(&storage, name, NEXT).await.unwrap();
        storage.until_volume(name, "attached", "healthy").await.unwrap();
        let change = status(&storage, name).await.unwrap().engine_change;
        assert!(change.pause_us > 0, "{name}: {change:?}");
        eprintln!("{name}: paused {} us, longest request {} us", change.pause_us, change.longest_wait_us);
    }
    for load in loads {
        load.judge().await.unwrap();
    }
    let whole = async || {
        let (new, old) = (references(&storage, NEXT).await?, references(&storage, THIS).await?);
        Ok(((new, old) == (10 + 10 + 30, 0)).then_some(()))
    };
    storage.until("every reference is to the new image", whole).await.unwrap();
    storage.stop().await;
    let seen = watching.seen();
    assert!(seen.most <= 3, "{} of a node were on their way at once", seen.most);
    assert_eq!(seen.moved.len(), 10, "each was seen on its way: {:?}", seen.moved);
}

/// Seed 000, cases 3 and 4: what must not be touched is not, until it may.
#[tokio::test(flavor = "multi_thread")]
async fn expanding_degraded_and_opted_out_volumes_are_left_alone() {
    let storage = Storage::of_two_builds().await.unwrap();
    attached(&storage, "degraded").await.unwrap();
    storage.change_volume("degraded", json!({ "numberOfReplicas": 4 })).await.unwrap();
    storage.until_volume("degraded", "attached", "degraded").await.unwrap();
    attached(&storage, "expanding").await.unwrap();
    storage.change_volume("expanding", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("expanding", "detached", "unknown").await.unwrap();
    storage.change_volume("expanding", json!({ "size": (8 << 20).to_string() })).await.unwrap();
    let grows = async || Ok(status(&storage, "expanding").await?.expansion_required.then_some(()));
    storage.until("it has to grow", grows).await.unwrap();
    detached(&storage, "never").await.unwrap();
    storage.annotate("never", "midflight.dev/engine-upgrade", "never").await.unwrap();
    detached(&storage, "witness").await.unwrap();

    storage.set("default-engine-image", NEXT).await.unwrap();
    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    until_all_run(&storage, &["witness".to_owned()], NEXT).await;
    // Whatever may move has begun with the witness; the rest would need one turn.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(watching.seen().moved, BTreeSet::from(["witness".to_owned()]));

    storage.change_volume("expanding", json!({ "nodeID": "node-2" })).await.unwrap();
    storage.change_volume("degraded", json!({ "numberOfReplicas": 3 })).await.unwrap();
    until_all_run(&storage, &["expanding".to_owned(), "degraded".to_owned()], NEXT).await;
    assert_eq!(status(&storage, "never").await.unwrap().current_image, THIS);
    storage.stop().await;
}

/// Seed 000, user experience 2: an image that cannot take over from the engine that runs.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_take_over_waits_until_the_workload_scales_down_and_up() {
    const NEWER: &str = "midflight.local/engine:newer";
    let storage = Storage::of_two_builds().await.unwrap();
    storage.add_image_taking_over(NEWER, &Program::next().unwrap(), 2, 2).await.unwrap();
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
    until_all_run(&storage, &["vol-1".to_owned()], NEWER).await;
    storage.change_volume("vol-1", json!({ "nodeID": "node-2" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-1", NEWER).await.unwrap();
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
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(watching.seen().moved, BTreeSet::from(["vol-1".to_owned()]), "the rest is halted");
    for load in loads {
        load.judge().await.unwrap();
    }
    storage.stop().await;
}
