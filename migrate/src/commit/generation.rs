//! Commit by generations: everything is staged beside what is live, and one swap makes it live.
//!
//! The one invariant: a generation that was live is not written by us again, so the way back is
//! the same swap in the other direction.

use super::ledger::{Ledger, Sealed, Step, Written};
use super::seal::Seal;
use super::write::{Part, beside};
use super::{Applied, Changed, CommitError, Phase, Pointer, RunNote, RunRecord, Session, Stage, Taken, live};
use crate::backup::BackupError;
use crate::record::Snapshot;
use crate::store::{Generation, Guard, Layout, Note, Reading, RunNumber, Space, puts};

impl Session<'_> {
    pub(super) async fn switch_generation(
        &self,
        taken: &Taken,
        after: &Snapshot,
        note: RunNote,
        backup: impl Future<Output = Result<(), BackupError>>,
    ) -> Result<Applied, CommitError> {
        let from = Pointer::decode(taken.pointer.as_ref())?.generation;
        let pointer = taken.pointer.as_ref().map(|raw| Pointer::decode(Some(raw))).transpose()?;
        let staging = RunRecord { pointer, ..begin(taken, after, note, Layout::Generation, from) };
        let run = staging.run;
        let same_pointer = Guard::Note { note: Note::Pointer, is: taken.pointer.clone() };
        let ledger = self.advance(&taken.ledger, &staging, vec![same_pointer.clone()], None).await?;

        let staged = beside(self.stage_generation(&ledger, run, after), backup).await;
        let written = self.or_unstage(&ledger, &staging, staged).await?;

        let pointer = Pointer {
            generation: Generation::of(run),
            previous: Some(from),
            release: staging.note.release.clone(),
            digest: staging.note.digest.clone(),
        };
        let applied = staging.at(Phase::Applied);
        let step =
            Step { from: &ledger, to: &applied, guard: Some(same_pointer), pointer: Some(pointer.encode()) };
        let switched = self.advance_unless_written(taken, step).await;
        let (switched, switch) = self.or_unstage(&ledger, &staging, switched).await?;
        self.report(Stage::Syncing, 0, 0);
        self.anchor(&switched).await?;
        Ok(Applied { run, switch, written, meanwhile: Changed::default() })
    }

    /// Writes the new generation and its seal, and reads both back.
    async fn stage_generation(
        &self,
        ledger: &Ledger,
        run: RunNumber,
        after: &Snapshot,
    ) -> Result<u64, CommitError> {
        let staged = Space::Generation(Generation::of(run));
        let total = (after.len() + Seal::rows_for(after.len())) as u64;
        let write = self.write_all(Stage::Staging, ledger, Part { before: 0, total }, puts(staged, after));
        let (seal, written) = Seal::beside(after, write).await;
        let (seal, before) = (seal.to_rows(), written?);
        let seal_rows = puts(Space::Seal(run), &seal);
        let written =
            before + self.write_all(Stage::Staging, ledger, Part { before, total }, seal_rows).await?;
        self.flush_and_verify(&[(staged, after), (Space::Seal(run), &seal)]).await?;
        Ok(written)
    }

    pub(super) async fn switch_back(
        &self,
        ledger: &Ledger,
        record: &RunRecord,
        written: Written<'_>,
    ) -> Result<(), CommitError> {
        let (raw, space) = live(self.store).await?;
        self.check_old_rows(record).await?;
        let sealed = Sealed { live: space, old: Some(Space::Generation(record.from)) };
        let unwritten = self.as_sealed(record, sealed, written).await?;
        let bare = || Pointer { generation: record.from, ..Pointer::default() };
        let back = record.pointer.clone().unwrap_or_else(bare).encode();
        let guards = vec![Guard::Note { note: Note::Pointer, is: raw.clone() }, unwritten];
        let undoing = record.at(Phase::Undoing);
        let ledger = self.advance(ledger, &undoing, guards, Some(&back)).await?;
        match written {
            Written::Refused => self.stay_if_written(&ledger, record, sealed, raw.as_ref()).await?,
            Written::GivenUp(_) => {}
        }
        self.settle(&ledger, &undoing, Phase::RolledBack).await
    }

    /// The generation that is to be live again is all there. Before the first one there was none: what it
    /// took over, if anything, stands under keys of another layout.
    async fn check_old_rows(&self, record: &RunRecord) -> Result<(), CommitError> {
        if record.from == Generation::EMPTY {
            return Ok(());
        }
        let generation = Space::Generation(record.from);
        let (old, _) = self.collect(generation, Reading::Once).await?;
        let (found, expected) = (old.len() as u64, record.before);
        if found == expected { Ok(()) } else { Err(CommitError::OldRowsGone { generation, found, expected }) }
    }

    /// From here on there is no way back: the pointer no longer names the old generation.
    pub(super) async fn forget_previous(
        &self,
        ledger: &Ledger,
        finalizing: &RunRecord,
    ) -> Result<Ledger, CommitError> {
        let raw = self.patiently(|| self.store.note(Note::Pointer)).await?;
        let pointer = Pointer { previous: None, ..Pointer::decode(raw.as_ref())? }.encode();
        let guards = vec![Guard::Note { note: Note::Pointer, is: raw }];
        self.advance(ledger, finalizing, guards, Some(&pointer)).await
    }
}

/// The record of a run that is about to begin.
pub(super) fn begin(
    taken: &Taken,
    after: &Snapshot,
    note: RunNote,
    layout: Layout,
    from: Generation,
) -> RunRecord {
    RunRecord {
        run: taken.ledger.record.as_ref().map_or(RunNumber::FIRST, |last| last.run.next()),
        layout,
        phase: Phase::Staging,
        from,
        before: taken.snapshot.len() as u64,
        after: after.len() as u64,
        note,
        pointer: None,
    }
}
