//! What is asked about snapshots by whoever reads them: their bytes, and where they
//! differ.
//!
//! Invariant: an answer without a payload says that the snapshot is not there (any
//! more); it never means zeroes.

use bytes::Bytes;

/// A snapshot, and the one before it that it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Past {
    pub snapshot: u64,
    pub since: Option<u64>,
}

impl Past {
    pub fn encode(self) -> Bytes {
        let mut raw = self.snapshot.to_le_bytes().to_vec();
        raw.extend(self.since.iter().flat_map(|since| since.to_le_bytes()));
        raw.into()
    }

    pub fn decode(payload: &[u8]) -> Option<Past> {
        let word = |raw: &[u8]| Some(u64::from_le_bytes(raw.try_into().ok()?));
        match payload.len() {
            8 => Some(Past { snapshot: word(payload)?, since: None }),
            16 => Some(Past { snapshot: word(&payload[..8])?, since: Some(word(&payload[8..])?) }),
            _ => None,
        }
    }
}
