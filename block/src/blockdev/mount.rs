//! Makes and removes the file system and the loop device of a volume. Needs root.
//!
//! Whoever serves the file must not wait for these: opening the file asks it.
//!
//! Invariant: what was made half is removed again.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
};

use midflight_handover::kernel::{self, Waiting};
use rustix::mount::MountFlags;

use super::protocol::FILE;

/// Mounts an empty session at a folder; calls come from the descriptor.
pub(crate) fn mount(at: &Path) -> io::Result<OwnedFd> {
    kernel::unmount(at);
    fs::create_dir_all(at)?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    kernel::mount(at, "fuse", safe, "", Waiting::FailsWithAgain)
}

/// Puts a loop device on the file; gives its path. Waits for whoever serves the file.
pub(crate) fn attach_loop(at: &Path) -> io::Result<PathBuf> {
    let file = at.join(FILE);
    let said = losetup(&["--find", "--show", "--direct-io=on", &file.display().to_string()])?;
    Ok(PathBuf::from(said.trim()))
}

/// Takes the loop device away. One that is in use goes when its last user does.
pub(crate) fn detach_loop(device: &Path) -> io::Result<()> {
    losetup(&["--detach", &device.display().to_string()])?;
    let name = device.file_name().unwrap_or_default();
    if Path::new("/sys/block").join(name).join("loop/backing_file").exists() {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{} is in use", device.display())));
    }
    Ok(())
}

fn losetup(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("losetup").args(arguments).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
