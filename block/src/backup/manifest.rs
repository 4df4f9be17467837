//! Which block is where in a backup.
//!
//! A line with format and hash, then JSON. Pieces that are all zeroes are not named.
//!
//! Invariant: what `decode` gives has its pieces in order, each once, inside the
//! volume; anything else is refused, and never panics.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    block::{BlockName, PIECE},
    vault::MANIFESTS,
};

const MAGIC: &str = "midflight-backup";
const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub volume: String,
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Bytes of the volume.
    pub size: u64,
    pub snapshot: Taken,
    /// The run that made it; see `lease`.
    pub run: String,
    /// Pieces by their number, oldest offset first.
    pub pieces: BTreeMap<u64, BlockName>,
}

/// The snapshot that it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    pub id: u64,
    pub name: String,
    /// The layer above it at that time. The first layer of every volume has the same
    /// id; the one above it tells volumes apart.
    pub above: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum BadManifest {
    #[error("it does not begin as a backup does")]
    Header,
    #[error("it has format {theirs}, this build reads {FORMAT}")]
    Format { theirs: u32 },
    #[error("its bytes have another hash")]
    Hash,
    #[error("it is not readable")]
    Json(#[from] serde_json::Error),
    #[error("it names a piece beyond the end of the volume")]
    Beyond,
    #[error("it is of {volume}/{name}")]
    Other { volume: String, name: String },
}

impl Manifest {
    pub fn path(volume: &str, name: &str) -> String {
        format!("{MANIFESTS}/{volume}/{name}")
    }

    pub fn encode(&self) -> Bytes {
        let body = serde_json::to_vec(self).expect("a manifest holds only plain fields");
        let mut raw = format!("{MAGIC} {FORMAT} {}\n", BlockName::of(&body).as_str()).into_bytes();
        raw.extend(body);
        raw.into()
    }

    pub fn decode(raw: &[u8]) -> Result<Manifest, BadManifest> {
        let end = raw.iter().take(256).position(|byte| *byte == b'\n').ok_or(BadManifest::Header)?;
        let line = std::str::from_utf8(&raw[..end]).map_err(|_| BadManifest::Header)?;
        let body = &raw[end + 1..];
        let mut words = line.split(' ');
        let (magic, format, hash) =
            (words.next(), words.next().and_then(|word| word.parse().ok()), words.next());
        if magic != Some(MAGIC) || words.next().is_some() {
            return Err(BadManifest::Header);
        }
        match format {
            Some(FORMAT) => {}
            Some(theirs) => return Err(BadManifest::Format { theirs }),
            None => return Err(BadManifest::Header),
        }
        if hash != Some(BlockName::of(body).as_str()) {
            return Err(BadManifest::Hash);
        }
        let manifest: Manifest = serde_json::from_slice(body)?;
        match manifest.pieces.keys().next_back() {
            Some(last) if *last >= manifest.size.div_ceil(PIECE) => Err(BadManifest::Beyond),
            Some(_) | None => Ok(manifest),
        }
    }

    /// Bytes of a piece of this volume.
    pub fn length(&self, piece: u64) -> u32 {
        (self.size - piece * PIECE).min(PIECE) as u32
    }
}
