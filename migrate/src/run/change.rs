//! The commands that change the database: apply, rollback, finalize, restore, baseline.
//!
//! The one invariant: each holds the lock from before it reads until it is done, and makes no rows live before there is
//! a verified backup of those that are.

use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{
    database::{Database, Work},
    error::{Refusal, RunError},
    event::{Event, Tell},
    plan::Plan,
    prepare::{Before, milliseconds},
};
use crate::{
    backup::{self, BackupError},
    commit::{self, RunNote, State},
    folders,
    hex::hex,
    lanes,
    migration::{Migration, log},
    record::Snapshot,
    store::Layout,
};

/// What a change did.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "result")]
pub enum Changed {
    /// Everything available is applied already.
    Nothing {
        applied: usize,
    },
    Applied {
        run: u64,
        migrations: Vec<String>,
        automatic: Vec<String>,
        rows_before: u64,
        rows_after: u64,
        switch_microseconds: u64,
        backup: Option<PathBuf>,
    },
    RolledBack {
        run: u64,
    },
    Finalized {
        run: u64,
    },
    Restored {
        run: u64,
        rows: u64,
        from: PathBuf,
        backup: Option<PathBuf>,
    },
    Baselined {
        migrations: Vec<String>,
    },
}

impl Database {
    /// The real run without the switch.
    pub async fn plan(&self, tell: &Tell<'_>) -> Result<Plan, RunError> {
        self.settle(tell).await?;
        let meter = super::event::Meter::new(tell);
        let before = self.take(tell).await?;
        let todo = self.todo(&before.taken.snapshot)?;
        self.refuse_nothing_at_hand(&todo)?;
        self.refuse_elsewhere(&before, &todo)?;
        self.warn_if_empty(&before, tell);
        let after = self.think(&before, &todo, &meter, tell)?;
        let judged = self.judge(&before, &todo, &after).await?;
        let mut plan = tokio::task::block_in_place(|| self.describe(&before, &todo, &after, &judged));
        if let Some(open) = self.still_open().await?
            && !plan.is_empty()
        {
            plan.refused_because.push(open.to_string());
        }
        Ok(plan)
    }

    /// Runs what is pending and makes the result live. With `planned`, only if it does what was planned.
    pub async fn apply(&self, planned: Option<&Path>, tell: &Tell<'_>) -> Result<Changed, RunError> {
        let work = self.work(tell).await?;
        let applied = self.apply_locked(&work, planned).await;
        work.end(applied).await
    }

    async fn apply_locked(&self, work: &Work<'_>, planned: Option<&Path>) -> Result<Changed, RunError> {
        let planned = planned.map(|path| Ok::<_, RunError>((path, Plan::read(path)?))).transpose()?;
        let before = self.take(work.tell).await?;
        let todo = self.todo(&before.taken.snapshot)?;
        self.refuse_nothing_at_hand(&todo)?;
        self.refuse_elsewhere(&before, &todo)?;
        self.warn_if_empty(&before, work.tell);
        let after = self.think(&before, &todo, &work.meter, work.tell)?;
        let migrations = todo.migrations();
        let mut judged = self.judge(&before, &todo, &after).await?;
        let nothing = migrations.is_empty() && after.automatic.is_empty();
        if nothing && judged.refusals.is_empty() {
            return Ok(Changed::Nothing { applied: todo.applied() });
        }
        if !nothing {
            judged.refusals.extend(self.still_open().await?);
        }
        if let Some((path, planned)) = planned {
            let now = tokio::task::block_in_place(|| self.describe(&before, &todo, &after, &judged));
            if let Some(difference) = now.differs_from(&planned) {
                judged.refusals.push(Refusal::OtherThanPlanned { path: path.to_owned(), difference });
            }
        }
        if !judged.refusals.is_empty() {
            return Err(RunError::Refused { reasons: judged.refusals });
        }
        for text in judged.warnings {
            (work.tell)(Event::Warning { text });
        }
        let note = self.note(&migrations);
        let (applied, backup) = self.commit(work, &before, &after.snapshot, note).await?;
        let automatic = after.automatic.clone();
        lanes::let_go((before, after));
        Ok(Changed::Applied {
            run: applied.run.get(),
            migrations: migrations.iter().map(|migration| migration.header.id.clone()).collect(),
            automatic,
            rows_before: judged.needs.rows_before,
            rows_after: judged.needs.rows_after,
            switch_microseconds: microseconds(applied.switch),
            backup,
        })
    }

    /// Makes live again what was live before the last run, byte for byte.
    pub async fn rollback(&self, tell: &Tell<'_>) -> Result<Changed, RunError> {
        let work = self.work(tell).await?;
        let given_up = |rows: &commit::Changed| {
            let what = match self.settings.layout {
                Layout::Generation => "given up",
                Layout::Dragonflow => "given up where the run had changed the row; others stay as written",
            };
            (tell)(Event::Warning { text: format!("written since the run, and {what}: {rows}") });
        };
        let run = match self.settings.discard_writes {
            false => work.session(async |session| session.rollback().await).await,
            true => work.session(async |session| session.rollback_over(&given_up).await).await,
        };
        Ok(Changed::RolledBack { run: work.end(run).await?.get() })
    }

    /// Gives up the way back and deletes the old rows.
    pub async fn finalize(&self, tell: &Tell<'_>) -> Result<Changed, RunError> {
        let work = self.work(tell).await?;
        let run = work.session(async |session| session.finalize().await).await;
        Ok(Changed::Finalized { run: work.end(run).await?.get() })
    }

    /// Puts a backup in place of the rows. The log comes back with it.
    pub async fn restore(&self, from: &Path, tell: &Tell<'_>) -> Result<Changed, RunError> {
        let (verified, rows) = tokio::task::block_in_place(|| backup::read(from))?;
        let work = self.work(tell).await?;
        let restored = self.restore_locked(&work, from, &verified.header, &rows).await;
        work.end(restored).await
    }

    async fn restore_locked(
        &self,
        work: &Work<'_>,
        from: &Path,
        header: &backup::Header,
        rows: &Snapshot,
    ) -> Result<Changed, RunError> {
        if let Some(open) = self.still_open().await? {
            return Err(RunError::Refused { reasons: vec![open] });
        }
        let before = self.take(work.tell).await?;
        let (reasons, warnings) = self.judge_restore(&before, header, rows).await?;
        if !reasons.is_empty() {
            return Err(RunError::Refused { reasons });
        }
        for text in warnings {
            (work.tell)(Event::Warning { text });
        }
        let (applied, backup) = self.commit(work, &before, rows, self.note(&[])).await?;
        Ok(Changed::Restored {
            run: applied.run.get(),
            rows: rows.len() as u64,
            from: from.to_owned(),
            backup,
        })
    }

    /// Writes into the log that migrations are applied, without running them: up to and with `through`, or
    /// all. For a database that was made with their result.
    pub async fn baseline(&self, through: Option<&str>, tell: &Tell<'_>) -> Result<Changed, RunError> {
        let work = self.work(tell).await?;
        let done = self.baseline_locked(&work, through).await;
        work.end(done).await
    }

    async fn baseline_locked(&self, work: &Work<'_>, through: Option<&str>) -> Result<Changed, RunError> {
        if let Some(open) = self.still_open().await? {
            return Err(RunError::Refused { reasons: vec![open] });
        }
        let before = self.take(work.tell).await?;
        let todo = self.todo(&before.taken.snapshot)?;
        self.refuse_nothing_at_hand(&todo)?;
        self.refuse_elsewhere(&before, &todo)?;
        let mut pending = todo.migrations();
        if let Some(through) = through {
            let last = pending.iter().position(|migration| migration.header.id == through);
            let last = last.ok_or_else(|| todo.unmarkable(through))?;
            pending.truncate(last + 1);
        }
        if pending.is_empty() && before.adoption(self.settings.layout).is_none() {
            return Ok(Changed::Baselined { migrations: Vec::new() });
        }
        let mut after = before.taken.snapshot.clone();
        for migration in &pending {
            let entry = log::Entry::of(migration, Timestamp::now(), self.tool.version);
            log::write(&mut after, &log::Entry { marked: true, ..entry });
        }
        if pending.len() == todo.migrations().len() {
            self.keep_models(&mut after, &todo)?;
        }
        self.commit(work, &before, &after, self.note(&pending)).await?;
        work.session(async |session| session.finalize().await).await?;
        Ok(Changed::Baselined { migrations: pending.iter().map(|m| m.header.id.clone()).collect() })
    }

    /// A verified copy of all rows in a file of its own.
    pub async fn backup(&self, path: &Path, tell: &Tell<'_>) -> Result<backup::Verified, RunError> {
        self.settle(tell).await?;
        let before = self.take(tell).await?;
        if let Some(elsewhere) = before.elsewhere(|_| true) {
            return Err(RunError::Refused { reasons: vec![elsewhere] });
        }
        self.warn_if_empty(&before, tell);
        Ok(self.write_backup(path, &before.taken.snapshot, tell).await?)
    }

    /// Where the backup before a change goes.
    fn backup_before(&self) -> Result<Option<PathBuf>, RunError> {
        let Some(folder) = self.settings.backup_folder() else { return Ok(None) };
        let failed =
            |source| RunError::File { doing: "make the folder for backups", path: folder.clone(), source };
        folders::private(&folder).map_err(failed)?;
        let at = Timestamp::now().strftime("%Y%m%dT%H%M%S%.6fZ").to_string();
        Ok(Some(folder.join(format!("before-{at}.backup"))))
    }

    async fn write_backup(
        &self,
        path: &Path,
        rows: &Snapshot,
        tell: &Tell<'_>,
    ) -> Result<backup::Verified, BackupError> {
        let header = backup::Header::new(&self.url, self.tool.version, Timestamp::now());
        let began = Instant::now();
        let (file, rows) = (path.to_owned(), rows.clone());
        let verified = lanes::aside(move || backup::write(&file, &rows, header)).await?;
        let (bytes, rows) = (verified.bytes, verified.header.rows);
        let milliseconds = milliseconds(began.elapsed());
        (tell)(Event::BackedUp { path: path.to_owned(), bytes, rows, milliseconds });
        Ok(verified)
    }

    /// Makes `after` live, once there is a backup of what was before; says where.
    async fn commit(
        &self,
        work: &Work<'_>,
        before: &Before,
        after: &Snapshot,
        note: RunNote,
    ) -> Result<(commit::Applied, Option<PathBuf>), RunError> {
        let backup = self.backup_before()?;
        let back_up = async {
            match &backup {
                None => Ok(()),
                Some(path) => self.write_backup(path, &before.taken.snapshot, work.tell).await.map(drop),
            }
        };
        let apply = work
            .session(async |session| session.apply_with_backup(&before.taken, after, note, back_up).await);
        let applied = apply.await?;
        let microseconds = microseconds(applied.switch);
        (work.tell)(Event::Switched { run: applied.run.get(), microseconds });
        if !applied.meanwhile.is_empty() {
            let text = format!(
                "run {} is complete, but somebody wrote while it was written in place: {}; compare these rows, and \
                 stop all services",
                applied.run, applied.meanwhile
            );
            (work.tell)(Event::Warning { text });
        }
        Ok((applied, backup))
    }

    /// The last run, if it can still be rolled back.
    pub(super) async fn still_open(&self) -> Result<Option<Refusal>, RunError> {
        match commit::state(self.store.as_ref()).await? {
            State::Applied(record) => Ok(Some(Refusal::StillOpen { run: record.run.get() })),
            State::Fresh | State::Settled(_) | State::Interrupted(_) => Ok(None),
        }
    }

    fn note(&self, migrations: &[&Migration]) -> RunNote {
        let mut digest = Sha256::new();
        for migration in migrations {
            digest.update(format!("{} {}\n", migration.header.id, migration.checksum));
        }
        let digest = hex(&digest.finalize());
        RunNote {
            release: migrations.last().map(|migration| migration.header.release.clone()),
            migrations: migrations.iter().map(|migration| migration.header.id.clone()).collect(),
            digest,
            tool: self.tool.version.to_owned(),
            started_at: Some(Timestamp::now()),
            part_of: self.settings.part_of.clone(),
        }
    }
}

fn microseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
