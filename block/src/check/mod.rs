//! Judges a volume by what it was told and what it gives back.
//!
//! `pattern` is a block that knows what it is, `ledger` the rules, `workload` a
//! client that writes, reads and keeps the ledger, `stopwatch` one that only measures, `paced` one
//! that measures at a steady pace.
//!
//! Invariant: a block may hold a later write that was not acknowledged, never an
//! older one than was.

pub mod ledger;
pub mod paced;
pub mod pattern;
pub mod stopwatch;
pub mod workload;

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::Duration,
};

use workload::{Workload, WorkloadError};

/// Write to a volume over NBD, check everything that comes back, print a report.
#[derive(Debug, Clone, clap::Args)]
pub struct CheckArgs {
    /// Unix socket of the volume's NBD server.
    #[arg(long)]
    pub socket: PathBuf,
    /// Name of the volume.
    #[arg(long, default_value = "")]
    pub volume: String,
    /// Requests under way at once.
    #[arg(long, default_value_t = 16)]
    pub depth: usize,
    /// Blocks of 4 KiB to use, from the start of the volume; 0 means all.
    #[arg(long, default_value_t = 0)]
    pub blocks: u64,
    /// Seconds to run.
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Seed of the sequence of requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error("print the report")]
    Print(#[from] io::Error),
}

pub fn run(args: &CheckArgs, out: &mut impl Write) -> Result<(), CheckError> {
    let workload = Workload {
        socket: args.socket.clone(),
        volume: args.volume.clone(),
        depth: args.depth,
        blocks: args.blocks,
        seed: args.seed,
        connects_again_within: None,
    };
    let report = workload.run(Duration::from_secs(args.seconds), &AtomicBool::new(false))?;
    serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
