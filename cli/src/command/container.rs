//! `midflight container`: the parts that processes play in running a container. Started by agents.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use midflight_agent::container;

/// Run a container
#[derive(Debug, Args)]
pub(crate) struct Container {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Be the parent of a container
    Shim { room: PathBuf },
    /// Become the program of a container
    Init { room: PathBuf, shim: i32 },
    /// Become a program beside a container's own
    Enter {
        room: PathBuf,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

impl Container {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.part {
            Part::Shim { room } => Ok(container::shim(&room)?),
            Part::Init { room, shim } => match container::init(&room, shim)? {},
            Part::Enter { room, command } => match container::enter(&room, &command)? {},
        }
    }
}
