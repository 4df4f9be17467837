//! A cluster of `midflight up`, as a user has it, in a folder of its own.
//!
//! The one invariant: dropping it ends every process that it started.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::process::Command;

use crate::place;

/// A running cluster.
pub struct Cluster {
    binary: PathBuf,
    folder: TempDir,
}

impl Cluster {
    /// Starts one with so many nodes; it is ready when this returns.
    pub async fn up(nodes: u8) -> anyhow::Result<Cluster> {
        let cluster = Cluster { binary: place::midflight()?, folder: TempDir::with_prefix("mf-up.")? };
        let mut up = Command::new(&cluster.binary);
        up.args(["up", "--detach", "--nodes", &nodes.to_string(), "--dir"]).arg(cluster.folder.path());
        let output = up.output().await.context("run midflight up")?;
        ensure!(output.status.success(), "midflight up: {}", String::from_utf8_lossy(&output.stderr));
        Ok(cluster)
    }

    /// The kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down =
            std::process::Command::new(&self.binary).args(["down", "--dir"]).arg(self.folder.path()).output();
        if !std::thread::panicking() {
            let output = down.expect("midflight down can be run");
            assert!(output.status.success(), "midflight down: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
