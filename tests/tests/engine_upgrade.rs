//! Volumes of the v1 data engine change their engine image, between builds that really differ, under a client that
//! judges every block.

use midflight_tests::load::{Fio, Load};
use midflight_tests::running::{attached, runs, status, until_change, until_references};
use midflight_tests::storage::{NEXT, Program, Storage, THIS};
use midflight_tests::{pattern, place};
use serde_json::json;

/// What each of two clients has of a volume, in bytes.
const HALF: u64 = 2 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_follows_its_image_forth_and_back_under_load() {
    let storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    let load = Load::on_blocks(&endpoint, "vol-1", 1, HALF / 4096).unwrap();
    let fio = Fio::on(&endpoint, HALF, HALF);
    for image in [NEXT, THIS, NEXT] {
        storage.change_volume("vol-1", json!({ "image": image })).await.unwrap();
        let what = format!("vol-1 runs {image}");
        let there = async || Ok((status(&storage, "vol-1").await?.current_image == *image).then_some(()));
        storage.until(&what, there).await.unwrap();
        let change = until_change(&storage, "vol-1", "done").await.unwrap();
        assert_eq!(change.image, image);
        assert!(change.pause_us > 0 && change.longest_wait_us > 0, "{change:?}");
        runs(&storage, "vol-1", image).await.unwrap();
        storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    }
    load.judge().await.unwrap();
    fio.judge().await.unwrap();
    assert_eq!(storage.endpoint("vol-1").await.unwrap(), endpoint, "clients keep their place");
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_fails_leaves_the_old_engine_serving() {
    let storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    let load = Load::on(&endpoint, "vol-1", 2).unwrap();
    for point in ["engine-start", "engine-go", "engine-serve"] {
        let image = format!("midflight.local/engine:{point}");
        let program = Program::Failing(place::next().unwrap(), point);
        storage.add_image(&image, &program, 2).await.unwrap();
        storage.change_volume("vol-1", json!({ "image": image })).await.unwrap();
        let change = until_change(&storage, "vol-1", "failed").await.unwrap();
        assert!(change.image == image.as_str() && !change.message.is_empty(), "{change:?}");
        runs(&storage, "vol-1", THIS).await.unwrap();
        storage.change_volume("vol-1", json!({ "image": THIS })).await.unwrap();
        until_change(&storage, "vol-1", "taken-back").await.unwrap();
    }
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    load.judge().await.unwrap();
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_volume_changes_its_image_at_once_and_keeps_its_data() {
    let storage = Storage::of_two_builds().await.unwrap();
    let endpoint = attached(&storage, "vol-1").await.unwrap();
    pattern::write(&endpoint, "0x11", "1M").await.unwrap();
    for (image, before, byte, place) in [(NEXT, THIS, "0x22", "2M"), (THIS, NEXT, "0x33", "3M")] {
        storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
        storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
        storage.change_volume("vol-1", json!({ "image": image })).await.unwrap();
        let there = async || Ok((status(&storage, "vol-1").await?.current_image == *image).then_some(()));
        storage.until("the image has changed", there).await.unwrap();
        storage.change_volume("vol-1", json!({ "nodeID": "node-2" })).await.unwrap();
        storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
        runs(&storage, "vol-1", image).await.unwrap();
        until_references(&storage, image, 1 + 1 + 3).await.unwrap();
        until_references(&storage, before, 0).await.unwrap();
        let endpoint = storage.endpoint("vol-1").await.unwrap();
        pattern::read(&endpoint, "0x11", "1M").await.unwrap();
        pattern::write(&endpoint, byte, place).await.unwrap();
    }
    pattern::read(&storage.endpoint("vol-1").await.unwrap(), "0x22", "2M").await.unwrap();
    storage.stop().await;
}
