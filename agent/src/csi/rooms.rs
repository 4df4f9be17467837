//! Folders of a dataset that are volumes of their own.
//!
//! ```text
//! FOLDER/.volumes/KEY        what workloads see
//! FOLDER/.volumes/KEY.json   its name and size
//! ```
//!
//! Invariant: whatever workloads have made of the dataset, nothing outside its folder is touched: no
//! link is followed on the way. A room that has a record has been promised to someone.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, fchmod, mkdirat, open, openat2, renameat, unlinkat},
    io::Errno,
    path::DecInt,
};
use serde::{Deserialize, Serialize};

pub(super) const FOLDER: &str = ".volumes";
const RECORD: &str = ".json";

/// What is known of a room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Room {
    /// The name under which it was asked for.
    pub(super) name: String,
    /// The size that was asked for; nothing enforces it.
    pub(super) bytes: i64,
}

/// All rooms of a dataset.
#[derive(Debug)]
pub(super) struct Rooms {
    folder: OwnedFd,
}

fn beneath(folder: BorrowedFd<'_>, name: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(folder, name, flags | OFlags::CLOEXEC, mode, resolve)
}

fn absent_is_none<T>(result: Result<T, Errno>) -> io::Result<Option<T>> {
    match result {
        Ok(there) => Ok(Some(there)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

impl Rooms {
    /// The rooms of the dataset in a folder; none where none was ever made.
    pub(super) fn open(dataset: &Path) -> io::Result<Option<Rooms>> {
        let whole = open(dataset, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let Some(whole) = absent_is_none(whole)? else { return Ok(None) };
        let folder = beneath(whole.as_fd(), FOLDER, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        Ok(absent_is_none(folder)?.map(|folder| Rooms { folder }))
    }

    /// The same, made if need be. The dataset's folder itself must be there.
    pub(super) fn make(dataset: &Path) -> io::Result<Rooms> {
        let whole = open(dataset, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        make_folder(whole.as_fd(), FOLDER)?;
        let folder = beneath(whole.as_fd(), FOLDER, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Rooms { folder })
    }

    pub(super) fn get(&self, key: &str) -> io::Result<Option<Room>> {
        let record = beneath(self.folder.as_fd(), &format!("{key}{RECORD}"), OFlags::RDONLY, Mode::empty());
        let Some(record) = absent_is_none(record)? else { return Ok(None) };
        let mut raw = Vec::new();
        File::from(record).read_to_end(&mut raw)?;
        Ok(Some(serde_json::from_slice(&raw)?))
    }

    /// Makes a room, or changes what is known of it; written down when this returns.
    pub(super) fn put(&self, key: &str, room: &Room) -> io::Result<()> {
        let (folder, new) = (self.folder.as_fd(), format!(".{key}{RECORD}"));
        match unlinkat(folder, &new, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut record = File::from(beneath(folder, &new, flags, Mode::RUSR | Mode::WUSR)?);
        record.write_all(&serde_json::to_vec(room)?)?;
        record.sync_all()?;
        renameat(folder, &new, folder, format!("{key}{RECORD}"))?;
        make_folder(folder, key)?;
        let room = beneath(folder, key, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        // Workloads of any user get it.
        fchmod(&room, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
        Ok(rustix::fs::fsync(folder)?)
    }

    /// Removes a room with all that is in it; one that is not there is no failure.
    pub(super) fn remove(&self, key: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.path().join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match unlinkat(&self.folder, format!("{key}{RECORD}"), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(rustix::fs::fsync(&self.folder)?),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Every room, by its key.
    pub(super) fn all(&self) -> io::Result<Vec<(String, Room)>> {
        let mut all = Vec::new();
        for line in fs::read_dir(self.path())? {
            let name = line?.file_name();
            let key = name.to_str().and_then(|name| name.strip_suffix(RECORD));
            let Some(key) = key.filter(|key| !key.starts_with('.')) else { continue };
            all.extend(self.get(key)?.map(|room| (key.to_owned(), room)));
        }
        Ok(all)
    }

    /// The folder as it was opened, wherever its name leads by now.
    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(DecInt::from_fd(&self.folder).as_str())
    }
}

fn make_folder(at: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match mkdirat(at, name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_made_once_and_removed_wholly() {
        let dataset = tempfile::tempdir().unwrap();
        assert!(Rooms::open(dataset.path()).unwrap().is_none());
        assert!(Rooms::make(&dataset.path().join("none")).is_err());
        let rooms = Rooms::make(dataset.path()).unwrap();
        let room = Room { name: "pvc-1".into(), bytes: 5 };
        for _ in 0..2 {
            rooms.put("key", &room).unwrap();
        }
        let inside = dataset.path().join(".volumes/key");
        fs::write(inside.join("file"), "data").unwrap();
        assert_eq!(rooms.get("key").unwrap(), Some(room.clone()));
        assert_eq!(rooms.all().unwrap(), [("key".to_owned(), room)]);
        for _ in 0..2 {
            rooms.remove("key").unwrap();
        }
        assert!(!inside.exists() && rooms.all().unwrap().is_empty());
    }

    #[test]
    fn links_that_workloads_made_lead_nowhere() {
        let (dataset, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(elsewhere.path().join("key")).unwrap();
        fs::write(elsewhere.path().join("key/file"), "precious").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dataset.path().join(FOLDER)).unwrap();
        assert!(Rooms::open(dataset.path()).is_err());
        assert!(Rooms::make(dataset.path()).is_err());

        fs::remove_file(dataset.path().join(FOLDER)).unwrap();
        let rooms = Rooms::make(dataset.path()).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("key"), dataset.path().join(".volumes/key"))
            .unwrap();
        assert!(rooms.put("key", &Room { name: "pvc-1".into(), bytes: 5 }).is_err());
        rooms.remove("key").unwrap();
        assert_eq!(fs::read(elsewhere.path().join("key/file")).unwrap(), b"precious");
    }
}
