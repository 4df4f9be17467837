//! Watches the cluster and carries out what is decided.
//!
//! First it prepares the cluster: the kinds, the namespace and the settings that everything else
//! stands on. Then it runs the controllers; `controller/` tells how one is added. The invariant: every
//! write to the API goes through [`Writer`], so that a test can stop the operator around each one.

mod admission;
mod bootstrap;
pub mod controller;
mod controllers;
mod engine_upgrade;
mod figures;
mod mount;
mod node_upgrade;
mod storage;
#[cfg(test)]
mod testing;
mod workload;
mod write;

pub use admission::{Admission, AdmissionError};
pub use bootstrap::{BootstrapError, Standing, bootstrap, bootstrap_with, make_backup_target};
pub use controllers::{run, run_counting, run_datasets, run_engine_upgrades};
pub use figures::Figures;
pub use mount::{claim_of, served_dataset, shown_dataset, troubled as troubled_daemon, used_claims};
pub use write::{Cut, Moment, WriteError, Writer};
