//! Makes the result of a run live, all or nothing, and takes it back.
//!
//! Two ways, by layout. Generations: the result is staged beside what is live, read back, and one
//! compare-and-swap of a pointer makes it live. Dragonflow's own keys: the differences are
//! written to a journal and an undo journal and read back, one marker commits them, and whoever
//! starts next finishes what the marker promises before anything else.
//!
//! The one invariant: whatever happens at whatever moment, the next start finds the old rows or
//! the new rows live, or a marker by which [`Session::recover`] makes them the new rows.

mod back;
mod generation;
mod journal;
mod ledger;
mod run;
mod seal;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::backup::BackupError;
use crate::diff;
use crate::record::{Snapshot, Table};
use crate::store::{
    self, Fence, Generation, Glimpse, Layout, Reading, Revision, RunNumber, Space, Store, StoreError,
};

pub use back::written_since;
use ledger::{Ledger, Written};
pub use run::{Phase, Pointer, RunNote, RunRecord};
pub use write::check_rows;

/// Rows named in an error before the rest is only counted.
const NAMED: usize = 20;

/// Why nothing was committed, or taken back.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    #[error(transparent)]
    Store(#[from] StoreError),

    #[error(transparent)]
    Backup(#[from] BackupError),

    #[error("run {run} was interrupted while its rows were being written; it has to be finished first")]
    Unfinished { run: RunNumber },

    #[error(
        "generation {generation} is live here: this database is kept in the generation layout (--layout generation)"
    )]
    OtherLayout { generation: Generation },

    #[error(
        "run {run} worked on Dragonflow's own keys: this database is kept in the dragonflow layout (--layout \
         dragonflow), unless its keys are to be taken over (--adopt)"
    )]
    PlainLayout { run: RunNumber },

    #[error(
        "this tool has worked on the same rows under the root {root}, and has its lock and its journals there"
    )]
    OtherRoot { root: String },

    #[error("run {run} is neither finalized nor rolled back")]
    StillOpen { run: RunNumber },

    #[error("there is no run to {what}: none was ever made on this database")]
    NeverRun { what: &'static str },

    #[error("there is no run to {what}: the last one is {phase}")]
    NothingTo { what: &'static str, phase: &'static str },

    #[error("a writer did not stop: {0}")]
    Writers(Changed),

    #[error("the database is no longer as it was read (or the connection that guarded it was lost)")]
    Conflict,

    #[error("another run is at work: it moved on whenever the rows were being read; wait for its end")]
    Moving,

    #[error(
        "{generation}, which was live before the run, holds {found} rows instead of {expected}: going back \
         would lose the rest"
    )]
    OldRowsGone { generation: Space, found: u64, expected: u64 },

    #[error("rows were written since the run, and would be lost: {0}")]
    Modified(Changed),

    #[error("{space} does not read back as it was written: {rows}")]
    NotAsWritten { space: Space, rows: Changed },

    #[error(
        "the server was started anew and has forgotten the last step of run {run}; the next start takes up what it has"
    )]
    Forgotten { run: RunNumber },

    #[error("{refusal}; whether the same step has arrived before, when no answer came, is not known")]
    Unsure { refusal: StoreError },

    #[error("the {note} note is not readable by this version")]
    Note { note: &'static str, source: serde_json::Error },
}

/// Rows that are not as they should be; the first few by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changed {
    pub rows: Vec<String>,
    /// How many more there are.
    pub more: u64,
    /// How many are gone without a trace of their name.
    pub gone: u64,
}

impl Changed {
    fn add(&mut self, row: impl FnOnce() -> String) {
        if self.rows.len() < NAMED {
            self.rows.push(row());
        } else {
            self.more += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.gone == 0
    }

    /// The rows in which two readings differ.
    fn between(before: &Snapshot, after: &Snapshot) -> Changed {
        let mut changed = Changed::default();
        for (table, key, _) in diff::changes(before, after) {
            changed.add(|| format!("{table} {key}"));
        }
        changed
    }
}

impl std::fmt::Display for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.rows.join(", "))?;
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        match (self.gone, self.rows.is_empty()) {
            (0, _) => Ok(()),
            (gone, true) => write!(f, "{gone} rows are gone"),
            (gone, false) => write!(f, "; {gone} rows are gone"),
        }
    }
}

/// What a run is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    Reading,
    Staging,
    Verifying,
    /// Looking once more whether somebody has written.
    Confirming,
    Switching,
    /// Waiting until the server has everything on its disk.
    Syncing,
    Replaying,
    Clearing,
}

/// How far it is. `total` is zero where it is not known beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub stage: Stage,
    pub done: u64,
    pub total: u64,
}

/// Told of progress, often.
pub type OnProgress<'p> = dyn Fn(Progress) + Sync + 'p;

/// The live rows as they were at one moment, and what it takes to notice that they changed.
#[derive(Debug)]
pub struct Taken {
    pub snapshot: Snapshot,
    pub at: Revision,
    space: Space,
    pointer: Option<Bytes>,
    ledger: Ledger,
}

impl Taken {
    /// Whether these are Dragonflow's own rows.
    pub fn is_plain(&self) -> bool {
        self.space == Space::Plain
    }

    /// Whether there are none because no generation is live yet.
    pub fn is_unborn(&self) -> bool {
        self.space == Space::Generation(Generation::EMPTY)
    }
}

/// What a commit took.
#[derive(Debug, Clone)]
pub struct Applied {
    pub run: RunNumber,
    /// How long the one write took that made the result live.
    pub switch: Duration,
    /// Rows written, copies of journal and undo included.
    pub written: u64,
    /// Rows that are not as the run wrote them: somebody else did while it wrote in place.
    pub meanwhile: Changed,
}

/// Where the database stands.
#[derive(Debug, Clone)]
pub enum State {
    /// No run was ever begun.
    Fresh,
    /// The last run is over: [`Phase::Finalized`], [`Phase::RolledBack`] or [`Phase::Abandoned`].
    Settled(RunRecord),
    /// Live, and can be rolled back while nobody has written.
    Applied(RunRecord),
    /// Died on the way; [`Session::recover`] finishes it.
    Interrupted(RunRecord),
}

impl State {
    /// The record of the last run, if there was one.
    pub fn record(&self) -> Option<&RunRecord> {
        match self {
            State::Fresh => None,
            State::Settled(record) | State::Applied(record) | State::Interrupted(record) => Some(record),
        }
    }
}

/// What a start found and finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovered {
    Nothing,
    /// Staged rows of a run that never went live were removed.
    Abandoned(RunNumber),
    /// A run that had been committed was completed.
    Completed(RunNumber),
    RolledBack(RunNumber),
    Finalized(RunNumber),
}

/// Where the last run stands.
pub async fn state(store: &dyn Store) -> Result<State, CommitError> {
    let Some(record) = Ledger::read(store).await?.record else { return Ok(State::Fresh) };
    Ok(match record.phase {
        Phase::Finalized | Phase::RolledBack | Phase::Abandoned => State::Settled(record),
        Phase::Applied => State::Applied(record),
        Phase::Staging | Phase::Abandoning | Phase::Committed | Phase::Undoing | Phase::Finalizing => {
            State::Interrupted(record)
        }
    })
}

/// Reads the live rows as they were at one moment. Needs no lock: where a run of somebody else came
/// in between, they are read again.
pub async fn snapshot(store: &dyn Store) -> Result<Taken, CommitError> {
    snapshot_telling(store, &|_| {}).await
}

/// As [`snapshot`], and tells how far it is.
pub async fn snapshot_telling(store: &dyn Store, progress: &OnProgress<'_>) -> Result<Taken, CommitError> {
    take(store, progress, false).await
}

/// Reads Dragonflow's own rows of a database whose generations have not begun, so that the first one can
/// take them over. Where one is live already, that is read.
pub async fn snapshot_to_adopt(store: &dyn Store, progress: &OnProgress<'_>) -> Result<Taken, CommitError> {
    take(store, progress, true).await
}

/// Reads until neither the note nor the pointer changed meanwhile. To adopt, Dragonflow's own rows stand in
/// for the empty generation.
async fn take(store: &dyn Store, progress: &OnProgress<'_>, adopt: bool) -> Result<Taken, CommitError> {
    const TRIES: usize = 3;
    let mut ledger = Ledger::read(store).await?;
    for _ in 0..TRIES {
        if let Some(record) = &ledger.record
            && record.rows_are_mixed()
        {
            return Err(CommitError::Unfinished { run: record.run });
        }
        let (pointer, space) = match live(store).await? {
            (pointer, Space::Generation(Generation::EMPTY)) if adopt => (pointer, Space::Plain),
            (pointer, Space::Generation(Generation::EMPTY)) => {
                if let Some(record) = ledger.record.as_ref().filter(|last| last.layout == Layout::Dragonflow)
                {
                    return Err(CommitError::PlainLayout { run: record.run });
                }
                (pointer, Space::Generation(Generation::EMPTY))
            }
            live => live,
        };
        let total = ledger.record.as_ref().map_or(0, RunRecord::live_rows);
        let told = |done| progress(Progress { stage: Stage::Reading, done, total: total.max(done) });
        let (snapshot, at) =
            write::patiently(|| store::collect_telling(store, space, Reading::Guarded, &told)).await?;
        let now = Ledger::read(store).await?;
        let same = now.raw() == ledger.raw() && live(store).await?.0 == pointer;
        ledger = now;
        if same {
            if space == Space::Plain {
                refuse_other_roots(store, &snapshot).await?;
            }
            return Ok(Taken { snapshot, at, space, pointer, ledger });
        }
    }
    Err(CommitError::Moving)
}

/// Refuses Dragonflow's own rows where this tool works on them under another root: it has another lock there, and its
/// journals. To take the rows over it is enough that nothing is under way there.
async fn refuse_other_roots(store: &dyn Store, rows: &Snapshot) -> Result<(), CommitError> {
    for (root, other) in write::patiently(|| store.other_roots(rows)).await? {
        // What cannot be read as a note is somebody else's.
        let record: Option<RunRecord> = other.run.as_ref().and_then(|raw| serde_json::from_slice(raw).ok());
        let in_the_way = match (store.layout(), record) {
            (_, Some(record)) if record.layout == Layout::Generation => false,
            (Layout::Dragonflow, Some(_)) => true,
            (Layout::Generation, Some(record)) => other.locked || !record.phase.is_settled(),
            (Layout::Dragonflow | Layout::Generation, None) => other.locked,
        };
        if in_the_way {
            return Err(CommitError::OtherRoot { root });
        }
    }
    Ok(())
}

/// How many rows lie in Dragonflow's own keys, by table, whatever layout this is.
pub async fn plain_rows(store: &dyn Store) -> Result<BTreeMap<Table, u64>, CommitError> {
    Ok(write::patiently(|| count_plain_rows(store)).await?)
}

async fn count_plain_rows(store: &dyn Store) -> Result<BTreeMap<Table, u64>, StoreError> {
    let mut tables: BTreeMap<Table, u64> = BTreeMap::new();
    let mut look = |row: Glimpse<'_>| match tables.iter_mut().find(|(table, _)| table.as_str() == row.table) {
        Some((_, rows)) => *rows += 1,
        None => drop(tables.insert(Table::new(row.table), 1)),
    };
    store.look_at(Space::Plain, &mut look).await?;
    Ok(tables)
}

/// The rows that somebody wrote during `moment`.
pub async fn writers(store: &dyn Store, moment: Duration) -> Result<Changed, CommitError> {
    let (_, space) = live(store).await?;
    let (before, _) = store::collect(store, space, Reading::Once).await?;
    tokio::time::sleep(moment).await;
    let (after, _) = store::collect(store, space, Reading::Once).await?;
    Ok(Changed::between(&before, &after))
}

/// Which rows are live, with the pointer that says so.
async fn live(store: &dyn Store) -> Result<(Option<Bytes>, Space), CommitError> {
    let pointer = write::patiently(|| store.note(store::Note::Pointer)).await?;
    let generation = Pointer::decode(pointer.as_ref())?.generation;
    match store.layout() {
        // Its keys may still be there, but nobody looks at them any more.
        Layout::Dragonflow if generation != Generation::EMPTY => Err(CommitError::OtherLayout { generation }),
        Layout::Dragonflow => Ok((None, Space::Plain)),
        Layout::Generation => Ok((pointer, Space::Generation(generation))),
    }
}

/// A run's access to its database, under its lock.
pub struct Session<'a> {
    store: &'a dyn Store,
    fence: &'a Fence,
    progress: &'a OnProgress<'a>,
    patience: Duration,
}

impl<'a> Session<'a> {
    pub fn new(store: &'a dyn Store, fence: &'a Fence, progress: &'a OnProgress<'a>) -> Session<'a> {
        Session { store, fence, progress, patience: write::PATIENCE }
    }

    /// How long a server may be away before the run gives up. What it leaves is finished later.
    pub fn with_patience(self, patience: Duration) -> Session<'a> {
        Session { patience, ..self }
    }

    /// Finishes what an interrupted run left. Every start does this before anything else.
    pub async fn recover(&self) -> Result<Recovered, CommitError> {
        let ledger = Ledger::read(self.store).await?;
        let Some(record) = ledger.record.clone() else { return Ok(Recovered::Nothing) };
        let run = record.run;
        match record.phase {
            Phase::Applied | Phase::Finalized | Phase::RolledBack | Phase::Abandoned => {
                Ok(Recovered::Nothing)
            }
            Phase::Staging | Phase::Abandoning => {
                self.abandon(&ledger, &record).await?;
                Ok(Recovered::Abandoned(run))
            }
            Phase::Committed => {
                self.complete(&ledger, &record).await?;
                Ok(Recovered::Completed(run))
            }
            Phase::Undoing => {
                self.undo(&ledger, &record).await?;
                Ok(Recovered::RolledBack(run))
            }
            Phase::Finalizing => {
                self.settle(&ledger, &record, Phase::Finalized).await?;
                Ok(Recovered::Finalized(run))
            }
        }
    }

    /// Makes `after` live in place of what was taken.
    pub async fn apply(
        &self,
        taken: &Taken,
        after: &Snapshot,
        note: RunNote,
    ) -> Result<Applied, CommitError> {
        self.apply_with_backup(taken, after, note, async { Ok(()) }).await
    }

    /// As [`Session::apply`], with a backup that is written while rows are staged. Nothing becomes live before it
    /// is there.
    pub async fn apply_with_backup(
        &self,
        taken: &Taken,
        after: &Snapshot,
        note: RunNote,
        backup: impl Future<Output = Result<(), BackupError>>,
    ) -> Result<Applied, CommitError> {
        if let Some(record) = &taken.ledger.record
            && !record.phase.is_settled()
        {
            return Err(CommitError::StillOpen { run: record.run });
        }
        check_rows(self.store, after)?;
        let applied = match self.store.layout() {
            Layout::Generation => self.switch_generation(taken, after, note, backup).await,
            Layout::Dragonflow => self.write_in_place(taken, after, note, backup).await,
        };
        if let Err(error) = &applied {
            self.abandon_staged(error).await;
        }
        applied
    }

    /// Makes live again what was live before the last run, byte for byte.
    pub async fn rollback(&self) -> Result<RunNumber, CommitError> {
        self.roll_back(Written::Refused).await
    }

    /// As [`Session::rollback`], also where rows were written since: `tell` hears of them first. In Dragonflow's layout
    /// those of them that the run had not changed stay as they are; their old values are nowhere.
    pub async fn rollback_over(&self, tell: &(dyn Fn(&Changed) + Sync)) -> Result<RunNumber, CommitError> {
        self.roll_back(Written::GivenUp(tell)).await
    }

    async fn roll_back(&self, written: Written<'_>) -> Result<RunNumber, CommitError> {
        let (ledger, record) = self.applied("roll back").await?;
        match record.layout {
            Layout::Generation => self.switch_back(&ledger, &record, written).await?,
            Layout::Dragonflow => self.restore_in_place(&ledger, &record, written).await?,
        }
        Ok(record.run)
    }

    /// Gives up the way back: writers may start, and the old rows are deleted.
    pub async fn finalize(&self) -> Result<RunNumber, CommitError> {
        let (ledger, record) = self.applied("finalize").await?;
        let finalizing = record.at(Phase::Finalizing);
        let ledger = match record.layout {
            Layout::Dragonflow => self.advance(&ledger, &finalizing, vec![], None).await?,
            Layout::Generation => self.forget_previous(&ledger, &finalizing).await?,
        };
        self.settle(&ledger, &finalizing, Phase::Finalized).await?;
        Ok(record.run)
    }

    async fn applied(&self, what: &'static str) -> Result<(Ledger, RunRecord), CommitError> {
        let ledger = Ledger::read(self.store).await?;
        match ledger.record.clone() {
            Some(record) if record.phase == Phase::Applied => Ok((ledger, record)),
            Some(record) if !record.phase.is_settled() => Err(CommitError::Unfinished { run: record.run }),
            Some(record) => Err(CommitError::NothingTo { what, phase: record.phase.name() }),
            None => Err(CommitError::NeverRun { what }),
        }
    }

    /// Deletes what was staged, after the note says so: a switch that is still on its way to the
    /// server then finds another note than it wants.
    async fn abandon(&self, ledger: &Ledger, record: &RunRecord) -> Result<(), CommitError> {
        let abandoning = record.at(Phase::Abandoning);
        let ledger = self.advance(ledger, &abandoning, vec![], None).await?;
        self.settle(&ledger, &abandoning, Phase::Abandoned).await
    }

    /// Removes what a failed run has staged, as far as that is possible now; a later start does
    /// it otherwise. The error of the run is the one that matters.
    async fn abandon_staged(&self, error: &CommitError) {
        if matches!(error, CommitError::Store(StoreError::FencedOut)) {
            return;
        }
        let abandon = async {
            let ledger = Ledger::read(self.store).await?;
            match ledger.record.clone() {
                Some(record) if matches!(record.phase, Phase::Staging | Phase::Abandoning) => {
                    self.abandon(&ledger, &record).await
                }
                Some(_) | None => Ok(()),
            }
        };
        if let Err(cause) = abandon.await {
            tracing::warn!(error = %cause, "what was staged is still there; the next start removes it");
        }
    }
}

#[cfg(test)]
mod tests;
