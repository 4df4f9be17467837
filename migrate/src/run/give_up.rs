//! Gives a change up in the middle: frees the lock and tells where the database stands.
//!
//! The one invariant: after the lock is free no write of the run that was given up can land any more, because each
//! carries its fence.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{database::Database, error::RunError};
use crate::{
    commit::{self, Phase, RunRecord, State},
    store::{Fence, Store},
};

/// What a change has done so far, for whoever has to give it up.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The proof of the lock that is held now, if one is.
    pub(super) fence: Option<Fence>,
    /// The last run as it was when the lock was taken first; none where it was not.
    pub(super) before: Option<Option<RunRecord>>,
}

pub(super) type Shared = Arc<Mutex<Standing>>;

/// What is known of a database apart from the task that works on it.
pub struct Handle {
    store: Arc<dyn Store>,
    standing: Shared,
}

/// Gives up whatever database a cloud upgrade has open at the moment.
#[derive(Clone, Default)]
pub struct Stopper(Arc<Mutex<Option<Followed>>>);

/// Not kept open by being followed: a file can be opened once at a time.
type Followed = (Weak<dyn Store>, Shared);

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
    /// Done but for the telling.
    Over {
        run: u64,
        phase: &'static str,
    },
}

impl Database {
    pub fn handle(&self) -> Handle {
        Handle { store: self.store.clone(), standing: self.standing.clone() }
    }
}

impl Handle {
    pub async fn give_up(&self) -> Result<GivenUp, RunError> {
        let (fence, before) = {
            let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
            (standing.fence.take(), standing.before.clone())
        };
        if let Some(fence) = fence {
            self.store.unlock(&fence).await?;
        }
        let Some(before) = before else { return Ok(GivenUp::Untouched) };
        let state = commit::state(self.store.as_ref()).await?;
        let same = before.as_ref() == state.record();
        Ok(match state {
            State::Fresh => GivenUp::Untouched,
            State::Settled(_) | State::Applied(_) if same => GivenUp::Untouched,
            State::Settled(record) => GivenUp::Over { run: record.run.get(), phase: record.phase.name() },
            State::Applied(record) => GivenUp::Live { run: record.run.get() },
            State::Interrupted(record) if matches!(record.phase, Phase::Staging | Phase::Abandoning) => {
                GivenUp::Staged { run: record.run.get() }
            }
            State::Interrupted(record) => GivenUp::Committed { run: record.run.get() },
        })
    }
}

impl Stopper {
    pub(super) fn follow(&self, database: &Database) {
        let followed = (Arc::downgrade(&database.store), database.standing.clone());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(followed);
    }

    pub async fn give_up(&self) -> Result<GivenUp, RunError> {
        let open = {
            let followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            followed.as_ref().and_then(|(store, standing)| Some((store.upgrade()?, standing.clone())))
        };
        match open {
            Some((store, standing)) => Handle { store, standing }.give_up().await,
            None => Ok(GivenUp::Untouched),
        }
    }
}
