//! What an instance manager keeps on disk of each instance, and of each volume the
//! highest epoch it has seen.
//!
//! ```text
//! FOLDER/instances/KIND-NAME/{spec.json, lock, address, log}   one instance; ahead.json and begun where there is more to say
//! FOLDER/volumes/VOLUME.json                                   the highest epoch seen
//! FOLDER/replicas/NAME/                                        the copy of a replica
//! ```
//!
//! Invariant: an instance is on disk before it is started and until it has ended.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::names::{Key, Kind, Name};
use crate::{durable, epoch::Epoch, net::address::Address};

/// Where a replica of the record is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Seat {
    pub(super) name: Name,
    pub(super) address: Address,
}

/// What is particular to a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Particulars {
    Replica {
        size: u64,
        /// Whether its copy has to be there when it is started. As `begun`, a file of its own, which builds that do not know it
        /// leave alone.
        #[serde(skip)]
        existing: bool,
    },
    Engine {
        members: Vec<Seat>,
        /// Whether other nodes reach it.
        remote: bool,
        suspended: bool,
        /// Replicas that it rebuilds when they return.
        #[serde(default)]
        permitted: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) name: Name,
    pub(super) volume: Name,
    /// With the incarnation it was last started under; on disk, perhaps with the one before.
    pub(super) epoch: Epoch,
    /// The highest that it may be started under before more is noted. In a file of its own, which builds that do not know it leave alone.
    #[serde(skip)]
    pub(super) ahead: Epoch,
    /// Below the folder of binaries; `None` for an instance in this process (v2).
    pub(super) binary: Option<PathBuf>,
    pub(super) particulars: Particulars,
    /// Once it is known it stays: others were told.
    pub(super) address: Option<Address>,
}

impl Spec {
    pub(super) fn key(&self) -> Key {
        let kind = match self.particulars {
            Particulars::Replica { .. } => Kind::Replica,
            Particulars::Engine { .. } => Kind::Engine,
        };
        Key { kind, name: self.name.clone() }
    }

    pub(super) fn members(&self) -> &[Seat] {
        match &self.particulars {
            Particulars::Replica { .. } => &[],
            Particulars::Engine { members, .. } => members,
        }
    }

    pub(super) fn permitted(&self) -> &[String] {
        match &self.particulars {
            Particulars::Replica { .. } => &[],
            Particulars::Engine { permitted, .. } => permitted,
        }
    }

    fn has_copy(&self) -> bool {
        matches!(self.particulars, Particulars::Replica { existing: true, .. })
    }

    pub(super) fn is_suspended(&self) -> bool {
        matches!(self.particulars, Particulars::Engine { suspended: true, .. })
    }

    /// Whether a process of another binary can take a replica's place while it serves.
    pub(super) fn may_be_followed_by(&self, other: &Spec) -> bool {
        let alone = Spec { binary: self.binary.clone(), ..other.clone() };
        let processes = self.binary.is_some() && other.binary.is_some();
        processes && self.binary != other.binary && self.differs_from(&alone).is_none()
    }

    /// In what two orders for the same instance differ, if they do.
    pub(super) fn differs_from(&self, other: &Spec) -> Option<&'static str> {
        if self.binary != other.binary {
            return Some("another binary");
        }
        match (&self.particulars, &other.particulars) {
            (Particulars::Replica { .. }, Particulars::Replica { .. }) => None,
            (
                Particulars::Engine { members: one, remote: here, .. },
                Particulars::Engine { members: two, remote: there, .. },
            ) => {
                let sorted = |members: &[Seat]| {
                    let mut members = members.to_vec();
                    members.sort();
                    members
                };
                if sorted(one) != sorted(two) {
                    return Some("other replicas");
                }
                (here != there).then_some("reached in another way")
            }
            (Particulars::Replica { .. }, Particulars::Engine { .. })
            | (Particulars::Engine { .. }, Particulars::Replica { .. }) => Some("another kind"),
        }
    }
}

/// The folder of one instance.
#[derive(Debug, Clone)]
pub(super) struct Place {
    folder: PathBuf,
}

impl Place {
    fn spec(&self) -> PathBuf {
        self.folder.join("spec.json")
    }

    fn ahead(&self) -> PathBuf {
        self.folder.join("ahead.json")
    }

    fn begun(&self) -> PathBuf {
        self.folder.join("begun")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.folder.join("lock")
    }

    pub(super) fn address(&self) -> PathBuf {
        self.folder.join("address")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Durable when it returns.
    pub(super) fn store(&self, spec: &Spec) -> io::Result<()> {
        if !self.folder.exists() {
            fs::create_dir_all(&self.folder)?;
            durable::sync_folder(&self.folder)?;
        }
        // A copy that is missed too much has to be asked for again; one that is missed too little is begun anew.
        if spec.has_copy() && !self.begun().exists() {
            durable::replace(&self.begun(), b"")?;
        }
        durable::write(&self.spec(), spec)?;
        if !spec.has_copy() {
            remove_file(&self.begun())?;
        }
        match spec.ahead > spec.epoch {
            true => durable::write(&self.ahead(), &Floor { epoch: spec.ahead }),
            false => Ok(()),
        }
    }

    fn load(&self) -> io::Result<Option<Spec>> {
        let Some(mut spec) = durable::read::<Spec>(&self.spec())? else { return Ok(None) };
        let noted = durable::read::<Floor>(&self.ahead())?.map_or(spec.epoch, |noted| noted.epoch);
        spec.ahead = noted.max(spec.epoch);
        if let Particulars::Replica { existing, .. } = &mut spec.particulars {
            *existing = fs::exists(self.begun())?;
        }
        Ok(Some(spec))
    }

    /// The spec goes first: without it the rest is rubbish.
    pub(super) fn remove(&self) -> io::Result<()> {
        remove_file(&self.spec())?;
        fs::remove_dir_all(&self.folder)
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The folder of an instance manager.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    root: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Floor {
    epoch: Epoch,
}

impl Shelf {
    pub(super) fn open(root: &Path) -> io::Result<Shelf> {
        for folder in ["instances", "volumes", "replicas", "run"] {
            fs::create_dir_all(root.join(folder))?;
        }
        Ok(Shelf { root: fs::canonicalize(root)? })
    }

    pub(super) fn place(&self, key: &Key) -> Place {
        Place { folder: self.root.join("instances").join(key.to_string()) }
    }

    pub(super) fn copy(&self, replica: &Name) -> PathBuf {
        self.root.join("replicas").join(replica.as_str())
    }

    /// Folders of all copies, by name, also of those that nobody has asked for lately.
    pub(super) fn copies(&self) -> io::Result<Vec<PathBuf>> {
        let all = fs::read_dir(self.root.join("replicas"))?.map(|entry| Ok(entry?.path()));
        let mut all = all.collect::<io::Result<Vec<PathBuf>>>()?;
        all.sort();
        Ok(all)
    }

    /// The socket of an engine that only this node reaches.
    pub(super) fn socket(&self, engine: &Name) -> PathBuf {
        self.root.join("run").join(format!("{engine}.sock"))
    }

    /// Every instance that was not forgotten, and folders that are not understood.
    pub(super) fn load(&self) -> io::Result<Vec<Spec>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.root.join("instances"))? {
            let place = Place { folder: entry?.path() };
            match place.load()? {
                Some(spec) => all.push(spec),
                // Its first store, or its removal, was not finished.
                None => fs::remove_dir_all(&place.folder)?,
            }
        }
        Ok(all)
    }

    fn floor_path(&self, volume: &Name) -> PathBuf {
        self.root.join("volumes").join(format!("{volume}.json"))
    }

    pub(super) fn floor(&self, volume: &Name) -> io::Result<Epoch> {
        Ok(durable::read::<Floor>(&self.floor_path(volume))?.map_or(Epoch::NONE, |floor| floor.epoch))
    }

    /// Durable when it returns.
    pub(super) fn note_floor(&self, volume: &Name, epoch: Epoch) -> io::Result<()> {
        durable::write(&self.floor_path(volume), &Floor { epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(members: &[&str]) -> Spec {
        let seat =
            |name: &&str| Seat { name: name.parse().unwrap(), address: "127.0.0.2:7".parse().unwrap() };
        Spec {
            name: "e-1".parse().unwrap(),
            volume: "vol-1".parse().unwrap(),
            epoch: Epoch::of_term(3),
            ahead: Epoch::of_term(3),
            binary: None,
            particulars: Particulars::Engine {
                members: members.iter().map(seat).collect(),
                remote: false,
                suspended: false,
                permitted: vec!["a".to_owned()],
            },
            address: None,
        }
    }

    #[test]
    fn what_was_stored_is_loaded_and_what_was_half_stored_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let spec = spec(&["a"]);
        let place = shelf.place(&spec.key());
        place.store(&spec).unwrap();
        fs::create_dir_all(folder.path().join("instances/engine-half")).unwrap();
        assert_eq!(shelf.load().unwrap(), std::slice::from_ref(&spec));
        let ahead = Spec { ahead: spec.epoch.next_incarnation().unwrap(), ..spec };
        place.store(&ahead).unwrap();
        assert_eq!(
            shelf.load().unwrap(),
            [ahead],
            "no process of a later manager gets what one of this may have"
        );
        assert!(!folder.path().join("instances/engine-half").exists());
        place.remove().unwrap();
        assert_eq!(shelf.load().unwrap(), []);
    }

    /// As builds wrote it that knew nothing of copies that have to be there.
    const OLDER: &str = r#"{
  "body": {
    "name": "r-1",
    "volume": "vol-1",
    "epoch": 196608,
    "binary": null,
    "particulars": {
      "replica": {
        "size": 4096
      }
    },
    "address": null
  },
  "check": 2573429557
}"#;

    fn replica(existing: bool) -> Spec {
        let particulars = Particulars::Replica { size: 4096, existing };
        Spec { name: "r-1".parse().unwrap(), particulars, ..spec(&[]) }
    }

    #[test]
    fn builds_of_either_kind_read_what_the_other_has_stored() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let place = shelf.place(&replica(false).key());
        fs::create_dir_all(&place.folder).unwrap();
        fs::write(place.spec(), OLDER).unwrap();
        assert_eq!(shelf.load().unwrap(), [replica(false)]);
        place.store(&replica(true)).unwrap();
        assert_eq!(fs::read_to_string(place.spec()).unwrap(), OLDER);
    }

    #[test]
    fn a_copy_that_was_begun_stays_so_until_someone_begins_it_anew() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let place = shelf.place(&replica(false).key());
        for existing in [false, true, true, false, true] {
            place.store(&replica(existing)).unwrap();
            assert_eq!(shelf.load().unwrap(), [replica(existing)]);
        }
        place.remove().unwrap();
        place.store(&replica(false)).unwrap();
        assert_eq!(shelf.load().unwrap(), [replica(false)]);
    }

    #[test]
    fn the_floor_of_a_volume_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let volume = "vol-1".parse().unwrap();
        assert_eq!(shelf.floor(&volume).unwrap(), Epoch::NONE);
        shelf.note_floor(&volume, Epoch::of_term(9)).unwrap();
        assert_eq!(Shelf::open(folder.path()).unwrap().floor(&volume).unwrap(), Epoch::of_term(9));
    }

    #[test]
    fn the_order_of_replicas_does_not_matter() {
        assert_eq!(spec(&["a", "b"]).differs_from(&spec(&["b", "a"])), None);
        assert_eq!(spec(&["a", "b"]).differs_from(&spec(&["a"])), Some("other replicas"));
    }
}
