//! `midflight migrate apply`: runs what is pending and makes the result live.

use std::path::PathBuf;

use clap::Args;
use midflight_migrate::run::Changed;

use super::{
    target::{Adopt, Backups, Target, explain},
    tell::{Teller, count},
};
use crate::{
    output::{Answer, Paint},
    session::Session,
};

/// Run what is pending, and make the result live in one step
///
/// A backup is written while the result is staged beside what is live; nothing becomes live before the backup is whole. An
/// error leaves the database as it was. The old data is kept until `finalize`.
#[derive(Debug, Args)]
pub(super) struct Apply {
    /// Refuse unless it does what this plan said
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    backups: Backups,
    #[command(flatten)]
    adopt: Adopt,
    #[command(flatten)]
    target: Target,
}

impl Apply {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let settings = self.adopt.in_settings(self.backups.in_settings(self.target.settings()));
        let database = self.target.open_as(settings).await?;
        let changed = database.apply(self.plan.as_deref(), &|event| teller.tell(&event)).await;
        session.answer(&Told(changed.map_err(|error| explain(&error))?))
    }
}

/// What a change did, for people.
#[derive(serde::Serialize)]
#[serde(transparent)]
pub(super) struct Told(pub(super) Changed);

impl Answer for Told {
    fn to_table(&self, _: Paint) -> String {
        match &self.0 {
            Changed::Nothing { applied } => {
                format!("Nothing is pending: {} applied.\n", count(*applied, "migration"))
            }
            Changed::Applied { run, migrations, automatic, rows_before, rows_after, .. } => format!(
                "Run {run} is live: {}, {}, {rows_before} rows before and {rows_after} after.\n\
                 Start the services. `rollback` is possible until they write; `finalize` when all is well.\n",
                count(migrations.len(), "migration"),
                count(automatic.len(), "automatic step"),
            ),
            Changed::RolledBack { run } => {
                format!("Run {run} is rolled back: the data is what it was before, byte for byte.\n")
            }
            Changed::Finalized { run } => format!("Run {run} is final; the old data is deleted.\n"),
            Changed::Restored { run, rows, from, .. } => format!(
                "Run {run}: {rows} rows from {} are live. `rollback` takes that back, `finalize` makes it final.\n",
                from.display()
            ),
            Changed::Baselined { migrations } if migrations.is_empty() => {
                "Nothing to do: every migration is in the log.\n".to_owned()
            }
            Changed::Baselined { migrations } => {
                format!("Marked as applied, without running:\n  {}\n", migrations.join("\n  "))
            }
        }
    }
}
