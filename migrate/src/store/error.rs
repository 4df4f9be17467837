//! What can go wrong between a run and its database.

use std::path::PathBuf;

use crate::record::{RowKey, Table};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call to the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Where it was a write, whether it happened is not known.
    #[error("{doing}: no answer")]
    Lost { doing: String, source: Cause },

    #[error("{doing}: {reason}")]
    Refused { doing: String, reason: String },

    #[error(
        "the database is locked by {owner}; if that run is dead, its lock frees itself within its --lock-for, usually 30 s"
    )]
    Busy { owner: String },

    #[error("the lock was lost (expired, or taken over); nothing more was written")]
    FencedOut,

    #[error("{table} {key}: {size} bytes, and the database takes at most {limit} in one value")]
    TooLarge { table: Table, key: RowKey, size: usize, limit: usize },

    #[error("{table} {key}: {reason}")]
    Unnameable { table: Table, key: RowKey, reason: &'static str },

    #[error("{place} holds what this tool did not write there: {reason}")]
    Unreadable { place: String, reason: String },

    #[error("open {path}")]
    Open { path: PathBuf, source: Cause },
}

impl StoreError {
    pub fn lost(doing: impl Into<String>, source: impl Into<Cause>) -> StoreError {
        StoreError::Lost { doing: doing.into(), source: source.into() }
    }

    pub fn refused(doing: impl Into<String>, reason: &dyn std::fmt::Display) -> StoreError {
        StoreError::Refused { doing: doing.into(), reason: reason.to_string() }
    }

    /// Whether the same call may succeed later, with nothing changed.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Lost { .. } | StoreError::Busy { .. } => true,
            StoreError::Refused { .. }
            | StoreError::FencedOut
            | StoreError::TooLarge { .. }
            | StoreError::Unnameable { .. }
            | StoreError::Unreadable { .. }
            | StoreError::Open { .. } => false,
        }
    }
}
