//! One volume, daemon or mount that cannot be looked at keeps nobody from the others.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::world::World;

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
