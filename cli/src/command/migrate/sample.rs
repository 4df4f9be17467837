//! `midflight migrate sample`: a made-up cloud to try migrations on.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use midflight_migrate::{
    backup,
    sample::{self, Topics},
    store::Url,
};
use serde::Serialize;

use super::tell::size;
use crate::{
    output::{Answer, Paint},
    session::Session,
};

/// Write a made-up cloud to a backup file, to be restored and migrated for a try
///
/// The same seed gives the same cloud, as a Dragonflow database before the migrations in
/// examples/migrations/dragonflow.
#[derive(Debug, Args)]
pub(super) struct Sample {
    /// The file to make
    file: PathBuf,
    #[arg(long, default_value_t = 1000)]
    ports: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Whose keys it has
    #[arg(long, default_value = "etcd")]
    keys: Keys,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keys {
    /// Without the topic
    Etcd,
    /// With the topic
    Redis,
}

#[derive(Serialize)]
struct Made {
    file: PathBuf,
    rows: u64,
    bytes: u64,
}

impl Sample {
    pub(super) fn run(self, session: &Session) -> anyhow::Result<()> {
        let (topics, source) = match self.keys {
            Keys::Etcd => (Topics::InObjects, "etcd://sample"),
            Keys::Redis => (Topics::InKeys, "redis://sample"),
        };
        let cloud = sample::cloud(self.ports, self.seed, topics);
        let source: Url = source.parse().context("name the sample")?;
        let header = backup::Header::new(&source, env!("CARGO_PKG_VERSION"), Timestamp::now());
        let made = backup::write(&self.file, &cloud, header).context("write the sample")?;
        session.answer(&Made { file: self.file, rows: made.header.rows, bytes: made.bytes })
    }
}

impl Answer for Made {
    fn to_table(&self, _: Paint) -> String {
        format!("{}: {} rows, {}\n", self.file.display(), self.rows, size(self.bytes))
    }
}
