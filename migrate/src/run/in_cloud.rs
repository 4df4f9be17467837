//! Our database as a step of a cloud upgrade.
//!
//! The one invariant: each call may be repeated after it was cut off. A migration that is applied already is
//! done, and one that never became live has nothing to be taken back.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use super::{
    change::Changed,
    database::{Database, Tool},
    error::{Refusal, RunError, in_upgrade_file},
    event::{Event, Tell},
    give_up::Stopper,
    services::{Clock, Heard, OfMachine, Vigil},
    settings::Settings,
};
use crate::{
    cloud::OurDatabase,
    commit::{self, CommitError, Phase, RunRecord, State},
    with_causes,
};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Opens the database only when its turn comes: it may not be up before.
pub struct InCloud<'t> {
    tool: Tool,
    settings: Settings,
    tell: &'t Tell<'t>,
    clock: Arc<dyn Clock>,
    stopper: Stopper,
}

impl<'t> InCloud<'t> {
    /// `upgrade` is the id of the upgrade's journal: only runs that carry it are its own to roll back.
    pub fn new(tool: Tool, settings: Settings, upgrade: &str, tell: &'t Tell<'t>) -> InCloud<'t> {
        let settings = Settings { part_of: Some(upgrade.to_owned()), ..settings };
        InCloud { tool, settings, tell, clock: Arc::new(OfMachine), stopper: Stopper::default() }
    }

    /// Whoever has the stopper can give up what is being done.
    pub fn stopped_by(self, stopper: Stopper) -> InCloud<'t> {
        InCloud { stopper, ..self }
    }

    #[cfg(test)]
    pub(super) fn with_clock(self, clock: Arc<dyn Clock>) -> InCloud<'t> {
        InCloud { clock, ..self }
    }

    async fn open(&self) -> Result<Database, RunError> {
        self.open_with(self.settings.clone()).await
    }

    async fn open_with(&self, settings: Settings) -> Result<Database, RunError> {
        let database = Database::open(self.tool.clone(), settings).await?;
        self.stopper.follow(&database);
        Ok(Database { clock: self.clock.clone(), ..database })
    }

    /// Services that the upgrade has stopped a moment ago have not taken back that they run: they are given the
    /// time to show that they say it no more.
    async fn apply_in_silence(&self) -> Result<Changed, RunError> {
        let database = self.open().await?;
        match database.apply(None, self.tell).await {
            Err(RunError::Refused { reasons }) if reasons.iter().all(is_live_service) => {
                self.wait_for_silence(&database).await?;
                database.apply(None, self.tell).await
            }
            applied => applied,
        }
    }

    async fn wait_for_silence(&self, database: &Database) -> Result<(), RunError> {
        let mut vigil = Vigil::default();
        loop {
            let rows = database.take(self.tell).await?.taken.snapshot;
            let live = database.live_services(&rows);
            let now = self.clock.now();
            match vigil.look(&live, now) {
                Heard::Wait { seconds } => {
                    let services = live.into_iter().map(|service| service.words).collect();
                    (self.tell)(Event::Waiting { services, seconds });
                    self.clock.sleep(Duration::from_secs(seconds)).await;
                }
                Heard::Silent | Heard::Speaking => {
                    *database.silent.lock().unwrap_or_else(PoisonError::into_inner) = vigil.silent(now);
                    return Ok(());
                }
            }
        }
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
        let database = self.open_with(settings).await?;
        let plan = database.plan(self.tell).await.map_err(cause)?;
        if !plan.refused_because.is_empty() {
            return Err(in_upgrade_file(&plan.refused_because.join("; ")).into());
        }
        Ok(match plan.migrations.len() {
            0 => "no migration is pending".to_owned(),
            pending => {
                format!("{pending} migrations would run, in about {:.0} s", plan.needs.run_seconds_about)
            }
        })
    }

    async fn apply(&self) -> Result<String, Cause> {
        let changed = self.apply_in_silence().await.map_err(cause)?;
        Ok(match changed {
            Changed::Applied { run, migrations, rows_after, .. } => {
                format!("run {run}: {} migrations, {rows_after} rows", migrations.len())
            }
            Changed::Nothing { .. }
            | Changed::RolledBack { .. }
            | Changed::Finalized { .. }
            | Changed::Restored { .. }
            | Changed::Baselined { .. } => "no migration is pending".to_owned(),
        })
    }

    async fn way_back(&self) -> Result<(), Cause> {
        let database = self.open().await?;
        match commit::state(database.store.as_ref()).await? {
            State::Applied(record) if self.is_ours(&record) && !self.settings.discard_writes => {
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

/// The upgrade file is where its operator lets things pass, so that is what a refusal names.
fn cause(error: RunError) -> Cause {
    if error.is_refusal() { in_upgrade_file(&with_causes(&error)).into() } else { error.into() }
}

fn is_live_service(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::LiveService(_))
}
