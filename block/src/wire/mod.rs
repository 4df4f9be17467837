//! What frontend, engine and replica say to each other: one frame format for all
//! three, so there is one parser to trust.
//!
//! A frame is a header of 48 bytes and a payload. The header carries its own
//! checksum, and the payload's, which is made where the data enters (the
//! frontend, or a replica's disk) and checked where it leaves.
//!
//! Invariant: `decode` never panics and never allocates by what the peer claims
//! before that many bytes have arrived.

pub mod hello;
pub mod layout;
pub mod members;
pub mod past;

use bytes::{Buf, Bytes, BytesMut};

use crate::{epoch::Epoch, extent::Extent};

pub const HEADER: usize = 48;
/// Longest payload of one frame: NBD's largest request.
pub const MAX_PAYLOAD: usize = 32 << 20;
const MAGIC: u16 = 0x4d46;
/// Version of the frame layout itself; what may be said is agreed in `hello`.
const LAYOUT: u8 = 1;
/// Layout of a frame that has neither payload nor extent, such as most answers.
const COMPACT: u8 = 2;
pub const COMPACT_HEADER: usize = 28;
const KNOWS_COMPACT: bool = hello::VERSIONS.features.has(hello::Features::COMPACT);

/// What a frame asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// First frame on every connection, both ways; payload is a `Hello`.
    Hello = 1,
    Read = 2,
    Write = 3,
    Flush = 4,
    Trim = 5,
    Zero = 6,
    /// Answer to any request, by tag.
    Reply = 7,
    /// Make the epoch durable ahead of its promise, so that the promise is quick.
    Prepare = 8,
    /// Refuse everything below this epoch from now on.
    Promise = 9,
    /// Frontend to engine: answer what you have, take no more.
    Drain = 10,
    /// Frontend to engine: take the volume over.
    Go = 11,
    /// Coordinator to any process, and the answer: payload is JSON.
    Control = 12,
    /// Engine to replica: another copy has left; note what it misses.
    Depart = 13,
    /// Engine to replica: what does another copy miss?
    Absent = 14,
    /// Engine to replica: another copy is back.
    Forget = 15,
    /// Engine to replica: you are in service at this member version.
    Standing = 16,
    /// Engine to replica: you are about to be rebuilt.
    Join = 17,
    /// Engine to replica: every copy has completed the flush of this tag. Nobody answers.
    Settled = 18,
    /// Engine to replica: are you there? With a payload: this `Step` is about to come; whoever can make ready for it
    /// answers then, others at once. Engine to frontend: have you sent everything again that was unanswered?
    Ping = 19,
    /// Engine to replica: change the layout; payload is a `Step`.
    Step = 20,
    /// Engine to replica: which blocks does a layer hold?
    Layer = 21,
    /// Reader to engine, engine to replica: an extent as it was at a snapshot; payload is a `Past`.
    Past = 22,
    /// Reader to engine, engine to replica: blocks in which a snapshot may differ from an older one, or
    /// that it has at all.
    Changes = 23,
}

impl Kind {
    fn from_bits(bits: u8) -> Option<Kind> {
        use Kind::*;
        [
            Hello, Read, Write, Flush, Trim, Zero, Reply, Prepare, Promise, Drain, Go, Control, Depart,
            Absent, Forget, Standing, Join, Settled, Ping, Step, Layer, Past, Changes,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == bits)
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    Ok = 0,
    /// The sender's epoch is below the promise; the header's epoch is the promise.
    Fenced = 1,
    /// The sender never promised the epoch it uses, or does not serve (yet, any more).
    NotServing = 2,
    /// Outside the volume, or not understood.
    Invalid = 3,
    NoSpace = 4,
    /// The store failed; the replica counts as dead.
    Failed = 5,
    /// A payload did not match its checksum.
    Corrupt = 6,
}

impl Status {
    fn from_bits(bits: u16) -> Option<Status> {
        use Status::*;
        [Ok, Fenced, NotServing, Invalid, NoSpace, Failed, Corrupt]
            .into_iter()
            .find(|status| *status as u16 == bits)
    }
}

/// Force unit access: durable before it is answered.
pub const FUA: u8 = 1;
/// On `Depart`: the copy was not in service, so this is not all that it misses.
pub const PARTIAL: u8 = 2;
/// On the answer to `Go`: the engine served before, and may still carry out what
/// an earlier frontend asked.
pub const CONTINUED: u8 = 4;

/// On a `Step` that freezes: it may be answered when it is made, and is durable when the next flush is answered. Builds
/// that do not know it answer when it is durable.
pub const SOON: u8 = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub flags: u8,
    /// 0 for the volume as clients see it, else the place of a layer, the oldest is 1.
    pub layer: u8,
    pub status: Status,
    /// Chosen by the asker, repeated by the answerer.
    pub tag: u64,
    pub epoch: Epoch,
    pub extent: Extent,
    /// CRC-32 of the payload, 0 where there is none.
    pub check: u32,
}

impl Header {
    pub fn new(kind: Kind, tag: u64, epoch: Epoch) -> Header {
        Header { kind, flags: 0, layer: 0, status: Status::Ok, tag, epoch, extent: Extent::EMPTY, check: 0 }
    }

    pub fn fua(&self) -> bool {
        self.flags & FUA != 0
    }

    /// The answer to this request.
    pub fn reply(&self, status: Status, epoch: Epoch) -> Header {
        Header { status, ..Header::new(Kind::Reply, self.tag, epoch) }
    }

    pub fn encode(&self, payload: usize) -> [u8; HEADER] {
        let mut raw = [0u8; HEADER];
        raw[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        raw[2] = LAYOUT;
        raw[3] = self.kind as u8;
        raw[4] = self.flags;
        raw[5] = self.layer;
        raw[6..8].copy_from_slice(&(self.status as u16).to_le_bytes());
        raw[8..16].copy_from_slice(&self.tag.to_le_bytes());
        raw[16..24].copy_from_slice(&self.epoch.bits().to_le_bytes());
        raw[24..32].copy_from_slice(&self.extent.offset().to_le_bytes());
        raw[32..36].copy_from_slice(&self.extent.length().to_le_bytes());
        raw[36..40].copy_from_slice(&(payload as u32).to_le_bytes());
        raw[40..44].copy_from_slice(&self.check.to_le_bytes());
        let check = crc32fast::hash(&raw[..44]);
        raw[44..48].copy_from_slice(&check.to_le_bytes());
        raw
    }
}

impl Header {
    /// The short form of a frame without payload, if this one has it.
    pub fn encode_compact(&self) -> Option<[u8; COMPACT_HEADER]> {
        if self.extent != Extent::EMPTY || self.check != 0 {
            return None;
        }
        let mut raw = [0u8; COMPACT_HEADER];
        raw[..24].copy_from_slice(&self.encode(0)[..24]);
        raw[2] = COMPACT;
        let check = crc32fast::hash(&raw[..24]);
        raw[24..].copy_from_slice(&check.to_le_bytes());
        Some(raw)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub header: Header,
    pub payload: Bytes,
}

impl Frame {
    pub fn bare(header: Header) -> Frame {
        Frame { header, payload: Bytes::new() }
    }

    /// A frame whose payload is checksummed here.
    pub fn with(mut header: Header, payload: Bytes) -> Frame {
        header.check = checksum(&payload);
        Frame { header, payload }
    }

    pub fn intact(&self) -> bool {
        self.header.check == checksum(&self.payload)
    }
}

pub fn checksum(payload: &[u8]) -> u32 {
    if payload.is_empty() { 0 } else { crc32fast::hash(payload) }
}

/// Why a stream of frames cannot be read on; the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    #[error("not a frame: starts with {0:#06x}")]
    Magic(u16),
    #[error("frame layout {theirs}, this side knows {LAYOUT}")]
    Layout { theirs: u8 },
    #[error("header checksum is wrong")]
    Checksum,
    #[error("unknown kind {0}")]
    Kind(u8),
    #[error("unknown status {0}")]
    Status(u16),
    #[error("payload of {0} bytes is beyond the limit")]
    TooLong(u32),
    #[error("extent reaches past the end of the address space")]
    Extent,
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | u64::from(u32_at(raw, at + 4)) << 32
}

/// The full form of a compact header.
fn expand(raw: &[u8]) -> Result<[u8; HEADER], BadFrame> {
    if crc32fast::hash(&raw[..24]) != u32_at(raw, 24) {
        return Err(BadFrame::Checksum);
    }
    let mut full = [0u8; HEADER];
    full[..24].copy_from_slice(&raw[..24]);
    full[2] = LAYOUT;
    let check = crc32fast::hash(&full[..44]);
    full[44..].copy_from_slice(&check.to_le_bytes());
    Ok(full)
}

fn decode_header(raw: &[u8]) -> Result<(Header, usize), BadFrame> {
    let magic = u16::from_le_bytes([raw[0], raw[1]]);
    if magic != MAGIC {
        return Err(BadFrame::Magic(magic));
    }
    if raw[2] != LAYOUT {
        return Err(BadFrame::Layout { theirs: raw[2] });
    }
    if crc32fast::hash(&raw[..44]) != u32_at(raw, 44) {
        return Err(BadFrame::Checksum);
    }
    let status = u16::from_le_bytes([raw[6], raw[7]]);
    let payload = u32_at(raw, 36);
    if payload as usize > MAX_PAYLOAD {
        return Err(BadFrame::TooLong(payload));
    }
    let header = Header {
        kind: Kind::from_bits(raw[3]).ok_or(BadFrame::Kind(raw[3]))?,
        flags: raw[4],
        layer: raw[5],
        status: Status::from_bits(status).ok_or(BadFrame::Status(status))?,
        tag: u64_at(raw, 8),
        epoch: Epoch::from_bits(u64_at(raw, 16)),
        extent: Extent::new(u64_at(raw, 24), u32_at(raw, 32)).ok_or(BadFrame::Extent)?,
        check: u32_at(raw, 40),
    };
    Ok((header, payload as usize))
}

/// Takes the next whole frame off `input`, or says how many more bytes it needs.
pub fn decode(input: &mut BytesMut) -> Result<Result<Frame, usize>, BadFrame> {
    if input.len() < COMPACT_HEADER {
        return Ok(Err(COMPACT_HEADER - input.len()));
    }
    let compact = KNOWS_COMPACT && input[2] == COMPACT;
    let length = if compact { COMPACT_HEADER } else { HEADER };
    if input.len() < length {
        return Ok(Err(length - input.len()));
    }
    let (header, payload) = match compact {
        true => decode_header(&expand(input)?)?,
        false => decode_header(&input[..HEADER])?,
    };
    let missing = (length + payload).saturating_sub(input.len());
    if missing > 0 {
        return Ok(Err(missing));
    }
    input.advance(length);
    Ok(Ok(Frame { header, payload: input.split_to(payload).freeze() }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(payload: &'static [u8]) -> Frame {
        let mut header = Header::new(Kind::Write, 42, Epoch::of_term(3));
        header.flags = FUA;
        header.extent = Extent::new(4096, payload.len() as u32).unwrap();
        Frame::with(header, Bytes::from_static(payload))
    }

    fn encode(frame: &Frame) -> BytesMut {
        let mut raw = BytesMut::from(&frame.header.encode(frame.payload.len())[..]);
        raw.extend_from_slice(&frame.payload);
        raw
    }

    #[test]
    fn what_is_encoded_is_decoded_however_it_is_cut() {
        let frame = sample(b"some payload");
        let raw = encode(&frame);
        for cut in 0..raw.len() {
            let mut input = BytesMut::from(&raw[..cut]);
            let missing = decode(&mut input).unwrap().unwrap_err();
            assert!(missing <= raw.len() - cut && missing > 0);
            input.extend_from_slice(&raw[cut..]);
            assert_eq!(decode(&mut input).unwrap().unwrap(), frame);
            assert!(input.is_empty());
        }
    }

    #[test]
    fn a_compact_frame_is_read_by_those_who_know_it_and_refused_by_name() {
        let header = Header { status: Status::NoSpace, ..Header::new(Kind::Reply, 42, Epoch::of_term(3)) };
        assert_eq!(sample(b"x").header.encode_compact(), None);
        let raw = header.encode_compact().unwrap();
        let mut input = BytesMut::from(&[&raw[..], &header.encode(0)[..]].concat()[..]);
        if !KNOWS_COMPACT {
            assert_eq!(decode(&mut input), Err(BadFrame::Layout { theirs: COMPACT }));
            return;
        }
        for _ in 0..2 {
            assert_eq!(decode(&mut input).unwrap().unwrap(), Frame::bare(header.clone()));
        }
        for bit in 0..COMPACT_HEADER * 8 {
            let mut bad = BytesMut::from(&raw[..]);
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&mut bad), Ok(Ok(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_flipped_bit_in_the_header_is_refused() {
        let raw = encode(&sample(b"x"));
        for bit in 0..HEADER * 8 {
            let mut bad = raw.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&mut bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_flipped_bit_in_the_payload_is_noticed() {
        let mut raw = encode(&sample(b"payload"));
        let last = raw.len() - 1;
        raw[last] ^= 1;
        assert!(!decode(&mut raw).unwrap().unwrap().intact());
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&bytes[..]);
            let _ = decode(&mut input);
        }
    }
}
