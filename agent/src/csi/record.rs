//! What has to be known of a volume after a crash.
//!
//! Invariant: a record is there before the node is labelled, and says that a daemon was sent
//! away before its label is taken; so whatever was begun is known.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::volume::{Attributes, VolumeId};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) attributes: Attributes,
    /// Where kubelet staged it; absent once it was unstaged.
    pub(super) staged: Option<PathBuf>,
    /// The daemon was sent away, and has not been seen gone.
    #[serde(default)]
    pub(super) leaving: bool,
}

/// All records of a node, one file each.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
}

impl Records {
    pub(super) fn open(folder: &Path) -> io::Result<Records> {
        fs::create_dir_all(folder)?;
        Ok(Records { folder: folder.to_owned() })
    }

    fn path(&self, volume: &VolumeId) -> PathBuf {
        self.folder.join(format!("{}.json", volume.as_str()))
    }

    pub(super) fn get(&self, volume: &VolumeId) -> io::Result<Option<Record>> {
        match fs::read(self.path(volume)) {
            Ok(raw) => Ok(Some(serde_json::from_slice(&raw)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Written down when this returns.
    pub(super) fn put(&self, volume: &VolumeId, record: &Record) -> io::Result<()> {
        let path = self.path(volume);
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.folder)?.sync_all()
    }

    pub(super) fn remove(&self, volume: &VolumeId) -> io::Result<()> {
        match fs::remove_file(self.path(volume)) {
            Ok(()) => File::open(&self.folder)?.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}
