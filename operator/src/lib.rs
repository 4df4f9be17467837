//! Watches the cluster and carries out what is decided.
//!
//! So far it prepares a cluster: the kinds, the namespace and the settings
//! that everything else stands on.

mod bootstrap;

pub use bootstrap::{BootstrapError, bootstrap};
