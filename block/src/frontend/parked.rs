//! What a frontend leaves behind for its successor, as bytes.
//!
//! Invariant: what was asked and not answered is in it, once and in order; so is
//! every byte that was read and not understood, or answered and not sent.

use std::path::PathBuf;

use bytes::{Buf, Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    core::Standing,
    table::{Op, Request},
};
use crate::{epoch::Epoch, nbd::handshake::Handshake};

/// Of all three formats below. A successor that does not know it goes on
/// without: its clients have to connect again.
const VERSION: u32 = 1;

/// A volume that is offered; kept all the time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParkedVolume {
    pub(super) volume: String,
    pub(super) size: u64,
    pub(super) socket: PathBuf,
    pub(super) standing: Standing,
}

/// What was asked of a volume and not answered; left behind by a frontend that
/// ends on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParkedTable {
    pub(super) volume: String,
    /// The last epoch of which the table knows everything.
    pub(super) epoch: Epoch,
    pub(super) requests: Vec<ParkedRequest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParkedRequest {
    /// The client's number with the frontend that parked.
    pub(super) client: u64,
    pub(super) cookie: u64,
    pub(super) op: Op,
    pub(super) fua: bool,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) check: u32,
    /// Bytes of its payload.
    pub(super) payload: usize,
}

impl ParkedRequest {
    pub(super) fn of(request: &Request) -> ParkedRequest {
        ParkedRequest {
            client: request.client.bits(),
            cookie: request.cookie,
            op: request.op,
            fua: request.fua,
            offset: request.extent.offset(),
            length: request.extent.length(),
            check: request.check,
            payload: request.payload.len(),
        }
    }
}

/// A client and how far its conversation has come.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParkedClient {
    pub(super) volume: String,
    pub(super) number: u64,
    pub(super) stage: ParkedStage,
    /// Bytes read and not understood yet; the rest are to be sent.
    pub(super) input: usize,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum ParkedStage {
    Negotiating(Handshake),
    Transmission { structured: bool },
}

/// Why what was left behind cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadParcel {
    #[error("format {theirs}, this frontend knows {VERSION}")]
    Version { theirs: u32 },
    #[error("it is cut short")]
    Short,
    #[error("it is not understood")]
    Json(#[from] serde_json::Error),
}

/// Version, length of the description, description, data.
pub(super) fn pack(meta: &impl Serialize, data: &[&[u8]]) -> Vec<u8> {
    let meta = serde_json::to_vec(meta).expect("what is parked holds only plain fields");
    let mut raw = VERSION.to_le_bytes().to_vec();
    raw.extend((meta.len() as u32).to_le_bytes());
    raw.extend(meta);
    data.iter().for_each(|part| raw.extend_from_slice(part));
    raw
}

pub(super) fn unpack<T: DeserializeOwned>(raw: Vec<u8>) -> Result<(T, Bytes), BadParcel> {
    let mut raw = Bytes::from(raw);
    if raw.len() < 8 {
        return Err(BadParcel::Short);
    }
    let theirs = raw.get_u32_le();
    if theirs != VERSION {
        return Err(BadParcel::Version { theirs });
    }
    let length = raw.get_u32_le() as usize;
    if raw.len() < length {
        return Err(BadParcel::Short);
    }
    let meta = raw.split_to(length);
    Ok((serde_json::from_slice(&meta)?, raw))
}

/// The first `count` bytes of what is left.
pub(super) fn take(data: &mut Bytes, count: usize) -> Result<Bytes, BadParcel> {
    if data.len() < count {
        return Err(BadParcel::Short);
    }
    Ok(data.split_to(count))
}

/// The same bytes, to be added to.
pub(super) fn growable(bytes: &Bytes) -> BytesMut {
    BytesMut::from(&bytes[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_anything_else_is_refused() {
        let table = ParkedTable { volume: "v".into(), epoch: Epoch::of_term(3), requests: vec![] };
        let raw = pack(&table, &[b"some", b"data"]);
        let (seen, mut data) = unpack::<ParkedTable>(raw.clone()).unwrap();
        assert_eq!((seen, &take(&mut data, 4).unwrap()[..], &data[..]), (table, &b"some"[..], &b"data"[..]));
        assert!(matches!(take(&mut data, 5), Err(BadParcel::Short)));
        for cut in 0..raw.len() - 8 {
            assert!(unpack::<ParkedTable>(raw[..cut].to_vec()).is_err(), "cut at {cut}");
        }
        let mut other = raw;
        other[0] = 9;
        assert!(matches!(unpack::<ParkedTable>(other), Err(BadParcel::Version { theirs: 9 })));
    }
}
