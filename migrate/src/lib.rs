//! Schema migrations over etcd, Redis and the embedded store: all or nothing.
//!
//! A run takes a snapshot at one revision, runs the pending migrations on the
//! copy, validates the result, stages it, reads it back, and makes it live by
//! one compare-and-swap.
//!
//! The one invariant: at every moment the old data or the new data is live,
//! whole, and nothing has to be repaired by hand.

mod announced;
pub mod backup;
mod causes;
pub mod cloud;
pub mod commit;
pub mod diff;
mod folders;
mod hex;
pub mod json;
mod lanes;
pub mod migration;
pub mod model;
pub mod northbound;
pub mod record;
pub mod run;
pub mod sample;
mod shelf;
pub mod store;
pub mod worker;

pub use causes::with_causes;
