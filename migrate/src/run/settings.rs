//! What a run needs to know, from the command line or from an upgrade file.
//!
//! The one invariant: secrets are named by file or stand in the store's address, and are never part of
//! anything printed.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// How the rows lie in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutName {
    /// Dragonflow's own keys, changed in place by a journal.
    #[default]
    Dragonflow,
    /// Generations beside each other, switched by one compare-and-swap.
    Generation,
}

/// Everything about one database and the migrations for it.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the database is. May hold a password.
    pub store: String,
    pub layout: LayoutName,
    /// Folders with migrations.
    pub paths: Vec<PathBuf>,
    /// The models that the data has before, where they are declared.
    pub models_before: Option<PathBuf>,
    /// The models that the data must have afterwards.
    pub models: Option<PathBuf>,
    /// Where the backup goes; without it none can be made and `no_backup` must say so.
    pub backup: Option<PathBuf>,
    pub no_backup: bool,
    pub username: Option<String>,
    pub password_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub allow_out_of_order: bool,
    pub allow_newer_database: bool,
    /// Go on though the store cannot tell that no one else writes.
    pub lock_seconds: Option<u64>,
}

impl Settings {
    /// Takes relative paths as seen from the folder of the file that named them.
    pub fn resolve(&mut self, folder: &Path) {
        let files = [
            &mut self.models_before,
            &mut self.models,
            &mut self.backup,
            &mut self.password_file,
            &mut self.ca,
            &mut self.certificate,
            &mut self.key,
        ];
        for path in self.paths.iter_mut().chain(files.into_iter().flatten()) {
            *path = folder.join(&*path);
        }
    }
}

/// Leaves the address out: it may hold a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("layout", &self.layout)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}
