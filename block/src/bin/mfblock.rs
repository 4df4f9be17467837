//! The data plane's processes as a binary of their own, for tests and for use
//! without a cluster.

use std::process::ExitCode;

use clap::Parser;
use midflight_block::{
    about::about,
    role::{REFUSED, Role, in_words, tell_json},
};

/// Replicated block volumes that change engines while they serve.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    #[command(flatten)]
    Role(Box<Role>),
    /// Say what this binary is, as `midflight version -o json` does.
    Version {
        #[arg(short, value_parser = ["json"], default_value = "json")]
        output: String,
    },
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let role = match Arguments::parse().command {
        Command::Role(role) => role,
        Command::Version { .. } => {
            return if tell_json(&about()).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    match role.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", in_words(&error));
            if error.is_refusal() { ExitCode::from(REFUSED) } else { ExitCode::FAILURE }
        }
    }
}
