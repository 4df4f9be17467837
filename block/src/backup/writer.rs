//! Writes to a volume as its frontend: nobody else writes meanwhile.
//!
//! Invariant: `flush` returns after everything written before it is durable on every
//! copy in service.

use bytes::Bytes;

use super::{BackupError, reader};
use crate::{
    caller::Wire,
    epoch::Epoch,
    extent::Extent,
    net::address::Address,
    record::Attachment,
    role,
    wire::{
        Frame, Header, Kind, Status,
        hello::{Hello, VERSIONS},
    },
};

/// Requests under way at once.
const AT_ONCE: usize = 8;

pub(crate) struct Writer {
    wire: Wire,
    epoch: Epoch,
    tag: u64,
    under_way: usize,
}

impl Writer {
    /// Connects to an engine that no frontend is connected to, in the name of the attachment
    /// that the volume's record names, and lets it serve.
    pub(crate) fn connect(
        engine: &Address,
        volume: &str,
        attachment: Option<Attachment>,
    ) -> Result<Writer, BackupError> {
        let mut wire = reader::connect(engine)?;
        let hello = Hello {
            versions: VERSIONS,
            volume: volume.to_owned(),
            sender: attachment.map_or_else(role::process_name, Attachment::bits),
            size: 0,
            epoch: Epoch::NONE,
        };
        wire.send(&Frame::with(Header::new(Kind::Hello, 0, Epoch::NONE), hello.encode()))?;
        let answer = wire.receive()?;
        if answer.header.kind != Kind::Hello {
            return Err(BackupError::Refused(String::from_utf8_lossy(&answer.payload).into_owned()));
        }
        let theirs = Hello::accept(&answer.payload, volume);
        let theirs = theirs.map_err(|error| BackupError::Refused(error.to_string()))?;
        let mut writer = Writer { wire, epoch: theirs.epoch, tag: 0, under_way: 0 };
        writer.send(Kind::Go, Extent::EMPTY, Bytes::new())?;
        writer.drain()?;
        // The engine asks whether we have sent everything again. We find the question before the
        // first answer, and it our answer before the second.
        writer.flush()?;
        writer.flush()?;
        Ok(writer)
    }

    fn send(&mut self, kind: Kind, extent: Extent, data: Bytes) -> Result<(), BackupError> {
        self.tag += 1;
        self.under_way += 1;
        let header = Header { extent, ..Header::new(kind, self.tag, self.epoch) };
        Ok(self.wire.send(&Frame::with(header, data))?)
    }

    /// Waits for one answer.
    fn settle(&mut self) -> Result<(), BackupError> {
        let frame = self.wire.receive()?;
        match (frame.header.kind, frame.header.status) {
            // We have nothing to send again.
            (Kind::Ping, _) => {
                Ok(self.wire.send(&Frame::bare(frame.header.reply(Status::Ok, self.epoch)))?)
            }
            (Kind::Reply, status) => {
                self.under_way -= 1;
                match status {
                    Status::Ok => Ok(()),
                    status => Err(BackupError::Refused(format!("{status:?}"))),
                }
            }
            (_, status) => Err(BackupError::Refused(format!("{status:?}"))),
        }
    }

    fn drain(&mut self) -> Result<(), BackupError> {
        while self.under_way > 0 {
            self.settle()?;
        }
        Ok(())
    }

    /// Writes, or makes zeroes where there is no data.
    pub(super) fn write(&mut self, extent: Extent, data: Option<Bytes>) -> Result<(), BackupError> {
        while self.under_way >= AT_ONCE {
            self.settle()?;
        }
        match data {
            Some(data) => self.send(Kind::Write, extent, data),
            None => self.send(Kind::Zero, extent, Bytes::new()),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), BackupError> {
        self.drain()?;
        self.send(Kind::Flush, Extent::EMPTY, Bytes::new())?;
        self.drain()
    }
}
