//! FUSE, as far as one file of fixed size in one folder needs it.
//!
//! Everything but data is answered here; reads, writes, syncs and holes become
//! requests to the volume.
//!
//! Invariant: whatever the kernel sends, every call that wants an answer gets
//! exactly one.

use bytes::{Buf, Bytes};
use midflight_handover::kernel::{self, HEAD_IN, Head, ROOT, TooShort, code, u32_at, u64_at};

use crate::{extent::Extent, frontend::table::Op, wire::Status};

/// Name of the one file.
pub(crate) const FILE: &str = "volume";
/// Longest write, and longest read, of one call.
pub(crate) const MOST_DATA: usize = 1 << 20;
/// Room that one call may need.
pub(crate) const MOST_CALL: usize = MOST_DATA + 4096;

const VOLUME: u64 = 2;

mod errno {
    pub(super) const NO_ENTRY: i32 = 2;
    pub(super) const IO: i32 = 5;
    pub(super) const INVALID: i32 = 22;
    pub(super) const NO_SPACE: i32 = 28;
    pub(super) const NO_SYSCALL: i32 = 38;
    pub(super) const NOT_SUPPORTED: i32 = 95;
}

/// What to do about a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The answer, to be written at once.
    Answer(Vec<u8>),
    /// Nobody waits for an answer.
    Nothing,
    Carry(Carried),
}

/// A call that the volume has to carry out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) unique: u64,
    pub(crate) op: Op,
    pub(crate) extent: Extent,
    pub(crate) payload: Bytes,
}

/// Reads one call; `size` is the volume's.
pub(crate) fn turn(mut raw: Bytes, size: u64) -> Result<Turn, TooShort> {
    let Head { opcode, unique, node, .. } = Head::parse(&raw)?;
    raw.advance(HEAD_IN);
    Ok(match opcode {
        code::INIT => Turn::Answer(init(unique, &raw)),
        code::LOOKUP if node == ROOT && raw.strip_suffix(&[0]) == Some(FILE.as_bytes()) => {
            Turn::Answer(entry(unique, size))
        }
        code::LOOKUP => Turn::Answer(failure(unique, errno::NO_ENTRY)),
        code::GETATTR => Turn::Answer(attributes(unique, node, size)),
        code::OPEN => Turn::Answer(opened(unique)),
        code::OPENDIR => Turn::Answer(answer(unique, &[0; 16])),
        code::READDIR | code::RELEASE | code::RELEASEDIR | code::FLUSH | code::DESTROY => {
            Turn::Answer(answer(unique, &[]))
        }
        code::STATFS => Turn::Answer(answer(unique, &statistics(size))),
        code::FORGET | code::BATCH_FORGET | code::INTERRUPT => Turn::Nothing,
        code::READ => within(unique, Op::Read, u64_at(&raw, 8), u64::from(u32_at(&raw, 16)), size),
        code::WRITE => write(unique, raw, size),
        code::FSYNC => {
            Turn::Carry(Carried { unique, op: Op::Flush, extent: Extent::EMPTY, payload: Bytes::new() })
        }
        code::FALLOCATE => hole(unique, &raw, size),
        _ => Turn::Answer(failure(unique, errno::NO_SYSCALL)),
    })
}

fn within(unique: u64, op: Op, offset: u64, length: u64, size: u64) -> Turn {
    let extent = u32::try_from(length).ok().and_then(|length| Extent::new(offset, length));
    match extent.filter(|extent| extent.fits(size)) {
        Some(extent) => Turn::Carry(Carried { unique, op, extent, payload: Bytes::new() }),
        None => Turn::Answer(failure(unique, errno::INVALID)),
    }
}

fn write(unique: u64, mut raw: Bytes, size: u64) -> Turn {
    const HEAD: usize = 40;
    let (offset, length) = (u64_at(&raw, 8), u32_at(&raw, 16));
    if raw.len() != HEAD + length as usize {
        return Turn::Answer(failure(unique, errno::INVALID));
    }
    raw.advance(HEAD);
    match within(unique, Op::Write, offset, u64::from(length), size) {
        Turn::Carry(carried) => Turn::Carry(Carried { payload: raw, ..carried }),
        refused => refused,
    }
}

/// `fallocate`: only what leaves the size alone.
fn hole(unique: u64, raw: &[u8], size: u64) -> Turn {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const ZERO_RANGE: u32 = 16;
    let op = match u32_at(raw, 24) & !KEEP_SIZE {
        PUNCH_HOLE => Op::Trim,
        ZERO_RANGE => Op::Zero,
        _ => return Turn::Answer(failure(unique, errno::NOT_SUPPORTED)),
    };
    within(unique, op, u64_at(raw, 8), u64_at(raw, 16), size)
}

fn answer(unique: u64, body: &[u8]) -> Vec<u8> {
    [&kernel::answer_head(unique, 0, body.len()), body].concat()
}

fn failure(unique: u64, errno: i32) -> Vec<u8> {
    kernel::answer_head(unique, -errno, 0).to_vec()
}

/// What comes before the data of an answer to a carried call.
pub(crate) fn answer_head(unique: u64, op: Op, extent: Extent, status: Status) -> Vec<u8> {
    match (status, op) {
        (Status::Ok, Op::Read) => kernel::answer_head(unique, 0, extent.length() as usize).to_vec(),
        (Status::Ok, Op::Write) => {
            let mut written = [0; 8];
            written[..4].copy_from_slice(&extent.length().to_ne_bytes());
            answer(unique, &written)
        }
        (Status::Ok, Op::Flush | Op::Trim | Op::Zero) => answer(unique, &[]),
        (Status::Invalid, _) => failure(unique, errno::INVALID),
        (Status::NoSpace, _) => failure(unique, errno::NO_SPACE),
        (Status::Fenced | Status::NotServing | Status::Failed | Status::Corrupt, _) => {
            failure(unique, errno::IO)
        }
    }
}

fn init(unique: u64, raw: &[u8]) -> Vec<u8> {
    const MAJOR: u32 = 7;
    const MINOR: u32 = 40;
    const ASYNC_READ: u32 = 1;
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIRECT: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    const MORE_FLAGS: u32 = 1 << 30;
    /// In the second word of flags.
    const HAS_RESEND: u32 = 1 << 7;
    const MOST_AT_ONCE: u16 = 64;
    let (theirs, more) = (u32_at(raw, 12), u32_at(raw, 16));
    let flags = (ASYNC_READ | BIG_WRITES | ASYNC_DIRECT | MAX_PAGES | MORE_FLAGS) & theirs;
    let mut body = [0; 64];
    let mut put = |at: usize, bytes: &[u8]| body[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAJOR.to_ne_bytes());
    put(4, &MINOR.min(u32_at(raw, 4)).to_ne_bytes());
    put(12, &flags.to_ne_bytes());
    put(16, &MOST_AT_ONCE.to_ne_bytes());
    put(18, &MOST_AT_ONCE.to_ne_bytes());
    put(20, &(MOST_DATA as u32).to_ne_bytes());
    put(24, &1u32.to_ne_bytes());
    put(28, &((MOST_DATA / 4096) as u16).to_ne_bytes());
    put(32, &(HAS_RESEND & more).to_ne_bytes());
    answer(unique, &body)
}

/// Every open goes straight to us, in parallel.
fn opened(unique: u64) -> Vec<u8> {
    const DIRECT_IO: u32 = 1;
    const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    let mut body = [0; 16];
    body[8..12].copy_from_slice(&(DIRECT_IO | PARALLEL_DIRECT_WRITES).to_ne_bytes());
    answer(unique, &body)
}

/// Nobody else changes the file: what was said of it stays true.
const FOR_EVER: u64 = 1 << 30;

fn attribute(node: u64, size: u64) -> [u8; 88] {
    const FOLDER: u32 = 0o040_500;
    const REGULAR: u32 = 0o100_600;
    let (mode, size) = if node == ROOT { (FOLDER, 0) } else { (REGULAR, size) };
    let mut raw = [0; 88];
    let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &node.to_ne_bytes());
    put(8, &size.to_ne_bytes());
    put(16, &size.div_ceil(512).to_ne_bytes());
    put(60, &mode.to_ne_bytes());
    put(64, &1u32.to_ne_bytes());
    put(80, &4096u32.to_ne_bytes());
    raw
}

fn entry(unique: u64, size: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(128);
    for word in [VOLUME, 0, FOR_EVER, FOR_EVER, 0] {
        body.extend(word.to_ne_bytes());
    }
    body.extend(attribute(VOLUME, size));
    answer(unique, &body)
}

fn attributes(unique: u64, node: u64, size: u64) -> Vec<u8> {
    let mut body = FOR_EVER.to_ne_bytes().to_vec();
    body.extend([0; 8]);
    body.extend(attribute(node, size));
    answer(unique, &body)
}

fn statistics(size: u64) -> [u8; 80] {
    let mut raw = [0; 80];
    raw[..8].copy_from_slice(&(size / 4096).to_ne_bytes());
    raw[40..44].copy_from_slice(&4096u32.to_ne_bytes());
    raw[44..48].copy_from_slice(&255u32.to_ne_bytes());
    raw[48..52].copy_from_slice(&4096u32.to_ne_bytes());
    raw
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn call(opcode: u32, node: u64, body: &[u8]) -> Bytes {
        let mut raw = ((HEAD_IN + body.len()) as u32).to_ne_bytes().to_vec();
        raw.extend(opcode.to_ne_bytes());
        raw.extend(9u64.to_ne_bytes());
        raw.extend(node.to_ne_bytes());
        raw.extend([0; 16]);
        raw.extend(body);
        raw.into()
    }

    fn data(offset: u64, length: u32, payload: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend(offset.to_ne_bytes());
        body.extend(length.to_ne_bytes());
        body.extend([0; 20]);
        body.extend(payload);
        body
    }

    fn space(offset: u64, length: u64, mode: u32) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend(offset.to_ne_bytes());
        body.extend(length.to_ne_bytes());
        body.extend(mode.to_ne_bytes());
        body.extend([0; 4]);
        body
    }

    /// The error of an answer, or what is carried.
    fn outcome(opcode: u32, node: u64, body: &[u8]) -> Result<(Op, u64, u32), i32> {
        match turn(call(opcode, node, body), SIZE).unwrap() {
            Turn::Answer(raw) => {
                assert_eq!((u32_at(&raw, 0) as usize, u64_at(&raw, 8)), (raw.len(), 9));
                Err(-(u32_at(&raw, 4) as i32))
            }
            Turn::Carry(carried) => Ok((carried.op, carried.extent.offset(), carried.extent.length())),
            Turn::Nothing => panic!("nobody answers"),
        }
    }

    #[test]
    fn every_call_is_answered_or_carried() {
        #[rustfmt::skip]
        let cases = [
            ("the file",         code::LOOKUP,    ROOT,   b"volume\0".to_vec(),          Err(0)),
            ("another name",     code::LOOKUP,    ROOT,   b"other\0".to_vec(),           Err(2)),
            ("in the file",      code::LOOKUP,    VOLUME, b"volume\0".to_vec(),          Err(2)),
            ("attributes",       code::GETATTR,   VOLUME, vec![0; 16],                   Err(0)),
            ("a read",           code::READ,      VOLUME, data(4096, 512, b""),          Ok((Op::Read, 4096, 512))),
            ("past the end",     code::READ,      VOLUME, data(SIZE, 1, b""),            Err(22)),
            ("a write",          code::WRITE,     VOLUME, data(8, 3, b"abc"),            Ok((Op::Write, 8, 3))),
            ("a short write",    code::WRITE,     VOLUME, data(8, 4, b"abc"),            Err(22)),
            ("a sync",           code::FSYNC,     VOLUME, vec![0; 16],                   Ok((Op::Flush, 0, 0))),
            ("a hole",           code::FALLOCATE, VOLUME, space(4096, 8192, 3),          Ok((Op::Trim, 4096, 8192))),
            ("zeroes",           code::FALLOCATE, VOLUME, space(0, 4096, 0x10),          Ok((Op::Zero, 0, 4096))),
            ("room",             code::FALLOCATE, VOLUME, space(0, 4096, 0),             Err(95)),
            ("a huge hole",      code::FALLOCATE, VOLUME, space(0, u64::MAX, 3),         Err(22)),
            ("something else",   999,             ROOT,   vec![],                        Err(38)),
        ];
        for (name, opcode, node, body, expected) in cases {
            assert_eq!(outcome(opcode, node, &body), expected, "{name}");
        }
        assert_eq!(turn(call(code::FORGET, VOLUME, &[0; 8]), SIZE), Ok(Turn::Nothing));
    }

    proptest! {
        #[test]
        fn no_call_breaks_it(opcode in 0..60u32, node in 0..4u64, body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = turn(call(opcode, node, &body), SIZE);
        }
    }
}
