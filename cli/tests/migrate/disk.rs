//! Disks that are full, under the store and under its backups. Needs root, for the small disks.

use std::{
    ffi::CString,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::{
    cloud::{Cloud, DRAGONFLOW, GENERATION, Kind},
    dump::Dump,
    server,
    support::text,
};

const PLENTY: u64 = 256 << 20;
/// By how much a disk is made larger until a command succeeds on it.
const STEP: u64 = 192 << 10;

/// A disk of its own in memory. Gone with this value.
struct Disk(PathBuf);

impl Disk {
    /// `None`, loudly, where this user may not mount.
    fn at(path: &Path) -> Option<Disk> {
        let size = CString::new(format!("size={PLENTY}")).unwrap();
        match mount("none", path, "tmpfs", MountFlags::empty(), size.as_c_str()) {
            Ok(()) => Some(Disk(path.to_owned())),
            Err(error) => {
                server::skip(&format!("full disks are not tested, for want of root: {error}"));
                None
            }
        }
    }

    fn used(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.0).unwrap();
        (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    }

    fn leave_free(&self, bytes: u64) {
        let size = CString::new(format!("size={}", self.used() + bytes)).unwrap();
        mount_remount(&self.0, MountFlags::empty(), size.as_c_str()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = CString::new(self.0.as_os_str().as_bytes()).unwrap();
        let _ = unmount(path.as_c_str(), UnmountFlags::DETACH);
    }
}

/// Runs a command on a disk that has room for more and more of it, until it succeeds. However far it came,
/// with room again the rows are the old ones or the new ones.
fn until_it_fits(cloud: &Cloud, disk: &Disk, act: &[&str], old: &Dump, new: &Dump) {
    for free in (0..).step_by(STEP as usize) {
        let what = format!("{cloud:?}, {} with {free} bytes free", act[0]);
        disk.leave_free(free);
        let output = cloud.run(act);
        let said = text(&output.stderr);
        disk.leave_free(PLENTY);
        match output.status.code() {
            Some(0) => return,
            Some(1) => assert!(said.contains("o space left"), "{what}: {said}"),
            // What there was to do was done the time before, and only its last note was not written.
            Some(3) => assert!(said.contains("there is no run to"), "{what}: {said}"),
            other => panic!("{what}: {other:?}: {said}"),
        }
        cloud.ok(&["status"]);
        let live = cloud.dump().live_but_log();
        assert!(live == old.live_but_log() || live == new.live_but_log(), "{what}: a mixture");
        if output.status.code() == Some(3) {
            return;
        }
    }
}

#[test]
fn a_full_disk_under_the_store() {
    for layout in [DRAGONFLOW, GENERATION] {
        let cloud = Cloud::empty(Kind::Embedded, layout, &[]).unwrap();
        let Some(disk) = Disk::at(&cloud.path("")) else { return };
        cloud.fill(1000);
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
        let old = cloud.dump();
        let apply = ["apply", "--path", "own", "--no-backup", "--allow-shortage"];
        cloud.ok(&apply);
        let new = cloud.dump();
        cloud.ok(&["rollback"]);

        disk.leave_free(0);
        let said = cloud.refused(3, &["apply", "--path", "own", "--no-backup"]);
        assert!(said.contains("bytes are free") && said.contains("--allow-shortage"), "{said}");
        until_it_fits(&cloud, &disk, &apply, &old, &new);
        assert!(cloud.dump().live_but_log() == new.live_but_log());
        until_it_fits(&cloud, &disk, &["rollback"], &old, &new);
        cloud.dump().assert_same(&old, "back on a full disk");
        cloud.ok(&apply);
        until_it_fits(&cloud, &disk, &["finalize"], &new, &new);
        cloud.dump().assert_settled("final on a full disk");
    }
}

#[test]
fn a_full_disk_under_the_backups() {
    let cloud = Cloud::new(GENERATION, 1000);
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    fs::create_dir(cloud.path("small")).unwrap();
    let Some(disk) = Disk::at(&cloud.path("small")) else { return };
    disk.leave_free(64 << 10);
    let said = cloud.refused(3, &["apply", "--path", "own", "--backups", "small"]);
    assert!(said.contains("bytes are free"), "{said}");
    for arguments in [
        &["apply", "--path", "own", "--backups", "small", "--allow-shortage"][..],
        &["backup", "small/all.backup"],
        &["plan", "--path", "own", "--out", "small/plan.json"],
    ] {
        fs::write(cloud.path("small/ballast"), vec![0; 60 << 10]).unwrap();
        let said = cloud.refused(1, arguments);
        assert!(said.contains("o space left"), "{arguments:?}: {said}");
        let left: Vec<_> =
            fs::read_dir(cloud.path("small")).unwrap().flatten().map(|file| file.file_name()).collect();
        assert_eq!(left, ["ballast"], "{arguments:?} leaves nothing half done");
    }
    disk.leave_free(PLENTY);
    cloud.ok(&["apply", "--path", "own", "--backups", "small"]);
}
