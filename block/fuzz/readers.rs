//! What is fuzzed: each reader of bytes that come from outside, with what must
//! hold for any input. The fuzzer and the test of the corpora share it.

#![allow(dead_code, reason = "each target uses its own part")]

use bytes::{Buf, BytesMut};
use midflight_block::{
    backup::{
        block::{self, BlockName, PIECE},
        manifest::Manifest,
    },
    nbd::{
        handshake::{Export, Handshake, Step},
        transmission::{self, REQUEST},
    },
    wire::{
        self, HEADER,
        hello::Hello,
        members::{Missing, Promised},
    },
};

const VOL: Export<'_> = Export { name: "vol", size: 1 << 20 };

/// Cuts a stream where its own first byte says, so that a reader meets both halves.
fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.split_first() {
        Some((cut, rest)) => rest.split_at(rest.len() * usize::from(*cut) / 256),
        None => (&[], &[]),
    }
}

pub(crate) fn nbd_handshake(bytes: &[u8]) {
    let negotiate = |pieces: &[&[u8]]| {
        let mut reply = BytesMut::new();
        let mut handshake = Handshake::begin(&mut reply);
        let mut input = BytesMut::new();
        let mut step = Step::Wait;
        for piece in pieces {
            input.extend_from_slice(piece);
            if step == Step::Wait {
                step = handshake.advance(&mut input, &mut reply, &VOL);
            }
        }
        (step, reply, input)
    };
    let (first, second) = halves(bytes);
    let whole = [first, second].concat();
    let at_once = negotiate(&[&whole]);
    assert_eq!(at_once, negotiate(&[first, second]), "how it arrives changes nothing");
    assert!(at_once.1.len() <= 18 + 8 * whole.len().max(64), "an answer is in proportion to what was asked");
}

pub(crate) fn nbd_requests(bytes: &[u8]) {
    let read = |pieces: &[&[u8]]| {
        let mut input = BytesMut::new();
        let mut requests = Vec::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match transmission::parse(&mut input) {
                    Ok(Some(request)) => requests.push(request),
                    Ok(None) => break,
                    Err(error) => return (requests, Some(error)),
                }
            }
        }
        (requests, None)
    };
    let (first, second) = halves(bytes);
    let whole = [first, second].concat();
    let at_once = read(&[&whole]);
    assert_eq!(at_once, read(&[first, second]), "how it arrives changes nothing");
    let taken: usize = at_once.0.iter().map(|request| REQUEST + request.payload.len()).sum();
    assert!(taken <= whole.len(), "no byte is used twice");
}

/// A manifest as it is, and as the body of one whose hash is right; and a block.
pub(crate) fn backup_manifest(bytes: &[u8]) {
    let sealed =
        [format!("midflight-backup 1 {}\n", BlockName::of(bytes).as_str()).as_bytes(), bytes].concat();
    for raw in [bytes, &sealed] {
        let Ok(manifest) = Manifest::decode(raw) else { continue };
        assert!(
            manifest.pieces.keys().all(|piece| *piece < manifest.size.div_ceil(PIECE)),
            "inside the volume"
        );
        assert!(manifest.pieces.keys().all(|piece| u64::from(manifest.length(*piece)) <= PIECE));
        assert_eq!(Manifest::decode(&manifest.encode()).ok(), Some(manifest), "what is read can be written");
    }
    let name = BlockName::of(bytes);
    assert_eq!(
        block::decode(&name, &block::encode(bytes)).ok(),
        (bytes.len() as u64 <= PIECE).then(|| bytes.to_vec())
    );
    assert!(block::decode(&name, bytes).is_err(), "nothing has its own hash in it");
}

pub(crate) fn wire_frames(bytes: &[u8]) {
    let mut input = BytesMut::from(bytes);
    let mut taken = 0;
    while let Ok(Ok(frame)) = wire::decode(&mut input) {
        taken += HEADER + frame.payload.len();
        let raw = frame.header.encode(frame.payload.len());
        let mut again = BytesMut::from(&raw[..]);
        again.extend_from_slice(&frame.payload);
        assert_eq!(wire::decode(&mut again), Ok(Ok(frame.clone())), "what is read can be written");
        let _ = (frame.intact(), Hello::accept(&frame.payload, "vol"), Promised::decode(&frame.payload));
        let missing = Missing::decode(&frame.payload, 1000);
        assert!(missing.is_none_or(|missing| missing.blocks.iter().all(|block| block < 1000)));
    }
    assert!(taken + input.remaining() == bytes.len(), "every byte is taken once or left");
}
