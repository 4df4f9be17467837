//! The record of a volume without a cluster, made and read by hand.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use super::{Record, RecordError, RecordStore, file::FileRecord};

/// Make or read the record of a volume that no cluster keeps.
#[derive(Debug, Clone, clap::Args)]
pub struct RecordArgs {
    /// File with the record.
    pub file: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Make the record of a new volume.
    Create {
        /// Names of its replicas.
        #[arg(required = true)]
        replicas: Vec<String>,
    },
    /// Give the volume to the next engine: raise the term.
    NextTerm,
    /// Say what the record is.
    Show,
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("tell what the record is")]
    Tell(#[from] io::Error),
}

/// Carries the command out and prints the record.
pub fn run(args: &RecordArgs, out: &mut impl Write) -> Result<(), CommandError> {
    let mut file = FileRecord::at(&args.file);
    let record = match &args.command {
        Command::Create { replicas } => {
            let record = Record::new(replicas.iter().cloned());
            file.create(&record)?;
            record
        }
        Command::NextTerm => file.take_term()?,
        Command::Show => file.read()?.1,
    };
    serde_json::to_writer_pretty(&mut *out, &record).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}
