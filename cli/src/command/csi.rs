//! `midflight csi`: the CSI plugin of one node.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use midflight_agent::csi::{CsiConfig, serve};

use crate::{cluster::Interrupts, session::Session, target};

/// Be the CSI plugin of a node, for datasets that FUSE daemons serve
///
/// Says where it listens as its first line on stdout. The node's label and the datasets' claims are in the cluster
/// that --kubeconfig names.
#[derive(Debug, Args)]
pub(crate) struct Csi {
    /// Name of the Node object
    #[arg(long)]
    node: String,
    /// Unix socket on which kubelet calls
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Folder that the paths of this node are in
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Folder for what has to be known of volumes after a crash
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Longest that one call waits for a daemon to come or to go
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience_seconds: u64,
    /// How often to look whether a daemon that no workload uses is still wanted; each look reads its claim
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    idle_seconds: u64,
}

impl Csi {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let client = target::client(session).await?;
        let line = format!("{}\n", self.socket.display());
        let config = CsiConfig {
            node: self.node,
            socket: self.socket,
            root: self.root,
            state: self.state,
            patience: Duration::from_secs(self.patience_seconds),
            look_at_idle_every: Duration::from_secs(self.idle_seconds),
        };
        // Nobody has to listen: a plugin started by hand serves all the same.
        let ready = || drop(session.print(&line));
        tokio::select! {
            served = serve(config, client, ready) => Ok(served?),
            () = interrupts.next() => Ok(()),
        }
    }
}
