//! `midflight upgrade`: begins upgrades, holds them, and shows them as they move.

pub(crate) mod engines;
pub(crate) mod nodes;

use clap::{Args, Subcommand};

use crate::session::Session;

/// Upgrade what runs, while it runs
#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Engines(engines::Engines),
    Nodes(nodes::Nodes),
}

impl Upgrade {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.what {
            What::Engines(engines) => engines.run(session).await,
            What::Nodes(nodes) => nodes.run(session).await,
        }
    }
}
