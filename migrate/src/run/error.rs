//! Why a run did not do what it was asked, and whether that is for the operator to decide.

use std::path::PathBuf;

use super::settings::SettingsError;
use crate::{
    backup::BackupError,
    commit::CommitError,
    migration::{self, LoadError, OrderError, log::LogError},
    model::{self, ModelError, StoredError},
    northbound::TouchError,
    store::{Shortage, StoreError},
};

/// One error for all that the operator can ask for. Nothing was changed unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Settings(#[from] SettingsError),

    #[error(transparent)]
    Store(#[from] StoreError),

    #[error(transparent)]
    Commit(CommitError),

    #[error(transparent)]
    Load(#[from] LoadError),

    #[error(transparent)]
    Log(#[from] LogError),

    #[error(transparent)]
    Order(#[from] OrderError),

    #[error("{problem}\n{}", missing.join("\n"))]
    Newer {
        problem: OrderError,
        /// Every migration that is applied and not at hand, with its text.
        missing: Vec<String>,
    },

    #[error(transparent)]
    Migration(#[from] migration::RunError),

    #[error(transparent)]
    Model(#[from] ModelError),

    #[error(transparent)]
    StoredModels(#[from] StoredError),

    #[error("carry out an automatic step")]
    Automatic { source: TouchError },

    #[error(transparent)]
    Backup(#[from] BackupError),

    #[error("{doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },

    #[error("refused, and nothing was changed:\n{}", reasons.iter().map(|why| format!("  - {why}")).collect::<Vec<_>>().join("\n"))]
    Refused { reasons: Vec<Refusal> },

    #[error("{}: not a plan of this tool", path.display())]
    NotAPlan { path: PathBuf, source: serde_json::Error },

    #[error(
        "there is not one migration at hand: no folder with migrations was named, and the usual ones are empty"
    )]
    NoMigrations,

    #[error("{id} is not among the migrations at hand")]
    Unknown { id: String },

    #[error("{id} is in the log already")]
    AlreadyApplied { id: String },
}

impl From<CommitError> for RunError {
    fn from(error: CommitError) -> RunError {
        match error {
            CommitError::Backup(error) => RunError::Backup(error),
            other => RunError::Commit(other),
        }
    }
}

/// One reason not to change anything, and what would let it pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}\n    (what was applied counts; to go on all the same: --allow-edited)")]
    Drift(migration::log::Drift),

    #[error("{0} (to go on all the same: --allow-shortage)")]
    Shortage(Shortage),

    #[error("{0} (stop it, or if it is not running: --allow-live-services)")]
    LiveService(String),

    #[error("somebody writes to the database: {0}; stop all services first")]
    Writers(String),

    #[error(
        "the result breaks {total} rules of its models, such as: {sample} (to go on all the same: --allow-violations)"
    )]
    Violations { total: u64, sample: String },

    #[error("{0}")]
    Model(model::Refusal),

    #[error("the database cannot hold a row of the result: {0}")]
    Row(String),

    #[error("this is not what {} planned: {difference}; make a new plan and look at it", path.display())]
    OtherThanPlanned { path: PathBuf, difference: String },

    #[error(
        "{rows} rows would be removed of tables that neither the backup nor any migration or model names, and that may \
         be somebody else's: {} (to remove them all the same: --allow-removal)", tables.join(", ")
    )]
    Foreign { tables: Vec<String>, rows: u64 },

    #[error(
        "no generation is live here, but there are rows in Dragonflow's own keys ({rows} of {}): --layout dragonflow \
         migrates them in place, --adopt takes them over into the first generation", tables.join(", ")
    )]
    Elsewhere { tables: Vec<String>, rows: u64 },

    #[error(
        "this tool has worked on the same rows under the root {root}, and has its lock and its journals there: name the \
         database as {url}"
    )]
    OtherRoot { root: String, url: String },

    #[error("run {run} is neither final nor rolled back: `midflight migrate finalize` or `rollback` first")]
    StillOpen { run: u64 },
}

/// The same words for somebody who has no flags but an upgrade file to let things pass in.
pub(super) fn in_upgrade_file(text: &str) -> String {
    const FLAG: &str = "--allow-";
    let mut parts = text.split(FLAG);
    let mut said = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(part.len());
        let (flag, rest) = part.split_at(end);
        said +=
            &format!("`{} = true` under [migrate.accept] of the upgrade file{rest}", flag.replace('-', "_"));
    }
    said
}

impl RunError {
    /// Whether it is a refusal that somebody can do something about, rather than a failure.
    pub fn is_refusal(&self) -> bool {
        match self {
            RunError::Refused { .. }
            | RunError::Order(_)
            | RunError::Newer { .. }
            | RunError::AlreadyApplied { .. } => true,
            RunError::Commit(error) => match error {
                CommitError::Store(error) => matches!(
                    error,
                    StoreError::Busy { .. } | StoreError::TooLarge { .. } | StoreError::Unnameable { .. }
                ),
                CommitError::StillOpen { .. }
                | CommitError::NothingTo { .. }
                | CommitError::NeverRun { .. }
                | CommitError::OtherLayout { .. }
                | CommitError::PlainLayout { .. }
                | CommitError::OtherRoot { .. }
                | CommitError::Writers(_)
                | CommitError::Conflict
                | CommitError::Moving
                | CommitError::Modified(_) => true,
                CommitError::Unfinished { .. }
                | CommitError::Unsure { .. }
                | CommitError::Forgotten { .. }
                | CommitError::OldRowsGone { .. }
                | CommitError::NotAsWritten { .. }
                | CommitError::Note { .. }
                | CommitError::Backup(_) => false,
            },
            RunError::Store(error) => matches!(error, StoreError::Busy { .. }),
            RunError::Settings(_)
            | RunError::Load(_)
            | RunError::Log(_)
            | RunError::Migration(_)
            | RunError::Model(_)
            | RunError::StoredModels(_)
            | RunError::Automatic { .. }
            | RunError::Backup(_)
            | RunError::File { .. }
            | RunError::NotAPlan { .. }
            | RunError::NoMigrations
            | RunError::Unknown { .. } => false,
        }
    }
}
