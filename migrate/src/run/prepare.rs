//! Works out what a run would make of the database, in memory.
//!
//! The one invariant: nothing here writes to the database, and `plan` and `apply` both come through here.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{
    database::Database,
    error::{Refusal, RunError},
    event::{Event, Meter, Tell},
    look,
    plan::{Needs, Plan, Planned, destructive},
};
use crate::{
    backup,
    commit::{self, CommitError, Taken},
    diff,
    migration::{
        self, Context, Migration, OrderError, Ran,
        log::{self, Drift},
    },
    model::{self, Difference, Models, Step},
    record::{Snapshot, Table},
    store::{Facts, Layout, Shortage, Url},
};

/// The rows that are live, and how long it took to read them.
pub(super) struct Before {
    pub(super) taken: Taken,
    pub(super) took: Duration,
    /// Where no generation is live yet: rows that lie in Dragonflow's own keys instead, by table.
    elsewhere: BTreeMap<Table, u64>,
}

impl Before {
    /// Rows that are not here but in Dragonflow's own keys, of tables that may be meant.
    pub(super) fn elsewhere(&self, meant: impl Fn(&Table) -> bool) -> Option<Refusal> {
        let found: Vec<_> = self.elsewhere.iter().filter(|(table, _)| meant(table)).collect();
        let rows = found.iter().map(|(_, rows)| **rows).sum();
        let tables = found.iter().map(|(table, _)| table.to_string()).collect();
        (!found.is_empty()).then_some(Refusal::Elsewhere { tables, rows })
    }

    /// What is done to rows that lie in another layout than the run's.
    pub(super) fn adoption(&self, layout: Layout) -> Option<String> {
        let adopts = layout == Layout::Generation && self.taken.is_plain();
        adopts.then(|| {
            let rows = self.taken.snapshot.len();
            format!(
                "{rows} rows of Dragonflow's own keys are taken over; the keys stay until you delete them"
            )
        })
    }
}

/// What there is to do.
pub(super) struct Todo {
    available: Vec<Migration>,
    /// Indices of those to run, first to last.
    order: Vec<usize>,
    log: Vec<log::Entry>,
    drifts: Vec<Drift>,
    models: Option<NewModels>,
}

/// The models that the data must have afterwards, and how they differ from those it has.
struct NewModels {
    models: Models,
    difference: Difference,
    /// Whether they are kept with the data already.
    known: bool,
}

/// Whether it may be done, and what it takes.
pub(super) struct Judged {
    server: String,
    pub(super) needs: Needs,
    pub(super) refusals: Vec<Refusal>,
    pub(super) warnings: Vec<String>,
}

impl Todo {
    /// How many migrations the log names.
    pub(super) fn applied(&self) -> usize {
        self.log.len()
    }

    /// Why a migration that is not pending cannot be marked.
    pub(super) fn unmarkable(&self, id: &str) -> RunError {
        let id = id.to_owned();
        match self.log.iter().any(|entry| entry.id == id) {
            true => RunError::AlreadyApplied { id },
            false => RunError::Unknown { id },
        }
    }

    /// Whether a migration at hand, or a model, is about this table.
    fn names(&self, table: &Table) -> bool {
        let of_models = self.models.as_ref().is_some_and(|new| new.models.tables.contains_key(table));
        of_models || self.available.iter().any(|migration| migration.header.tables.contains(table))
    }

    pub(super) fn migrations(&self) -> Vec<&Migration> {
        self.order.iter().map(|&index| &self.available[index]).collect()
    }
}

/// What came out.
pub(super) struct After {
    pub(super) snapshot: Snapshot,
    ran: Vec<Ran>,
    migrate: Duration,
    validate: Duration,
    violations: model::Report,
    pub(super) automatic: Vec<String>,
}

impl Database {
    pub(super) async fn take(&self, tell: &Tell<'_>) -> Result<Before, RunError> {
        let began = Instant::now();
        let meter = Meter::new(tell);
        let progress = |progress| meter.commit(progress);
        let taken = if self.settings.adopt {
            commit::snapshot_to_adopt(self.store.as_ref(), &progress).await
        } else {
            commit::snapshot_telling(self.store.as_ref(), &progress).await
        };
        let taken = taken.map_err(|error| match error {
            CommitError::OtherRoot { root } => {
                let url = self.url.with_root(&root).to_string();
                RunError::Refused { reasons: vec![Refusal::OtherRoot { root, url }] }
            }
            other => other.into(),
        })?;
        let took = began.elapsed();
        (tell)(Event::Taken {
            rows: taken.snapshot.len() as u64,
            bytes: taken.snapshot.size(),
            milliseconds: milliseconds(took),
        });
        let elsewhere = match taken.is_unborn() {
            true => commit::plain_rows(self.store.as_ref()).await?,
            false => BTreeMap::new(),
        };
        let before = Before { taken, took, elsewhere };
        if let Some(elsewhere) = before.elsewhere(|_| true) {
            (tell)(Event::Warning { text: elsewhere.to_string() });
        }
        Ok(before)
    }

    /// Which migrations are pending, and where log and files disagree.
    pub(super) fn todo(&self, before: &Snapshot) -> Result<Todo, RunError> {
        let available = self.migrations()?;
        let log = log::read(before)?;
        let headers: Vec<_> = available.iter().map(|migration| migration.header.clone()).collect();
        let applied: Vec<_> = log.iter().map(log::Entry::applied).collect();
        let order = match migration::pending(&headers, &applied, self.settings.accept.order()) {
            Err(problem @ OrderError::NewerDatabase { .. }) => {
                return Err(RunError::Newer { problem, missing: look::missing(&available, &log) });
            }
            order => order?,
        };
        let drifts = log::compare(&available, &log);
        let scripted = order.iter().flat_map(|&index| available[index].header.tables.clone()).collect();
        let models = self.models(before, &scripted)?;
        Ok(Todo { available, order, log, drifts, models })
    }

    /// A run on nothing, or a backup of it, is seldom what was meant.
    pub(super) fn warn_if_empty(&self, before: &Before, tell: &Tell<'_>) {
        if before.taken.snapshot.is_empty() {
            let text = "there is not one row in the database; if that is a surprise, check its address, number and root";
            (tell)(Event::Warning { text: text.to_owned() });
        }
    }

    /// Migrations for rows that lie in other keys would find nothing, and be logged as applied. Rows of tables that
    /// nobody has named may be a neighbour's.
    pub(super) fn refuse_elsewhere(&self, before: &Before, todo: &Todo) -> Result<(), RunError> {
        match before.elsewhere(|table| todo.names(table)) {
            Some(elsewhere) => Err(RunError::Refused { reasons: vec![elsewhere] }),
            None => Ok(()),
        }
    }

    /// A run that was given nothing to do is a mistake, not a success.
    pub(super) fn refuse_nothing_at_hand(&self, todo: &Todo) -> Result<(), RunError> {
        let named =
            self.settings.models.is_some() || self.settings.adopt || !self.settings.search_path().is_empty();
        if named || !todo.available.is_empty() { Ok(()) } else { Err(RunError::NoMigrations) }
    }

    fn models(&self, before: &Snapshot, scripted: &BTreeSet<Table>) -> Result<Option<NewModels>, RunError> {
        let kept = model::stored(before)?;
        let Some(path) = self.settings.models_file()? else {
            // Nobody says that they change, so those of the last run still hold.
            let difference = Difference::default();
            return Ok(kept.map(|models| NewModels { models, difference, known: true }));
        };
        let models = Models::read(&path)?;
        let known = kept.as_ref().is_some_and(|kept| kept.says_the_same_as(&models));
        let old = match (kept, &self.settings.models_before) {
            (Some(kept), _) => Some(kept),
            (None, Some(path)) => Some(Models::read(path)?),
            (None, None) => None,
        };
        let difference = match old {
            Some(old) => model::diff(&old, &models, scripted),
            None => {
                let mut unknown = model::diff_from_unknown(&models);
                let there = |table: &Table| before.rows(table).next().is_some() || scripted.contains(table);
                unknown.steps.retain(|step| matches!(step, Step::FillMissing { table, .. } if there(table)));
                unknown
            }
        };
        Ok(Some(NewModels { models, difference, known }))
    }

    /// Runs what is pending on a copy, and validates the result. Blocks for as long as that takes, so it
    /// wants a runtime with more than one thread: the lock is renewed on another.
    pub(super) fn think(
        &self,
        before: &Before,
        todo: &Todo,
        meter: &Meter<'_>,
        tell: &Tell<'_>,
    ) -> Result<After, RunError> {
        tokio::task::block_in_place(|| {
            let mut snapshot = before.taken.snapshot.clone();
            let began = Instant::now();
            let progress = |progress: migration::Progress<'_>| {
                meter.report(&format!("migrate {}", progress.id), progress.rows, progress.of_rows);
            };
            let context = Context {
                worker: &self.tool.worker,
                tool_version: self.tool.version,
                clock: &Timestamp::now,
                progress: &progress,
            };
            let ran = migration::run(&todo.migrations(), &mut snapshot, &context)?;
            for ran in &ran {
                let (id, milliseconds) = (ran.id.clone(), milliseconds(ran.took));
                (tell)(Event::Migrated { id, rows: ran.rows, removed: ran.removed, milliseconds });
            }
            let mut automatic: Vec<String> = before.adoption(self.settings.layout).into_iter().collect();
            if self.settings.accept.edited {
                automatic.extend(accept_edits(&mut snapshot, todo));
            }
            if let Some(new) = todo.models.as_ref().filter(|new| !new.known) {
                model::fill(&mut snapshot, &new.difference.steps)
                    .map_err(|source| RunError::Automatic { source })?;
                model::write(&mut snapshot, &new.models);
                automatic.extend(new.difference.steps.iter().map(ToString::to_string));
                automatic
                    .push(format!("the models of release {} are kept with the data", new.models.release));
            }
            let migrate = began.elapsed();
            let (violations, validate) = validate(&snapshot, todo, tell);
            Ok(After { snapshot, ran, migrate, validate, violations, automatic })
        })
    }

    /// Writes down the declared models with data that was made to them, after a look whether it was.
    pub(super) fn keep_models(&self, rows: &mut Snapshot, todo: &Todo) -> Result<(), RunError> {
        let Some(new) = todo.models.as_ref().filter(|new| !new.known) else { return Ok(()) };
        let report = model::validate(rows, &new.models);
        if let Some(first) = report.shown.first().filter(|_| !self.settings.accept.violations) {
            let violations = Refusal::Violations { total: report.count, sample: first.to_string() };
            return Err(RunError::Refused { reasons: vec![violations] });
        }
        model::write(rows, &new.models);
        Ok(())
    }

    /// Every reason not to do it.
    pub(super) async fn judge(
        &self,
        before: &Before,
        todo: &Todo,
        after: &After,
    ) -> Result<Judged, RunError> {
        let rows = &before.taken.snapshot;
        let facts = self.store.facts().await?.with_quota(self.settings.quota_bytes);
        let mut needs = Needs::of(rows, &after.snapshot, self.settings.layout);
        needs.read_seconds = before.took.as_secs_f64();
        needs.migrate_seconds = after.migrate.as_secs_f64();
        needs.validate_seconds = after.validate.as_secs_f64();
        needs.estimate(&facts);
        let accept = self.settings.accept;
        let mut refusals = Vec::new();
        let mut warnings = facts.caveats();
        for drift in &todo.drifts {
            match drift {
                // Whether it may be missing was settled with the order.
                Drift::Missing { .. } => warnings.push(drift.to_string()),
                Drift::Changed { .. }
                | Drift::Redated { .. }
                | Drift::Reordered { .. }
                | Drift::OtherChecksum { .. } => {
                    refuse(&mut refusals, &mut warnings, accept.edited, Refusal::Drift(drift.clone()));
                }
            }
        }
        let exposed: BTreeSet<_> = todo.migrations().into_iter().filter_map(migration::exposed).collect();
        warnings.extend(exposed);
        match &todo.models {
            Some(new) => refusals.extend(new.difference.refusals.iter().cloned().map(Refusal::Model)),
            None => warnings.push(
                "no models are declared (--models, or models.toml beside the migrations): the result is not validated"
                    .to_owned(),
            ),
        }
        self.hinder(rows, &after.snapshot, (&needs, &facts), (&mut refusals, &mut warnings));
        if let Some(first) = after.violations.shown.first() {
            let violations = Refusal::Violations { total: after.violations.count, sample: first.to_string() };
            refuse(&mut refusals, &mut warnings, accept.violations, violations);
        }
        if todo.order.is_empty() && after.automatic.is_empty() {
            // Nothing would be written, so only what is wrong with the log still counts.
            refusals.retain(|refusal| matches!(refusal, Refusal::Drift(_)));
        }
        Ok(Judged { server: facts.server, needs, refusals, warnings })
    }

    /// What stands against any change of the rows, whatever it is for.
    fn hinder(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        (needs, facts): (&Needs, &Facts),
        (refusals, warnings): (&mut Vec<Refusal>, &mut Vec<String>),
    ) {
        let accept = self.settings.accept;
        for service in self.live_services(before) {
            refuse(refusals, warnings, accept.live_services, Refusal::LiveService(service.words));
        }
        if let Err(error) = commit::check_rows(self.store.as_ref(), after) {
            refusals.push(Refusal::Row(error.to_string()));
        }
        let shortages =
            facts.room_for(needs.server_bytes).err().into_iter().chain(self.backup_shortage(needs));
        for shortage in shortages {
            refuse(refusals, warnings, accept.shortage, Refusal::Shortage(shortage));
        }
    }

    /// Every reason not to put a backup in place of the rows, and what to know of it.
    pub(super) async fn judge_restore(
        &self,
        before: &Before,
        backup: &backup::Header,
        rows: &Snapshot,
    ) -> Result<(Vec<Refusal>, Vec<String>), RunError> {
        let facts = self.store.facts().await?.with_quota(self.settings.quota_bytes);
        let now = &before.taken.snapshot;
        let needs = Needs::of(now, rows, self.settings.layout);
        let (mut refusals, mut warnings) = (Vec::new(), Vec::new());
        self.hinder(now, rows, (&needs, &facts), (&mut refusals, &mut warnings));
        if before.taken.is_plain() {
            if let Some(foreign) = self.foreign(now, rows)? {
                refuse(&mut refusals, &mut warnings, self.settings.accept.removal, foreign);
            }
            // Elsewhere rows have no topic in their keys, or nobody looks for one.
            if matches!(self.url, Url::Redis(_)) && !backup.source.starts_with("redis") {
                warnings.push(format!(
                    "the backup is of {}, another kind of database: see that its rows have the topics that services \
                     look for here",
                    backup.source
                ));
            }
        }
        Ok((refusals, warnings))
    }

    /// Rows that a restore would remove, of tables that nobody has spoken of: in Dragonflow's layout all keys of a
    /// certain shape are rows, whoever wrote them.
    fn foreign(&self, now: &Snapshot, backup: &Snapshot) -> Result<Option<Refusal>, RunError> {
        let mut known: BTreeSet<Table> = backup.tables().map(|(table, _)| table.clone()).collect();
        for entry in log::read(now)? {
            known.extend(entry.tables().map(Table::new));
        }
        // A backup can be put back also where the files of migrations and models are out of order.
        let migrations = self.migrations().unwrap_or_default();
        known.extend(migrations.iter().flat_map(|migration| migration.header.tables.clone()));
        let declared = self.settings.models_file().ok().flatten().and_then(|path| Models::read(&path).ok());
        let models = [model::stored(now).ok().flatten(), declared];
        known.extend(models.into_iter().flatten().flat_map(|models| models.tables.into_keys()));
        let foreign: Vec<_> =
            now.tables().filter(|(table, _)| !known.contains(table) && !log::is_reserved(table)).collect();
        let rows = foreign.iter().map(|(_, rows)| rows.len() as u64).sum();
        let tables: Vec<String> = foreign.iter().map(|(table, _)| table.to_string()).collect();
        Ok((rows > 0).then_some(Refusal::Foreign { tables, rows }))
    }

    /// What would change, for people to look at. Compares every row.
    pub(super) fn describe(&self, before: &Before, todo: &Todo, after: &After, judged: &Judged) -> Plan {
        let rows = &before.taken.snapshot;
        let tables = diff::summary(rows, &after.snapshot);
        Plan {
            made_at: Timestamp::now(),
            tool: self.tool.version.to_owned(),
            store: self.address(),
            server: judged.server.clone(),
            layout: self.settings.layout,
            already_applied: todo.log.len(),
            migrations: planned(todo, &after.ran),
            automatic: after.automatic.clone(),
            destructive: destructive(rows, &after.snapshot, &tables),
            tables,
            violations: after.violations.count,
            violated: after.violations.shown.iter().map(ToString::to_string).collect(),
            needs: judged.needs.clone(),
            refused_because: judged.refusals.iter().map(ToString::to_string).collect(),
            warnings: judged.warnings.clone(),
        }
    }

    /// Whether the backup fits where it goes.
    fn backup_shortage(&self, needs: &Needs) -> Option<Shortage> {
        let folder = self.settings.backup_folder()?;
        let there = folder.ancestors().find(|folder| folder.is_dir())?;
        // What has no size is no place for files; making the folder says so.
        let disk = rustix::fs::statvfs(there).ok().filter(|disk| disk.f_blocks > 0)?;
        let (free, needed) = (disk.f_bavail * disk.f_frsize, needs.backup_bytes_at_most);
        (free < needed).then_some(Shortage::Free { free, needed })
    }
}

/// Writes today's text of edited migrations into the log, so that the next edit is noticed again.
fn accept_edits(snapshot: &mut Snapshot, todo: &Todo) -> Vec<String> {
    let mut accepted = Vec::new();
    for entry in &todo.log {
        let edited = todo.drifts.iter().any(|drift| drift.is_edit_of(&entry.id));
        let today = todo.available.iter().find(|migration| migration.header.id == entry.id);
        if let Some(migration) = today.filter(|_| edited) {
            log::write(snapshot, &entry.accepting(migration, Timestamp::now()));
            accepted.push(format!("the log takes over today's text of {}", entry.id));
        }
    }
    accepted
}

fn validate(snapshot: &Snapshot, todo: &Todo, tell: &Tell<'_>) -> (model::Report, Duration) {
    let Some(new) = &todo.models else { return (model::Report::default(), Duration::ZERO) };
    let began = Instant::now();
    let report = model::validate(snapshot, &new.models);
    let took = began.elapsed();
    (tell)(Event::Validated {
        rows: snapshot.len() as u64,
        violations: report.count,
        milliseconds: milliseconds(took),
    });
    (report, took)
}

fn refuse(refusals: &mut Vec<Refusal>, warnings: &mut Vec<String>, accepted: bool, refusal: Refusal) {
    if accepted {
        warnings.push(refusal.to_string());
    } else {
        refusals.push(refusal);
    }
}

fn planned(todo: &Todo, ran: &[Ran]) -> Vec<Planned> {
    let planned = |(migration, ran): (&Migration, &Ran)| Planned {
        id: migration.header.id.clone(),
        release: migration.header.release.clone(),
        description: migration.header.description.clone(),
        proposed_at: migration.header.proposed_at,
        origin: migration.origin(),
        checksum: migration.checksum.to_string(),
        rows: ran.rows,
        removed: ran.removed,
        milliseconds: milliseconds(ran.took),
    };
    todo.migrations().into_iter().zip(ran).map(planned).collect()
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
