//! One node of the embedded cluster: keeps itself known to the API for as long as it runs.
//!
//! The agent looks at its machine and at what the API was told, `schedule`
//! decides the one next step, and the loop in `run` carries it out. Beside
//! that, `pod` runs the pods that are bound to the node.
//!
//! The one invariant: the agent needs nothing but its folder and the API to
//! go on after any crash, its own or the API's.

mod backoff;
mod connect;
pub mod container;
pub mod csi;
pub mod image;
mod machine;
mod mount_table;
mod node;
pub mod pod;
pub mod process;
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
    /// Where the node keeps its data; its pods' host paths are rooted there.
    pub data: PathBuf,
    /// What stands for `/run` on the node, with a short path for sockets.
    pub run: PathBuf,
    /// What stands for `/backups` on every node: the folder that backups go to.
    pub backups: PathBuf,
    /// The nodes with which it may share the files of images.
    pub neighbours: image::Neighbours,
    /// Version of the program, shown in `kubectl get nodes`.
    pub version: String,
}

/// An error with all its causes, in one line for a log.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
