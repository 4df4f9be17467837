//! Commit in place: a journal of the differences, a marker, and a replay that anyone can finish.
//!
//! In a journal, a row of table `+T` holds the value that row of `T` is to have, and a row of
//! table `-T` says that there is to be no such row.
//!
//! The one invariant: no live row is written before the marker stands, and from then on every
//! start replays the journal before it looks at any row.

use bytes::Bytes;

use super::generation::begin;
use super::ledger::{Ledger, Sealed, Step, Written};
use super::seal::Seal;
use super::write::{Part, beside};
use super::{Applied, Changed, CommitError, Phase, RunNote, RunRecord, Session, Stage, Taken};
use crate::backup::BackupError;
use crate::diff::{self, Change};
use crate::record::{RowKey, Snapshot, Table};
use crate::store::{Generation, Layout, Op, Place, Reading, Space, StoreError, puts};

impl Session<'_> {
    pub(super) async fn write_in_place(
        &self,
        taken: &Taken,
        after: &Snapshot,
        note: RunNote,
        backup: impl Future<Output = Result<(), BackupError>>,
    ) -> Result<Applied, CommitError> {
        let staging = begin(taken, after, note, Layout::Dragonflow, Generation::EMPTY);
        let run = staging.run;
        let ledger = self.advance(&taken.ledger, &staging, vec![], None).await?;

        let journals = [
            (Space::Journal(run), difference(&taken.snapshot, after)),
            (Space::Undo(run), difference(after, &taken.snapshot)),
            (Space::Seal(run), Seal::of(after).to_rows()),
        ];
        let staged = beside(self.stage_journals(&ledger, &journals), backup).await;
        let written = self.or_unstage(&ledger, &staging, staged).await?;

        let committed = staging.at(Phase::Committed);
        let step = Step { from: &ledger, to: &committed, guard: None, pointer: None };
        let marked = self.advance_unless_written(taken, step).await;
        let (marked, switch) = self.or_unstage(&ledger, &staging, marked).await?;
        let [(_, journal), ..] = &journals;
        self.replay_and_record(&marked, &committed, journal).await?;
        let meanwhile = self.written_meanwhile(after).await;
        Ok(Applied { run, switch, written: written + journal.len() as u64, meanwhile })
    }

    /// Writes the journals, and reads them back.
    async fn stage_journals(
        &self,
        ledger: &Ledger,
        journals: &[(Space, Snapshot)],
    ) -> Result<u64, CommitError> {
        let total = journals.iter().map(|(_, rows)| rows.len() as u64).sum();
        let mut written = 0;
        for (space, rows) in journals {
            let part = Part { before: written, total };
            written += self.write_all(Stage::Staging, ledger, part, puts(*space, rows)).await?;
        }
        let staged: Vec<_> = journals.iter().map(|(space, rows)| (*space, rows)).collect();
        self.flush_and_verify(&staged).await?;
        Ok(written)
    }

    /// What is not as it was just written. The run is complete whatever comes of this look.
    async fn written_meanwhile(&self, after: &Snapshot) -> Changed {
        match self.verify(Part { before: 0, total: after.len() as u64 }, Space::Plain, after).await {
            Ok(()) => Changed::default(),
            Err(CommitError::NotAsWritten { rows, .. }) => rows,
            Err(error) => {
                tracing::warn!(%error, "the rows could not be read once more");
                Changed::default()
            }
        }
    }

    /// Finishes a run whose marker stands.
    pub(super) async fn complete(&self, ledger: &Ledger, record: &RunRecord) -> Result<(), CommitError> {
        let (journal, _) = self.collect(Space::Journal(record.run), Reading::Once).await?;
        self.replay_and_record(ledger, record, &journal).await
    }

    /// The journal goes before the record says so: what was replayed once may be replayed in
    /// part, and nothing is left behind.
    async fn replay_and_record(
        &self,
        ledger: &Ledger,
        record: &RunRecord,
        journal: &Snapshot,
    ) -> Result<(), CommitError> {
        self.replay(ledger, journal).await?;
        self.clear(ledger, Space::Journal(record.run)).await?;
        let applied = self.advance(ledger, &record.at(Phase::Applied), vec![], None).await?;
        self.anchor(&applied).await
    }

    pub(super) async fn restore_in_place(
        &self,
        ledger: &Ledger,
        record: &RunRecord,
        written: Written<'_>,
    ) -> Result<(), CommitError> {
        let sealed = Sealed { live: Space::Plain, old: None };
        let unwritten = self.as_sealed(record, sealed, written).await?;
        let undoing = record.at(Phase::Undoing);
        let ledger = self.advance(ledger, &undoing, vec![unwritten], None).await?;
        match written {
            Written::Refused => self.stay_if_written(&ledger, record, sealed, None).await?,
            Written::GivenUp(_) => {}
        }
        self.undo(&ledger, &undoing).await
    }

    /// Finishes a roll-back. With generations the swap was the whole of it.
    pub(super) async fn undo(&self, ledger: &Ledger, record: &RunRecord) -> Result<(), CommitError> {
        if record.layout == Layout::Dragonflow {
            let (undo, _) = self.collect(Space::Undo(record.run), Reading::Once).await?;
            self.replay(ledger, &undo).await?;
        }
        self.settle(ledger, record, Phase::RolledBack).await
    }

    /// Writes until a flush confirms that nothing of it was lost by a restart of the server. Every
    /// write carries the marker: without it the rows would be a mixture that nobody completes.
    async fn replay(&self, ledger: &Ledger, journal: &Snapshot) -> Result<(), CommitError> {
        const TRIES: usize = 5;
        let tables = journal_tables(journal)?;
        let mut last = Ok(());
        for _ in 0..TRIES {
            let part = Part { before: 0, total: journal.len() as u64 };
            self.write_all(Stage::Replaying, ledger, part, replay_ops(&tables, journal)).await?;
            self.report(Stage::Syncing, 0, 0);
            last = self.store.flush().await;
            match &last {
                Err(error) if error.is_transient() => tracing::warn!(%error, "replaying again"),
                Ok(()) | Err(_) => break,
            }
        }
        Ok(last?)
    }
}

/// What turns `before` into `after`, as rows of a journal. Values are shared, not copied.
fn difference(before: &Snapshot, after: &Snapshot) -> Snapshot {
    let mut journal = Snapshot::default();
    let mut names: Option<(&Table, Table, Table)> = None;
    for (table, key, change) in diff::changes(before, after) {
        if names.as_ref().is_none_or(|(of, _, _)| *of != table) {
            names = Some((table, Table::new(format!("+{table}")), Table::new(format!("-{table}"))));
        }
        let Some((_, put, remove)) = &names else { continue };
        match change {
            Change::Added { after } | Change::Changed { after, .. } => {
                journal.put(put, key.clone(), after.clone());
            }
            Change::Removed { .. } => journal.put(remove, key.clone(), Bytes::new()),
        }
    }
    journal
}

/// What the rows of one table of a journal ask for.
enum Asks {
    Put,
    Remove,
}

/// The live table behind each table of a journal.
fn journal_tables(journal: &Snapshot) -> Result<Vec<(Table, Table, Asks)>, StoreError> {
    let read = |name: &Table| match name.as_str().split_at_checked(1) {
        Some(("+", table)) => Ok((name.clone(), Table::new(table), Asks::Put)),
        Some(("-", table)) => Ok((name.clone(), Table::new(table), Asks::Remove)),
        Some(_) | None => Err(StoreError::Unreadable {
            place: format!("journal table {name}"),
            reason: "it begins neither with + nor with -".to_owned(),
        }),
    };
    journal.tables().map(|(name, _)| read(name)).collect()
}

fn replay_ops<'a>(
    tables: &'a [(Table, Table, Asks)],
    journal: &'a Snapshot,
) -> impl Iterator<Item = Op<'a>> + Send {
    tables.iter().flat_map(|(name, table, asks)| {
        journal.rows(name).map(move |(key, value): (&RowKey, &Bytes)| {
            let place = Place::Row { space: Space::Plain, table, key };
            match asks {
                Asks::Put => Op::Put { place, value },
                Asks::Remove => Op::Remove { place },
            }
        })
    })
}
