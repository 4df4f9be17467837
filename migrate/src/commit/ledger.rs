//! The run note, and the only way it changes: by compare-and-swap under the lock.
//!
//! The one invariant: a step whose answer was lost is looked up before it is tried again, so it
//! happens once.

use bytes::Bytes;

use super::write::Retry;
use super::{CommitError, RunRecord, Session};
use crate::store::{Batch, Guard, Note, Op, Outcome, Place, Store};

/// The note as it was read, byte for byte, and what it says.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    raw: Option<Bytes>,
    pub(super) record: Option<RunRecord>,
}

impl Ledger {
    pub(super) async fn read(store: &dyn Store) -> Result<Ledger, CommitError> {
        let raw = store.note(Note::Run).await?;
        let record = raw
            .as_ref()
            .map(|bytes| serde_json::from_slice(bytes))
            .transpose()
            .map_err(|source| CommitError::Note { note: "run", source })?;
        Ok(Ledger { raw, record })
    }
}

impl Session<'_> {
    /// Moves the run a step further, together with the pointer if one is given.
    pub(super) async fn advance(
        &self,
        from: &Ledger,
        to: &RunRecord,
        mut guards: Vec<Guard>,
        pointer: Option<&Bytes>,
    ) -> Result<Ledger, CommitError> {
        let next = to.encode();
        guards.push(Guard::Note { note: Note::Run, is: from.raw.clone() });
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

    async fn stands_at(&self, expected: &Bytes) -> Result<bool, CommitError> {
        Ok(self.store.note(Note::Run).await?.as_ref() == Some(expected))
    }
}
