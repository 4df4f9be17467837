//! Makes and removes the file system and the loop device of a volume. Needs root.
//!
//! Whoever serves the file must not wait for these: opening the file asks it.
//!
//! Invariant: what was made half is removed again, and a device that the kernel has given to another file is left alone.

use std::{
    ffi::OsStr,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use midflight_handover::kernel::{self, Waiting};
use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};

use super::protocol::FILE;

/// Mounts an empty session at a folder; calls come from the descriptor.
pub(crate) fn mount(at: &Path) -> io::Result<OwnedFd> {
    kernel::unmount(at);
    fs::create_dir_all(at)?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    kernel::mount(at, "fuse", safe, "", Waiting::FailsWithAgain)
}

/// A loop device as it was put on a file. When its last user has gone the kernel may give the path to another file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoopDevice {
    #[serde(rename = "device")]
    pub(crate) path: PathBuf,
    /// The kernel's number of this use of the path. Not told by kernels before 5.15, nor noted by frontends of older builds.
    #[serde(default)]
    sequence: Option<u64>,
}

/// Whoever looks at a new device for a moment has closed it by then.
const FREE_WITHIN: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl LoopDevice {
    /// As the path is used now.
    fn at(path: PathBuf) -> LoopDevice {
        let device = LoopDevice { path, sequence: None };
        LoopDevice { sequence: device.sequence_now(), ..device }
    }

    fn about(&self) -> PathBuf {
        Path::new("/sys/block").join(self.path.file_name().unwrap_or_default())
    }

    /// Which use of the path this is, if the kernel tells.
    fn sequence_now(&self) -> Option<u64> {
        fs::read_to_string(self.about().join("diskseq")).ok()?.trim().parse().ok()
    }

    /// Whether it still is the device of the file system at a folder.
    pub(crate) fn is_of(&self, at: &Path) -> bool {
        let file = match fs::read_to_string(self.about().join("loop/backing_file")) {
            Ok(file) => PathBuf::from(file.trim_end()),
            // What cannot be read is not taken for gone.
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        match (self.sequence, self.sequence_now()) {
            (Some(ours), Some(now)) => ours == now,
            (None, _) | (_, None) => is_called(&file, at),
        }
    }
}

/// Whether the kernel may mean the file of the file system at `at`. It calls the file by another path where that was mounted by a
/// process that saw other mounts, and by its name alone where nobody sees the mount any more.
fn is_called(file: &Path, at: &Path) -> bool {
    let folder = file.parent().and_then(Path::file_name);
    file.file_name() == Some(OsStr::new(FILE)) && folder.is_none_or(|folder| Some(folder) == at.file_name())
}

/// Puts a loop device on the file. Waits for whoever serves the file.
pub(crate) fn attach_loop(at: &Path) -> io::Result<LoopDevice> {
    let file = at.join(FILE);
    let said = losetup(&["--find", "--show", "--direct-io=on", &file.display().to_string()])?;
    Ok(LoopDevice::at(PathBuf::from(said.trim())))
}

/// Loop devices that were put on the file of a file system at a folder by a process that was killed before anybody knew of them. To
/// be asked before the next is mounted there: then the kernel calls the file of the former by its name alone.
pub(crate) fn left_behind(at: &Path) -> Vec<LoopDevice> {
    // The folder itself may be one whose server is gone: nothing of it is asked.
    let folder = at.parent().and_then(|parent| fs::canonicalize(parent).ok());
    let (Some(folder), Some(name)) = (folder, at.file_name()) else { return Vec::new() };
    let ours = folder.join(name).join(FILE);
    let is_ours = |about: &Path| {
        let file = fs::read_to_string(about.join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim_end()) == ours)
    };
    let all = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let all = all.filter(|entry| is_ours(&entry.path()));
    all.map(|entry| LoopDevice::at(Path::new("/dev").join(entry.file_name()))).collect()
}

/// Takes the loop device of the file system at a folder away; one that is gone already is no failure. One that is in
/// use goes when its last user does.
pub(crate) fn detach_loop(device: &LoopDevice, at: &Path) -> io::Result<()> {
    // Held open, it does not become another's between the look and the act.
    let held = fs::File::open(&device.path);
    if !device.is_of(at) {
        return Ok(());
    }
    let detached = losetup(&["--detach", &device.path.display().to_string()]);
    drop(held);
    let until = Instant::now() + FREE_WITHIN;
    while device.is_of(at) {
        detached.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        if Instant::now() >= until {
            let why = format!("{} is in use: unmount what is on it", device.path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        thread::sleep(LOOK_AGAIN);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_name_where_the_kernel_does_not_count_uses() {
        #[rustfmt::skip]
        let cases = [
            ("/run/node-1/vol-1.fuse/volume", true),
            ("/seen/elsewhere/vol-1.fuse/volume", true),
            ("/volume",                       true),
            ("/run/node-1/vol-2.fuse/volume", false),
            ("/run/node-1/vol-1.fuse/other",  false),
            ("/images/disk.img",              false),
        ];
        for (file, ours) in cases {
            assert_eq!(is_called(Path::new(file), Path::new("/run/node-1/vol-1.fuse")), ours, "{file}");
        }
    }

    #[test]
    fn what_an_older_frontend_has_left_of_a_device_is_read() {
        let device: LoopDevice = serde_json::from_str(r#"{"device":"/dev/loop9"}"#).unwrap();
        assert_eq!((device.path, device.sequence), ("/dev/loop9".into(), None));
    }
}
