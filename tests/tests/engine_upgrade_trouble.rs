//! Engine upgrades while other things happen: upstream's cases of trouble, with real processes and a client that
//! judges every block.

use midflight_tests::load::Load;
use midflight_tests::running::{attached, runs, until_change};
use midflight_tests::storage::{NEXT, Storage};
use serde_json::json;

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
