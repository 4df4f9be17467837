//! The NBD protocol as bytes in and bytes out: fixed newstyle negotiation and
//! the transmission phase, for both sides.
//!
//! Invariant: nothing a peer sends makes this code panic, loop, or reserve
//! memory beyond `MAX_LENGTH` for a request whose bytes have not arrived.

pub mod client;
pub mod handshake;
pub mod transmission;

/// Longest read or write, as most servers have it.
pub const MAX_LENGTH: u32 = 32 << 20;
/// Reads and writes of this size and alignment are the quickest.
pub const PREFERRED: u32 = 4096;

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

/// Options a client can negotiate.
mod option {
    pub(super) const EXPORT_NAME: u32 = 1;
    pub(super) const ABORT: u32 = 2;
    pub(super) const LIST: u32 = 3;
    pub(super) const INFO: u32 = 6;
    pub(super) const GO: u32 = 7;
    pub(super) const STRUCTURED_REPLY: u32 = 8;
}

/// Answers to options.
mod answer {
    pub(super) const ACK: u32 = 1;
    pub(super) const SERVER: u32 = 2;
    pub(super) const INFO: u32 = 3;
    const ERROR: u32 = 1 << 31;
    pub(super) const UNSUPPORTED: u32 = ERROR | 1;
    pub(super) const INVALID: u32 = ERROR | 3;
    pub(super) const UNKNOWN: u32 = ERROR | 6;
}

/// Kinds of information about an export.
mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

fn u16_at(raw: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([raw[at], raw[at + 1]])
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) << 32 | u64::from(u32_at(raw, at + 4))
}

#[cfg(test)]
mod tests;
