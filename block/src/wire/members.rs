//! What engine and replica tell each other about who is in service.
//!
//! Invariant: a reader never takes in a block beyond the volume it was told of.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::layout::Layout;
use crate::{
    blocks::{Blocks, REGION_BITS, Run},
    epoch::Epoch,
};

/// Most runs of blocks in one message; sets of more are rounded up.
const MOST_RUNS: usize = 1 << 20;

/// What a replica says when it gives its promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promised {
    /// Epoch of the last write it applied.
    pub last_write: Epoch,
    /// Member version at which it was last in service.
    pub version: u64,
    /// Whether its machine was started since it was last in service: what it had
    /// not synced is lost.
    pub lost_power: bool,
    /// Regions written since all copies were known to be equal, as runs.
    pub regions: Vec<(u64, u64)>,
    pub layout: Layout,
    /// Whether a layer was found damaged, or is not all there.
    pub damaged: bool,
    /// What was found damaged, in words for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// The member version of a record that nobody was ever dropped from.
const FIRST_VERSION: u64 = 1;

impl Promised {
    /// Whether the copy is known not to have all that it was to keep: it lost power with something not synced,
    /// or a part of it is damaged, or it is new although the record, at this version, has counted it for long.
    pub fn lacks(&self, version: u64) -> bool {
        let lost = self.lost_power && !self.regions.is_empty();
        lost || self.damaged || self.version == 0 && version > FIRST_VERSION
    }

    pub fn regions(&self) -> Blocks {
        let limit = self.layout.size.div_ceil(1 << REGION_BITS);
        let mut regions = Blocks::default();
        for (first, count) in &self.regions {
            let end = first.saturating_add(*count).min(limit);
            regions.insert_all(Run { first: *first, count: end.saturating_sub(*first) });
        }
        regions
    }

    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a promise holds only plain fields").into()
    }

    pub fn decode(payload: &[u8]) -> Option<Promised> {
        serde_json::from_slice(payload).ok()
    }
}

/// What a copy that is about to be rebuilt has of the layers it was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Snapshots that are there; none when even the head is, as it was at some time.
    pub snapshots: Option<usize>,
}

impl Joined {
    pub fn encode(self) -> Bytes {
        serde_json::to_vec(&self).expect("it holds only plain fields").into()
    }

    pub fn decode(payload: &[u8]) -> Option<Joined> {
        serde_json::from_slice(payload).ok()
    }
}

/// What a copy of the volume misses, since it was in service at `from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    pub replica: u64,
    pub from: u64,
    pub blocks: Blocks,
}

impl Missing {
    pub fn encode(&self) -> Bytes {
        let mut raw = self.replica.to_le_bytes().to_vec();
        raw.extend(self.from.to_le_bytes());
        raw.extend(self.blocks.encode(MOST_RUNS));
        raw.into()
    }

    /// `limit` is the number of blocks of the volume.
    pub fn decode(payload: &[u8], limit: u64) -> Option<Missing> {
        let word = |at: usize| Some(u64::from_le_bytes(payload.get(at..at + 8)?.try_into().ok()?));
        Some(Missing { replica: word(0)?, from: word(8)?, blocks: Blocks::decode(payload.get(16..)?, limit) })
    }
}
