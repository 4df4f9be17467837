//! A folder of published images, in the OCI image layout.
//!
//! The one invariant: a name in the index leads to content that is whole and on
//! disk. Whoever publishes or removes holds the folder's lock; readers need none.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use midflight_plan::storage::engine_image::Ranges;
use oci_spec::image::{
    Descriptor, ImageConfiguration, ImageIndex, ImageIndexBuilder, ImageManifest, MediaType, SCHEMA_VERSION,
};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::pack::{Source, said};
use super::{Digest, ImageName, digest::Digesting};

const INDEX: &str = "index.json";
const LOCK: &str = ".lock";
const LAYOUT: &str = "oci-layout";
const LAYOUT_VERSION: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
/// Annotations of an entry, as the specification names them.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const CREATED: &str = "org.opencontainers.image.created";
/// Which state of which file it was packed from.
const SOURCE: &str = "dev.midflight.source";

/// What can go wrong in the folder.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("{doing} {path}", path = path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is damaged", path = path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
}

/// The folder.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

/// One name in the index.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    #[serde(serialize_with = "as_text")]
    pub image: ImageName,
    #[serde(serialize_with = "as_text")]
    pub digest: Digest,
    /// Of all its content, though other images may share some of it.
    pub size_bytes: u64,
    pub published_at: Option<Timestamp>,
}

impl Layout {
    /// The layout in a folder, which need not be there yet.
    pub fn at(root: impl Into<PathBuf>) -> Layout {
        Layout { root: root.into() }
    }

    /// All that is published, by name.
    pub fn images(&self) -> Result<Vec<Published>, LayoutError> {
        let index = self.index()?;
        let mut images = Vec::new();
        for entry in index.manifests() {
            let Some((image, digest)) = name_of(entry).zip(digest_of(entry)) else { continue };
            let manifest = self.manifest(&digest)?;
            let published_at = annotation(entry, CREATED).and_then(|at| at.parse().ok());
            images.push(Published { image, digest, size_bytes: size_of(entry, &manifest), published_at });
        }
        images.sort_by_key(|published| published.image.to_string());
        Ok(images)
    }

    /// The manifest that a name leads to.
    pub fn resolve(&self, image: &ImageName) -> Result<Option<Digest>, LayoutError> {
        let index = self.index()?;
        let entry = index.manifests().iter().find(|entry| name_of(entry).as_ref() == Some(image));
        Ok(entry.and_then(digest_of))
    }

    /// What the program of an image speaks, if it is published here and its labels say so.
    pub fn speaks(&self, image: &ImageName) -> Result<Option<Ranges>, LayoutError> {
        let Some(manifest) = image.digest().map_or_else(|| self.resolve(image), |it| Ok(Some(it.clone())))?
        else {
            return Ok(None);
        };
        let Some(config) = digest_of(self.manifest(&manifest)?.config()) else { return Ok(None) };
        let path = self.blob_path(&config);
        let text = fs::read(&path).map_err(failed("read", &path))?;
        let config: ImageConfiguration =
            serde_json::from_slice(&text).map_err(|source| LayoutError::Damaged { path, source })?;
        Ok(config.config().as_ref().and_then(said))
    }

    /// Whether a name leads to what was not made from that very file, in whichever boot.
    pub(super) fn leads_elsewhere(&self, image: &ImageName, source: &Source) -> Result<bool, LayoutError> {
        let index = self.index()?;
        let source = source.to_string();
        let is_it = |made_from: &String| {
            made_from.strip_prefix(&source).is_some_and(|boot| boot.is_empty() || boot.starts_with(':'))
        };
        let mut entries = index.manifests().iter().filter(|entry| name_of(entry).as_ref() == Some(image));
        Ok(entries.any(|entry| !annotation(entry, SOURCE).is_some_and(is_it)))
    }

    /// Whether a name leads to another image than this one, and all of that is there as it was put.
    pub(super) fn leads_to_another(&self, image: &ImageName, digest: &Digest) -> Result<bool, LayoutError> {
        match self.resolve(image)? {
            Some(there) => Ok(there != *digest && self.is_whole(&there)?),
            None => Ok(false),
        }
    }

    /// Whether a crash has torn nothing of an image.
    fn is_whole(&self, manifest: &Digest) -> Result<bool, LayoutError> {
        if !self.is_as_put(manifest)? {
            return Ok(false);
        }
        for part in parts(&self.manifest(manifest)?).filter_map(digest_of) {
            if !self.is_as_put(&part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_as_put(&self, digest: &Digest) -> Result<bool, LayoutError> {
        let Some(file) = self.blob(digest)? else { return Ok(false) };
        let mut content = Digesting::new(file);
        io::copy(&mut content, &mut io::sink()).map_err(failed("read", &self.blob_path(digest)))?;
        Ok(content.finish().0 == *digest)
    }

    /// Opens content for reading.
    pub fn blob(&self, digest: &Digest) -> Result<Option<File>, LayoutError> {
        let path = self.blob_path(digest);
        match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LayoutError::File { doing: "open", path, source }),
        }
    }

    /// How long opened content is.
    pub(super) fn size(&self, digest: &Digest, file: &File) -> Result<u64, LayoutError> {
        file.metadata().map(|metadata| metadata.len()).map_err(failed("look at", &self.blob_path(digest)))
    }

    /// Waits for its turn to change the folder, which is made if it is not there.
    pub(super) fn change(&self) -> Result<Change<'_>, LayoutError> {
        let blobs = self.blobs();
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&blobs);
        made.map_err(failed("make", &blobs))?;
        let path = self.root.join(LOCK);
        let opened = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let lock = opened.map_err(failed("open", &path))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed("lock", &path)(errno.into()))?;
        if !self.root.join(LAYOUT).exists() {
            replace(&self.root.join(LAYOUT), LAYOUT_VERSION.as_bytes())?;
        }
        Ok(Change { layout: self, _lock: lock })
    }

    /// Takes a name out of the index and removes content that no name leads to.
    pub fn remove(&self, image: &ImageName) -> Result<bool, LayoutError> {
        let change = self.change()?;
        let mut index = self.index()?;
        let before = index.manifests().len();
        drop_names(&mut index, std::slice::from_ref(image));
        let removed = index.manifests().len() < before;
        if removed {
            self.write_index(&index)?;
        }
        change.collect(&index)?;
        Ok(removed)
    }

    fn named(&self, images: &[ImageName]) -> Result<Vec<Published>, LayoutError> {
        Ok(self.images()?.into_iter().filter(|published| images.contains(&published.image)).collect())
    }

    fn manifest(&self, digest: &Digest) -> Result<ImageManifest, LayoutError> {
        let path = self.blob_path(digest);
        let text = fs::read(&path).map_err(failed("read", &path))?;
        serde_json::from_slice(&text).map_err(|source| LayoutError::Damaged { path, source })
    }

    fn index(&self) -> Result<ImageIndex, LayoutError> {
        let path = self.root.join(INDEX);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|source| LayoutError::Damaged { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(empty_index()),
            Err(source) => Err(LayoutError::File { doing: "read", path, source }),
        }
    }

    fn write_index(&self, index: &ImageIndex) -> Result<(), LayoutError> {
        let text = serde_json::to_vec_pretty(index).expect("an index is JSON");
        replace(&self.root.join(INDEX), &text)
    }

    fn blobs(&self) -> PathBuf {
        self.root.join("blobs").join("sha256")
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }
}

/// The right to change the folder, until dropped.
pub(super) struct Change<'a> {
    layout: &'a Layout,
    _lock: File,
}

impl Change<'_> {
    /// Stores content under its digest, and waits for the disk if it must last.
    pub(super) fn put(&self, content: impl Read, sync: bool) -> Result<(Digest, u64), LayoutError> {
        let blobs = self.layout.blobs();
        let writing = failed("write into", &blobs);
        let mut file = NamedTempFile::new_in(&blobs).map_err(&writing)?;
        let mut content = Digesting::new(content);
        io::copy(&mut content, &mut file).map_err(&writing)?;
        let (digest, size) = content.finish();
        let path = self.layout.blob_path(&digest);
        // A crash may have torn what has the right name; so it is always replaced.
        if sync {
            file.as_file().sync_all().map_err(failed("sync", &path))?;
        }
        file.persist(&path).map_err(|error| failed("name", &path)(error.error))?;
        if sync {
            sync_folder(&blobs)?;
        }
        Ok((digest, size))
    }

    /// Lets names lead to a manifest whose parts were put, and remembers what it was made from.
    pub(super) fn publish(
        &self,
        images: &[ImageName],
        manifest: &ImageManifest,
        source: &Source,
        now: Timestamp,
    ) -> Result<Vec<Published>, LayoutError> {
        let (digest, size) = self.put(&to_bytes(manifest)[..], true)?;
        let mut index = self.layout.index()?;
        drop_names(&mut index, images);
        let mut entries = index.manifests().clone();
        for image in images {
            let annotations =
                [(REF_NAME, image.to_string()), (CREATED, format!("{now:.0}")), (SOURCE, source.to_string())];
            let mut entry = Descriptor::new(MediaType::ImageManifest, size, digest.to_spec());
            entry.set_annotations(Some(annotations.map(|(key, value)| (key.to_owned(), value)).into()));
            entries.push(entry);
        }
        index.set_manifests(entries);
        self.layout.write_index(&index)?;
        self.collect(&index)?;
        self.layout.named(images)
    }

    /// What the names lead to, if all of them lead to what was made from that very file.
    pub(super) fn published_from(
        &self,
        images: &[ImageName],
        source: &Source,
    ) -> Result<Option<Vec<Published>>, LayoutError> {
        let index = self.layout.index()?;
        let source = source.to_string();
        let from_it = |entry: &&Descriptor| annotation(entry, SOURCE) == Some(&source);
        let made: Vec<ImageName> = index.manifests().iter().filter(from_it).filter_map(name_of).collect();
        let all = images.iter().all(|image| made.contains(image));
        all.then(|| self.layout.named(images)).transpose()
    }

    /// Removes what no name leads to, and what a crash left half written.
    fn collect(&self, index: &ImageIndex) -> Result<(), LayoutError> {
        let mut named = BTreeSet::new();
        for digest in index.manifests().iter().filter_map(digest_of) {
            let manifest = self.layout.manifest(&digest)?;
            named.extend(parts(&manifest).filter_map(|part| Some(digest_of(part)?.hex().to_owned())));
            named.insert(digest.hex().to_owned());
        }
        let blobs = self.layout.blobs();
        let reading = failed("read", &blobs);
        for entry in fs::read_dir(&blobs).map_err(&reading)? {
            let entry = entry.map_err(&reading)?;
            if !entry.file_name().to_str().is_some_and(|name| named.contains(name)) {
                fs::remove_file(entry.path()).map_err(failed("remove", &entry.path()))?;
            }
        }
        Ok(())
    }
}

fn drop_names(index: &mut ImageIndex, images: &[ImageName]) {
    let mut entries = index.manifests().clone();
    entries.retain(|entry| !name_of(entry).is_some_and(|name| images.contains(&name)));
    index.set_manifests(entries);
}

fn name_of(entry: &Descriptor) -> Option<ImageName> {
    annotation(entry, REF_NAME)?.parse().ok()
}

fn annotation<'a>(entry: &'a Descriptor, name: &str) -> Option<&'a String> {
    entry.annotations().as_ref()?.get(name)
}

fn digest_of(entry: &Descriptor) -> Option<Digest> {
    entry.digest().to_string().parse().ok()
}

/// What an image is made of, besides its manifest.
fn parts(manifest: &ImageManifest) -> impl Iterator<Item = &Descriptor> {
    std::iter::once(manifest.config()).chain(manifest.layers())
}

fn size_of(entry: &Descriptor, manifest: &ImageManifest) -> u64 {
    entry.size() + parts(manifest).map(Descriptor::size).sum::<u64>()
}

/// A manifest as it is stored, and named by its digest.
pub(super) fn to_bytes(manifest: &ImageManifest) -> Vec<u8> {
    serde_json::to_vec(manifest).expect("a manifest is JSON")
}

fn empty_index() -> ImageIndex {
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests([]);
    index.build().expect("nothing that must be there is missing")
}

fn as_text<S: serde::Serializer>(value: &impl std::fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LayoutError + 'a {
    move |source| LayoutError::File { doing, path: path.to_owned(), source }
}

fn sync_folder(path: &Path) -> Result<(), LayoutError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(failed("sync", path))
}

/// Replaces a file as a whole, on disk when this returns.
fn replace(path: &Path, content: &[u8]) -> Result<(), LayoutError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let write = || {
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error).map(drop)
    };
    write().map_err(failed("write", path))?;
    sync_folder(folder)
}

#[cfg(test)]
mod tests;
