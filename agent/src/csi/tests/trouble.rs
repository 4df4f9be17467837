//! One volume, daemon or mount that cannot be looked at keeps nobody from the others.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, sync::Arc};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::json;

use tonic::{Code, Request};

use super::world::{VOLUME, World};
use crate::csi::proto::{NodeGetVolumeStatsRequest, node_server::Node};

/// So many that some come before the good one, in whatever order they are read.
const BAD: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_stops_no_other_volume() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    let bad: Vec<_> = (0..BAD).map(|number| world.path(&format!("state/volumes/bad-{number}"))).collect();
    bad.iter().for_each(|path| fs::write(path, "{ torn").unwrap());
    world.daemon_goes();
    world.daemon_comes("fuse:again");
    world.plugin.repair().unwrap();
    assert_eq!(fs::read_to_string(world.path("one/served-by")).unwrap(), "fuse:again");

    world.want("fuse:2").await;
    world.unpublish("one").await.unwrap();
    world.unstage().await.unwrap();
    assert!(world.labelled().await, "they may be volumes of the same daemon");
    world.stage().await.unwrap();
    bad.iter().for_each(|path| fs::remove_file(path).unwrap());
    world.unstage().await.unwrap();
    assert!(!world.labelled().await);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_daemon_that_cannot_be_looked_at_stops_no_other() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.unstage().await.unwrap();
    for number in 0..BAD {
        fs::write(world.path(&format!("state/idle/torn-{number}")), "{ torn").unwrap();
        // No file can have its name.
        let attributes = json!({ "mount": "/none", "namespace": "n".repeat(300), "name": "n", "label": "l" });
        fs::write(world.path(&format!("state/idle/odd-{number}")), attributes.to_string()).unwrap();
    }
    world.want("fuse:2").await;
    world.plugin.look_at_resting().await.unwrap();
    assert!(!world.labelled().await);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_whose_name_is_no_text_is_none_of_our_business() {
    let Some(world) = World::new().await else { return };
    let odd = world.folder.path().join(OsStr::from_bytes(b"odd-\xff"));
    fs::create_dir(&odd).unwrap();
    mount("others", &odd, "tmpfs", MountFlags::empty(), None).unwrap();
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    assert_eq!(world.mounts(), 3);
    unmount(&odd, UnmountFlags::DETACH).unwrap();
    world.end().await;
}

/// What is wrong with what the workload has, as kubelet is told.
async fn abnormal(world: &World) -> Option<String> {
    let volume_path = world.path("one").display().to_string();
    let request = NodeGetVolumeStatsRequest { volume_id: VOLUME.into(), volume_path, ..Default::default() };
    let told = world.plugin.node_get_volume_stats(Request::new(request)).await.unwrap().into_inner();
    told.volume_condition.filter(|condition| condition.abnormal).map(|condition| condition.message)
}

/// Its last workload can go, and with it the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_answers_with_an_error_keeps_no_call() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    assert_eq!(abnormal(&world).await, None);
    world.daemon_fails();
    assert_eq!(world.publish("two").await, Err(Code::Unavailable));
    let looking = Arc::clone(&world.plugin);
    tokio::task::spawn_blocking(move || looking.repair()).await.unwrap().unwrap();
    mount_bind(world.mount(), world.path("one")).unwrap();
    let words = "the FUSE daemon answers with an error: Input/output error (os error 5)";
    assert_eq!(abnormal(&world).await.as_deref(), Some(words));
    world.want("fuse:2").await;
    world.unpublish("one").await.unwrap();
    world.unstage().await.unwrap();
    assert!(!world.labelled().await);
    world.daemon_goes();
    world.stage().await.unwrap();
    assert!(world.labelled().await);
    world.end().await;
}

/// Every call has an end, those for which the daemon is not needed are carried out, and other daemons are looked after.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_hangs_keeps_no_call() {
    let Some(world) = World::new().await else { return };
    world.stage().await.unwrap();
    world.daemon_comes("fuse:1");
    world.publish("one").await.unwrap();
    let hanging = world.daemon_hangs();
    assert_eq!(world.publish("two").await, Err(Code::Unavailable));
    let looking = Arc::clone(&world.plugin);
    tokio::task::spawn_blocking(move || looking.repair()).await.unwrap().unwrap();
    mount_bind(world.mount(), world.path("one")).unwrap();
    assert_eq!(abnormal(&world).await.as_deref(), Some("the FUSE daemon does not answer"));

    // Its last workload can go, and with it the daemon.
    world.want("fuse:2").await;
    world.unpublish("one").await.unwrap();
    world.unpublish("elsewhere").await.unwrap();
    world.unstage().await.unwrap();
    assert!(!world.labelled().await);
    assert_eq!(world.stage().await, Err(Code::Unavailable), "it is still there");
    drop(hanging);
    world.stage().await.unwrap();
    assert!(world.labelled().await);
    world.end().await;
}
