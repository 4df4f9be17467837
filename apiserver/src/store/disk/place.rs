//! Finds the file of a store, makes it if it is new, and locks it.
//!
//! A new store is made under another name and renamed when it is whole, so a
//! crash leaves no half-made one. Only its owner may read it: it holds secrets. The lock is on the file itself and goes with
//! the process that holds it.
//!
//! The one invariant: a file is changed only by the process that holds its lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::journal;
use super::mark::Mark;
use crate::store::error::OpenError;

/// A locked file, whole or to be filled.
#[derive(Debug)]
pub(super) enum Place {
    Existing(File),
    /// Holds nothing yet; `settle` gives it its name.
    New {
        file: File,
        temporary: PathBuf,
    },
}

impl Place {
    pub(super) fn find(path: &Path) -> Result<Place, OpenError> {
        let failed = |source| OpenError::Io { path: path.into(), source };
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => {
                lock(&file, path)?;
                if file.metadata().map_err(failed)?.len() == 0 {
                    return Err(OpenError::corrupt(path, "it is empty".into()));
                }
                Ok(Place::Existing(file))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Place::make(path),
            Err(error) => Err(failed(error)),
        }
    }

    /// Mark and journal come after the store and stay with it: where they are alone, the store was lost.
    fn make(path: &Path) -> Result<Place, OpenError> {
        let failed = |source| OpenError::Io { path: path.into(), source };
        for witness in [Mark::path(path), journal::path(path)] {
            if witness.try_exists().map_err(failed)? {
                return Err(OpenError::Missing { path: path.into(), witness });
            }
        }
        let temporary = beside(path, ".new");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&temporary).map_err(failed)?;
        lock(&file, path)?;
        // Another process may have finished the very file between open and lock.
        if !is_at(&file, &temporary).map_err(failed)? || path.exists() {
            return Err(OpenError::Locked { path: path.into(), holder: None });
        }
        file.set_len(0).map_err(failed)?;
        Ok(Place::New { file, temporary })
    }
}

/// Gives a finished store its name, durably.
pub(super) fn settle(temporary: &Path, path: &Path) -> io::Result<()> {
    std::fs::rename(temporary, path)?;
    sync_folder_of(path)
}

/// A file that belongs to a store, beside it.
pub(super) fn beside(store: &Path, suffix: &str) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Makes names of files beside the store durable.
pub(super) fn sync_folder_of(store: &Path) -> io::Result<()> {
    let folder = store.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.into(), holder: holder(file) }),
        Err(TryLockError::Error(source)) => Err(OpenError::Io { path: path.into(), source }),
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Who holds the lock, as far as the kernel tells.
fn holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = fields[..] else { return None };
        let same = place.rsplit(':').next() == Some(&inode);
        if same { pid.parse().ok() } else { None }
    })
}
