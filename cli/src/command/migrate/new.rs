//! `midflight migrate new`: writes the folder of a new migration.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use midflight_migrate::migration::{self, Scaffold};
use serde::Serialize;

use crate::{
    output::{Answer, Paint},
    session::Session,
};

/// Write the folder of a new migration, ready to be filled in
#[derive(Debug, Args)]
pub(super) struct New {
    /// Its identity, such as dragonflow.core.queens.port_binding
    id: String,
    /// Folder of migrations to put it into
    #[arg(long, value_name = "DIR")]
    path: PathBuf,
    /// Table that it touches; may be given several times
    #[arg(long, required = true)]
    table: Vec<String>,
    /// Release that it belongs to
    #[arg(long)]
    release: String,
    #[arg(long, default_value = "")]
    description: String,
    /// How it does its work
    #[arg(long, default_value = "jq")]
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A filter per table, run on each object
    Jq,
    /// A command that speaks JSON lines
    Exec,
}

#[derive(Serialize)]
struct Made {
    folder: PathBuf,
}

impl New {
    pub(super) fn run(self, session: &Session) -> anyhow::Result<()> {
        let new = Scaffold {
            id: &self.id,
            release: &self.release,
            description: &self.description,
            tables: &self.table,
            kind: match self.kind {
                Kind::Jq => migration::ScaffoldKind::Jq,
                Kind::Exec => migration::ScaffoldKind::Exec,
            },
            now: Timestamp::now(),
        };
        let folder = migration::scaffold(&self.path, &new).context("write a new migration")?;
        session.answer(&Made { folder })
    }
}

impl Answer for Made {
    fn to_table(&self, _: Paint) -> String {
        let folder = self.folder.display();
        format!(
            "{folder}: fill in migration.toml, before.json and after.json, then `midflight migrate lint`\n"
        )
    }
}
