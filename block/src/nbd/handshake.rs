//! Negotiation, the server's side.
//!
//! ```text
//! greeting ─▶ ClientFlags ─▶ Options ─┬─ GO, EXPORT_NAME ─▶ transmission
//!                              ▲──────┴─ LIST, INFO, STRUCTURED_REPLY, unknown
//! ```
//!
//! Invariant: every option gets exactly one final answer, in order.

use bytes::{Buf, BufMut, BytesMut};
use serde::{Deserialize, Serialize};

use super::*;

/// The one export of a socket; clients may call it by its name or by none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export<'a> {
    pub name: &'a str,
    pub size: u64,
}

impl Export<'_> {
    fn is_called(&self, name: &str) -> bool {
        name.is_empty() || name == self.name
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    Wait,
    /// The client has chosen; requests follow.
    Transmission { structured: bool },
    /// Nothing sensible can follow.
    Close,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Stage {
    ClientFlags,
    Options,
}

/// Where a negotiation stands; another process can go on from it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handshake {
    stage: Stage,
    no_zeroes: bool,
    structured: bool,
}

/// Longest option: a name of 4096 bytes and all information requests there are.
const LONGEST_OPTION: u32 = 8192;

const HAS_FLAGS: u16 = 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const SEND_DF: u16 = 1 << 7;
const CAN_MULTI_CONN: u16 = 1 << 8;

impl Handshake {
    /// Begins by greeting the client.
    pub fn begin(reply: &mut BytesMut) -> Handshake {
        reply.put_u64(NBD_MAGIC);
        reply.put_u64(OPTION_MAGIC);
        reply.put_u16(FIXED_NEWSTYLE | NO_ZEROES);
        Handshake { stage: Stage::ClientFlags, no_zeroes: false, structured: false }
    }

    fn transmission_flags(&self) -> u16 {
        let flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN;
        if self.structured { flags | SEND_DF } else { flags }
    }

    /// Takes what has arrived and answers it.
    pub fn advance(&mut self, input: &mut BytesMut, reply: &mut BytesMut, export: &Export<'_>) -> Step {
        loop {
            match self.stage {
                Stage::ClientFlags => {
                    if input.len() < 4 {
                        return Step::Wait;
                    }
                    let flags = input.get_u32();
                    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
                    if flags & !known != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
                        return Step::Close;
                    }
                    self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
                    self.stage = Stage::Options;
                }
                Stage::Options => {
                    if input.len() < 16 {
                        return Step::Wait;
                    }
                    let length = u32_at(input, 12);
                    if u64_at(input, 0) != OPTION_MAGIC || length > LONGEST_OPTION {
                        return Step::Close;
                    }
                    if input.len() < 16 + length as usize {
                        return Step::Wait;
                    }
                    let option = u32_at(input, 8);
                    input.advance(16);
                    let data = input.split_to(length as usize);
                    if let Some(step) = self.on_option(option, &data, reply, export) {
                        return step;
                    }
                }
            }
        }
    }

    fn on_option(
        &mut self,
        option: u32,
        data: &[u8],
        reply: &mut BytesMut,
        export: &Export<'_>,
    ) -> Option<Step> {
        match option {
            option::EXPORT_NAME => return Some(self.on_export_name(data, reply, export)),
            option::ABORT => {
                put_answer(reply, option, answer::ACK, &[]);
                return Some(Step::Close);
            }
            option::LIST if data.is_empty() => {
                let mut entry = BytesMut::new();
                entry.put_u32(export.name.len() as u32);
                entry.put_slice(export.name.as_bytes());
                put_answer(reply, option, answer::SERVER, &entry);
                put_answer(reply, option, answer::ACK, &[]);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                put_answer(reply, option, answer::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => put_answer(reply, option, answer::INVALID, &[]),
            option::INFO | option::GO => return self.on_info(option, data, reply, export),
            _ => put_answer(reply, option, answer::UNSUPPORTED, b"this option is not supported"),
        }
        None
    }

    /// The old way in: no errors can be told, so an unknown name is a hang-up.
    fn on_export_name(&self, data: &[u8], reply: &mut BytesMut, export: &Export<'_>) -> Step {
        let Ok(name) = std::str::from_utf8(data) else { return Step::Close };
        if !export.is_called(name) {
            return Step::Close;
        }
        reply.put_u64(export.size);
        reply.put_u16(self.transmission_flags());
        if !self.no_zeroes {
            reply.put_bytes(0, 124);
        }
        Step::Transmission { structured: self.structured }
    }

    fn on_info(&self, option: u32, data: &[u8], reply: &mut BytesMut, export: &Export<'_>) -> Option<Step> {
        let Some((name, wanted)) = parse_info(data) else {
            put_answer(reply, option, answer::INVALID, b"malformed request");
            return None;
        };
        if !export.is_called(name) {
            put_answer(reply, option, answer::UNKNOWN, b"no such export");
            return None;
        }
        let mut body = BytesMut::new();
        body.put_u16(info::EXPORT);
        body.put_u64(export.size);
        body.put_u16(self.transmission_flags());
        put_answer(reply, option, answer::INFO, &body);
        if wanted.clone().any(|kind| kind == info::NAME) {
            let mut body = BytesMut::new();
            body.put_u16(info::NAME);
            body.put_slice(name.as_bytes());
            put_answer(reply, option, answer::INFO, &body);
        }
        if wanted.clone().any(|kind| kind == info::BLOCK_SIZE) {
            let mut body = BytesMut::new();
            body.put_u16(info::BLOCK_SIZE);
            body.put_u32(1);
            body.put_u32(PREFERRED);
            body.put_u32(MAX_LENGTH);
            put_answer(reply, option, answer::INFO, &body);
        }
        put_answer(reply, option, answer::ACK, &[]);
        let chosen = || Step::Transmission { structured: self.structured };
        (option == option::GO).then(chosen)
    }
}

fn parse_info(data: &[u8]) -> Option<(&str, impl Iterator<Item = u16> + Clone)> {
    let length = u32_at(data.get(..4)?, 0) as usize;
    let name = std::str::from_utf8(data.get(4..4usize.checked_add(length)?)?).ok()?;
    let rest = &data[4 + length..];
    let count = u16_at(rest.get(..2)?, 0) as usize;
    let kinds = &rest[2..];
    (kinds.len() == 2 * count).then(|| (name, kinds.chunks_exact(2).map(|raw| u16_at(raw, 0))))
}

fn put_answer(reply: &mut BytesMut, option: u32, kind: u32, data: &[u8]) {
    reply.put_u64(OPTION_REPLY_MAGIC);
    reply.put_u32(option);
    reply.put_u32(kind);
    reply.put_u32(data.len() as u32);
    reply.put_slice(data);
}
