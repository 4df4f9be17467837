//! What has to be known of volumes and daemons after a crash.
//!
//! Invariant: a volume's record is there before the node is labelled and before anything is
//! bound, and a note stands before the label of a daemon is taken; so whatever was begun is known. What
//! cannot be read stands for one volume or daemon alone.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use midflight_plan::mount::{Version, meeting::Refused};
use serde::{Deserialize, Serialize};

use super::{
    mounts::Access,
    volume::{Attributes, Daemon, VolumeId},
};

/// A volume that is staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) attributes: Attributes,
    /// Where kubelet staged it.
    pub(super) staged: PathBuf,
    /// The version that the daemon must be of, unless others use it already.
    #[serde(default)]
    pub(super) expects: Option<Version>,
    /// Where workloads have it, or will.
    #[serde(default)]
    pub(super) published: Vec<Published>,
}

impl Record {
    /// The places of its workloads.
    pub(super) fn targets(&self) -> Vec<PathBuf> {
        self.published.iter().map(|published| published.target.clone()).collect()
    }
}

/// A place where a workload has a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    pub(super) target: PathBuf,
    pub(super) access: Access,
}

/// All that is kept of a node: a file for each volume that is staged, one for each daemon that
/// was sent away and has not been seen gone, one for each daemon that nobody uses, and one for each that was refused lately.
#[derive(Debug)]
pub(super) struct Records {
    volumes: PathBuf,
    leaving: PathBuf,
    idle: PathBuf,
    refused: PathBuf,
}

impl Records {
    pub(super) fn open(folder: &Path) -> io::Result<Records> {
        let [volumes, leaving, idle, refused] =
            ["volumes", "leaving", "idle", "refused"].map(|name| folder.join(name));
        let records = Records { volumes, leaving, idle, refused };
        for folder in [&records.volumes, &records.leaving, &records.idle, &records.refused] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        Ok(records)
    }

    fn path(&self, volume: &VolumeId) -> PathBuf {
        self.volumes.join(volume.as_str())
    }

    pub(super) fn get(&self, volume: &VolumeId) -> io::Result<Option<Record>> {
        match fs::read(self.path(volume)) {
            Ok(raw) => Ok(Some(serde_json::from_slice(&raw)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The volumes that are staged.
    pub(super) fn volumes(&self) -> io::Result<Vec<VolumeId>> {
        let mut all = Vec::new();
        for file in fs::read_dir(&self.volumes)? {
            // What was not finished has no name of a volume.
            all.extend(file?.file_name().to_str().and_then(|name| VolumeId::new(name).ok()));
        }
        Ok(all)
    }

    /// How many volumes of a daemon are staged, beside one that a call speaks of. One whose record cannot be read may be of any daemon.
    pub(super) fn neighbours(&self, volume: Option<&VolumeId>, daemon: &Daemon) -> io::Result<usize> {
        let is_one = |other: &VolumeId| match self.get(other) {
            Ok(record) => record.is_some_and(|record| record.attributes.daemon() == *daemon),
            Err(error) => {
                tracing::warn!(volume = other.as_str(), %error, "its record cannot be read: no daemon is sent away");
                true
            }
        };
        Ok(self.volumes()?.iter().filter(|other| Some(*other) != volume && is_one(other)).count())
    }

    /// Written down when this returns.
    pub(super) fn put(&self, volume: &VolumeId, record: &Record) -> io::Result<()> {
        written(&self.volumes, volume.as_str(), &serde_json::to_vec(record)?)
    }

    pub(super) fn remove(&self, volume: &VolumeId) -> io::Result<()> {
        removed(&self.volumes, &self.path(volume))
    }

    /// Whether a daemon was sent away and has not been seen gone.
    pub(super) fn is_leaving(&self, daemon: &Daemon) -> io::Result<bool> {
        self.leaving.join(daemon.as_str()).try_exists()
    }

    /// Notes that a daemon is sent away; written down when this returns.
    pub(super) fn leaves(&self, daemon: &Daemon) -> io::Result<()> {
        File::create(self.leaving.join(daemon.as_str()))?;
        File::open(&self.leaving)?.sync_all()
    }

    /// Notes that nobody uses a daemon; written down when this returns.
    pub(super) fn rests(&self, attributes: &Attributes) -> io::Result<()> {
        written(&self.idle, attributes.daemon().as_str(), &serde_json::to_vec(attributes)?)
    }

    /// A daemon is asked for, or has gone.
    pub(super) fn rests_no_more(&self, daemon: &Daemon) -> io::Result<()> {
        match fs::remove_file(self.idle.join(daemon.as_str())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The daemons that nobody uses.
    pub(super) fn resting(&self) -> io::Result<Vec<Attributes>> {
        let mut all = Vec::new();
        for file in fs::read_dir(&self.idle)? {
            let file = file?;
            if is_unfinished(&file) {
                continue;
            }
            match fs::read(file.path()).and_then(|raw| Ok(serde_json::from_slice(&raw)?)) {
                Ok(attributes) => all.push(attributes),
                Err(error) => {
                    tracing::warn!(note = %file.path().display(), %error, "a note of an idle daemon cannot be read");
                }
            }
        }
        Ok(all)
    }

    pub(super) fn has_left(&self, daemon: &Daemon) -> io::Result<()> {
        removed(&self.leaving, &self.leaving.join(daemon.as_str()))
    }

    /// The one that was refused last of those that served a dataset here. A note that cannot be read tells nothing.
    pub(super) fn refused(&self, daemon: &Daemon) -> io::Result<Option<Refused>> {
        match fs::read(self.refused.join(daemon.as_str())) {
            Ok(raw) => Ok(serde_json::from_slice(&raw).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes that a daemon was refused; written down when this returns.
    pub(super) fn refuses(&self, daemon: &Daemon, refused: &Refused) -> io::Result<()> {
        written(&self.refused, daemon.as_str(), &serde_json::to_vec(refused)?)
    }

    /// Removes the notes of refused daemons that stand for no other any more, also those of datasets that have gone.
    pub(super) fn forget_refused(&self, now: Timestamp) -> io::Result<()> {
        for file in fs::read_dir(&self.refused)? {
            let file = file?;
            let counts =
                |raw: Vec<u8>| serde_json::from_slice(&raw).is_ok_and(|note: Refused| note.counts(now));
            if !is_unfinished(&file) && !fs::read(file.path()).is_ok_and(counts) {
                removed(&self.refused, &file.path())?;
            }
        }
        Ok(())
    }
}

/// Begins the name of a file that is being written; no id of a volume begins so.
pub(super) const UNFINISHED: char = '.';

fn is_unfinished(file: &fs::DirEntry) -> bool {
    file.file_name().as_encoded_bytes().first() == Some(&(UNFINISHED as u8))
}

/// Puts a file in the place of another of its name, wholly or not at all.
fn written(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    let new = folder.join(format!("{UNFINISHED}{name}"));
    let mut file = File::create(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, folder.join(name))?;
    File::open(folder)?.sync_all()
}

fn removed(folder: &Path, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => File::open(folder)?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
