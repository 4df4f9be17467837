//! `midflight plan`: what an upgrade would do, before it does it.

pub(crate) mod engine_upgrade;
pub(crate) mod node_upgrade;

use clap::{Args, Subcommand};

use crate::session::Session;

/// Show what an upgrade would do, and change nothing
#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(subcommand)]
    of: Of,
}

#[derive(Debug, Subcommand)]
enum Of {
    EngineUpgrade(engine_upgrade::EngineUpgrade),
    NodeUpgrade(node_upgrade::NodeUpgrade),
}

impl Plan {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.of {
            Of::EngineUpgrade(plan) => plan.run(session).await,
            Of::NodeUpgrade(plan) => plan.run(session).await,
        }
    }
}
