//! One migration, from the first reading until it is final.
//!
//! The one invariant: nothing runs here but what `midflight migrate apply` and `finalize` run.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use midflight_migrate::{
    migration::Native,
    northbound::Verdict,
    record::Table,
    run::{Changed, Database, Event, Settings, Tool},
    store::Layout,
};
use serde::{Deserialize, Serialize};

use super::TABLE;
use crate::{
    command::migrate::tool,
    memory::most_resident_bytes,
    output::{Answer, Paint},
};

/// What one migration took.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Taken {
    pub(super) apply_seconds: f64,
    /// Parts of the above, in order.
    pub(super) phases: Vec<Phase>,
    /// The backup, which is written while rows are staged.
    pub(super) back_up_seconds: Option<f64>,
    /// The last migration alone.
    pub(super) migration_seconds: f64,
    pub(super) switch_ms: f64,
    /// `finalize`, afterwards.
    pub(super) clean_up_seconds: f64,
    pub(super) peak_mib: f64,
    pub(super) told_progress: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) seconds: f64,
}

impl Answer for Taken {
    fn to_table(&self, _: Paint) -> String {
        format!("{self:?}\n")
    }
}

static NATIVE: Native = Native {
    id: "bench.native",
    release: "bench",
    description: "adds a field to every row",
    proposed_at: "2016-01-01T00:00:00Z",
    after: &[],
    replaces: &[],
    tables: &[TABLE],
    max_removed: Some(0),
    revision: 1,
    fixtures: None,
    migration: |rows| {
        rows.edit_all(&Table::new(TABLE), |_, row| {
            row.insert("native".to_owned(), true.into());
            Verdict::Keep
        })?;
        Ok(())
    },
};

/// Migrates with the compiled-in migration and those of folders.
pub(super) async fn migrate(address: &str, place: &Path, paths: Vec<PathBuf>) -> anyhow::Result<Taken> {
    let settings = Settings { backups: place.join("backups"), paths, ..settings(address) };
    let database = Database::open(Tool { compiled_in: vec![&NATIVE], ..tool()? }, settings).await?;
    let told = Mutex::new(Told::default());
    let tell = |event| told.lock().unwrap_or_else(PoisonError::into_inner).hear(event);
    let began = Instant::now();
    let changed = database.apply(None, &tell).await?;
    let apply_seconds = began.elapsed().as_secs_f64();
    let peak_mib = most_resident_bytes()? as f64 / f64::from(1 << 20);
    let began = Instant::now();
    database.finalize(&|_| {}).await?;
    let clean_up_seconds = began.elapsed().as_secs_f64();
    let Changed::Applied { switch_microseconds, .. } = changed else {
        anyhow::bail!("nothing was applied: {changed:?}");
    };
    let Told { mut phases, back_up, migration, progress } =
        told.into_inner().unwrap_or_else(PoisonError::into_inner);
    let known: f64 = phases.iter().map(|phase| phase.seconds).sum();
    phases.push(Phase { name: "the rest".to_owned(), seconds: (apply_seconds - known).max(0.0) });
    Ok(Taken {
        apply_seconds,
        phases,
        back_up_seconds: back_up.map(|took| took.as_secs_f64()),
        migration_seconds: migration.as_secs_f64(),
        switch_ms: switch_microseconds as f64 / 1000.0,
        clean_up_seconds,
        peak_mib,
        told_progress: progress,
    })
}

/// What was heard of a run.
#[derive(Debug, Default)]
struct Told {
    phases: Vec<Phase>,
    back_up: Option<Duration>,
    migration: Duration,
    progress: u64,
}

impl Told {
    fn hear(&mut self, event: Event) {
        let (name, milliseconds) = match event {
            Event::Taken { milliseconds, .. } => ("read".to_owned(), milliseconds),
            Event::Migrated { milliseconds, .. } => {
                self.migration = Duration::from_millis(milliseconds.max(1));
                ("migrate".to_owned(), milliseconds)
            }
            Event::Validated { milliseconds, .. } => ("validate".to_owned(), milliseconds),
            Event::BackedUp { milliseconds, .. } => {
                self.back_up = Some(Duration::from_millis(milliseconds));
                return;
            }
            Event::Finished { step, milliseconds, .. } => (step, milliseconds),
            Event::Progress { .. } => {
                self.progress += 1;
                return;
            }
            Event::Recovered { .. }
            | Event::Switched { .. }
            | Event::Waiting { .. }
            | Event::Warning { .. } => return,
        };
        self.phases.push(Phase { name, seconds: milliseconds as f64 / 1000.0 });
    }
}

/// How every part of the measurement opens its database.
pub(super) fn settings(address: &str) -> Settings {
    Settings { layout: Layout::Generation, create: true, answer_seconds: 60, ..Settings::of(address) }
}
