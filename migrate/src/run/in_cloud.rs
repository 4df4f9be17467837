//! Our database as a step of a cloud upgrade.
//!
//! The one invariant: each call may be repeated after it was cut off. A migration that is applied already is
//! done, and one that never became live has nothing to be taken back.

use async_trait::async_trait;

use super::{
    change::Changed,
    database::{Database, Tool},
    error::RunError,
    event::Tell,
    settings::Settings,
};
use crate::{
    cloud::OurDatabase,
    commit::{self, CommitError, Phase, RunRecord, State},
};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Opens the database only when its turn comes: it may not be up before.
pub struct InCloud<'t> {
    tool: Tool,
    settings: Settings,
    tell: &'t Tell<'t>,
}

impl<'t> InCloud<'t> {
    /// `upgrade` is the id of the upgrade's journal: only runs that carry it are its own to roll back.
    pub fn new(tool: Tool, settings: Settings, upgrade: &str, tell: &'t Tell<'t>) -> InCloud<'t> {
        let settings = Settings { part_of: Some(upgrade.to_owned()), ..settings };
        InCloud { tool, settings, tell }
    }

    async fn open(&self) -> Result<Database, RunError> {
        Database::open(self.tool.clone(), self.settings.clone()).await
    }

    fn is_ours(&self, record: &RunRecord) -> bool {
        record.note.part_of == self.settings.part_of
    }
}

#[async_trait(?Send)]
impl OurDatabase for InCloud<'_> {
    async fn rehearse(&self) -> Result<String, Cause> {
        // Services still run now, and say so.
        let mut settings = self.settings.clone();
        settings.accept.live_services = true;
        let database = Database::open(self.tool.clone(), settings).await?;
        let plan = database.plan(self.tell).await?;
        if !plan.refused_because.is_empty() {
            return Err(plan.refused_because.join("; ").into());
        }
        Ok(match plan.migrations.len() {
            0 => "no migration is pending".to_owned(),
            pending => {
                format!("{pending} migrations would run, in about {:.0} s", plan.needs.run_seconds_about)
            }
        })
    }

    async fn apply(&self) -> Result<String, Cause> {
        let changed = self.open().await?.apply(None, self.tell).await?;
        Ok(match changed {
            Changed::Applied { run, migrations, rows_after, .. } => {
                format!("run {run}: {} migrations, {rows_after} rows", migrations.len())
            }
            _ => "no migration is pending".to_owned(),
        })
    }

    async fn way_back(&self) -> Result<(), Cause> {
        let database = self.open().await?;
        match commit::state(database.store.as_ref()).await? {
            State::Applied(record) if self.is_ours(&record) => {
                let written = commit::written_since(database.store.as_ref(), &record).await?;
                if written.is_empty() { Ok(()) } else { Err(CommitError::Modified(written).into()) }
            }
            State::Settled(record) if self.is_ours(&record) && record.phase == Phase::Finalized => {
                Err(format!("run {} was made final", record.run).into())
            }
            State::Applied(_) | State::Fresh | State::Settled(_) | State::Interrupted(_) => Ok(()),
        }
    }

    async fn rollback(&self) -> Result<String, Cause> {
        let database = self.open().await?;
        // A run that was cut off is finished first, so that there is something certain to take back.
        database.settle(self.tell).await?;
        match commit::state(database.store.as_ref()).await? {
            State::Applied(record) if self.is_ours(&record) => {
                database.rollback(self.tell).await?;
                Ok(format!("run {} is rolled back", record.run))
            }
            State::Settled(record) if self.is_ours(&record) && record.phase == Phase::Finalized => {
                let run = record.run;
                Err(format!("run {run} was made final: only `midflight migrate restore` leads back").into())
            }
            State::Applied(_) | State::Fresh | State::Settled(_) | State::Interrupted(_) => {
                Ok("this upgrade has no run that is live; there is nothing to roll back".to_owned())
            }
        }
    }
}
