//! One piece of a volume as it is kept: named by the hash of its bytes, compressed.
//!
//! ```text
//! "mfblock" · codec (1) · length of the bytes (4) · the bytes, compressed
//! ```
//!
//! Invariant: what `decode` gives has the hash that names it.

use std::fmt::Write;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes of a piece; the last one of a volume may be shorter.
pub const PIECE: u64 = 2 << 20;
const MAGIC: &[u8; 7] = b"mfblock";
const HEADER: usize = 12;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
/// See docs/decisions/block-backup.md for the figures.
const LEVEL: i32 = 3;

/// SHA-256 of the bytes, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlockName(String);

impl BlockName {
    pub fn of(data: &[u8]) -> BlockName {
        let mut name = String::with_capacity(64);
        for byte in Sha256::digest(data) {
            write!(name, "{byte:02x}").expect("a string takes everything");
        }
        BlockName(name)
    }

    pub fn path(&self) -> String {
        format!("blocks/{}/{}", &self.0[..2], self.0)
    }

    /// The block that is kept at a path, if one can be.
    pub fn at(path: &str) -> Option<BlockName> {
        BlockName::try_from(path.rsplit('/').next()?.to_owned()).ok()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for BlockName {
    type Error = String;

    fn try_from(text: String) -> Result<BlockName, String> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match text.len() == 64 && text.bytes().all(hex) {
            true => Ok(BlockName(text)),
            false => Err(format!("{text:?} is not the name of a block")),
        }
    }
}

impl From<BlockName> for String {
    fn from(name: BlockName) -> String {
        name.0
    }
}

/// Why a block is not what its name says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadBlock {
    #[error("it is not there")]
    Missing,
    #[error("it has no header")]
    Header,
    #[error("it is kept by method {0}, which this build does not know")]
    Codec(u8),
    #[error("it cannot be unpacked")]
    Packed,
    #[error("its bytes have another hash")]
    Hash,
}

pub fn encode(data: &[u8]) -> Bytes {
    let packed = zstd::bulk::compress(data, LEVEL).ok().filter(|packed| packed.len() < data.len());
    let (codec, body) = packed.as_deref().map_or((PLAIN, data), |packed| (ZSTD, packed));
    let mut raw = Vec::with_capacity(HEADER + body.len());
    raw.extend(MAGIC);
    raw.push(codec);
    raw.extend((data.len() as u32).to_le_bytes());
    raw.extend(body);
    raw.into()
}

/// Never allocates more than a piece, whatever the header claims.
pub fn decode(name: &BlockName, raw: &[u8]) -> Result<Vec<u8>, BadBlock> {
    let (header, body) = raw.split_at_checked(HEADER).ok_or(BadBlock::Header)?;
    let length = u32::from_le_bytes(header[8..].try_into().map_err(|_| BadBlock::Header)?) as usize;
    if &header[..7] != MAGIC || length as u64 > PIECE {
        return Err(BadBlock::Header);
    }
    let data = match header[7] {
        PLAIN => body.to_vec(),
        ZSTD => zstd::bulk::decompress(body, length).map_err(|_| BadBlock::Packed)?,
        other => return Err(BadBlock::Codec(other)),
    };
    match data.len() == length && BlockName::of(&data) == *name {
        true => Ok(data),
        false => Err(BadBlock::Hash),
    }
}
