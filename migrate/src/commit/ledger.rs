//! The run note, and the only way it changes: by compare-and-swap under the lock.
//!
//! The one invariant: a step whose answer was lost is looked up before it is tried again, so it
//! happens once.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::seal::Seal;
use super::write::{Retry, patiently};
use super::{Changed, CommitError, Pointer, RunRecord, Session, Stage, Taken};
use crate::record::Snapshot;
use crate::store::{
    Batch, Guard, Note, Op, Outcome, Place, Reading, Revision, RunNumber, Space, Store, StoreError,
};

/// The note as it was read, byte for byte, and what it says.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    raw: Option<Bytes>,
    pub(super) record: Option<RunRecord>,
    /// False where the step that led here got no answer, and was found to have happened.
    answered: bool,
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
        Ok(Ledger { raw, record, answered: true })
    }

    /// The note as it was read.
    pub(super) fn raw(&self) -> Option<&Bytes> {
        self.raw.as_ref()
    }
}

/// The step of a run that makes its rows live.
pub(super) struct Step<'l> {
    pub(super) from: &'l Ledger,
    pub(super) to: &'l RunRecord,
    pub(super) guard: Option<Guard>,
    pub(super) pointer: Option<Bytes>,
}

/// The rows that a run has sealed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealed {
    pub(super) live: Space,
    /// May hold the names of rows that are gone.
    pub(super) old: Option<Space>,
}

/// What becomes of rows that were written since the run.
#[derive(Clone, Copy)]
pub(super) enum Written<'t> {
    Refused,
    /// They are told first.
    GivenUp(&'t (dyn Fn(&Changed) + Sync)),
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
        let mut since = self.patiently(|| self.store.confirm(taken.space, taken.at)).await?;
        for _ in 0..TRIES {
            if let Some(since) = since {
                let mut guards = vec![Guard::Unchanged { space: taken.space, since }];
                guards.extend(step.guard.clone());
                self.report(Stage::Switching, 0, 1);
                let began = Instant::now();
                match self.advance(step.from, step.to, guards, step.pointer.as_ref()).await {
                    Err(CommitError::Conflict) => {}
                    Err(error) => return Err(error),
                    Ok(ledger) => {
                        let took = began.elapsed();
                        if !ledger.answered {
                            self.take_back_if_written(taken, &step, &ledger).await?;
                        }
                        return Ok((ledger, took));
                    }
                }
            }
            since = self.same_rows(taken).await?;
        }
        Err(CommitError::Conflict)
    }

    /// The answer would have said whether somebody wrote in the same moment.
    async fn take_back_if_written(
        &self,
        taken: &Taken,
        step: &Step<'_>,
        ledger: &Ledger,
    ) -> Result<(), CommitError> {
        let (written, before) = match (self.same_rows(taken).await, &step.from.record) {
            (Err(CommitError::Writers(written)), Some(before)) => (written, before),
            (same, _) => return same.map(|_| ()),
        };
        let pointer = match &step.pointer {
            Some(_) => Some(Pointer::decode(taken.pointer.as_ref())?.encode()),
            None => None,
        };
        self.advance(ledger, before, vec![], pointer.as_ref()).await?;
        Err(CommitError::Writers(written))
    }

    /// Reads the rows again, guarded, and names those that are not as they were taken. None, if
    /// somebody wrote right behind that.
    async fn same_rows(&self, taken: &Taken) -> Result<Option<Revision>, CommitError> {
        let (now, at) = self.collect(taken.space, Reading::Guarded).await?;
        let changed = Changed::between(&taken.snapshot, &now);
        if !changed.is_empty() {
            return Err(CommitError::Writers(changed));
        }
        drop(now);
        Ok(self.patiently(|| self.store.confirm(taken.space, at)).await?)
    }

    /// Makes sure that the live rows are as the run left them, or that nobody minds, and gives the guard that they
    /// stay so.
    pub(super) async fn as_sealed(
        &self,
        record: &RunRecord,
        sealed: Sealed,
        written: Written<'_>,
    ) -> Result<Guard, CommitError> {
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            let (changed, at) = self.unlike_seal(record, sealed).await?;
            match written {
                Written::Refused if !changed.is_empty() => return Err(CommitError::Modified(changed)),
                Written::GivenUp(tell) if !changed.is_empty() => tell(&changed),
                Written::Refused | Written::GivenUp(_) => {}
            }
            if let Some(since) = self.patiently(|| self.store.confirm(sealed.live, at)).await? {
                return Ok(Guard::Unchanged { space: sealed.live, since });
            }
        }
        Err(CommitError::Conflict)
    }

    /// The rows that are not as the run left them, in a guarded reading.
    async fn unlike_seal(
        &self,
        record: &RunRecord,
        sealed: Sealed,
    ) -> Result<(Changed, Revision), CommitError> {
        let (seal, _) = self.collect(Space::Seal(record.run), Reading::Once).await?;
        let seal = Seal::from_rows(&seal);
        let (now, at) = self.collect(sealed.live, Reading::Guarded).await?;
        let changed = seal.compare(&now, &Snapshot::default());
        match sealed.old {
            Some(old) if !changed.is_empty() => {
                let (old, _) = self.collect(old, Reading::Once).await?;
                Ok((seal.compare(&now, &old), at))
            }
            Some(_) | None => Ok((changed, at)),
        }
    }

    /// Turns a roll-back round whose answer was lost: it would have said whether somebody wrote in the same moment.
    /// Nothing was deleted or put back yet.
    pub(super) async fn stay_if_written(
        &self,
        ledger: &Ledger,
        record: &RunRecord,
        sealed: Sealed,
        pointer: Option<&Bytes>,
    ) -> Result<(), CommitError> {
        if ledger.answered {
            return Ok(());
        }
        let (changed, _) = self.unlike_seal(record, sealed).await?;
        if changed.is_empty() {
            return Ok(());
        }
        self.advance(ledger, record, vec![], pointer).await?;
        Err(CommitError::Modified(changed))
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
        let mut retry = Retry::new(self.patience);
        let answered = loop {
            match self.store.commit(self.fence, &batch).await {
                Ok(Outcome::Done) => break true,
                // Refused on a second try: the first one may have been it.
                Ok(Outcome::Conflict) if retry.began() && self.stands_at(Some(&next)).await? => break false,
                Ok(Outcome::Conflict) if self.stands_at(from.raw()).await? => {
                    return Err(CommitError::Conflict);
                }
                Ok(Outcome::Conflict) => return Err(from.forgotten()),
                Err(refusal @ StoreError::Refused { .. }) if retry.began() => {
                    return Err(CommitError::Unsure { refusal });
                }
                Err(error) => retry.after(error).await?,
            }
        };
        Ok(Ledger { raw: Some(next.clone()), record: Some(to.clone()), answered })
    }

    /// Returns when the step that led here can no longer be lost: everything written is durable, and the
    /// note, which was written last, is still there. A server that was started anew may have forgotten it.
    pub(super) async fn anchor(&self, ledger: &Ledger) -> Result<(), CommitError> {
        self.flush().await?;
        if self.stands_at(ledger.raw()).await? { Ok(()) } else { Err(ledger.forgotten()) }
    }

    async fn stands_at(&self, expected: Option<&Bytes>) -> Result<bool, CommitError> {
        Ok(self.patiently(|| self.store.note(Note::Run)).await?.as_ref() == expected)
    }
}
