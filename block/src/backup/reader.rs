//! Reads snapshots from an engine, beside the volume's frontend.
//!
//! Invariant: an answer is taken for the question with its number; one without a
//! payload, where one is due, means that the snapshot is gone.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use super::BackupError;
use crate::{
    blocks::{BLOCK_BITS, Blocks},
    caller::{EngineControl, Wire},
    engine::control::{Answer, Command, Status as Volume},
    epoch::Epoch,
    extent::Extent,
    net::address::Address,
    wire::{Frame, Header, Kind, Status, members::Missing, past::Past},
};

/// An engine that does not answer for so long has lost its members, or hangs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// Pieces asked for ahead.
pub(super) const AHEAD: usize = 4;

/// Bytes that are read from a socket at once.
const CHUNK: usize = 256 << 10;

pub(super) fn connect(engine: &Address) -> Result<Wire, BackupError> {
    let wire = Wire::connect(engine, CHUNK)?;
    wire.wait_at_most(ANSWERS_WITHIN)?;
    Ok(wire)
}

pub(super) fn status(engine: &Address) -> Result<Volume, BackupError> {
    match EngineControl::connect(engine)?.call(&Command::Status)? {
        Answer::Status(status) => Ok(*status),
        other => Err(BackupError::Refused(format!("{other:?}"))),
    }
}

pub(super) struct Reader {
    wire: Wire,
    snapshot: u64,
    tag: u64,
    asked: VecDeque<(u64, Extent)>,
    early: Vec<Frame>,
}

impl Reader {
    pub(super) fn connect(engine: &Address, snapshot: u64) -> Result<Reader, BackupError> {
        let wire = connect(engine)?;
        Ok(Reader { wire, snapshot, tag: 0, asked: VecDeque::new(), early: Vec::new() })
    }

    fn ask(&mut self, kind: Kind, extent: Extent, since: Option<u64>) -> Result<u64, BackupError> {
        self.tag += 1;
        let header = Header { extent, ..Header::new(kind, self.tag, Epoch::NONE) };
        let past = Past { snapshot: self.snapshot, since };
        self.wire.send(&Frame::with(header, past.encode()))?;
        Ok(self.tag)
    }

    fn answer(&mut self, tag: u64) -> Result<Bytes, BackupError> {
        let frame = loop {
            if let Some(at) = self.early.iter().position(|frame| frame.header.tag == tag) {
                break self.early.swap_remove(at);
            }
            let frame = self.wire.receive()?;
            self.early.push(frame);
        };
        match frame.header.status {
            Status::Ok if frame.intact() => Ok(frame.payload),
            Status::Invalid => Err(BackupError::SnapshotGone),
            status => Err(BackupError::Refused(format!("{status:?}"))),
        }
    }

    /// Blocks in which the snapshot may differ from an older one, or that it has at all.
    pub(super) fn changes(&mut self, since: Option<u64>, size: u64) -> Result<Blocks, BackupError> {
        let tag = self.ask(Kind::Changes, Extent::EMPTY, since)?;
        let payload = self.answer(tag)?;
        let changes = Missing::decode(&payload, size.div_ceil(1 << BLOCK_BITS));
        Ok(changes.ok_or(BackupError::SnapshotGone)?.blocks)
    }

    /// Asks for an extent; answers come in the order of asking.
    pub(super) fn request(&mut self, extent: Extent) -> Result<(), BackupError> {
        let tag = self.ask(Kind::Past, extent, None)?;
        self.asked.push_back((tag, extent));
        Ok(())
    }

    pub(super) fn next(&mut self) -> Result<Option<(Extent, Bytes)>, BackupError> {
        let Some((tag, extent)) = self.asked.pop_front() else { return Ok(None) };
        let data = self.answer(tag)?;
        match data.len() == extent.length() as usize {
            true => Ok(Some((extent, data))),
            false => Err(BackupError::SnapshotGone),
        }
    }
}
