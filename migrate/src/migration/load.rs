//! Finds migrations: every folder of the search path, and those compiled in.
//!
//! The one invariant: nothing on the search path is passed over in silence. A
//! folder that is no migration, or one that cannot be read, is an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::checksum::{of_manifest, of_native};
use super::manifest::{FILE, Manifest, ManifestError};
use super::native::{Naming, Native};
use super::{Migration, Work};

/// The models of a release, beside its migrations; a release may have nothing else.
pub(crate) const MODELS: &str = "models.toml";

/// Why the available migrations cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("list the migrations in {}", path.display())]
    List { path: PathBuf, source: std::io::Error },

    #[error("{} is itself a migration; name the folder that it lies in, {}", path.display(), within.display())]
    Itself { path: PathBuf, within: PathBuf },

    #[error("there is no migration in {}: it holds no folder with a {FILE}", path.display())]
    Empty { path: PathBuf },

    #[error("{} is no migration: it has no {FILE}", path.display())]
    NoManifest { path: PathBuf },

    #[error(transparent)]
    Manifest(#[from] ManifestError),

    #[error("read {}, which the migration {id} is made of", path.display())]
    Program { id: String, path: PathBuf, source: std::io::Error },

    #[error("compiled-in migration {id}: {field}: {problem}")]
    Native { id: &'static str, field: &'static str, problem: String },

    #[error("migration {id} is found twice: {first} and {second}; remove one of the two")]
    Twice { id: String, first: String, second: String },
}

/// Every migration of the search path and of `compiled_in`. Each folder of the
/// path holds one folder per migration; its other files are none of ours.
pub fn load(search_path: &[PathBuf], compiled_in: &[&'static Native]) -> Result<Vec<Migration>, LoadError> {
    let mut found = vec![];
    for native in compiled_in {
        found.push(compiled(native, Naming::Keys)?);
    }
    for path in search_path {
        for folder in folders(path)? {
            found.push(from_folder(&folder)?);
        }
    }
    refuse_twice(&found)?;
    Ok(found)
}

/// The migrations of a store whose tables are resources of an API, e.g. `volumes.longhorn.io`. Nothing is
/// searched for: who keeps such a store brings all that changes it.
pub fn load_for_resources(compiled_in: &[&'static Native]) -> Result<Vec<Migration>, LoadError> {
    let found: Vec<_> =
        compiled_in.iter().map(|native| compiled(native, Naming::Resources)).collect::<Result<_, _>>()?;
    refuse_twice(&found)?;
    Ok(found)
}

pub(super) fn refuse_twice(found: &[Migration]) -> Result<(), LoadError> {
    let mut seen: BTreeMap<&str, &Migration> = BTreeMap::new();
    for migration in found {
        if let Some(first) = seen.insert(&migration.header.id, migration) {
            return Err(LoadError::Twice {
                id: migration.header.id.clone(),
                first: first.origin(),
                second: migration.origin(),
            });
        }
    }
    Ok(())
}

/// The migration in one folder.
pub(super) fn from_folder(folder: &Path) -> Result<Migration, LoadError> {
    let path = folder.join(FILE);
    if !path.exists() {
        return Err(LoadError::NoManifest { path: folder.to_owned() });
    }
    let manifest = Manifest::read(&path)?;
    let (source, checksum) = of_manifest(&manifest).map_err(|(path, source)| LoadError::Program {
        id: manifest.header.id.clone(),
        path,
        source,
    })?;
    Ok(Migration {
        header: manifest.header.clone(),
        max_removed: manifest.max_removed,
        source,
        checksum,
        work: Work::Folder(Box::new(manifest)),
    })
}

pub(super) fn compiled(native: &'static Native, naming: Naming) -> Result<Migration, LoadError> {
    let header = native.header(naming).map_err(|(field, problem)| LoadError::Native {
        id: native.id,
        field,
        problem,
    })?;
    let (source, checksum) = of_native(native, &header);
    Ok(Migration { header, max_removed: native.max_removed, source, checksum, work: Work::Native(native) })
}

/// The folders in a folder, by name. Hidden ones are left to whoever hid them. A folder that was named by
/// mistake must not pass for one whose migrations are all applied.
pub(super) fn folders(path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::List { path: path.to_owned(), source };
    let mut folders = vec![];
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?.path();
        let hidden = entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if entry.is_dir() && !hidden {
            folders.push(entry);
        }
    }
    if path.join(FILE).exists() {
        let whole = std::path::absolute(path).map_err(failed)?;
        let within = whole.parent().unwrap_or(&whole).to_owned();
        return Err(LoadError::Itself { path: path.to_owned(), within });
    }
    if folders.is_empty() && !path.join(MODELS).exists() {
        return Err(LoadError::Empty { path: path.to_owned() });
    }
    folders.sort();
    Ok(folders)
}
