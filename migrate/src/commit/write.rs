//! Many rows written, read back or deleted, with patience for a server that is away for a while.
//!
//! The one invariant: nothing is written or deleted once the run note is another than the one it was
//! begun under. A server that was restarted may have lost the note, as well as what came before it.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;

use super::ledger::Ledger;
use super::{Changed, CommitError, Phase, Progress, RunRecord, Session, Stage};
use crate::backup::BackupError;
use crate::diff::{self, Change};
use crate::lanes;
use crate::record::{RowKey, Snapshot, Table};
use crate::store::{self, Batch, Op, Outcome, Reading, Space, Store, StoreError};

/// How long a server may be away, where nothing else is said.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where rows stand among all rows of a stage, for the telling of progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Rows done before these.
    pub(super) before: u64,
    pub(super) total: u64,
}

/// Tries again after lost answers, for a while.
#[derive(Debug)]
pub(super) struct Retry {
    patience: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Retry {
    pub(super) fn new(patience: Duration) -> Retry {
        Retry { patience, since: None, pause: FIRST_PAUSE.min(patience / 8) }
    }

    /// Whether an earlier try got no answer.
    pub(super) fn began(&self) -> bool {
        self.since.is_some()
    }

    /// Pauses before the next try, or gives the error back when trying again is of no use.
    pub(super) async fn after(&mut self, error: StoreError) -> Result<(), StoreError> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !error.is_transient() || since.elapsed() > self.patience {
            return Err(error);
        }
        tracing::warn!(error = %error, "trying again");
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// Asks again after lost answers, for a while. What is asked must bear repetition.
pub(super) async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    repeat(Retry::new(PATIENCE), ask).await
}

async fn repeat<T, F>(mut retry: Retry, ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => retry.after(error).await?,
        }
    }
}

/// Stages rows while a backup of the old ones is written. Without the backup nothing more is staged; when staging
/// fails, the backup is still waited for, so that nobody writes it behind our back.
pub(super) async fn beside(
    stage: impl Future<Output = Result<u64, CommitError>>,
    backup: impl Future<Output = Result<(), BackupError>>,
) -> Result<u64, CommitError> {
    let (mut stage, mut backup) = (pin!(stage), pin!(backup));
    tokio::select! {
        // A file is staged without ever waiting for anything, so the backup has to be begun before.
        biased;
        backed_up = &mut backup => {
            backed_up?;
            stage.await
        }
        staged = &mut stage => {
            let backed_up = backup.await;
            let staged = staged?;
            backed_up?;
            Ok(staged)
        }
    }
}

/// Refuses rows that no batch could carry, or that have no place in the layout, before anything is
/// written.
pub fn check_rows(store: &dyn Store, rows: &Snapshot) -> Result<(), StoreError> {
    let limit = store.limits().value;
    let check = |table: &Table, key: &RowKey, value: &Bytes| {
        if value.len() > limit {
            let (table, key, size) = (table.clone(), key.clone(), value.len());
            return Err(StoreError::TooLarge { table, key, size, limit });
        }
        match store.refuses(table, key) {
            Some(reason) => Err(StoreError::Unnameable { table: table.clone(), key: key.clone(), reason }),
            None => Ok(()),
        }
    };
    for (table, of_table) in rows.tables() {
        let all: Vec<_> = of_table.iter().collect();
        let looked = lanes::each(all.chunks(lanes::PIECE), |piece| {
            piece.iter().try_for_each(|(key, value)| check(table, key, value))
        });
        looked.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(())
}

impl Session<'_> {
    pub(super) fn report(&self, stage: Stage, done: u64, total: u64) {
        (self.progress)(Progress { stage, done, total });
    }

    /// Asks again after lost answers, for as long as this session has patience.
    pub(super) async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        repeat(Retry::new(self.patience), ask).await
    }

    /// Writes all operations while the note is `ledger`'s, several batches at once. Each may be
    /// repeated, so order among them must not matter. After the first that fails no other is begun, and none is
    /// still on its way when this returns.
    pub(super) async fn write_all<'o>(
        &self,
        stage: Stage,
        ledger: &Ledger,
        part: Part,
        ops: impl Iterator<Item = Op<'o>> + Send,
    ) -> Result<u64, CommitError> {
        let limits = self.store.limits();
        self.report(stage, part.before, part.total);
        let failed = AtomicBool::new(false);
        let batches = store::pack(ops, limits).take_while(|_| !failed.load(Relaxed));
        let mut answers = pin!(
            futures::stream::iter(batches)
                .map(|mut batch| async move {
                    batch.guards.push(ledger.guard());
                    self.write_one(ledger, &batch).await.map(|()| batch.ops.len() as u64)
                })
                .buffer_unordered(limits.in_flight)
        );
        let mut all = Ok(0);
        while let Some(answer) = answers.next().await {
            match (&mut all, answer) {
                (Ok(done), Ok(written)) => {
                    *done += written;
                    self.report(stage, part.before + *done, part.total);
                }
                (Ok(_), Err(error)) => {
                    failed.store(true, Relaxed);
                    all = Err(error);
                }
                (Err(_), _) => {}
            }
        }
        all
    }

    async fn write_one(&self, ledger: &Ledger, batch: &Batch<'_>) -> Result<(), CommitError> {
        let mut retry = Retry::new(self.patience);
        loop {
            match self.store.commit(self.fence, batch).await {
                Ok(Outcome::Done) => return Ok(()),
                Ok(Outcome::Conflict) => return Err(ledger.forgotten()),
                Err(error) => retry.after(error).await?,
            }
        }
    }

    /// Reads a space and compares every byte with what it should hold, without keeping any.
    pub(super) async fn verify(
        &self,
        part: Part,
        space: Space,
        expected: &Snapshot,
    ) -> Result<(), CommitError> {
        self.report(Stage::Verifying, part.before, part.total);
        if self.patiently(|| self.matches(part, space, expected)).await? {
            return Ok(());
        }
        let (found, _) = self.collect(space, Reading::Once).await?;
        let mut rows = Changed::default();
        for (table, key, change) in diff::changes(expected, &found) {
            let what = match change {
                Change::Added { .. } => "unexpected",
                Change::Changed { .. } => "different",
                Change::Removed { .. } => "missing",
            };
            rows.add(|| format!("{table} {key} ({what})"));
        }
        Err(CommitError::NotAsWritten { space, rows })
    }

    /// Whether the space holds exactly these rows.
    async fn matches(&self, part: Part, space: Space, expected: &Snapshot) -> Result<bool, StoreError> {
        let found = |found| self.report(Stage::Verifying, part.before + found, part.total);
        self.store.is_exactly(space, expected, &found).await
    }

    /// Waits until everything written is durable, and compares what was staged in the meantime. What
    /// was read from a server that was started anew later proves nothing, so it is read again then.
    pub(super) async fn flush_and_verify(&self, staged: &[(Space, &Snapshot)]) -> Result<(), CommitError> {
        let total = staged.iter().map(|(_, rows)| rows.len() as u64).sum();
        let verify = async || {
            let mut before = 0;
            for (space, rows) in staged {
                self.verify(Part { before, total }, *space, rows).await?;
                before += rows.len() as u64;
            }
            Ok::<(), CommitError>(())
        };
        let (flushed, verified) = tokio::join!(self.store.flush(), verify());
        match flushed {
            Ok(()) => verified,
            Err(error) if error.is_transient() => {
                self.flush().await?;
                verify().await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a space, again if the answer is lost.
    pub(super) async fn collect(
        &self,
        space: Space,
        reading: Reading,
    ) -> Result<(Snapshot, store::Revision), CommitError> {
        Ok(self.patiently(|| store::collect(self.store, space, reading)).await?)
    }

    pub(super) async fn flush(&self) -> Result<(), CommitError> {
        Ok(self.patiently(|| self.store.flush()).await?)
    }

    /// Deletes what the run has no more use for once its last step is certain, then records that it is over.
    pub(super) async fn settle(
        &self,
        ledger: &Ledger,
        record: &RunRecord,
        settled: Phase,
    ) -> Result<(), CommitError> {
        self.anchor(ledger).await?;
        for space in record.leavings(settled) {
            self.clear(ledger, space).await?;
        }
        let settled = self.advance(ledger, &record.at(settled), vec![], None).await?;
        self.anchor(&settled).await
    }

    /// Deletes what was staged where the server has refused more of it, or the switch. A full one may take deletions and
    /// nothing else, not even the note that the run is abandoned. What was refused did not happen and is not on its way.
    pub(super) async fn or_unstage<T>(
        &self,
        ledger: &Ledger,
        record: &RunRecord,
        answer: Result<T, CommitError>,
    ) -> Result<T, CommitError> {
        if let Err(CommitError::Store(StoreError::Refused { .. })) = &answer {
            for space in record.leavings(Phase::Abandoned) {
                if let Err(error) = self.clear(ledger, space).await {
                    tracing::warn!(%error, "what was staged is still there");
                }
            }
        }
        answer
    }

    /// Deletes a space while the note is `ledger`'s.
    pub(super) async fn clear(&self, ledger: &Ledger, space: Space) -> Result<(), CommitError> {
        self.report(Stage::Clearing, 0, 0);
        let cleared = self.patiently(|| store::clear(self.store, self.fence, ledger.raw(), space)).await?;
        match cleared {
            Outcome::Done => Ok(()),
            Outcome::Conflict => Err(ledger.forgotten()),
        }
    }
}
