//! Many volumes on their way, while limits change, somebody helps by hand, all are deleted, or the image is not on every
//! node yet: upstream's cases 13 and 15.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use midflight_api::Attempt;
use midflight_api::longhorn::{EngineImage, NAMESPACE, Volume};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT as LIMIT;
use midflight_operator::{Admission, Writer};
use midflight_plan::storage::engine_image;
use midflight_tests::load::Load;
use midflight_tests::running::{attached, detached, runs, status, told, until_all_run, until_references};
use midflight_tests::storage::{NEXT, Storage, THIS};
use midflight_tests::watching::Watching;
use serde_json::json;

const ATTACHED: [&str; 3] = ["vol-0", "vol-1", "vol-2"];
const DETACHED: [&str; 3] = ["vol-3", "vol-4", "vol-5"];

/// Waits until a volume was seen on its way.
async fn until_one_moves(storage: &Storage, watching: &Watching) {
    let moves = async || Ok((!watching.seen().moved.is_empty()).then_some(()));
    storage.until("a volume is on its way", moves).await.unwrap();
}

/// Upstream case 15.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_raised_holds_and_volumes_may_be_moved_by_hand_or_deleted_meanwhile() {
    let storage = Storage::of_two_builds().await.unwrap();
    let all = [ATTACHED, DETACHED].concat();
    let mut loads = Vec::new();
    for (seed, name) in (1..).zip(ATTACHED) {
        loads.push(Load::on(&attached(&storage, name).await.unwrap(), name, seed).unwrap());
    }
    for name in DETACHED {
        detached(&storage, name).await.unwrap();
    }

    storage.set("default-engine-image", NEXT).await.unwrap();
    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "1").await.unwrap();
    until_one_moves(&storage, &watching).await;
    assert_eq!(watching.seen().most, 1, "the first limit holds");
    // By hand to the default, while the others go by themselves: it is admitted, and takes one of the places.
    storage.change_volume("vol-2", json!({ "image": NEXT })).await.unwrap();
    let noticed = async || {
        let attempt = Attempt::of(storage.volumes().get("vol-2").await?.annotations());
        Ok(attempt.filter(|attempt| attempt.to == NEXT).map(drop))
    };
    storage.until("it is counted", noticed).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    until_all_run(&storage, &all, NEXT).await.unwrap();
    for name in ATTACHED {
        runs(&storage, name, NEXT).await.unwrap();
        storage.until_volume(name, "attached", "healthy").await.unwrap();
    }
    {
        let seen = watching.seen();
        assert!(seen.most <= 3, "{} of a node were on their way at once", seen.most);
        assert_eq!(seen.moved.len(), all.len(), "each was seen on its way: {:?}", seen.moved);
    }
    for load in loads {
        load.judge().await.unwrap();
    }

    // All are deleted in the middle of the way back.
    let watching = Watching::begin(&storage).await.unwrap();
    storage.set("default-engine-image", THIS).await.unwrap();
    until_one_moves(&storage, &watching).await;
    for name in &all {
        storage.volumes().delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in &all {
        let gone = async || Ok(storage.volumes().get_opt(name).await?.is_none().then_some(()));
        let gone = storage.until(&format!("{name} is gone"), gone).await;
        gone.unwrap_or_else(|error| panic!("{error:#}\n{}", storage.logs()));
    }
    assert!(watching.seen().most <= 3);
    for image in [THIS, NEXT] {
        until_references(&storage, image, 0).await.unwrap();
    }
    // What comes later finds its place: nothing of the deleted ones is counted.
    detached(&storage, "later").await.unwrap();
    storage.set("default-engine-image", NEXT).await.unwrap();
    until_all_run(&storage, &["later"], NEXT).await.unwrap();
    assert_eq!(status(&storage, "later").await.unwrap().current_image, NEXT);
    storage.stop().await;
}

/// Says of the next image whether a node has it.
async fn on_node_3(storage: &Storage, there: bool) {
    let images: Api<EngineImage> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let says = Patch::Merge(json!({ "status": { "nodeDeploymentMap": { "node-3": there } } }));
    let name = engine_image::name(&NEXT.into());
    images.patch_status(&name, &PatchParams::default(), &says).await.unwrap();
}

/// Upstream case 13: volumes whose nodes have the image move, by themselves and by hand; the others are refused, and follow.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_on_some_nodes_serves_the_volumes_of_these_and_the_others_follow() {
    let storage = Storage::of_two_builds().await.unwrap();
    let admission = Admission::open().await.unwrap();
    admission.register(&Writer::new(storage.client.clone())).await.unwrap();
    let judging = tokio::spawn(admission.serve(storage.client.clone()));
    let user: Api<Volume> = Api::namespaced(storage.client_as("somebody").unwrap(), NAMESPACE);
    let ask = async |volume: &str| {
        let change = Patch::Merge(json!({ "spec": { "image": NEXT } }));
        user.patch(volume, &PatchParams::default(), &change).await.map(drop)
    };
    let everywhere = attached(&storage, "everywhere").await.unwrap();
    let mut loads = vec![Load::on(&everywhere, "everywhere", 1).unwrap()];
    storage.let_in("node-3", false).await.unwrap();
    for (seed, name) in [(2, "by-hand"), (3, "by-itself")] {
        let spec = json!({
            "size": (4 << 20).to_string(), "numberOfReplicas": 2, "dataEngine": "v1", "frontend": "nbd", "nodeID": "node-1",
        });
        storage.create_volume(name, spec).await.unwrap();
        storage.until_volume(name, "attached", "healthy").await.unwrap();
        loads.push(Load::on(&storage.endpoint(name).await.unwrap(), name, seed).unwrap());
    }
    on_node_3(&storage, false).await;

    let refused = ask("everywhere").await.unwrap_err().to_string();
    assert!(refused.contains("the new image is not on node-3"), "{refused}");
    ask("by-hand").await.unwrap();
    runs(&storage, "by-hand", NEXT).await.unwrap();
    storage.set("default-engine-image", NEXT).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    runs(&storage, "by-itself", NEXT).await.unwrap();
    let waits = async || Ok(told(&storage, "everywhere", "EngineUpgradeWaits").await?.pop());
    let note = storage.until("it is told why it waits", waits).await.unwrap();
    assert!(note.contains("ImageNotOnNodes") && note.contains("node-3"), "{note}");
    assert_eq!(status(&storage, "everywhere").await.unwrap().current_image, THIS);

    on_node_3(&storage, true).await;
    runs(&storage, "everywhere", NEXT).await.unwrap();
    for load in loads {
        load.judge().await.unwrap();
    }
    judging.abort();
    storage.stop().await;
}
