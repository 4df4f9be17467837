//! Why a store cannot be opened.
//!
//! The one invariant: a store that is refused is left as it was found.

use std::io;
use std::path::{Path, PathBuf};

use super::key::Version;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the store {} is in use by {}", path.display(), holder.map_or("another process".to_owned(), |pid| format!("process {pid}")))]
    Locked { path: PathBuf, holder: Option<u32> },

    #[error("the store {} has format {found}, written by a newer version; this one knows formats up to {supported}", path.display())]
    NewerFormat { path: PathBuf, found: u64, supported: u64 },

    #[error("the store {} is damaged: {detail}; restore it from a copy", path.display())]
    Corrupt { path: PathBuf, detail: String },

    #[error(
        "the store {} is at version {found}, but version {acknowledged} was acknowledged; \
         restore it from a newer copy, or remove {} to accept the loss",
        path.display(), mark.display()
    )]
    Lost { path: PathBuf, acknowledged: Version, found: Version, mark: PathBuf },

    #[error(
        "the store {} is missing, though {} says that there was one; \
         restore it from a copy, or remove that too to start with an empty one",
        path.display(), witness.display()
    )]
    Missing { path: PathBuf, witness: PathBuf },

    #[error(
        "the store {} was closed and needs no journal, but {} is that of another store, or damaged; \
         move it to where it belongs, or remove it",
        path.display(), journal.display()
    )]
    ForeignJournal { path: PathBuf, journal: PathBuf },

    #[error("the disk could not say whether it has the store {}; look at the disk before it is opened again", path.display())]
    NotSynced { path: PathBuf, source: Box<redb::Error> },

    #[error("open the store {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl OpenError {
    pub(super) fn corrupt(path: &Path, detail: String) -> OpenError {
        OpenError::Corrupt { path: path.into(), detail }
    }

    pub(super) fn from_redb(path: &Path, error: redb::Error) -> OpenError {
        match error {
            redb::Error::Io(source) if !tells_of_damage(&source) => {
                OpenError::Io { path: path.into(), source }
            }
            other => OpenError::corrupt(path, other.to_string()),
        }
    }
}

/// redb reports a file that is no store, or ends too early, in this way.
fn tells_of_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
