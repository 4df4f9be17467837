//! The mounts of this machine, as its own table tells them.
//!
//! Invariant: what a workload was given is covered by what it should see and by nothing else, and what is removed is removed wholly.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::CWD,
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount},
};
use serde::{Deserialize, Serialize};

use super::{
    bound::{Bound, bind},
    layers::given,
    question::{answers, ask},
};
use crate::mount_table::{self, Line, TABLE, as_listed};

/// What FUSE calls itself; behind a dot stands who serves it.
const FUSE: &str = "fuse";

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// Major and minor number of the file system.
    pub(super) device: String,
    pub(crate) at: PathBuf,
}

/// What is at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// No file system of its own.
    Plain,
    /// One that nobody serves.
    Dead,
    Served {
        device: String,
    },
    /// One whose server gives no answer.
    Silent {
        device: String,
    },
    /// One whose server answers with an error.
    Sick {
        device: String,
        errno: Errno,
    },
}

/// Whether those at a place may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// Where mounts are looked at and made.
#[derive(Debug, Clone)]
pub(crate) enum Mounts {
    /// This machine.
    Machine,
    /// A node that is none: a table in memory, and nothing is mounted.
    Hollow(Arc<Mutex<Vec<Mounted>>>),
}

impl Mounts {
    pub(crate) fn table(&self) -> io::Result<Vec<Mounted>> {
        let mounted = |Line { device, at, .. }| Mounted { device, at };
        match self {
            Mounts::Machine => Ok(mount_table::read()?.into_iter().map(mounted).collect()),
            Mounts::Hollow(table) => Ok(table.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    /// A place as the table has it.
    pub(super) fn listed(&self, at: &Path) -> PathBuf {
        match self {
            Mounts::Machine => as_listed(at),
            Mounts::Hollow(_) => at.to_owned(),
        }
    }

    pub(super) fn look(&self, at: &Path) -> io::Result<Place> {
        let listed = self.listed(at);
        let top = self.table()?.into_iter().rfind(|mounted| mounted.at == listed);
        let Some(Mounted { device, .. }) = top else { return Ok(Place::Plain) };
        match self {
            Mounts::Hollow(_) => Ok(Place::Served { device }),
            Mounts::Machine => {
                let asked = at.to_owned();
                let answer = ask(&device, move || answers(&asked))?;
                Ok(place(device, answer))
            }
        }
    }

    /// How many places use a file system: show it, beside its own, or are among those that workloads were given, whatever
    /// they show. A daemon that took the place of another has its users before they see it.
    pub(super) fn users(&self, device: &str, own: &Path, given: &[PathBuf]) -> io::Result<usize> {
        let own = self.listed(own);
        let given: BTreeSet<PathBuf> = given.iter().map(|at| self.listed(at)).collect();
        let table = self.table()?;
        let uses = |mounted: &&Mounted| {
            mounted.at != own && (mounted.device == device || given.contains(&mounted.at))
        };
        let places: BTreeSet<&Path> = table.iter().filter(uses).map(|mounted| mounted.at.as_path()).collect();
        Ok(places.len())
    }

    /// Whether something is at a place that no daemon serves or served. The table tells: a daemon might not answer.
    pub(super) fn is_of_others(&self, at: &Path) -> io::Result<bool> {
        match self {
            Mounts::Hollow(_) => Ok(false),
            Mounts::Machine => {
                let listed = self.listed(at);
                let top = mount_table::read()?.into_iter().rfind(|line| line.at == listed);
                Ok(top.is_some_and(|line| line.kind.split('.').next() != Some(FUSE)))
            }
        }
    }

    /// Shows a folder of a mount at another place, which is made; nothing if the mount is not there any more.
    pub(super) fn bind(
        &self,
        mounted: &Mounted,
        sub_path: Option<&Path>,
        at: &Path,
        access: Access,
    ) -> io::Result<Bound> {
        match self {
            Mounts::Machine => bind(mounted, sub_path, at, access),
            Mounts::Hollow(table) => {
                let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
                if !table.contains(mounted) {
                    return Ok(Bound::Gone);
                }
                table.push(Mounted { at: at.to_owned(), device: mounted.device.clone() });
                Ok(Bound::There)
            }
        }
    }

    /// Removes what was mounted on top of what workloads were given. That itself stays, though nobody may serve it: a workload
    /// that runs sees whatever is mounted on it, and nothing that takes its place.
    pub(super) fn uncover(&self, at: &Path) -> io::Result<()> {
        match self {
            Mounts::Machine => {
                let listed = self.listed(at);
                let layers: Vec<Line> =
                    mount_table::read()?.into_iter().filter(|line| line.at == listed).collect();
                uncover(at, given(&layers)?)
            }
            Mounts::Hollow(_) => self.clear(at),
        }
    }

    /// Removes everything that is mounted at a place, and the folder.
    pub(super) fn remove(&self, at: &Path) -> io::Result<()> {
        self.clear(at)?;
        match fs::remove_dir(at) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes back what showed a folder as a mount of its own, so that mounts below it are seen by pods and nodes alike. What still has
    /// mounts below it, or is a file system of its own, stays.
    pub(super) fn unshare(&self, folder: &Path) -> io::Result<()> {
        match self {
            Mounts::Machine => {
                let (listed, table) = (self.listed(folder), mount_table::read()?);
                let Some(own) = table.iter().rfind(|line| line.at == listed) else { return Ok(()) };
                let is_folder = |line: &Line| line.id == own.parent && line.device == own.device;
                if !table.iter().any(is_folder) {
                    return Ok(());
                }
                match unmount(folder, UnmountFlags::empty()) {
                    Ok(()) | Err(Errno::BUSY | Errno::INVAL) => Ok(()),
                    Err(errno) => Err(errno.into()),
                }
            }
            Mounts::Hollow(_) => Ok(()),
        }
    }

    /// Removes everything that is mounted at a place.
    pub(super) fn clear(&self, at: &Path) -> io::Result<()> {
        match self {
            Mounts::Machine => clear(at),
            Mounts::Hollow(table) => {
                table.lock().unwrap_or_else(PoisonError::into_inner).retain(|mounted| mounted.at != at);
                Ok(())
            }
        }
    }
}

/// A connection that its daemon has closed, or that somebody has cut.
pub(super) fn is_unserved(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// What is at a place where a file system is mounted, by what it answers.
fn place(device: String, answer: Option<Result<(), Errno>>) -> Place {
    match answer {
        None => Place::Silent { device },
        Some(Ok(())) => Place::Served { device },
        Some(Err(errno)) if is_unserved(errno) => Place::Dead,
        Some(Err(Errno::NOENT)) => Place::Plain,
        Some(Err(errno)) => Place::Sick { device, errno },
    }
}

/// Waits until the machine's table changes, or for so long.
pub(super) fn change(at_most: Duration) -> io::Result<()> {
    wait(&File::open(TABLE)?, at_most)
}

fn wait(changes: &File, at_most: Duration) -> io::Result<()> {
    let nap = Timespec::try_from(at_most).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(changes, PollFlags::PRI)], Some(&nap)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until a condition holds, looking whenever the machine's table changes; gives whether it did in time.
pub(super) fn wait_until(
    patience: Duration,
    mut holds: impl FnMut() -> io::Result<bool>,
) -> io::Result<bool> {
    /// A daemon may die without a change of the table.
    const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(100);
    let changes = File::open(TABLE)?;
    let until = Instant::now() + patience;
    loop {
        if holds()? {
            return Ok(true);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        wait(&changes, left.min(LOOK_AT_LEAST_EVERY))?;
    }
}

/// Removes the layers at a place that were given to nobody; the lowest comes first.
fn uncover(at: &Path, mut given: Vec<bool>) -> io::Result<()> {
    let mut put_back = Vec::new();
    while given.contains(&false) {
        if given.pop() == Some(true) {
            put_back.push(open_tree(
                CWD,
                at,
                OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
            )?);
        }
        unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    }
    for layer in put_back.iter().rev() {
        move_mount(layer, c"", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    Ok(())
}

/// Removes everything that is mounted at a place of this machine.
pub(super) fn clear(at: &Path) -> io::Result<()> {
    loop {
        match unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing (more) is mounted there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_by_its_answer() {
        let device = || "0:1".to_owned();
        let sick = |errno| Place::Sick { device: device(), errno };
        #[rustfmt::skip]
        let cases = [
            ("served",               Some(Ok(())),                   Place::Served { device: device() }),
            ("its daemon hangs",     None,                           Place::Silent { device: device() }),
            ("its daemon has ended", Some(Err(Errno::NOTCONN)),      Place::Dead),
            ("cut by somebody",      Some(Err(Errno::CONNABORTED)),  Place::Dead),
            ("gone meanwhile",       Some(Err(Errno::NOENT)),        Place::Plain),
            ("its storage fails",    Some(Err(Errno::IO)),           sick(Errno::IO)),
            ("its folder was moved", Some(Err(Errno::STALE)),        sick(Errno::STALE)),
        ];
        for (name, answer, expected) in cases {
            assert_eq!(place(device(), answer), expected, "{name}");
        }
    }

    #[test]
    fn a_plain_folder_is_not_a_mount() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Mounts::Machine.look(folder.path()).unwrap(), Place::Plain);
        assert_eq!(Mounts::Machine.look(&folder.path().join("none")).unwrap(), Place::Plain);
        clear(&folder.path().join("none")).unwrap();
        clear(folder.path()).unwrap();
        assert!(!wait_until(Duration::from_millis(1), || Ok(false)).unwrap());
    }
}
