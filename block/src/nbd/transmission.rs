//! Requests and replies once an export is chosen, the server's side.
//!
//! Invariant: the stream stays in step: every byte of a request, payload
//! included, is consumed before the next one is looked at.

use bytes::{Buf, Bytes, BytesMut};

use super::*;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
pub const REQUEST: usize = 28;

pub const FLAG_FUA: u16 = 1;

/// Error numbers of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    Unknown(u16),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub command: Command,
    pub flags: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
    pub payload: Bytes,
}

/// Why a client's stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("request starts with {0:#010x}")]
    Magic(u32),
    #[error("write of {0} bytes is beyond the limit of {MAX_LENGTH}")]
    TooLong(u32),
}

/// Bytes of data that the next request brings or asks for, as far as it has arrived.
pub fn asked(input: &[u8]) -> u64 {
    const NO_HOLE: u16 = 1 << 1;
    match head(input) {
        Some((Command::Read | Command::Write, _, length)) => length.into(),
        Some((Command::WriteZeroes, flags, length)) if flags & NO_HOLE != 0 => length.into(),
        Some(_) | None => 0,
    }
}

/// Bytes that have to arrive before the next request is whole.
pub fn announced(input: &[u8]) -> u64 {
    match head(input) {
        Some((Command::Write, _, length)) => REQUEST as u64 + u64::from(length.min(MAX_LENGTH)),
        Some(_) | None => 0,
    }
}

/// Command, flags and length of the next request, if they have arrived.
fn head(input: &[u8]) -> Option<(Command, u16, u32)> {
    (input.len() >= REQUEST).then(|| (command(u16_at(input, 6)), u16_at(input, 4), u32_at(input, 24)))
}

fn command(number: u16) -> Command {
    match number {
        0 => Command::Read,
        1 => Command::Write,
        2 => Command::Disconnect,
        3 => Command::Flush,
        4 => Command::Trim,
        6 => Command::WriteZeroes,
        other => Command::Unknown(other),
    }
}

/// Takes the next whole request off `input`.
pub fn parse(input: &mut BytesMut) -> Result<Option<Request>, BadRequest> {
    if input.len() < REQUEST {
        return Ok(None);
    }
    let magic = u32_at(input, 0);
    if magic != REQUEST_MAGIC {
        return Err(BadRequest::Magic(magic));
    }
    let length = u32_at(input, 24);
    let command = command(u16_at(input, 6));
    let payload = if command == Command::Write { length as usize } else { 0 };
    if payload > MAX_LENGTH as usize {
        return Err(BadRequest::TooLong(length));
    }
    if input.len() < REQUEST + payload {
        input.reserve(REQUEST + payload - input.len());
        return Ok(None);
    }
    let request = Request {
        command,
        flags: u16_at(input, 4),
        cookie: u64_at(input, 8),
        offset: u64_at(input, 16),
        length,
        payload: Bytes::new(),
    };
    input.advance(REQUEST);
    Ok(Some(Request { payload: input.split_to(payload).freeze(), ..request }))
}

/// The bytes before the data of a reply.
#[derive(Debug, Clone, Copy)]
pub struct ReplyHead {
    raw: [u8; 28],
    length: usize,
}

impl ReplyHead {
    pub fn as_slice(&self) -> &[u8] {
        &self.raw[..self.length]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.raw[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub fn simple(cookie: u64, error: Option<Errno>) -> ReplyHead {
        let mut head = ReplyHead { raw: [0; 28], length: 0 };
        head.put(&SIMPLE_MAGIC.to_be_bytes());
        head.put(&error.map_or(0, |errno| errno as u32).to_be_bytes());
        head.put(&cookie.to_be_bytes());
        head
    }

    fn chunk(cookie: u64, kind: u16, length: u32) -> ReplyHead {
        const DONE: u16 = 1;
        let mut head = ReplyHead { raw: [0; 28], length: 0 };
        head.put(&STRUCTURED_MAGIC.to_be_bytes());
        head.put(&DONE.to_be_bytes());
        head.put(&kind.to_be_bytes());
        head.put(&cookie.to_be_bytes());
        head.put(&length.to_be_bytes());
        head
    }

    /// One chunk with all the data of a read, which follows the head.
    pub fn data(cookie: u64, offset: u64, length: u32) -> ReplyHead {
        const OFFSET_DATA: u16 = 1;
        let mut head = ReplyHead::chunk(cookie, OFFSET_DATA, length + 8);
        head.put(&offset.to_be_bytes());
        head
    }

    /// A chunk that ends a request with an error.
    pub fn error(cookie: u64, errno: Errno) -> ReplyHead {
        const ERROR: u16 = 1 << 15 | 1;
        let mut head = ReplyHead::chunk(cookie, ERROR, 6);
        head.put(&(errno as u32).to_be_bytes());
        head.put(&0u16.to_be_bytes());
        head
    }
}
