//! The parts of the measurement, each a process of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use tokio::process::Command;

use super::{once, once::Taken, raw};
use crate::session::Session;

/// Which part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Writing and reading everything
    Raw,
    /// A compiled-in migration
    Native,
    /// The lightest jq filter, after the compiled-in migration
    Jq,
    /// A jq filter as people write them, after the other one
    Binding,
}

/// One part of `bench migrate`, which starts it
#[derive(Debug, Args)]
pub(crate) struct MigratePart {
    part: Part,
    #[arg(long)]
    store: String,
    /// Folder for backups and migrations
    #[arg(long)]
    place: PathBuf,
    /// Backup with the rows
    #[arg(long)]
    rows: PathBuf,
}

impl MigratePart {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.part {
            Part::Raw => session.answer(&raw::measure(&self.store, &self.rows).await?),
            Part::Native => session.answer(&once::migrate(&self.store, &self.place, Vec::new()).await?),
            Part::Jq => session.answer(&self.with_one_more("jq", JQ).await?),
            Part::Binding => session.answer(&self.with_one_more("port-binding", PORT_BINDING).await?),
        }
    }

    /// Migrates with one more migration in the folder, which is then the one that is pending.
    async fn with_one_more(&self, name: &str, manifest: &str) -> anyhow::Result<Taken> {
        let folder = self.place.join("migrations");
        fs::create_dir_all(folder.join(name))?;
        fs::write(folder.join(name).join("migration.toml"), manifest)?;
        once::migrate(&self.store, &self.place, vec![folder]).await
    }
}

const JQ: &str = r#"
id = "bench.jq"
release = "bench"
description = "adds a field to every row"
proposed_at = "2016-01-02T00:00:00Z"
tables = ["lport"]
[jq]
lport = '.jq = true'
"#;

/// One of the changes that Dragonflow had: two fields of every port become one.
const PORT_BINDING: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/migrations/dragonflow/migrations/port-binding/migration.toml"
));

/// Runs a part to its end, and gives what it measured.
pub(super) async fn run<T: DeserializeOwned>(
    part: Part,
    address: &str,
    place: &Path,
    rows: &Path,
) -> anyhow::Result<T> {
    let name = part.to_possible_value().context("a part has a name")?;
    let mut command = Command::new(std::env::current_exe().context("find our own program")?);
    command.args(["bench", "migrate-part", "-o", "json", name.get_name(), "--store", address]);
    command.arg("--place").arg(place).arg("--rows").arg(rows);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = child.output().await.context("start a process of its own")?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("understand what it says")
}
