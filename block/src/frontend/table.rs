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
    /// Earlier requests without an answer that it conflicts with.
    blockers: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Table {
    entries: Window<Entry>,
    unsent: usize,
    /// Of the unsent, those with blockers.
    blocked: usize,
}

impl Table {
    /// Takes a request in; gives its frame when it may go out at once.
    pub fn admit(&mut self, request: Request, open: Option<Epoch>) -> Option<Frame> {
        let conflicting = self.entries.iter().filter(|(_, entry)| entry.request.conflicts(&request));
        let blockers = conflicting.count();
        let epoch = open.filter(|_| blockers == 0);
        let tag = self.entries.push(Entry { request, sent: epoch.is_some(), blockers });
        match epoch {
            Some(epoch) => self.entries.get(tag).map(|entry| entry.request.frame(tag, epoch)),
            None => {
                self.unsent += 1;
                self.blocked += usize::from(blockers > 0);
                None
            }
        }
    }

    /// The engine has answered; the request leaves the table, and those that waited only for
    /// it are free.
    pub fn answer(&mut self, tag: u64) -> Option<Request> {
        if !self.entries.get(tag)?.sent {
            return None;
        }
        let request = self.entries.remove(tag)?.request;
        if self.blocked > 0 {
            let later = self.entries.iter_mut().filter(|(number, _)| *number > tag);
            for (_, entry) in later.filter(|(_, entry)| entry.blockers > 0) {
                if entry.request.conflicts(&request) {
                    entry.blockers -= 1;
                    self.blocked -= usize::from(entry.blockers == 0);
                }
            }
        }
        Some(request)
    }

    /// Whether `release` would send something.
    pub fn has_free(&self) -> bool {
        self.unsent > self.blocked
    }

    /// Sends what waits and no longer overlaps anything before it.
    pub fn release(&mut self, epoch: Epoch, mut send: impl FnMut(Frame)) {
        for (tag, entry) in self.entries.iter_mut() {
            if !entry.sent && entry.blockers == 0 {
                entry.sent = true;
                self.unsent -= 1;
                send(entry.request.frame(tag, epoch));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(op: Op, first: u64, count: u32) -> Request {
        Request {
            client: LinkId::NOBODY,
            cookie: 0,
            op,
            fua: false,
            extent: Extent::new(first * 512, count * 512).unwrap(),
            payload: Bytes::new(),
            check: 0,
            arrived: Instant::now(),
        }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Admit { write: bool, first: u64, count: u32 },
        Answer(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (any::<bool>(), 0..8u64, 1..4u32)
                .prop_map(|(write, first, count)| Act::Admit { write, first, count }),
            2 => (0..16usize).prop_map(Act::Answer),
        ]
    }

    proptest! {
        /// What is under way is what has no conflict with anything before it, at every moment.
        #[test]
        fn a_request_is_sent_once_nothing_before_it_conflicts(
            acts in proptest::collection::vec(act(), 1..60), closed in 0..60usize,
        ) {
            let epoch = Epoch::of_term(1);
            let mut table = Table::default();
            let mut sent: Vec<u64> = Vec::new();
            for (moment, act) in acts.into_iter().enumerate() {
                // Until some moment nobody serves.
                let open = (moment >= closed).then_some(epoch);
                match act {
                    Act::Admit { write, first, count } => {
                        let op = if write { Op::Write } else { Op::Read };
                        sent.extend(table.admit(request(op, first, count), open).map(|frame| frame.header.tag));
                    }
                    Act::Answer(_) if sent.is_empty() => {}
                    Act::Answer(pick) => {
                        let tag = sent.remove(pick % sent.len());
                        prop_assert!(table.answer(tag).is_some());
                        prop_assert!(table.answer(tag).is_none());
                    }
                }
                if open.is_none() {
                    prop_assert!(sent.is_empty());
                    continue;
                }
                let had_free = table.has_free();
                let before = sent.len();
                table.release(epoch, |frame| sent.push(frame.header.tag));
                prop_assert_eq!(had_free, sent.len() > before);
                let all: Vec<(u64, &Request)> =
                    table.entries.iter().map(|(tag, entry)| (tag, &entry.request)).collect();
                let free = |(at, (tag, request)): (usize, &(u64, &Request))| {
                    let free = all[..at].iter().all(|(_, earlier)| !earlier.conflicts(request));
                    free.then_some(*tag)
                };
                let expected: Vec<u64> = all.iter().enumerate().filter_map(free).collect();
                let mut under_way = sent.clone();
                under_way.sort_unstable();
                prop_assert_eq!(under_way, expected);
            }
        }
    }
}
