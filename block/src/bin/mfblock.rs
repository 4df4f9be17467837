//! The data plane's processes as a binary of their own, for tests and for use
//! without a cluster.

use std::process::ExitCode;

use clap::Parser;
use midflight_block::role::{REFUSED, Role, in_words};

/// Replicated block volumes that change engines while they serve.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Arguments::parse().role.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", in_words(&error));
            if error.is_refusal() { ExitCode::from(REFUSED) } else { ExitCode::FAILURE }
        }
    }
}
