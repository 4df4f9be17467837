//! Watches the cluster and carries out what is decided.
//!
//! So far it prepares a cluster: the kinds, the namespace and the settings that
//! everything else stands on. The invariant: every write to the API goes through
//! [`Writer`], so that a test can stop the operator around each one.

mod bootstrap;
mod write;

pub use bootstrap::{BootstrapError, Standing, bootstrap, bootstrap_with};
pub use write::{Cut, Moment, WriteError, Writer};
