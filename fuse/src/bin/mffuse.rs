//! The FUSE engine as a binary of its own, for tests and for use without a cluster.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use midflight_fuse::daemon::{FuseArgs, run};

/// A folder as a file system of its own.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

/// As `midflight` calls it.
#[derive(Subcommand)]
enum Role {
    Fuse(FuseArgs),
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let Role::Fuse(args) = Arguments::parse().role;
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            tracing::error!("{text}");
            ExitCode::FAILURE
        }
    }
}
