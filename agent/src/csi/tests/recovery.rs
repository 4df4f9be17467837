//! Daemons that die under their workloads, and those that take their place.

use std::{fs, os::unix::fs::symlink, sync::Arc};

use rustix::mount::mount_bind;
use tonic::Code;

use super::world::{VOLUME, Workload, World};
use crate::csi::{
    mounts::{Mounts, Place},
    proto::volume_capability::access_mode::Mode,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_daemon_is_recovered_without_stacking_mounts() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    world.publish_as(VOLUME, "two", Mode::MultiNodeReaderOnly).await.unwrap();
    // A workload that runs, with a view of mounts of its own.
    let workload = Workload::start();
    world.daemon_dies();
    assert_eq!(Mounts::Machine.look(&world.mount()).unwrap(), Place::Dead);
    assert_eq!(world.publish("three").await, Err(Code::Unavailable));
    assert_eq!(Mounts::Machine.look(&world.mount()).unwrap(), Place::Plain, "the dead mount was removed");
    world.daemon_comes("fuse:1");
    for _ in 0..3 {
        world.publish("one").await.unwrap();
    }
    fs::write(world.mount().join("file"), "new").unwrap();
    assert_eq!(fs::read(world.path("one/file")).unwrap(), b"new");
    assert_eq!(workload.read(&world.path("one/file")), "new");
    assert_eq!(world.mounts(), 4, "one on top of what the workload was given");

    // Also where kubelet does not ask, and however often: the plugin itself looks.
    for round in 0..3 {
        world.daemon_dies();
        world.plugin.repair().unwrap();
        assert!(world.mounts() <= 5, "nobody serves: there is nothing to bind");
        Mounts::Machine.clear(&world.mount()).unwrap();
        world.daemon_comes("fuse:1");
        let text = format!("newer {round}");
        fs::write(world.mount().join("file"), &text).unwrap();
        for _ in 0..3 {
            world.plugin.repair().unwrap();
        }
        for target in ["one/file", "two/file"] {
            assert_eq!(fs::read_to_string(world.path(target)).unwrap(), text);
            assert_eq!(workload.read(&world.path(target)), text, "also by those who run");
        }
        assert!(fs::write(world.path("two/file"), "").is_err(), "read only as before");
        assert!(fs::write(workload.view(&world.path("two/file")), "").is_err(), "read only as before");
        assert_eq!(world.mounts(), 5);
    }
    for target in ["one", "one", "two"] {
        world.unpublish(target).await.unwrap();
    }
    world.plugin.repair().unwrap();
    assert_eq!(world.mounts(), 1);
    world.end().await;
}

/// Each container sees what is mounted on what lay there when it began.
#[tokio::test(flavor = "multi_thread")]
async fn containers_that_begin_between_two_crashes_see_the_next_recovery() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    let crash = |text: &str| {
        world.daemon_dies();
        Mounts::Machine.clear(&world.mount()).unwrap();
        world.daemon_comes("fuse:1");
        fs::write(world.mount().join("file"), text).unwrap();
        world.plugin.repair().unwrap();
    };
    let start = |name: &str| {
        let at = world.path(name);
        (Workload::start_with(&world.path("one"), &at), at.join("file"))
    };
    let expect = |(workload, file): &(Workload, std::path::PathBuf), text: &str| {
        assert_eq!(workload.read(file), text, "{}", file.display());
    };
    let first = start("view-1");
    crash("1");
    expect(&first, "1");
    assert_eq!(world.mounts(), 3);
    // Its pod's other container begins anew after every crash.
    let mut other = start("view-2");
    for (round, name) in ["view-3", "view-4", "view-5"].into_iter().enumerate() {
        let text = format!("again {round}");
        crash(&text);
        expect(&first, &text);
        expect(&other, &text);
        assert_eq!(world.mounts(), 4, "one for each that runs, and one on top");
        other = start(name);
        expect(&other, &text);
    }
    drop((first, other));
    crash("last");
    assert_eq!(fs::read_to_string(world.path("one/file")).unwrap(), "last");
    assert_eq!(world.mounts(), 3, "nobody is left who was given anything else");
    world.unpublish("one").await.unwrap();
    assert_eq!(world.mounts(), 1);
    world.end().await;
}

/// Nothing that is asked of a dead mount is answered, not even whether it is a folder.
#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_has_been_dead_for_long_is_covered() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    world.publish_as(VOLUME, "two", Mode::MultiNodeReaderOnly).await.unwrap();
    for target in ["one", "two"] {
        let at = world.path(target);
        Mounts::Machine.clear(&at).unwrap();
        world.daemon_dies_at(&at);
        assert_eq!(Mounts::Machine.look(&at).unwrap(), Place::Dead);
    }
    world.plugin.repair().unwrap();
    for target in ["one/served-by", "two/served-by"] {
        assert_eq!(fs::read_to_string(world.path(target)).unwrap(), "fuse:1");
    }
    assert_eq!(world.mounts(), 5);
    world.end().await;
}

/// Whoever repairs a mount must not bring it back for a workload that is going.
#[tokio::test(flavor = "multi_thread")]
async fn a_workload_that_ends_during_a_recovery_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    for _ in 0..50 {
        world.publish("one").await.unwrap();
        world.daemon_dies();
        Mounts::Machine.clear(&world.mount()).unwrap();
        world.daemon_comes("fuse:1");
        let plugin = Arc::clone(&world.plugin);
        let repairing = tokio::task::spawn_blocking(move || plugin.repair());
        world.unpublish("one").await.unwrap();
        repairing.await.unwrap().unwrap();
        assert_eq!((world.mounts(), world.path("one").exists()), (1, false));
    }
    world.end().await;
}

/// The table of mounts knows no links.
#[tokio::test(flavor = "multi_thread")]
async fn places_behind_links_are_bound_once() {
    let Some(world) = World::new().await else { return };
    for (real, link) in [("served", "runtime"), ("workloads", "behind")] {
        fs::create_dir(world.path(real)).unwrap();
        symlink(world.path(real), world.path(link)).unwrap();
    }
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("behind/one").await.unwrap();
    for _ in 0..3 {
        world.plugin.repair().unwrap();
        world.publish("behind/one").await.unwrap();
        assert_eq!(world.mounts(), 2);
    }
    world.want("fuse:2").await;
    assert_eq!(world.unstage().await, Err(Code::FailedPrecondition), "a workload is there");
    for _ in 0..3 {
        world.daemon_goes();
        world.daemon_comes("fuse:1");
        world.plugin.repair().unwrap();
        world.plugin.repair().unwrap();
        assert_eq!(world.mounts(), 3, "one on top of what the workload was given");
    }
    world.unpublish("behind/one").await.unwrap();
    assert_eq!(world.mounts(), 1);
    world.unstage().await.unwrap();
    assert!(!world.labelled().await);
    world.end().await;
}

/// Its workload does not see it yet: whoever would bind it waits for the call that looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_took_the_place_of_another_is_used_by_its_workloads() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    // As good as the old one: nobody who comes later may insist on another.
    world.daemon_goes();
    world.daemon_comes("fuse:0");
    world.publish("two").await.unwrap();
    world.unpublish("two").await.unwrap();

    world.want("fuse:2").await;
    world.daemon_goes();
    world.daemon_comes("fuse:1");
    assert_eq!(world.unstage().await, Err(Code::FailedPrecondition));
    world.stage().await.unwrap();
    assert!(world.labelled().await, "it is used");
    world.publish("two").await.unwrap();
    world.plugin.repair().unwrap();
    for target in ["one", "two"] {
        assert_eq!(fs::read_to_string(world.path(target).join("served-by")).unwrap(), "fuse:1");
        world.unpublish(target).await.unwrap();
    }
    world.unstage().await.unwrap();
    assert!(!world.labelled().await, "that was the last one");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_waits_for_its_folder() {
    let Some(world) = World::new().await else { return };
    world.stage_as("other", &[("fluid_sub_path", "room")]).await.unwrap();
    world.daemon_comes("fuse:1");
    fs::create_dir(world.mount().join("room")).unwrap();
    world.publish_as("other", "one", Mode::MultiNodeMultiWriter).await.unwrap();
    world.daemon_goes();
    world.daemon_comes("fuse:1");
    let published = world.publish_as("other", "one", Mode::MultiNodeMultiWriter).await;
    assert_eq!(published, Err(Code::NotFound), "the folder is not there yet");
    fs::create_dir(world.mount().join("room")).unwrap();
    fs::write(world.mount().join("room/file"), "there again").unwrap();
    world.plugin.repair().unwrap();
    assert_eq!(fs::read_to_string(world.path("one/file")).unwrap(), "there again");
    world.end().await;
}

/// A mount is made read-only beside its place.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_left_that_died_while_it_bound_is_removed() {
    let Some(mut world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish_as(VOLUME, "one", Mode::MultiNodeReaderOnly).await.unwrap();
    fs::create_dir(world.path("one.new")).unwrap();
    mount_bind(world.mount(), world.path("one.new")).unwrap();
    world.restart();
    world.unpublish("one").await.unwrap();
    assert!(!world.path("one").exists() && !world.path("one.new").exists());
    assert_eq!(world.mounts(), 1);
    world.unstage().await.unwrap();
    world.end().await;
}

/// As many as a node may have pods, and more.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_workloads_shares_one_daemon() {
    const CROWD: usize = 200;
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    let targets: Vec<String> = (0..CROWD).map(|number| format!("workload-{number}")).collect();
    for target in &targets {
        world.publish(target).await.unwrap();
    }
    world.daemon_dies();
    Mounts::Machine.clear(&world.mount()).unwrap();
    world.daemon_comes("fuse:1");
    fs::write(world.mount().join("file"), "new").unwrap();
    world.plugin.repair().unwrap();
    for target in &targets {
        assert_eq!(fs::read(world.path(target).join("file")).unwrap(), b"new", "{target}");
    }
    assert_eq!(world.mounts(), 1 + 2 * CROWD);
    assert_eq!(world.unstage().await, Err(Code::FailedPrecondition));
    for target in &targets {
        world.unpublish(target).await.unwrap();
    }
    world.unstage().await.unwrap();
    assert_eq!(world.mounts(), 1);
    world.end().await;
}
