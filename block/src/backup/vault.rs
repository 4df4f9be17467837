//! Where backups are kept: objects by path, each written whole or not at all.
//!
//! Invariant: what `put` and `put_new` have returned for survives a loss of power.

use std::{fs, io, path::Path, time::SystemTime};

use bytes::Bytes;
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, local::LocalFileSystem, path::Path as ObjectPath,
};
use tokio::runtime::{Builder, Runtime};

/// Folder of all manifests; it stays when they go.
pub(super) const MANIFESTS: &str = "volumes";

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub path: String,
    pub size: u64,
    pub modified: SystemTime,
}

#[derive(Debug, thiserror::Error)]
#[error("{doing} {path} in the backup target")]
pub struct VaultError {
    pub doing: &'static str,
    pub path: String,
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// The few things that are asked of an object store.
pub trait Vault {
    fn put(&self, path: &str, data: Bytes) -> Result<(), VaultError>;
    /// Says whether it was not there before; if it was, nothing changes.
    fn put_new(&self, path: &str, data: Bytes) -> Result<bool, VaultError>;
    fn get(&self, path: &str) -> Result<Option<Bytes>, VaultError>;
    fn exists(&self, path: &str) -> Result<bool, VaultError>;
    fn list(&self, below: &str) -> Result<Vec<Listed>, VaultError>;
    /// One that is not there is as good as removed.
    fn remove(&self, path: &str) -> Result<(), VaultError>;
}

/// Whether backups were ever put into a folder, whatever became of them. One that is not mounted was never used; one that
/// cannot be looked at is not taken for such.
pub fn was_used(folder: &Path) -> bool {
    !matches!(fs::metadata(folder.join(MANIFESTS)), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// A folder.
#[derive(Debug)]
pub struct FolderVault {
    store: LocalFileSystem,
    runtime: Runtime,
}

fn failed(doing: &'static str, path: &str) -> impl FnOnce(object_store::Error) -> VaultError {
    let path = path.to_owned();
    move |source| VaultError { doing, path, source: source.into() }
}

impl FolderVault {
    /// Opens a folder, making it if there is none.
    pub fn make(folder: &Path) -> Result<FolderVault, VaultError> {
        let wrap = |source: io::Error| VaultError {
            doing: "make",
            path: folder.display().to_string(),
            source: source.into(),
        };
        fs::create_dir_all(folder).map_err(wrap)?;
        FolderVault::open(folder)
    }

    /// Opens a folder that is there.
    pub fn open(folder: &Path) -> Result<FolderVault, VaultError> {
        let name = folder.display().to_string();
        let wrap =
            |source: io::Error| VaultError { doing: "open", path: name.clone(), source: source.into() };
        let store = LocalFileSystem::new_with_prefix(folder).map_err(failed("open", &name))?.with_fsync(true);
        let runtime = Builder::new_current_thread().build().map_err(wrap)?;
        Ok(FolderVault { store, runtime })
    }

    fn put_with(&self, path: &str, data: Bytes, mode: PutMode) -> Result<bool, VaultError> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let at = ObjectPath::from(path);
        match self.runtime.block_on(self.store.put_opts(&at, data.into(), options)) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(failed("write", path)(error)),
        }
    }
}

impl Vault for FolderVault {
    fn put(&self, path: &str, data: Bytes) -> Result<(), VaultError> {
        self.put_with(path, data, PutMode::Overwrite).map(|_| ())
    }

    fn put_new(&self, path: &str, data: Bytes) -> Result<bool, VaultError> {
        self.put_with(path, data, PutMode::Create)
    }

    fn get(&self, path: &str) -> Result<Option<Bytes>, VaultError> {
        let get = async {
            match self.store.get(&ObjectPath::from(path)).await {
                Ok(found) => found.bytes().await.map(Some),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.runtime.block_on(get).map_err(failed("read", path))
    }

    fn exists(&self, path: &str) -> Result<bool, VaultError> {
        match self.runtime.block_on(self.store.head(&ObjectPath::from(path))) {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(failed("look for", path)(error)),
        }
    }

    fn list(&self, below: &str) -> Result<Vec<Listed>, VaultError> {
        use futures::TryStreamExt;
        let prefix = ObjectPath::from(below);
        let found: Vec<_> = self
            .runtime
            .block_on(self.store.list(Some(&prefix)).try_collect())
            .map_err(failed("list", below))?;
        let listed = |object: object_store::ObjectMeta| Listed {
            path: object.location.to_string(),
            size: object.size,
            modified: object.last_modified.into(),
        };
        let mut found: Vec<Listed> = found.into_iter().map(listed).collect();
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    fn remove(&self, path: &str) -> Result<(), VaultError> {
        match self.runtime.block_on(self.store.delete(&ObjectPath::from(path))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed("remove", path)(error)),
        }
    }
}
