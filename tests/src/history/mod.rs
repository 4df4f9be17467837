//! Judges what clients saw of an API server that was killed while they used it.
//!
//! ```text
//! drive ──operations, lists, watches──▶ record ──▶ check: linear   one object at a time
//!                                                        timeline  versions, lists, watches
//! ```
//!
//! `drive` needs a server; the checks are plain functions over what it recorded,
//! with tests of their own that each kind of wrong is found.

mod chance;
mod client;
mod drive;
mod linear;
mod record;
mod server;
mod timeline;

pub use chance::Chance;
pub use drive::{REQUESTS, Stage, drive};
pub use linear::NotLinearizable;
pub use record::{
    Action, Change, Listing, Moment, Object, Operation, Outcome, Record, Seen, Session, Value, Version,
};
pub use server::{Clock, Life, Server};
pub use timeline::Broken;

/// What is wrong with a history.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    #[error(transparent)]
    Linear(#[from] NotLinearizable),
    #[error(transparent)]
    Timeline(#[from] Broken),
}

/// Whether a server that keeps its promises could have answered like this.
pub fn check(record: &Record) -> Result<(), Violation> {
    for object in record.objects() {
        linear::check(object, &record.operations_on(object))?;
    }
    timeline::check(record)?;
    Ok(())
}
