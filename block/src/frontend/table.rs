//! The requests of one volume that no client has an answer to yet.
//!
//! Invariant: of two requests that overlap, where one writes, the later is not
//! sent before the earlier is answered. So two requests under way never touch
//! the same byte with a write among them, and sending all of them again, to
//! another engine, in any order, changes nothing that a client was told.

use std::time::Instant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    epoch::Epoch,
    extent::Extent,
    net::reactor::LinkId,
    window::Window,
    wire::{FUA, Frame, Header, Kind},
};

/// What a client can ask of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Op {
    Read,
    Write,
    Flush,
    Trim,
    Zero,
}

impl Op {
    fn changes(self) -> bool {
        match self {
            Op::Write | Op::Trim | Op::Zero => true,
            Op::Read | Op::Flush => false,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Trim => Kind::Trim,
            Op::Zero => Kind::Zero,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Request {
    pub client: LinkId,
    /// The client's own name for it.
    pub cookie: u64,
    pub op: Op,
    pub fua: bool,
    pub extent: Extent,
    pub payload: Bytes,
    /// Checksum of the payload, made when it arrived.
    pub check: u32,
    pub arrived: Instant,
}

impl Request {
    fn conflicts(&self, other: &Request) -> bool {
        (self.op.changes() || other.op.changes()) && self.extent.overlaps(other.extent)
    }

    fn frame(&self, tag: u64, epoch: Epoch) -> Frame {
        let mut header = Header::new(self.op.kind(), tag, epoch);
        header.extent = self.extent;
        header.check = self.check;
        header.flags = if self.fua { FUA } else { 0 };
        Frame { header, payload: self.payload.clone() }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    request: Request,
    sent: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Table {
    entries: Window<Entry>,
    unsent: usize,
}

impl Table {
    /// Takes a request in; gives its frame when it may go out at once.
    pub fn admit(&mut self, request: Request, open: Option<Epoch>) -> Option<Frame> {
        let free = self.entries.iter().all(|(_, entry)| !entry.request.conflicts(&request));
        let epoch = open.filter(|_| free);
        let tag = self.entries.push(Entry { request, sent: epoch.is_some() });
        match epoch {
            Some(epoch) => self.entries.get(tag).map(|entry| entry.request.frame(tag, epoch)),
            None => {
                self.unsent += 1;
                None
            }
        }
    }

    /// The engine has answered; the request leaves the table.
    pub fn answer(&mut self, tag: u64) -> Option<Request> {
        if !self.entries.get(tag)?.sent {
            return None;
        }
        self.entries.remove(tag).map(|entry| entry.request)
    }

    pub fn get(&self, tag: u64) -> Option<&Request> {
        self.entries.get(tag).map(|entry| &entry.request)
    }

    /// Whether something waits that an answer may have set free.
    pub fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Sends what waits and no longer overlaps anything before it.
    pub fn release(&mut self, epoch: Epoch, mut send: impl FnMut(Frame)) {
        let waiting: Vec<u64> =
            self.entries.iter().filter(|(_, entry)| !entry.sent).map(|(tag, _)| tag).collect();
        for tag in waiting {
            let Some(request) = self.get(tag) else { continue };
            let conflicts = |(_, earlier): (u64, &Entry)| earlier.request.conflicts(request);
            if self.entries.iter().take_while(|(number, _)| *number < tag).any(conflicts) {
                continue;
            }
            send(request.frame(tag, epoch));
            self.unsent -= 1;
            if let Some(entry) = self.entries.get_mut(tag) {
                entry.sent = true;
            }
        }
    }

    /// Sends again all that was sent and not answered, in the order it came.
    pub fn replay(&self, epoch: Epoch, mut send: impl FnMut(Frame)) -> usize {
        let sent = self.entries.iter().filter(|(_, entry)| entry.sent);
        sent.map(|(tag, entry)| send(entry.request.frame(tag, epoch))).count()
    }

    /// All of them, in the order they came.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.entries.iter().map(|(_, entry)| &entry.request)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Slots in use: what the client's side must bound.
    pub fn span(&self) -> usize {
        self.entries.span()
    }

    /// Whether a request that arrived by `moment` is still without an answer.
    pub fn has_since(&self, moment: Instant) -> bool {
        self.entries.iter().next().is_some_and(|(_, entry)| entry.request.arrived <= moment)
    }
}
