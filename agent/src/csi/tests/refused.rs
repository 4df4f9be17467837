//! Calls that are wrong, each with the code that the specification asks for.

use std::{fs, path::PathBuf, sync::Arc};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tonic::{Code, Request};

use super::world::{VOLUME, World};
use crate::csi::proto::{NodeGetVolumeStatsRequest, node_server::Node, volume_capability::access_mode::Mode};

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_fails_leaves_no_label() {
    let Some(world) = World::new().await else { return };
    // Staging path and volume are wrong; or the record cannot be written.
    assert_eq!(world.stage_as("a/b", &[]).await, Err(Code::InvalidArgument));
    assert_eq!(world.stage_as("", &[]).await, Err(Code::InvalidArgument));
    assert_eq!(
        world.stage_as(VOLUME, &[("runtime_name", "other")]).await,
        Err(Code::NotFound),
        "no such dataset"
    );
    fs::create_dir(world.path("state/volumes/default-data")).unwrap();
    assert_eq!(world.stage().await, Err(Code::Internal));
    assert!(!world.labelled().await);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_calls_change_nothing() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.want("fuse:2").await;
    assert_eq!(world.unstage_as(VOLUME, "elsewhere").await, Ok(()), "not staged there");
    assert!(world.labelled().await);
    assert_eq!(
        world.publish_as("unknown", "one", Mode::MultiNodeMultiWriter).await,
        Err(Code::FailedPrecondition)
    );
    // Something of others at the place.
    fs::create_dir(world.path("one")).unwrap();
    mount("others", world.path("one"), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(world.path("one/file"), "of others").unwrap();
    assert_eq!(world.publish("one").await, Err(Code::FailedPrecondition));
    assert_eq!(fs::read(world.path("one/file")).unwrap(), b"of others");
    unmount(world.path("one"), UnmountFlags::DETACH).unwrap();

    world.publish_as(VOLUME, "one", Mode::SingleNodeSingleWriter).await.unwrap();
    assert_eq!(world.publish_as(VOLUME, "one", Mode::MultiNodeReaderOnly).await, Err(Code::AlreadyExists));
    assert_eq!(
        world.publish_as(VOLUME, "two", Mode::SingleNodeSingleWriter).await,
        Err(Code::FailedPrecondition)
    );
    world.publish_as(VOLUME, "two", Mode::MultiNodeReaderOnly).await.unwrap();
    assert!(fs::write(world.path("two/file"), "").is_err(), "read only");
    fs::remove_dir(world.path("three")).unwrap_err();
    assert_eq!(world.unpublish("three").await, Ok(()), "nothing there");
    assert_eq!(world.stage_as("a/b", &[]).await, Err(Code::InvalidArgument));
    assert_eq!(world.stage_as("other", &[("fluid_path", "../../etc")]).await, Err(Code::InvalidArgument));
    assert_eq!(world.mounts(), 3);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_may_be_repeated_and_wrong_ones_are_refused() {
    let Some(mut world) = World::new().await else { return };
    assert_eq!(world.publish("one").await, Err(Code::FailedPrecondition), "not staged");
    world.unstage().await.unwrap();
    world.daemon_comes("fuse:1");
    for _ in 0..2 {
        world.stage().await.unwrap();
        world.publish("one").await.unwrap();
        world.restart();
    }
    assert_eq!(world.mounts(), 2);
    let stats = |volume: &str, path: PathBuf| {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.into(),
            volume_path: path.display().to_string(),
            staging_target_path: String::new(),
        };
        let plugin = Arc::clone(&world.plugin);
        async move {
            let stats = plugin.node_get_volume_stats(Request::new(request)).await;
            stats.map(|stats| stats.into_inner().usage.len()).map_err(|status| status.code())
        }
    };
    assert_eq!(stats(VOLUME, world.path("one")).await, Ok(2));
    assert_eq!(stats(VOLUME, world.path("none")).await, Err(Code::NotFound));
    assert_eq!(stats("another", world.path("one")).await, Err(Code::NotFound));
    assert_eq!(stats("", world.path("one")).await, Err(Code::InvalidArgument));
    for _ in 0..2 {
        world.unpublish("one").await.unwrap();
        world.unstage().await.unwrap();
    }
    assert_eq!(world.mounts(), 1);
    world.end().await;
}
