//! Calls that are wrong, each with the code that the specification asks for.

use std::{fs, os::unix::fs::symlink, path::PathBuf, sync::Arc};

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

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_are_wrong_are_refused_and_missing_ones_made() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    let path = |name: &str| world.path(name).display().to_string();
    let (staging, one) = (path("staging"), path("one"));
    let (outside, relative) = (path("../one"), "one".to_owned());
    #[rustfmt::skip]
    let cases = [
        ("a staging path upwards",  &outside,       &one,          Code::InvalidArgument),
        ("not staged there",        &path("other"), &one,          Code::FailedPrecondition),
        ("no staging path",         &String::new(), &one,          Code::InvalidArgument),
        ("a relative staging path", &relative,      &one,          Code::InvalidArgument),
        ("no target",               &staging,       &String::new(), Code::InvalidArgument),
        ("a relative target",       &staging,       &relative,     Code::InvalidArgument),
        ("a target that leads up",  &staging,       &outside,      Code::InvalidArgument),
    ];
    for (name, from, to, expected) in cases {
        let refused = world.publish_from(VOLUME, from, to, Mode::MultiNodeMultiWriter).await;
        assert_eq!(refused, Err(expected), "{name}");
    }
    assert_eq!(world.mounts(), 1);
    world.publish("deep/down/one").await.unwrap();
    assert_eq!(world.mounts(), 2);
    world.unpublish("deep/down/one").await.unwrap();
    assert!(!world.path("deep/down/one").exists());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_a_dataset_does_not_have_is_not_found() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    symlink(world.folder.path(), world.mount().join("outside")).unwrap();
    fs::write(world.mount().join("file"), "").unwrap();
    for (volume, sub_path) in [("gone", "none"), ("link", "outside/api"), ("file", "file")] {
        world.stage_as(volume, &[("fluid_sub_path", sub_path)]).await.unwrap();
        let published = world.publish_as(volume, volume, Mode::MultiNodeMultiWriter).await;
        assert_eq!(published, Err(Code::NotFound), "{volume}");
        assert!(!world.path(volume).exists(), "{volume} left something behind");
        world.unstage_as(volume, "staging").await.unwrap();
    }
    assert_eq!((world.mounts(), world.notes()), (1, 1));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_mounted_is_not_removed() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    fs::create_dir(world.path("one")).unwrap();
    mount("others", world.path("one"), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(world.path("one/file"), "of others").unwrap();
    for volume in [VOLUME, "unknown"] {
        assert_eq!(world.unpublish_as(volume, "one").await, Err(Code::FailedPrecondition), "{volume}");
        assert_eq!(fs::read(world.path("one/file")).unwrap(), b"of others", "{volume}");
    }
    // What a daemon left goes, also where its record was lost.
    fs::create_dir(world.path("two")).unwrap();
    world.daemon_dies_at(&world.path("two"));
    world.unpublish("two").await.unwrap();
    assert!(!world.path("two").exists());
    assert_eq!(world.mounts(), 2);
    world.end().await;
}
