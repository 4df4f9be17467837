//! Shows a folder of a mount at another place of this machine.
//!
//! Invariant: what is shown is of the file system that was looked at, and as its workload is to have it before anyone sees it.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_bind, mount_change,
        mount_remount, move_mount, open_tree,
    },
};

use super::{
    mounts::{Access, Mounted, clear, is_unserved},
    question::{answers_opened, ask},
};

/// Whether a mount could be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    There,
    /// It has gone since it was looked at.
    Gone,
    /// It has no such folder, or the way to it leads out.
    NoFolder,
    /// Its server gives no answer.
    Silent,
    /// Its server answers with an error.
    Sick(Errno),
}

/// A folder of a mount, opened; or why it cannot be shown.
fn open_folder(mounted: &Mounted, sub_path: &Path) -> Result<OwnedFd, Bound> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let why = |errno: Errno| if is_unserved(errno) { Bound::Gone } else { Bound::Sick(errno) };
    let root = open(&mounted.at, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => Bound::Gone,
        errno => why(errno),
    })?;
    // The daemon may have ended since it was looked at: what is there then is the folder below its mount.
    if answers_opened(&root).map_err(why)? != mounted.device {
        return Err(Bound::Gone);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&root, sub_path, flags, Mode::empty(), resolve).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP => Bound::NoFolder,
        errno => why(errno),
    })
}

/// What whoever opens a folder is short of, and not who serves it.
fn is_ours(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Shows a folder of a mount of this machine at another place, which is made.
pub(super) fn bind(
    mounted: &Mounted,
    sub_path: Option<&Path>,
    at: &Path,
    access: Access,
) -> io::Result<Bound> {
    let (asked, sub_path) = (mounted.clone(), sub_path.unwrap_or(Path::new(".")).to_owned());
    let folder = match ask(&mounted.device, move || open_folder(&asked, &sub_path))? {
        Some(Ok(folder)) => folder,
        Some(Err(Bound::Sick(errno))) if is_ours(errno) => return Err(errno.into()),
        Some(Err(why)) => return Ok(why),
        None => return Ok(Bound::Silent),
    };
    if let Some(above) = at.parent() {
        fs::create_dir_all(above)?;
    }
    // What is mounted there is not asked whether it is a folder: nobody may serve it.
    if let Err(error) = fs::create_dir(at)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let tree = made_ready(&folder, at, access)?;
    move_mount(&tree, c"", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(Bound::There)
}

/// Where a mount is made ready that is to be shown at a place.
pub(super) fn beside(at: &Path) -> PathBuf {
    let mut name = at.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    at.with_file_name(name)
}

/// A mount as its workload is to have it, before anyone sees it.
fn made_ready(folder: &OwnedFd, at: &Path, access: Access) -> io::Result<OwnedFd> {
    let aside = beside(at);
    clear(&aside)?;
    fs::create_dir_all(&aside)?;
    mount_bind(format!("/proc/self/fd/{}", rustix::path::DecInt::from_fd(folder).as_str()), &aside)?;
    let made = settle(&aside, access).and_then(|()| {
        open_tree(CWD, &aside, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
    });
    clear(&aside)?;
    fs::remove_dir(&aside)?;
    Ok(made?)
}

fn settle(at: &Path, access: Access) -> Result<(), Errno> {
    if access == Access::ReadOnly {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(at, flags, c"")?;
    }
    // What comes on top of it is seen by whoever was given it, and by nobody else who has the same file system.
    mount_change(at, MountPropagationFlags::PRIVATE)?;
    mount_change(at, MountPropagationFlags::SHARED)
}
