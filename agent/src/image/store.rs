//! The images that a node has, unpacked.
//!
//! ```text
//! images/HEX/image.json   what it is called, how it is run; written last
//! images/HEX/files/       its files
//! ```
//!
//! The one invariant: an image that is listed was verified as a whole, in this boot of the machine. What an earlier boot
//! left may be torn by a loss of power, and is pulled again.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use midflight_plan::storage::engine_image::Ranges;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::sync::Notify;

use super::{Digest, ImageName};

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    #[serde(with = "text")]
    pub digest: Digest,
    /// Names that led to it when it was pulled.
    pub names: Vec<String>,
    pub size_bytes: u64,
    pub run: Run,
    /// What its program speaks, if its labels say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Ranges>,
    pub pulled_at: Timestamp,
    /// The boot of the machine in which it was unpacked.
    boot: String,
}

/// How an image wants to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub entrypoint: Vec<String>,
    pub arguments: Vec<String>,
    /// `NAME=VALUE` each.
    pub environment: Vec<String>,
    pub working_directory: String,
}

impl Held {
    /// The name that can only ever mean this content.
    pub fn id(&self, image: &ImageName) -> String {
        format!("{}/{}@{}", image.host(), image.repository(), self.digest)
    }

    /// By digest first, as Kubernetes lists them.
    pub(crate) fn all_names(&self) -> Vec<String> {
        let parsed = self.names.iter().filter_map(|name| name.parse::<ImageName>().ok());
        let mut by_digest: Vec<String> = parsed.map(|name| self.id(&name)).collect();
        by_digest.dedup();
        [by_digest, self.names.clone()].concat()
    }
}

/// An image whose files are in a folder, all of them.
pub(super) struct Unpacked {
    pub(super) digest: Digest,
    pub(super) size_bytes: u64,
    pub(super) run: Run,
    pub(super) engine: Option<Ranges>,
}

/// The folder of images.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    boot: String,
    held: Mutex<BTreeMap<Digest, Held>>,
    changes: AtomicU64,
    news: Notify,
    /// When somebody last asked for an image, to run something from it.
    wanted: Mutex<BTreeMap<Digest, Timestamp>>,
}

impl Store {
    /// What the folder of images is called in that of a node.
    pub const FOLDER: &str = "images";

    /// Finds what is there, and removes what is not whole.
    pub fn open(root: &Path) -> io::Result<Store> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let mut held = BTreeMap::new();
        for entry in fs::read_dir(root)? {
            let path = entry?.path();
            match read(&path, &boot) {
                Some(image) => drop(held.insert(image.digest.clone(), image)),
                None => fs::remove_dir_all(&path)?,
            }
        }
        Ok(Store {
            root: root.to_owned(),
            boot,
            held: Mutex::new(held),
            changes: AtomicU64::new(0),
            news: Notify::new(),
            wanted: Mutex::default(),
        })
    }

    /// The image in a folder of this store or another, if it is whole and of this boot.
    pub(super) fn read(&self, place: &Path) -> Option<Held> {
        read(place, &self.boot)
    }

    /// How often what is listed has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Waits until what is listed changes; for one who waits at a time.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }

    fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.news.notify_one();
    }

    /// All images, by digest.
    pub fn list(&self) -> Vec<Held> {
        self.held().values().cloned().collect()
    }

    /// The image that a name led to when it was last pulled.
    pub fn find(&self, image: &ImageName) -> Option<Held> {
        let name = image.to_string();
        let digest = image.digest();
        let is_it = |held: &&Held| match digest {
            Some(digest) => held.digest == *digest,
            None => held.names.contains(&name),
        };
        // Under the same lock as a removal, which so comes before or sees that it is wanted.
        let all = self.held();
        let found = all.values().find(is_it).cloned();
        if let Some(held) = &found {
            self.wanted().insert(held.digest.clone(), Timestamp::now());
        }
        found
    }

    /// When an image was last asked for.
    pub(super) fn wanted_at(&self, held: &Held) -> Timestamp {
        self.wanted().get(&held.digest).copied().unwrap_or(held.pulled_at)
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeMap<Digest, Timestamp>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, digest: &Digest) -> Option<Held> {
        self.held().get(digest).cloned()
    }

    /// Where the files of an image are.
    pub fn files(&self, digest: &Digest) -> PathBuf {
        self.place(digest).join(FILES)
    }

    /// A folder to unpack into. It goes when it is dropped.
    pub(super) fn begin(&self) -> io::Result<TempDir> {
        let folder = tempfile::Builder::new().prefix(".pull-").tempdir_in(&self.root)?;
        fs::create_dir(folder.path().join(FILES))?;
        Ok(folder)
    }

    /// Lists an image that was unpacked as a whole.
    pub(super) fn add(&self, folder: TempDir, image: &ImageName, unpacked: Unpacked) -> io::Result<Held> {
        let Unpacked { digest, size_bytes, run, engine } = unpacked;
        let held = Held {
            digest,
            names: Vec::new(),
            size_bytes,
            run,
            engine,
            pulled_at: Timestamp::now(),
            boot: self.boot.clone(),
        };
        write(folder.path(), &held)?;
        let place = self.place(&held.digest);
        let folder = folder.keep();
        let digest = held.digest.clone();
        match fs::rename(&folder, &place) {
            Ok(()) => {
                self.held().insert(digest.clone(), held);
                self.has_changed();
            }
            Err(error) => {
                fs::remove_dir_all(&folder)?;
                // Somebody else may have been faster.
                self.get(&digest).ok_or(error)?;
            }
        }
        self.name(image, &digest)
    }

    /// Lets a name lead to an image that is there.
    pub(super) fn name(&self, image: &ImageName, digest: &Digest) -> io::Result<Held> {
        let name = image.to_string();
        let by_digest = image.digest().is_some();
        let mut all = self.held();
        for held in all.values_mut() {
            let before = held.names.clone();
            held.names.retain(|known| *known != name || held.digest == *digest);
            if held.digest == *digest && !by_digest && !held.names.contains(&name) {
                held.names.push(name.clone());
                held.names.sort();
            }
            if held.names != before {
                self.has_changed();
                write(&self.place(&held.digest), held)?;
            }
        }
        all.get(digest).cloned().ok_or_else(|| io::Error::other("the image was removed meanwhile"))
    }

    /// Removes an image that nothing runs from, unless somebody has asked for it since; says whether it did.
    pub(super) fn remove_unless_wanted_after(&self, digest: &Digest, then: Timestamp) -> io::Result<bool> {
        let mut all = self.held();
        let is_wanted = self.wanted().get(digest).is_some_and(|wanted| *wanted > then);
        if is_wanted || all.remove(digest).is_none() {
            return Ok(false);
        }
        self.has_changed();
        let place = self.place(digest);
        // What is not whole is not listed at the next start either.
        fs::remove_file(place.join(IMAGE))?;
        fs::remove_dir_all(place)?;
        Ok(true)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Digest, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, digest: &Digest) -> PathBuf {
        self.root.join(digest.hex())
    }
}

/// Where a file of an image lies in the folder of a node, if it is this very file.
pub fn same_file(node: &Path, name: &str, file: &fs::Metadata) -> Option<PathBuf> {
    let is_it = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    let images = fs::read_dir(node.join(Store::FOLDER)).ok()?.flatten();
    images.map(|image| image.path().join(FILES).join(name)).find(is_it)
}

const IMAGE: &str = "image.json";
pub(super) const FILES: &str = "files";

fn read(place: &Path, boot: &str) -> Option<Held> {
    let text = fs::read(place.join(IMAGE)).ok()?;
    let held: Held = serde_json::from_slice(&text).ok()?;
    (held.boot == boot && place.ends_with(held.digest.hex())).then_some(held)
}

fn write(folder: &Path, held: &Held) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, held)?;
    file.persist(folder.join(IMAGE)).map_err(|error| error.error).map(drop)
}

/// A digest as its text.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::Digest;

    pub(super) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(digest)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// An image of 7 bytes, whose digest is that of its content.
    pub(in super::super) fn add(store: &Store, name: &str, content: &str) -> Held {
        let folder = store.begin().unwrap();
        fs::write(folder.path().join(FILES).join("program"), content).unwrap();
        let digest = Digest::of(content.as_bytes());
        let unpacked = Unpacked { digest, size_bytes: 7, run: Run::default(), engine: None };
        store.add(folder, &name.parse().unwrap(), unpacked).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::add, *};

    fn names(store: &Store) -> Vec<Vec<String>> {
        store.list().into_iter().map(|held| held.names).filter(|names| !names.is_empty()).collect()
    }

    #[test]
    fn what_is_whole_is_found_again_and_the_rest_goes() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path()).unwrap();
        let engine = add(&store, "engine:v1", "one");
        add(&store, "other:v1", "two");
        let torn = add(&store, "torn:v1", "three");
        fs::remove_file(store.place(&torn.digest).join(IMAGE)).unwrap();
        let _ = store.begin().unwrap().keep();

        let again = Store::open(root.path()).unwrap();
        assert_eq!(again.find(&"engine:v1".parse().unwrap()), Some(engine.clone()));
        assert_eq!(again.find(&format!("engine@{}", engine.digest).parse().unwrap()), Some(engine));
        assert_eq!(again.find(&"torn:v1".parse().unwrap()), None);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_name_leads_to_one_image() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path()).unwrap();
        add(&store, "engine:v1", "old");
        let new = add(&store, "engine:v1", "new");
        assert_eq!(store.find(&"engine:v1".parse().unwrap()).unwrap().digest, new.digest);
        assert_eq!(names(&store), [["midflight.local/engine:v1"]]);
        assert_eq!(names(&Store::open(root.path()).unwrap()).len(), 1);
    }

    #[test]
    fn an_earlier_boot_is_not_believed() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(root.path()).unwrap();
        let held = Held { boot: "earlier".into(), ..add(&store, "engine:v1", "one") };
        write(&store.place(&held.digest), &held).unwrap();
        assert!(Store::open(root.path()).unwrap().list().is_empty());
    }
}
