//! One node of the embedded cluster: keeps itself known to the API for as long as it runs.
//!
//! The agent looks at its machine and at what the API was told, `schedule`
//! decides the one next step, and the loop in `run` carries it out. Work on
//! pods will be further steps of the same loop.
//!
//! The one invariant: the agent needs nothing but its folder and the API to
//! go on after any crash, its own or the API's.

mod backoff;
mod connect;
pub mod csi;
mod machine;
mod node;
mod run;
mod schedule;

use std::{net::IpAddr, path::PathBuf};

pub use backoff::Backoff;
pub use run::run;

/// What an agent must know to be a node.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the Node object.
    pub name: String,
    /// The node's own address; what runs on the node listens there.
    pub address: IpAddr,
    /// Read again at every connect, so that a control plane that moved is found.
    pub kubeconfig: PathBuf,
    /// Where the node keeps its data.
    pub data: PathBuf,
    /// Version of the program, shown in `kubectl get nodes`.
    pub version: String,
}
