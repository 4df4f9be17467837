//! `midflight bench`: figures, side by side with peers in the same run.

pub(crate) mod api;
mod conditions;
mod errand;
mod figure;
mod fill;
pub(crate) mod fleet;
pub(crate) mod fuse;
pub(crate) mod io;
pub(crate) mod migrate;
pub(crate) mod mount;
pub(crate) mod node_upgrade;
pub(crate) mod pause;
pub(crate) mod prepull;
mod qemu;
mod variants;

use clap::{Args, Subcommand};

use crate::session::Session;

/// Measure, side by side with a peer
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    Api(api::ApiBench),
    Fleet(fleet::FleetBench),
    Fuse(fuse::FuseBench),
    Io(io::IoBench),
    Migrate(migrate::MigrateBench),
    #[command(hide = true)]
    MigratePart(migrate::child::MigratePart),
    Mount(mount::MountBench),
    NodeUpgrade(node_upgrade::NodeUpgradeBench),
    Pause(pause::PauseBench),
    Prepull(prepull::PrepullBench),
}

impl Bench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.subject {
            Subject::Api(api) => api.run(session).await,
            Subject::Fleet(fleet) => fleet.run(session).await,
            Subject::Fuse(fuse) => fuse.run(session).await,
            Subject::Io(io) => io.run(session).await,
            Subject::Migrate(migrate) => migrate.run(session).await,
            Subject::MigratePart(part) => part.run(session).await,
            Subject::Mount(mount) => mount.run(session).await,
            Subject::NodeUpgrade(nodes) => nodes.run(session).await,
            Subject::Pause(pause) => pause.run(session).await,
            Subject::Prepull(prepull) => prepull.run(session).await,
        }
    }
}
