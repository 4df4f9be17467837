//! The run note, and the only way it changes: by compare-and-swap under the lock.
//!
//! The one invariant: a step whose answer was lost is looked up before it is tried again, so it
//! happens once.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::write::{Retry, patiently};
use super::{Changed, CommitError, RunRecord, Session, Stage, Taken};
use crate::store::{Batch, Guard, Note, Op, Outcome, Place, Reading, Revision, RunNumber, Store};

/// The note as it was read, byte for byte, and what it says.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    raw: Option<Bytes>,
    pub(super) record: Option<RunRecord>,
}

impl Ledger {
    /// Lets a batch through only while the note is this one.
    pub(super) fn guard(&self) -> Guard {
        Guard::Note { note: Note::Run, is: self.raw.clone() }
    }

    pub(super) fn forgotten(&self) -> CommitError {
        CommitError::Forgotten { run: self.record.as_ref().map_or(RunNumber::FIRST, |record| record.run) }
    }

    pub(super) async fn read(store: &dyn Store) -> Result<Ledger, CommitError> {
        let raw = patiently(|| store.note(Note::Run)).await?;
        let record = raw
            .as_ref()
            .map(|bytes| serde_json::from_slice(bytes))
            .transpose()
            .map_err(|source| CommitError::Note { note: "run", source })?;
        Ok(Ledger { raw, record })
    }
}

/// The step of a run that makes its rows live.
pub(super) struct Step<'l> {
    pub(super) from: &'l Ledger,
    pub(super) to: &'l RunRecord,
    pub(super) guard: Option<Guard>,
    pub(super) pointer: Option<Bytes>,
}

impl Session<'_> {
    /// Takes the step if nobody has written since the rows were taken, and says how long the one
    /// write took. Where it was refused for no visible reason (Redis forgets what it watches when
    /// the connection breaks), the rows are read again, compared, and guarded anew.
    pub(super) async fn advance_unless_written(
        &self,
        taken: &Taken,
        step: Step<'_>,
    ) -> Result<(Ledger, Duration), CommitError> {
        const TRIES: usize = 3;
        self.report(Stage::Confirming, 0, taken.snapshot.len() as u64);
        let mut since = patiently(|| self.store.confirm(taken.space, taken.at)).await?;
        for _ in 0..TRIES {
            let now = match since {
                Some(since) => since,
                None => self.same_rows(taken).await?,
            };
            let mut guards = vec![Guard::Unchanged { space: taken.space, since: now }];
            guards.extend(step.guard.clone());
            self.report(Stage::Switching, 0, 1);
            let began = Instant::now();
            match self.advance(step.from, step.to, guards, step.pointer.as_ref()).await {
                Err(CommitError::Conflict) => since = None,
                Err(error) => return Err(error),
                Ok(ledger) => return Ok((ledger, began.elapsed())),
            }
        }
        Err(CommitError::Conflict)
    }

    /// Reads the rows again, guarded, and names those that are not as they were taken.
    async fn same_rows(&self, taken: &Taken) -> Result<Revision, CommitError> {
        let (now, at) = self.collect(taken.space, Reading::Guarded).await?;
        let changed = Changed::between(&taken.snapshot, &now);
        if changed.is_empty() { Ok(at) } else { Err(CommitError::Writers(changed)) }
    }

    /// Moves the run a step further, together with the pointer if one is given.
    pub(super) async fn advance(
        &self,
        from: &Ledger,
        to: &RunRecord,
        mut guards: Vec<Guard>,
        pointer: Option<&Bytes>,
    ) -> Result<Ledger, CommitError> {
        let next = to.encode();
        guards.push(from.guard());
        let mut ops = vec![Op::Put { place: Place::Note(Note::Run), value: &next }];
        ops.extend(pointer.map(|value| Op::Put { place: Place::Note(Note::Pointer), value }));
        let batch = Batch { guards, ops };
        let mut retry = Retry::default();
        loop {
            match self.store.commit(self.fence, &batch).await {
                Ok(Outcome::Done) => break,
                // Refused on a second try: the first one may have been it.
                Ok(Outcome::Conflict) if retry.began() && self.stands_at(&next).await? => break,
                Ok(Outcome::Conflict) => return Err(CommitError::Conflict),
                Err(error) => retry.after(error).await?,
            }
        }
        Ok(Ledger { raw: Some(next.clone()), record: Some(to.clone()) })
    }

    /// Returns when the step that led here can no longer be lost. Before that, nothing may be deleted
    /// that is needed without the step: a server that is started anew may have forgotten it.
    pub(super) async fn anchor(&self, ledger: &Ledger) -> Result<(), CommitError> {
        self.flush().await?;
        match &ledger.raw {
            Some(raw) if !self.stands_at(raw).await? => Err(ledger.forgotten()),
            Some(_) | None => Ok(()),
        }
    }

    async fn stands_at(&self, expected: &Bytes) -> Result<bool, CommitError> {
        Ok(patiently(|| self.store.note(Note::Run)).await?.as_ref() == Some(expected))
    }
}
