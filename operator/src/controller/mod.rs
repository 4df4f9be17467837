//! The loop under every controller: `observe → decide → report → act`.
//!
//! ```text
//! API ──watch──▶ Cache (one per kind, indexed) ──key──▶ Queue ──▶ turn ──▶ Writer ──▶ API
//! ```
//!
//! To add a controller:
//!
//! 1. Put the thinking in `plan/`: what was seen in, an action or a reason to wait out.
//! 2. Implement [`Controller`] on a struct that holds an [`Objects`] for each kind it looks at; get
//!    them from [`Operator::objects`], and an [`Index`](cache::Index) for each way in which it looks things up.
//! 3. Say in [`Controller::watch`] which keys a change of each kind touches.
//! 4. Add it to the list in `controllers.rs`, under the condition on which it may run.
//!
//! The invariant: a turn never acts on what is older than our own last write of it, and every
//! write names the version of the object that it was decided on. So a decision made on an old view
//! is refused, here or by the API, and made again.

mod cache;
mod difference;
mod event;
mod key;
mod objects;
mod queue;
mod run;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt::Display;
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

pub use cache::{Index, Stale};
pub use event::{News, Tone};
pub use key::Key;
pub use objects::{Kind, Objects, Place, WriteFailed};
pub use run::{Operator, Wake};

/// What a controller does. The loop calls the four steps in order, one turn per key at a time; any failure is
/// retried from the look, later each time.
pub trait Controller: Send + Sync + 'static {
    /// Name in logs, and of the component that events come from.
    const NAME: &'static str;
    /// How many keys may have their turn at once.
    const WORKERS: usize = 4;
    /// How long changes are gathered before they give a key its turn: more for whoever looks at much.
    const GATHERS: Duration = Duration::ZERO;

    /// What a turn is about: mostly the [`Key`] of an object.
    type Key: Clone + Ord + Hash + Display + Send + Sync + 'static;
    /// What was seen: all that `decide` may look at, and the objects that may be written.
    type Seen: Send + Sync;
    /// What was decided: an action, or a reason to wait.
    type Decision: Send + Sync;

    /// Names the kinds whose changes give a key its turn.
    fn watch(&self, wake: &Wake<Self::Key>);

    /// Looks at the world. Nothing means that there is nothing to do for this key.
    fn observe(&self, key: &Self::Key) -> impl Future<Output = Result<Option<Self::Seen>, TurnError>> + Send;

    /// Thinks, by a pure function of `plan`.
    fn decide(seen: &Self::Seen) -> Self::Decision;

    /// Writes down what was decided before it is done. Objects that were written take the place of
    /// those in `seen`, so that `act` goes on from there.
    fn report(
        &self,
        seen: &mut Self::Seen,
        decision: &Self::Decision,
    ) -> impl Future<Output = Result<(), TurnError>> + Send;

    /// Does it. It must be safe to repeat.
    fn act(
        &self,
        seen: Self::Seen,
        decision: Self::Decision,
    ) -> impl Future<Output = Result<Next, TurnError>> + Send;
}

/// When a key has its next turn, whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When something that it watches changes.
    OnChange,
    /// Then, or after this time: a deadline, or something that no watch tells of.
    After(Duration),
}

/// Why a turn was not finished.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    #[error(transparent)]
    Stale(#[from] Stale),
    #[error(transparent)]
    Write(Box<WriteFailed>),
    #[error("{doing}")]
    Failed { doing: String, source: Box<dyn Error + Send + Sync> },
}

impl From<WriteFailed> for TurnError {
    fn from(failed: WriteFailed) -> TurnError {
        TurnError::Write(Box::new(failed))
    }
}
