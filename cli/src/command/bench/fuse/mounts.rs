//! The sides: our mount, fuse-overlayfs, and a folder.
//!
//! The one invariant: when the handle is dropped, no mount and no process is left.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use super::Side;
use crate::command::bench::{errand::Errand, qemu::missing};

const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A mount and the process that serves it.
struct Mount {
    at: PathBuf,
    child: Child,
}

impl Mount {
    fn start(mut command: Command, at: &Path, program: &str, package: &str) -> anyhow::Result<Mount> {
        fs::create_dir_all(at).with_context(|| format!("make {}", at.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| missing(program, package, error))?;
        let mut mount = Mount { at: at.to_owned(), child };
        let until = Instant::now() + READY_WITHIN;
        while !is_mounted(at)? {
            if let Some(status) = mount.child.try_wait().with_context(|| format!("look after {program}"))? {
                anyhow::bail!("{program} ended at once: {status}");
            }
            anyhow::ensure!(Instant::now() < until, "{program} does not mount");
            thread::sleep(LOOK_AGAIN);
        }
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_mounted(at: &Path) -> anyhow::Result<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    let at = at.display().to_string();
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(&at)))
}

pub(super) struct Mounts {
    folder: PathBuf,
    mount: Mount,
    overlay: Mount,
    plain: PathBuf,
}

impl Mounts {
    pub(super) fn make(errand: &Errand) -> anyhow::Result<Mounts> {
        let folder = errand.folder().to_owned();
        let make = |name: &str| -> anyhow::Result<PathBuf> {
            let path = folder.join(name);
            fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
            Ok(path)
        };
        let (at, source) = (folder.join("mount"), make("source")?);
        let mut ours = Command::new(errand.binary());
        ours.arg("fuse").arg("--exclusive").arg("--source").arg(&source).arg("--mount").arg(&at);
        let mount = Mount::start(ours, &at, "the FUSE engine", "midflight")?;

        let (lower, upper, work) = (make("lower")?, make("upper")?, make("work")?);
        let at = folder.join("overlay");
        let mut peer = Command::new("fuse-overlayfs");
        let layers = [("lowerdir", lower), ("upperdir", upper), ("workdir", work)];
        let layers = layers.map(|(name, path)| format!("{name}={}", path.display()));
        peer.arg("-f").arg("-o").arg(layers.join(",")).arg(&at);
        let overlay = Mount::start(peer, &at, "fuse-overlayfs", "fuse-overlayfs")?;
        Ok(Mounts { plain: make("plain")?, folder, mount, overlay })
    }

    pub(super) fn at(&self, side: Side) -> &Path {
        match side {
            Side::Mount => &self.mount.at,
            Side::Overlay => &self.overlay.at,
            Side::Folder => &self.plain,
        }
    }

    /// Nobody pays for what another wrote or for what daemons are told to forget, or finds in memory what another read.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        const NAMES_AND_NODES: &str = "2";
        const DAEMONS_FORGET: Duration = Duration::from_millis(300);
        let folder = File::open(&self.folder).context("open the folder")?;
        rustix::fs::syncfs(folder).context("sync the file system")?;
        fs::write("/proc/sys/vm/drop_caches", NAMES_AND_NODES).context("let the kernel forget")?;
        thread::sleep(DAEMONS_FORGET);
        Ok(())
    }

    /// Every round begins with nothing.
    pub(super) fn empty(&self) -> anyhow::Result<()> {
        for side in super::SIDES {
            let emptying = || format!("empty {}", self.at(side).display());
            for line in fs::read_dir(self.at(side)).with_context(emptying)? {
                let line = line.with_context(emptying)?;
                let is_folder = line.file_type().with_context(emptying)?.is_dir();
                let path = line.path();
                if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }
                    .with_context(emptying)?;
            }
        }
        Ok(())
    }
}
