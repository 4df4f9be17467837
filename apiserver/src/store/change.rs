//! What may be asked of the store, and how it may refuse.
//!
//! The one invariant: a refusal leaves no trace; after `Unavailable` alone the
//! outcome is unknown until the store is opened again.

use std::sync::Arc;

use super::body::{Body, Stored};
use super::key::{Key, Version};

/// One write. Replacing and deleting are compare-and-swap: `expected` is the
/// version the caller looked at.
#[derive(Debug, Clone)]
pub enum Change {
    Create {
        key: Key,
        body: Body,
    },
    Replace {
        key: Key,
        body: Body,
        expected: Version,
    },
    /// `last` is the final state, which watchers are shown.
    Delete {
        key: Key,
        last: Body,
        expected: Version,
    },
}

impl Change {
    pub fn key(&self) -> &Key {
        match self {
            Self::Create { key, .. } | Self::Replace { key, .. } | Self::Delete { key, .. } => key,
        }
    }
}

/// What must hold of another object for a write to happen, checked atomically
/// with it.
#[derive(Debug, Clone)]
pub struct Guard {
    pub key: Key,
    pub rule: Rule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Exists,
    ExistsAt(Version),
    Absent,
}

impl Guard {
    pub fn exists(key: Key) -> Guard {
        Guard { key, rule: Rule::Exists }
    }

    pub fn exists_at(key: Key, version: Version) -> Guard {
        Guard { key, rule: Rule::ExistsAt(version) }
    }

    pub fn absent(key: Key) -> Guard {
        Guard { key, rule: Rule::Absent }
    }

    pub(super) fn holds(&self, found: Option<&Arc<Stored>>) -> bool {
        match self.rule {
            Rule::Exists => found.is_some(),
            Rule::ExistsAt(version) => found.is_some_and(|stored| stored.version == version),
            Rule::Absent => found.is_none(),
        }
    }
}

/// Why a write did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error("the object exists already")]
    Exists,

    #[error("there is no such object")]
    Missing,

    #[error("the object has been modified")]
    Conflict { current: Arc<Stored> },

    #[error("the write depends on {key}, which is not as it must be")]
    GuardFailed { key: Key },

    #[error("the store takes no writes: {reason}")]
    Unavailable { reason: Arc<str> },
}
