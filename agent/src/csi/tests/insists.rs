//! First workloads, which insist on the daemon that is wanted, and get one all the same.

use std::fs;

use serde_json::{Value, json};
use tonic::Code;

use super::world::World;

/// A node where daemons of an older version come, whatever the claim asks for; it was refused once.
async fn refused() -> Option<World> {
    let mut world = World::new().await?;
    world.want("fuse:2").await;
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    assert_eq!(world.publish("one").await, Err(Code::Unavailable));
    assert!(!world.labelled().await, "it is sent away");
    world.restart();
    world.daemon_goes();
    Some(world)
}

/// Kubelet does not stage twice.
async fn published_past_a_refusal() -> Option<World> {
    let world = refused().await?;
    assert_eq!(world.publish("one").await, Err(Code::Unavailable), "the next one has not come yet");
    assert!(world.labelled().await);
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    Some(world)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_comes_again_as_it_was_is_given_and_told() {
    let Some(world) = published_past_a_refusal().await else { return };
    // Neither its end nor the next workload begins that anew.
    for _ in 0..2 {
        world.unpublish("one").await.unwrap();
        world.unstage().await.unwrap();
        world.plugin.look_at_resting().await.unwrap();
        assert!(world.labelled().await, "another would be the same");
        world.stage().await.unwrap();
        world.publish("one").await.unwrap();
    }
    let why =
        "the claim asks for fuse:2, and the daemon that came in the place of another is of fuse:1 as well";
    let words = format!("workloads on node-1 use a FUSE daemon that may not be what is wanted: {why}");
    assert_eq!(world.events().await, [format!("FuseNotAsWanted: {words}")], "told once");
    world.end().await;
}

/// What the claim asks for may have come to the DaemonSet meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_refused_long_ago_stands_for_no_other() {
    let Some(world) = published_past_a_refusal().await else { return };
    world.unpublish("one").await.unwrap();
    world.unstage().await.unwrap();
    let notes = world.path("state/refused");
    let note = notes.join("default.data");
    let mut refused: Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    refused["at"] = json!("2000-01-02T03:04:05Z");
    fs::write(&note, refused.to_string()).unwrap();
    fs::write(notes.join("torn"), "{ torn").unwrap();
    world.plugin.look_at_resting().await.unwrap();
    assert!(!world.labelled().await);
    assert_eq!(fs::read_dir(&notes).unwrap().count(), 0, "nothing is left of what tells nothing any more");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_changed_after_a_refusal_insists_again() {
    let Some(world) = refused().await else { return };
    world.want("fuse:3").await;
    assert_eq!(world.publish("one").await, Err(Code::Unavailable), "the next one has not come yet");
    world.daemon_comes("fuse:1");
    assert_eq!(world.publish("one").await, Err(Code::Unavailable));
    assert!(!world.labelled().await, "it is sent away once more");
    world.daemon_goes();
    assert_eq!(world.publish("one").await, Err(Code::Unavailable));
    world.daemon_comes("fuse:3");
    world.publish("one").await.unwrap();
    assert_eq!(world.events().await, Vec::<String>::new());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_never_says_what_it_is_is_given_and_told() {
    let Some(world) = World::new().await else { return };
    world.want("fuse:2").await;
    world.stage().await.unwrap();
    world.daemon_of_fluid_comes(None);
    world.publish("one").await.unwrap();
    let words = "workloads on node-1 use a FUSE daemon that may not be what is wanted: the claim asks for fuse:2, and the daemon does not say what it is";
    assert_eq!(world.events().await, [format!("FuseNotAsWanted: {words}")]);
    world.end().await;
}
