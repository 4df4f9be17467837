//! What is written down about a run, so that a successor knows what to finish.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::CommitError;
use crate::store::{Generation, Layout, RunNumber, Space};

/// Where a run stands. Stored in the database, so names are part of the format.
///
/// ```text
/// Staging ──swap pointer────────────────────────▶ Applied ──finalize──▶ Finalizing ──▶ Finalized
///    │ └──write marker──▶ Committed ──replay──────▲  └──roll back──▶ Undoing ──▶ RolledBack
///    └──interrupted──▶ Abandoning ──▶ Abandoned
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// The old rows are live; what was staged so far can be thrown away.
    Staging,
    /// The old rows are live; what was staged is being deleted.
    Abandoning,
    /// The rows are being overwritten from the journal; nobody may read them.
    Committed,
    /// The new rows are live and the old ones still there.
    Applied,
    /// The way back was chosen; in place, the rows are being restored.
    Undoing,
    /// The new rows are live for good; the old ones are being deleted.
    Finalizing,
    Finalized,
    RolledBack,
    Abandoned,
}

impl Phase {
    /// Whether nothing of the run is left but its record.
    pub fn is_settled(self) -> bool {
        match self {
            Phase::Finalized | Phase::RolledBack | Phase::Abandoned => true,
            Phase::Staging
            | Phase::Abandoning
            | Phase::Committed
            | Phase::Applied
            | Phase::Undoing
            | Phase::Finalizing => false,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Phase::Staging => "staging",
            Phase::Abandoning => "being abandoned",
            Phase::Committed => "committed",
            Phase::Applied => "applied",
            Phase::Undoing => "undoing",
            Phase::Finalizing => "finalizing",
            Phase::Finalized => "finalized",
            Phase::RolledBack => "rolled back",
            Phase::Abandoned => "abandoned",
        }
    }
}

/// What the caller wants to be known of its run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunNote {
    /// Release the database is at afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Ids of the migrations, in order.
    pub migrations: Vec<String>,
    /// Digest over the migrations, to tell one set from another.
    pub digest: String,
    /// Version of the tool.
    pub tool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// The cloud upgrade that the run is a step of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_of: Option<String>,
}

/// The last run, as its note in the database has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRecord {
    pub run: RunNumber,
    pub layout: Layout,
    pub phase: Phase,
    /// The generation that was live before; of no meaning in place.
    pub from: Generation,
    /// Rows before and after.
    pub before: u64,
    pub after: u64,
    pub note: RunNote,
    /// The pointer that was there before, to be put back as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<Pointer>,
}

impl RunRecord {
    /// The same run, a step further.
    pub(super) fn at(&self, phase: Phase) -> RunRecord {
        RunRecord { phase, ..self.clone() }
    }

    /// How many rows were live when the record was written.
    pub(super) fn live_rows(&self) -> u64 {
        match self.phase {
            Phase::Applied | Phase::Finalizing | Phase::Finalized => self.after,
            Phase::Staging
            | Phase::Abandoning
            | Phase::Committed
            | Phase::Undoing
            | Phase::RolledBack
            | Phase::Abandoned => self.before,
        }
    }

    /// Whether old and new rows lie side by side under the same keys.
    pub fn rows_are_mixed(&self) -> bool {
        let midway = match self.phase {
            Phase::Committed | Phase::Undoing => true,
            Phase::Staging
            | Phase::Abandoning
            | Phase::Applied
            | Phase::Finalizing
            | Phase::Finalized
            | Phase::RolledBack
            | Phase::Abandoned => false,
        };
        midway && self.layout == Layout::Dragonflow
    }

    /// What has to be deleted before the run may be called `settled`.
    pub(super) fn leavings(&self, settled: Phase) -> Vec<Space> {
        let (run, seal) = (self.run, Space::Seal(self.run));
        match (self.layout, settled) {
            (Layout::Dragonflow, _) => vec![Space::Journal(run), Space::Undo(run), seal],
            (Layout::Generation, Phase::Finalized) => vec![Space::Generation(self.from), seal],
            (Layout::Generation, _) => vec![Space::Generation(Generation::of(run)), seal],
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a record of plain fields always encodes").into()
    }
}

/// Names the live generation. Writers of the generation layout put "the pointer is still the one
/// I read" as a condition on each of their writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pointer {
    pub generation: Generation,
    /// Kept until the run is finalized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<Generation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Digest over the migrations that led here.
    #[serde(default)]
    pub digest: String,
}

impl Pointer {
    /// A database without a pointer stands at the empty generation.
    pub(super) fn decode(note: Option<&Bytes>) -> Result<Pointer, CommitError> {
        match note {
            Some(bytes) => {
                serde_json::from_slice(bytes).map_err(|source| CommitError::Note { note: "pointer", source })
            }
            None => Ok(Pointer::default()),
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a pointer of plain fields always encodes").into()
    }
}
