//! A migration: who it is, when it was proposed, which tables it touches, what it does.
//!
//! The one invariant: every migration says which tables it touches, and whatever
//! its kind, nothing it does reaches another.

mod checksum;
mod exposed;
pub mod fixture;
mod lint;
mod load;
pub mod log;
mod manifest;
mod native;
mod order;
mod run;
mod scaffold;
#[cfg(test)]
mod tests;

pub use checksum::{CHECKSUM_VERSION, Checksum};
pub(crate) use exposed::exposed;
pub use lint::{Lint, LintProblem, Severity, lint};
pub(crate) use load::MODELS;
pub use load::{LoadError, load, load_for_resources};
pub use log::is_reserved;
pub(crate) use manifest::is_table;
pub use manifest::{FILE, Header, Manifest, ManifestError, Program};
pub use native::{Failure, Fixtures, Native};
pub use order::{Allowed, Applied, OrderError, pending};
pub use run::{Context, Progress, Ran, RunError, StepError, run};
pub use scaffold::{Kind as ScaffoldKind, Scaffold, ScaffoldError, scaffold};

/// A migration that was found, and can be run.
#[derive(Debug, Clone)]
pub struct Migration {
    pub header: Header,
    /// Rows it may remove in all; more is an error.
    pub max_removed: Option<u64>,
    /// What was hashed into the checksum, as people wrote it.
    pub source: String,
    pub checksum: Checksum,
    work: Work,
}

/// How it does its work.
#[derive(Debug, Clone)]
enum Work {
    Native(&'static Native),
    Folder(Box<Manifest>),
}

impl Migration {
    /// Where it was found, for people.
    pub fn origin(&self) -> String {
        match &self.work {
            Work::Native(_) => "compiled in".to_owned(),
            Work::Folder(manifest) => manifest.folder.display().to_string(),
        }
    }

    /// The manifest, of one that was found in a folder.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.work {
            Work::Native(_) => None,
            Work::Folder(manifest) => Some(manifest),
        }
    }
}
