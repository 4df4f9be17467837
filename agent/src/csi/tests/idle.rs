//! Daemons that nobody uses, and claims that ask for others or have gone.

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use tonic::Code;

use super::{
    Cut, noted,
    world::{World, plugin, plugin_with_images},
};
use crate::csi::{
    bound::Bound,
    mounts::{Access, Mounted, Mounts, Place},
};

/// Nobody has to come for that.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_daemon_goes_when_it_is_not_wanted_any_more() {
    let Some(mut world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.plugin.look_at_resting().await.unwrap();
    world.want("fuse:2").await;
    world.plugin.look_at_resting().await.unwrap();
    assert!(world.labelled().await, "a workload is about to come");
    world.want("fuse:1").await;
    world.unstage().await.unwrap();
    world.plugin.look_at_resting().await.unwrap();
    assert!(world.labelled().await, "it is what is wanted");

    world.want("fuse:2").await;
    world.restart();
    for _ in 0..2 {
        world.plugin.look_at_resting().await.unwrap();
        assert!(!world.labelled().await);
    }
    assert_eq!(world.stage().await, Err(Code::Unavailable), "it has not gone yet");
    world.daemon_goes();
    world.plugin.look_at_resting().await.unwrap();
    assert_eq!(world.notes(), 0, "nothing is left to look at");
    world.stage().await.unwrap();
    world.daemon_comes("fuse:2");
    world.publish("one").await.unwrap();
    world.end().await;
}

/// Nobody has published what is wanted: the next workload would wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_daemon_stays_as_long_as_its_successors_image_cannot_be_had() {
    let Some(mut world) = World::new().await else { return };
    let folder = world.folder.path().to_owned();
    world.plugin = plugin_with_images(&folder, &world.client, &["fuse:1"]);
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    world.want("fuse:2").await;
    world.unpublish("one").await.unwrap();
    world.unstage().await.unwrap();
    for _ in 0..2 {
        world.plugin.look_at_resting().await.unwrap();
        assert!(world.labelled().await, "the old one serves whoever comes");
        world.stage().await.unwrap();
        world.publish("one").await.unwrap();
        world.unpublish("one").await.unwrap();
        world.unstage().await.unwrap();
    }
    let words =
        "the idle daemon on node-1 stays, since its successor's image fuse:2 cannot be had: nobody has it";
    assert_eq!(world.events().await, [format!("FuseImageMissing: {words}")], "told once");

    world.plugin = plugin_with_images(&folder, &world.client, &["fuse:1", "fuse:2"]);
    world.plugin.look_at_resting().await.unwrap();
    assert!(!world.labelled().await);
    world.daemon_goes();
    world.stage().await.unwrap();
    world.daemon_comes("fuse:2");
    world.publish("one").await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_label_is_left_of_a_dataset_that_has_gone() {
    // Its workload ends later than the dataset, or sooner.
    for later in [true, false] {
        let Some(world) = World::new().await else { return };
        world.stage().await.unwrap();
        world.daemon_comes("fuse:1");
        world.publish("one").await.unwrap();
        world.unpublish("one").await.unwrap();
        if later {
            world.remove_claim().await;
            world.unstage().await.unwrap();
        } else {
            world.unstage().await.unwrap();
            assert!(world.labelled().await);
            world.remove_claim().await;
            world.plugin.look_at_resting().await.unwrap();
        }
        assert!(!world.labelled().await, "later: {later}");
        world.daemon_goes();
        world.plugin.look_at_resting().await.unwrap();
        assert_eq!(world.notes(), 0, "later: {later}");
        world.end().await;
    }
}

/// The node showed the folder of the mount as a mount of its own, for the daemon's pod.
#[tokio::test(flavor = "multi_thread")]
async fn no_mount_is_left_of_a_daemon_that_has_gone() {
    let Some(world) = World::new().await else { return };
    let folder = world.path("runtime");
    std::fs::create_dir(&folder).unwrap();
    mount_bind(&folder, &folder).unwrap();
    mount_change(&folder, MountPropagationFlags::SHARED).unwrap();
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.remove_claim().await;
    world.unstage().await.unwrap();
    world.plugin.look_at_resting().await.unwrap();
    assert_eq!(world.mounts(), 2, "the daemon has not gone yet");
    world.daemon_goes();
    world.plugin.look_at_resting().await.unwrap();
    assert_eq!((world.mounts(), world.notes()), (0, 0));
    world.end().await;
}

/// Fluid's own controller writes no strategy; daemons tell their generation if `cleanPolicy` is `OnFuseChanged`.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_fluid_itself_are_understood() {
    for (tells, goes) in [(true, true), (false, false)] {
        let Some(world) = World::new().await else { return };
        world.claim_of_fluid("1").await;
        world.stage().await.unwrap();
        world.daemon_of_fluid_comes(tells.then_some("1"));
        world.publish("one").await.unwrap();
        world.claim_of_fluid("2").await;
        world.unpublish("one").await.unwrap();
        world.unstage().await.unwrap();
        assert_eq!(world.labelled().await, !goes, "tells: {tells}");
        world.end().await;
    }
}

/// The folder below a mount is not the dataset.
#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_goes_while_it_is_bound_is_not_bound() {
    let Some(world) = World::new().await else { return };
    world.daemon_comes("fuse:1");
    let Place::Served { device } = Mounts::Machine.look(&world.mount()).unwrap() else { panic!("no daemon") };
    let seen = Mounted { device, at: world.mount() };
    world.daemon_goes();
    let bound = Mounts::Machine.bind(&seen, None, &world.path("one"), Access::ReadWrite).unwrap();
    assert_eq!((bound, world.mounts()), (Bound::Gone, 0));
    world.daemon_dies_at(&world.mount());
    let bound = Mounts::Machine.bind(&seen, None, &world.path("one"), Access::ReadWrite).unwrap();
    assert_eq!((bound, world.mounts()), (Bound::Gone, 1));
    world.end().await;
}

/// The volume is still staged: its unstage was interrupted when the daemon had been sent away.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_bound_of_a_daemon_that_is_going_away() {
    let Some(mut world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.want("fuse:2").await;
    let cut = Cut { write: 0, done: true };
    world.plugin = plugin(world.folder.path(), &noted(&world.server, Some(cut)).0);
    assert_eq!(world.unstage().await, Err(Code::Unavailable), "the answer was lost");
    world.restart();
    assert_eq!(world.publish("one").await, Err(Code::Unavailable));
    assert_eq!((world.labelled().await, world.mounts()), (false, 1));
    assert_eq!(world.stage().await, Err(Code::Unavailable), "the old daemon is still there");
    world.daemon_goes();
    world.stage().await.unwrap();
    world.daemon_comes("fuse:2");
    world.publish("one").await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_comes_back_late_is_taken_again() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.want("fuse:2").await;
    world.unstage().await.unwrap();
    assert!(!world.labelled().await);
    for _ in 0..2 {
        world.label_comes_back().await;
        world.plugin.look_at_resting().await.unwrap();
        assert!(!world.labelled().await, "seen when idle daemons are looked at");
        world.label_comes_back().await;
        assert_eq!(world.stage().await, Err(Code::Unavailable), "the old daemon is still there");
        assert!(!world.labelled().await, "seen by the next workload");
    }
    world.daemon_goes();
    world.stage().await.unwrap();
    assert!(world.labelled().await);
    world.end().await;
}
