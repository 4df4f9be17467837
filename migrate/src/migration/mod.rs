//! A migration: who it is, when it was proposed, which tables it touches, what it does.

mod manifest;
mod order;

pub use manifest::{Header, Manifest, ManifestError, Program};
pub use order::{Allowed, Applied, OrderError, pending};
