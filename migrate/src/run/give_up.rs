//! Gives a change up in the middle: frees the lock and tells where the database stands.
//!
//! The one invariant: after the lock is free no write of the run that was given up can land any more, because each
//! carries its fence.

use std::sync::{Arc, Mutex, PoisonError};

use super::{database::Database, error::RunError};
use crate::{
    commit::{self, Phase, State},
    store::{Fence, Store},
};

/// The proof of the lock that is held now, if one is.
pub(super) type Fenced = Arc<Mutex<Option<Fence>>>;

/// What is known of a database apart from the task that works on it.
pub struct Handle {
    store: Arc<dyn Store>,
    fenced: Fenced,
}

/// Where a change was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenUp {
    /// No lock was held, or nothing was staged yet.
    Untouched,
    Staged {
        run: u64,
    },
    /// Past the point from which it is finished.
    Committed {
        run: u64,
    },
    Live {
        run: u64,
    },
}

impl Database {
    pub fn handle(&self) -> Handle {
        Handle { store: self.store.clone(), fenced: self.fenced.clone() }
    }
}

impl Handle {
    pub async fn give_up(&self) -> Result<GivenUp, RunError> {
        let fence = self.fenced.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(fence) = fence else { return Ok(GivenUp::Untouched) };
        self.store.unlock(&fence).await?;
        Ok(match commit::state(self.store.as_ref()).await? {
            State::Fresh | State::Settled(_) => GivenUp::Untouched,
            State::Applied(record) => GivenUp::Live { run: record.run.get() },
            State::Interrupted(record) if matches!(record.phase, Phase::Staging | Phase::Abandoning) => {
                GivenUp::Staged { run: record.run.get() }
            }
            State::Interrupted(record) => GivenUp::Committed { run: record.run.get() },
        })
    }
}
