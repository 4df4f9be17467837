//! The folder of one attempt to run a container, and what its files say.
//!
//! ```text
//! blueprint.json   what to run, written once before anything is started
//! lock             held by the shim for as long as it lives
//! shim.json        which process is the shim, from the moment that it has begun
//! main.json        which process is the container's
//! entered          not empty once that process has the container's files and volumes
//! error            why it could not be started; empty if it was
//! exit.json        how it ended, written once
//! log  log.1       what it said
//! root/            where its view of the files is put together
//! ```
//!
//! The one invariant: an attempt is run at most once, whoever dies when.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tempfile::NamedTempFile;

use super::end::end;
use crate::process::{Alive, Identity};

/// What can go wrong with the files.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    #[error("{doing} {path}", path = path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is damaged", path = path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
}

/// Everything that is needed to run a container once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blueprint {
    /// Tells this attempt from every other.
    pub id: String,
    /// NAMESPACE/POD/CONTAINER, for people.
    pub of: String,
    /// Attempts before this one.
    pub attempt: u32,
    /// Attempts just before this one that ended soon.
    pub failures: u32,
    /// Name of the image by its digest.
    pub image_id: String,
    /// The image's files.
    pub files: PathBuf,
    pub command: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub working_directory: String,
    pub mounts: Vec<Mount>,
}

/// A file or folder of the node that the container sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// What the container mounts below it is seen by the node.
    pub bidirectional: bool,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// As a shell counts: 128 and the number of the signal.
    pub code: i32,
    pub signal: Option<i32>,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    /// In a word, as Kubernetes has them.
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Which process is the container's.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Main {
    pub(super) identity: Identity,
    pub(super) started_at: Timestamp,
}

/// Where an attempt stands.
#[derive(Debug)]
pub enum State {
    /// No shim has taken it up.
    Planned,
    /// A shim has it; the process is there from the moment that it has been started until it ends.
    Running {
        shim: Alive,
        started_at: Option<Timestamp>,
        main: Option<Alive>,
    },
    Ended(Exit),
    /// The shim was killed before it could say how the container ended.
    Lost,
}

/// The folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    path: PathBuf,
}

impl Room {
    pub fn at(path: impl Into<PathBuf>) -> Room {
        Room { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(super) fn root(&self) -> PathBuf {
        self.path.join("root")
    }

    pub(super) fn error(&self) -> PathBuf {
        self.path.join("error")
    }

    pub(super) fn entered(&self) -> PathBuf {
        self.path.join("entered")
    }

    /// Makes the folder of an attempt. One that is there already stays as it is.
    pub fn plan(&self, blueprint: &Blueprint) -> Result<(), RoomError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(failed("make", &self.path))?;
        if self.path.join(BLUEPRINT).exists() {
            return Ok(());
        }
        self.write(BLUEPRINT, blueprint)
    }

    pub fn blueprint(&self) -> Result<Option<Blueprint>, RoomError> {
        self.read(BLUEPRINT)
    }

    pub fn state(&self) -> Result<State, RoomError> {
        let looking = failed("look at the processes of", &self.path);
        let Some(shim) = self.read::<Identity>(SHIM)? else { return Ok(State::Planned) };
        // Looked at before the exit is: a shim that is gone has written it.
        let shim = shim.open().map_err(&looking)?;
        if let Some(exit) = self.read(EXIT)? {
            return Ok(State::Ended(exit));
        }
        let Some(shim) = shim else { return Ok(State::Lost) };
        let main = self.main()?;
        let started_at = main.as_ref().map(|main| main.started_at);
        let main = main.map(|main| main.identity.open()).transpose().map_err(&looking)?.flatten();
        Ok(State::Running { shim, started_at, main })
    }

    /// The shim, if it lives.
    pub(crate) fn shim(&self) -> Result<Option<Alive>, RoomError> {
        let shim = self.read::<Identity>(SHIM)?.map(|shim| shim.open()).transpose();
        Ok(shim.map_err(failed("look at the shim of", &self.path))?.flatten())
    }

    /// The right to run the container, for as long as it is held. Waits for it: there is one shim at a time.
    pub(super) fn lock(&self) -> Result<File, RoomError> {
        let path = self.path.join("lock");
        let opened = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = opened.map_err(failed("open", &path))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed("lock", &path)(errno.into()))?;
        Ok(file)
    }

    /// Notes which process is the shim; from then on the attempt is not begun again.
    pub(super) fn take(&self, shim: &Identity) -> Result<bool, RoomError> {
        let path = self.path.join(SHIM);
        let text = serde_json::to_vec(shim).expect("an identity is JSON");
        let write = || {
            let mut file = NamedTempFile::new_in(&self.path)?;
            file.write_all(&text)?;
            match file.persist_noclobber(&path) {
                Ok(_) => Ok(true),
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error.error),
            }
        };
        write().map_err(failed("write", &path))
    }

    /// Removes an attempt that no shim has begun, so that none ever does; says whether it could.
    pub fn call_off(&self) -> Result<bool, RoomError> {
        let own = Identity::own().map_err(failed("call off", &self.path))?;
        if !self.take(&own)? {
            return Ok(false);
        }
        self.remove().map(|()| true)
    }

    pub(super) fn main(&self) -> Result<Option<Main>, RoomError> {
        self.read("main.json")
    }

    pub(super) fn write_main(&self, main: &Main) -> Result<(), RoomError> {
        self.write("main.json", main)
    }

    pub(super) fn write_exit(&self, exit: &Exit) -> Result<(), RoomError> {
        self.write(EXIT, exit)
    }

    /// Ends what a killed shim may have left, and writes down that nobody knows how the container ended.
    pub fn bury(&self, now: Timestamp) -> Result<Exit, RoomError> {
        end(&self.path, || Ok(Vec::new()));
        let started_at = self.main()?.map_or(now, |main| main.started_at);
        let exit = Exit {
            code: 137,
            signal: Some(9),
            started_at,
            finished_at: now,
            reason: "ContainerStatusUnknown".into(),
            message: Some("its parent process was killed, so it was ended too".into()),
        };
        self.write_exit(&exit)?;
        Ok(exit)
    }

    /// Counts no failure up to this attempt: somebody has taken the whole node down.
    pub(crate) fn forgive(&self) -> Result<(), RoomError> {
        let path = self.path.join(FORGIVEN);
        fs::write(&path, []).map_err(failed("write", &path))
    }

    pub(crate) fn is_forgiven(&self) -> bool {
        self.path.join(FORGIVEN).exists()
    }

    /// Removes the folder.
    pub fn remove(&self) -> Result<(), RoomError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &self.path)(error)),
            _ => Ok(()),
        }
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RoomError> {
        let path = self.path.join(name);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| RoomError::Damaged { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed("read", &path)(source)),
        }
    }

    /// All or nothing.
    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), RoomError> {
        let path = self.path.join(name);
        let text = serde_json::to_vec_pretty(value).expect("what is kept in a room is JSON");
        let write = || {
            let mut file = NamedTempFile::new_in(&self.path)?;
            file.write_all(&text)?;
            file.persist(&path).map_err(|error| error.error).map(drop)
        };
        write().map_err(failed("write", &path))
    }
}

const BLUEPRINT: &str = "blueprint.json";
const EXIT: &str = "exit.json";
const SHIM: &str = "shim.json";
const FORGIVEN: &str = "forgiven";

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> RoomError + 'a {
    move |source| RoomError::File { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_begun_can_be_called_off() {
        let root = tempfile::tempdir().unwrap();
        let blueprint = Blueprint {
            id: "id".into(),
            of: "n/p/c".into(),
            attempt: 0,
            failures: 0,
            image_id: "image".into(),
            files: PathBuf::new(),
            command: Vec::new(),
            environment: Vec::new(),
            working_directory: "/".into(),
            mounts: Vec::new(),
        };
        let (early, late) = (Room::at(root.path().join("early")), Room::at(root.path().join("late")));
        let shim = Identity::own().unwrap();
        early.plan(&blueprint).unwrap();
        assert!(early.call_off().unwrap());
        assert!(early.lock().is_err(), "a shim that comes now finds nothing");
        late.plan(&blueprint).unwrap();
        assert!(late.take(&shim).unwrap());
        assert!(!late.call_off().unwrap());
        assert!(matches!(late.state(), Ok(State::Running { .. })));
    }
}
