//! One cluster's folder: where everything is, and whether it is ours.
//!
//! The one invariant: nothing is written to or removed from a folder that
//! Midflight did not make.

mod marker;
mod write;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};

pub(crate) use marker::Marker;
pub(crate) use write::{create_private_dir, write_atomically};

use crate::{failure::Failure, process::Role};

/// Unix socket addresses end here.
const SOCKET_PATH_BYTES: usize = 107;
/// Room for what comes after the folder's own path: `/run/NODE/SOCKET`.
const SOCKET_NAME_BYTES: usize = 40;
/// Where backups are, or what leads to where they are.
const BACKUPS: &str = "backups";
/// All that Midflight puts into a folder beside backups; `down --purge` removes these and nothing else.
const CONTENTS: &[&str] = &[
    "kubeconfig",
    "kubeconfig.unfinished",
    "logs",
    MARKER_UNFINISHED,
    "nodes",
    "registry",
    "run",
    STORE,
    "store.redb.journal",
    "store.redb.mark",
    "store.redb.new",
    "tls",
    "tokens.json",
    "tokens.new",
    "viewer.kubeconfig",
    "viewer.unfinished",
];
/// How each copy of the store begins that is kept from before it was changed; the id of the change follows.
pub(crate) const STORE_BEFORE: &str = "store.redb.before-";
const STORE: &str = "store.redb";
const MARKER: &str = "midflight.json";
/// What a first start that was cut short leaves of the marker.
const MARKER_UNFINISHED: &str = "midflight.unfinished";

/// The paths inside a folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: PathBuf,
}

impl Folder {
    /// `--dir`, or `$XDG_DATA_HOME/midflight`. Touches nothing.
    pub(crate) fn locate(given: Option<&Path>, environment: &Environment) -> anyhow::Result<Folder> {
        let path = match (given, &environment.data_home, &environment.home) {
            (Some(given), _, _) => given.to_owned(),
            // The XDG specification wants relative ones ignored.
            (None, Some(data_home), _) if data_home.is_absolute() => data_home.join("midflight"),
            (None, _, Some(home)) => home.join(".local/share/midflight"),
            (None, _, None) => {
                return Err(Failure::usage(
                    "neither --dir nor $XDG_DATA_HOME nor $HOME says where the data lives",
                    "give a folder with --dir DIR",
                ));
            }
        };
        let root = std::path::absolute(&path).with_context(|| format!("make {} absolute", path.display()))?;
        Ok(Folder::at(root))
    }

    /// The folder at an absolute path. Touches nothing.
    pub(crate) fn at(root: PathBuf) -> Folder {
        Folder { root }
    }

    /// Makes the folder ours if it is new, and makes sure that it is ours if it is not.
    pub(crate) fn create_or_open(&self) -> anyhow::Result<Marker> {
        self.check_depth()?;
        if let Some(marker) = self.marker()? {
            return self.create_rooms().map(|()| marker);
        }
        create_private_dir(&self.root)?;
        let _turn = self.lock()?;
        if let Some(marker) = self.marker()? {
            return self.create_rooms().map(|()| marker);
        }
        self.check_empty()?;
        write::make_private(&self.root)?;
        let marker = Marker::new();
        self.write_marker(&marker)?;
        self.create_rooms()?;
        Ok(marker)
    }

    /// The marker of a folder that is ours, `None` if there is none.
    pub(crate) fn marker(&self) -> anyhow::Result<Option<Marker>> {
        Marker::read(&self.root.join(MARKER))
    }

    pub(crate) fn write_marker(&self, marker: &Marker) -> anyhow::Result<()> {
        marker.write(&self.root.join(MARKER))
    }

    /// Removes the data, and backups where that was asked for: they are there for the day on which all else has gone. The marker
    /// goes last, so that a purge cut short can be repeated.
    pub(crate) fn purge(&self, backups: Backups) -> anyhow::Result<Purged> {
        if self.marker()?.is_none() && !self.is_hardly_begun()? {
            return Err(Failure::usage(
                format!("{} was not made by midflight", self.root.display()),
                "check --dir; remove the folder by hand if you are sure",
            ));
        }
        for name in CONTENTS {
            remove(&self.root.join(name))?;
        }
        for copy in self.copies_of_the_store()? {
            remove(&copy)?;
        }
        let kept = match backups {
            Backups::Keep => self.kept_backups()?,
            Backups::Remove => None,
        };
        if kept.is_some() {
            // The folder stays ours, as one in which nothing has run yet.
            self.write_marker(&Marker::new())?;
            return Ok(Purged { foreign: self.holds_more_than(&[BACKUPS, MARKER])?, backups: kept });
        }
        remove(&self.backups())?;
        remove(&self.root.join(MARKER))?;
        let foreign = self.holds_more_than(&[])?;
        if !foreign {
            fs::remove_dir(&self.root).with_context(|| format!("remove {}", self.root.display()))?;
        }
        Ok(Purged { foreign, backups: None })
    }

    /// How many backups the folder itself holds; nothing if no file is there, or if it only leads to where they are.
    fn kept_backups(&self) -> anyhow::Result<Option<usize>> {
        let backups = self.backups();
        if !holds_files(&backups)? {
            return Ok(None);
        }
        let mut count = 0;
        for volume in entries(&backups.join("volumes"))? {
            count += entries(&volume)?.len();
        }
        Ok(Some(count))
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// For those who may look and not touch.
    pub(crate) fn viewer_kubeconfig(&self) -> PathBuf {
        self.root.join("viewer.kubeconfig")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.join(STORE)
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The images of the cluster.
    pub(crate) fn registry(&self) -> PathBuf {
        self.root.join("registry")
    }

    /// What every node sees as `/backups`. It may be a link to a folder elsewhere.
    pub(crate) fn backups(&self) -> PathBuf {
        self.root.join(BACKUPS)
    }

    pub(crate) fn node(&self, number: u8) -> PathBuf {
        self.nodes().join(Role::Node(number).to_string())
    }

    pub(crate) fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    /// What opens the API to a node and its pods; in a folder of its own, which can be mounted for them.
    pub(crate) fn node_kubeconfig(&self, number: u8) -> PathBuf {
        self.node(number).join("access").join("kubeconfig")
    }

    pub(crate) fn log(&self, role: &Role) -> PathBuf {
        self.root.join("logs").join(format!("{role}.log"))
    }

    fn copies_of_the_store(&self) -> anyhow::Result<Vec<PathBuf>> {
        let is_copy = |entry: &PathBuf| {
            let name = entry.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(STORE_BEFORE.as_bytes())
        };
        Ok(entries(&self.root)?.into_iter().filter(is_copy).collect())
    }

    /// Makes those who find no marker take turns, so that the folder is made once. Held until dropped.
    fn lock(&self) -> anyhow::Result<File> {
        let locking = || format!("lock {}", self.root.display());
        let root = File::open(&self.root).with_context(locking)?;
        flock(&root, FlockOperation::LockExclusive).with_context(locking)?;
        Ok(root)
    }

    fn create_rooms(&self) -> anyhow::Result<()> {
        ["run", "logs", "nodes"].iter().try_for_each(|room| create_private_dir(&self.root.join(room)))
    }

    fn check_depth(&self) -> anyhow::Result<()> {
        let length = self.root.as_os_str().len();
        let most = SOCKET_PATH_BYTES - SOCKET_NAME_BYTES;
        if length <= most {
            return Ok(());
        }
        Err(Failure::usage(
            format!(
                "{} is too deep: {length} bytes, and the paths of its sockets must end at {SOCKET_PATH_BYTES}",
                self.root.display()
            ),
            format!("choose a folder whose path has at most {most} bytes with --dir"),
        ))
    }

    /// Whether a start that was cut short before there was a marker may have left the folder: nothing is in it
    /// but, perhaps, a marker half written.
    fn is_hardly_begun(&self) -> anyhow::Result<bool> {
        if !self.root.is_dir() {
            return Ok(false);
        }
        Ok(!self.holds_more_than(&[MARKER_UNFINISHED])?)
    }

    fn holds_more_than(&self, known: &[&str]) -> anyhow::Result<bool> {
        let is_known = |entry: &PathBuf| known.iter().any(|known| entry.ends_with(known));
        Ok(!entries(&self.root)?.iter().all(is_known))
    }

    /// A folder without a marker may only hold what a crashed first start left, a marker half written, and where backups are to go
    /// or are from a cluster before.
    fn check_empty(&self) -> anyhow::Result<()> {
        let is_ours = |entry: &&PathBuf| write::is_unfinished(entry) || entry.ends_with(BACKUPS);
        match entries(&self.root)?.iter().find(|entry| !is_ours(entry)) {
            None => Ok(()),
            Some(foreign) => Err(Failure::usage(
                format!(
                    "{} was not made by midflight and is not empty (it holds {})",
                    self.root.display(),
                    foreign.strip_prefix(&self.root).unwrap_or(foreign).display()
                ),
                "choose an empty or new folder with --dir; one that holds nothing but `backups` will do, too",
            )),
        }
    }
}

/// Whether a folder has files, however deep. What is no folder itself has none.
fn holds_files(folder: &Path) -> anyhow::Result<bool> {
    let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    if !is_folder(folder) {
        return Ok(false);
    }
    for entry in entries(folder)? {
        if !is_folder(&entry) || holds_files(&entry)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The paths in a folder, which need not be there.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let reading = || format!("read {}", folder.display());
    match fs::read_dir(folder) {
        Ok(found) => found.map(|entry| entry.map(|entry| entry.path()).with_context(reading)).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error).with_context(reading),
    }
}

/// What of the environment decides where the data lives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    pub(crate) data_home: Option<PathBuf>,
    pub(crate) home: Option<PathBuf>,
}

/// What a purge is to do with backups that the folder itself holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backups {
    Keep,
    Remove,
}

/// What a purge left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Purged {
    /// Files that are not ours.
    pub(crate) foreign: bool,
    /// How many backups were kept, if any.
    pub(crate) backups: Option<usize>,
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
