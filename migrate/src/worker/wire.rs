//! What passes between the tool and a worker that runs jq filters.
//!
//! To the worker: one frame with the [`Setup`], then one frame per chunk of rows
//! of one table. Back: one answer per row, in order. Lengths go before bytes,
//! all numbers are little-endian.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

/// The largest frame; what is longer was not written by us.
const MAX_FRAME: usize = 64 << 20;

/// What a worker is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Bytes of memory it may take.
    pub memory: u64,
    pub filters: Vec<SetupFilter>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SetupFilter {
    pub table: String,
    pub program: String,
}

/// First byte of an answer.
pub(super) mod tag {
    pub(crate) const KEEP: u8 = 0;
    pub(crate) const OUTPUTS: u8 = 1;
    pub(crate) const FAILED: u8 = 2;
}

/// What an output names, where it differs from the row it came from.
pub(super) mod flag {
    pub(crate) const TABLE: u8 = 1;
    pub(crate) const TOPIC: u8 = 2;
    pub(crate) const ID: u8 = 4;
}

pub(super) fn put_u32(out: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("rows and chunks are far below 4 GiB");
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Begins a frame; [`end_frame`] writes its length.
pub(super) fn begin_frame(out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0; 4]);
}

pub(super) fn end_frame(out: &mut [u8]) {
    let length = u32::try_from(out.len() - 4).expect("a chunk is far below 4 GiB");
    out[..4].copy_from_slice(&length.to_le_bytes());
}

/// Reads numbers and bytes with their lengths.
pub(super) trait ReadWire: Read {
    fn u8(&mut self) -> io::Result<u8> {
        let mut byte = [0; 1];
        self.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn u32(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 4];
        self.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    /// Appends bytes that have their length before them; says how many.
    fn append(&mut self, to: &mut Vec<u8>) -> io::Result<usize> {
        let length = self.u32()?;
        if length > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a part of {length} bytes")));
        }
        let start = to.len();
        to.resize(start + length, 0);
        self.read_exact(&mut to[start..])?;
        Ok(length)
    }

    fn text(&mut self) -> io::Result<String> {
        let mut bytes = vec![];
        self.append(&mut bytes)?;
        String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl<R: Read + ?Sized> ReadWire for R {}

/// Takes a frame apart without copying it.
pub(super) struct Parts<'a>(pub &'a [u8]);

impl<'a> Parts<'a> {
    pub(super) fn u32(&mut self) -> io::Result<usize> {
        let (number, rest) = self.0.split_first_chunk::<4>().ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*number) as usize)
    }

    pub(super) fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = self.u32()?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> io::Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}
