//! `midflight agent`: the process of one node. Started by `up`.

use anyhow::Context;
use clap::Args;
use midflight_agent::image::Neighbours;
use tokio::sync::oneshot;

use super::role::{self, Stage};
use crate::{
    cluster::node_address,
    folder::{Folder, create_private_dir},
    process::Role,
    session::Session,
};

/// Be one node of the embedded cluster
#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// Number of the node
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=253))]
    node: u8,
    /// Say on stdout when the node is ready, in one line of JSON
    #[arg(long)]
    announce: bool,
}

impl Agent {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let folder = session.folder()?;
        let role = Role::Node(self.node);
        role::play(&folder, role, self.announce, async |stage| be_node(&folder, self.node, stage).await).await
    }
}

async fn be_node(folder: &Folder, number: u8, stage: &mut Stage) -> anyhow::Result<()> {
    let data = folder.node(number);
    create_private_dir(&data)?;
    let run = folder.run().join(Role::Node(number).to_string());
    create_private_dir(&run)?;
    let config = midflight_agent::Config {
        name: Role::Node(number).to_string(),
        address: node_address(number),
        kubeconfig: folder.node_kubeconfig(number),
        backups: folder.backups(),
        neighbours: Neighbours::below(folder.nodes(), folder.run().join("pulls")),
        data,
        run,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let (known, mut is_known) = oneshot::channel();
    let node = midflight_agent::run(config, known);
    tokio::pin!(node);
    tokio::select! {
        ended = &mut node => return ended.context("open the node's images and socket"),
        () = stage.asked_to_end() => return Ok(()),
        known = &mut is_known => known.context("wait until the API knows the node")?,
    }
    stage.ready()?;
    tokio::select! {
        ended = node => ended.context("open the node's images and socket"),
        () = stage.asked_to_end() => Ok(()),
    }
}
