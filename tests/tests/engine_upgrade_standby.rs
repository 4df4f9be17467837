//! Seed 000, case 2: a volume that follows backups changes its engine image only when somebody asks it to, and goes on
//! following.

use kube::api::{Api, Patch, PatchParams};
use midflight_api::longhorn::{NAMESPACE, Volume};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT as LIMIT;
use midflight_operator::{Admission, Writer};
use midflight_tests::pattern;
use midflight_tests::running::{
    attached, detached, runs, status, until_all_run, until_change, until_holds, until_references,
};
use midflight_tests::storage::{NEXT, Storage, THIS};
use midflight_tests::watching::Watching;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_upgraded_by_hand_only_and_goes_on_restoring() {
    let storage = Storage::of_two_builds().await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    let admission = Admission::open().await.unwrap();
    admission.register(&Writer::new(storage.client.clone())).await.unwrap();
    let judging = tokio::spawn(admission.serve(storage.client.clone()));
    let endpoint = attached(&storage, "vol-0").await.unwrap();
    pattern::write(&endpoint, "0x11", "1M").await.unwrap();
    storage.take_snapshot("vol-0", "monday").await.unwrap();
    let first = storage.back_up("monday", "b-1").await.unwrap().status.unwrap();
    let spec = json!({
        "numberOfReplicas": 3, "dataEngine": "v1", "frontend": "nbd", "fromBackup": first.url, "Standby": true,
    });
    storage.create_volume("dr", spec).await.unwrap();
    until_holds(&storage, "dr", "b-1").await.unwrap();
    storage.until_volume("dr", "attached", "healthy").await.unwrap();

    let user: Api<Volume> = Api::namespaced(storage.client_as("somebody").unwrap(), NAMESPACE);
    let ask = async |image: &str| {
        let change = Patch::Merge(json!({ "spec": { "image": image } }));
        user.patch("dr", &PatchParams::default(), &change).await.map(drop)
    };
    storage.set(LIMIT, "3").await.unwrap();
    let refused = ask(NEXT).await.unwrap_err().to_string();
    assert!(refused.contains("no other can be chosen; set it to 0"), "{refused}");
    storage.set(LIMIT, "0").await.unwrap();

    ask(NEXT).await.unwrap();
    let change = until_change(&storage, "dr", "done").await.unwrap();
    assert_eq!(change.image, NEXT);
    runs(&storage, "dr", NEXT).await.unwrap();
    until_references(&storage, NEXT, 1 + 1 + 3).await.unwrap();
    pattern::write(&endpoint, "0x22", "2M").await.unwrap();
    storage.take_snapshot("vol-0", "tuesday").await.unwrap();
    storage.back_up("tuesday", "b-2").await.unwrap();
    until_holds(&storage, "dr", "b-2").await.unwrap();
    storage.until_volume("dr", "attached", "healthy").await.unwrap();
    assert!(status(&storage, "dr").await.unwrap().is_standby);

    detached(&storage, "witness").await.unwrap();
    storage.change_volume("witness", json!({ "image": NEXT })).await.unwrap();
    until_all_run(&storage, &["witness"], NEXT).await.unwrap();
    let watching = Watching::begin(&storage).await.unwrap();
    storage.set(LIMIT, "3").await.unwrap();
    until_all_run(&storage, &["witness"], THIS).await.unwrap();
    pattern::write(&endpoint, "0x33", "3M").await.unwrap();
    storage.take_snapshot("vol-0", "wednesday").await.unwrap();
    storage.back_up("wednesday", "b-3").await.unwrap();
    until_holds(&storage, "dr", "b-3").await.unwrap();
    let moved = watching.seen().moved.clone();
    assert!(!moved.contains("dr"), "{moved:?}");
    assert_eq!(status(&storage, "dr").await.unwrap().current_image, NEXT);

    // What it was brought to is what it serves when it is activated.
    storage.set(LIMIT, "0").await.unwrap();
    storage.change_volume("dr", json!({ "Standby": false, "nodeID": "node-2" })).await.unwrap();
    let serves = async || Ok(Some(storage.endpoint("dr").await?).filter(|endpoint| !endpoint.is_empty()));
    let endpoint = storage.until("the standby serves", serves).await.unwrap();
    for (byte, place) in [("0x11", "1M"), ("0x22", "2M"), ("0x33", "3M")] {
        pattern::read(&endpoint, byte, place).await.unwrap();
    }
    judging.abort();
    storage.stop().await;
}
