//! Requests of the frontend: sent to the members, counted, answered once.
//!
//! Invariant: an answer `Ok` to anything that changes data means that no member
//! which the record counts still owes its acknowledgement.

use bytes::Bytes;

use super::{
    core::{Engine, Output},
    members::{Mask, bit},
};
use crate::{
    net::reactor::LinkId,
    wire::{Frame, Header, Kind, Status},
};

/// A request that is being carried out.
#[derive(Debug)]
pub(super) struct Pending {
    asked: Header,
    frontend: LinkId,
    /// Members that still owe an answer.
    owed: Mask,
}

/// Reads of one such region go to one member: its page cache then serves a part
/// of the volume, and a stream of reads stays with one process.
const READ_REGION_BITS: u32 = 21;

impl Engine {
    pub(super) fn on_request(&mut self, frontend: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let asked = frame.header;
        if asked.epoch != self.epoch || !asked.extent.fits(self.size) {
            let status = if asked.epoch == self.epoch { Status::Invalid } else { Status::NotServing };
            return out.push(Output::Send(frontend, Frame::bare(asked.reply(status, self.epoch))));
        }
        if asked.kind == Kind::Read {
            let number = self.pending.push(Pending { asked, frontend, owed: 0 });
            return self.send_read(number, out);
        }
        let owed = self.members.needed();
        let mut header = asked.clone();
        header.tag = self.pending.push(Pending { asked, frontend, owed });
        for (_, link) in self.members.usable() {
            let frame = Frame { header: header.clone(), payload: frame.payload.clone() };
            out.push(Output::Send(link, frame));
        }
    }

    /// Sends a read to the member its region belongs to. With nobody to ask, it
    /// waits: a client sees a pause, never an error.
    fn send_read(&mut self, number: u64, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.get_mut(number) else { return };
        let count = self.members.usable().count();
        let turn = (pending.asked.extent.offset() >> READ_REGION_BITS) as usize;
        let Some((member, link)) = self.members.usable().nth(turn % count.max(1)) else { return };
        pending.owed = bit(member);
        let header = Header { tag: number, ..pending.asked.clone() };
        out.push(Output::Send(link, Frame::bare(header)));
    }

    /// Asks someone else for the reads that a lost member owed.
    pub(super) fn reread(&mut self, lost: usize, out: &mut Vec<Output>) {
        let orphans: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.asked.kind == Kind::Read && pending.owed & !bit(lost) == 0)
            .map(|(number, _)| number)
            .collect();
        for number in orphans {
            self.send_read(number, out);
        }
    }

    /// Nobody waits for this member any more: the record says that it is out.
    pub(super) fn discount(&mut self, member: usize, out: &mut Vec<Output>) {
        let mut done = Vec::new();
        for (number, pending) in self.pending.iter_mut() {
            if pending.asked.kind != Kind::Read {
                pending.owed &= !bit(member);
                done.extend((pending.owed == 0).then_some(number));
            }
        }
        for number in done {
            self.finish(number, Frame::bare, out);
        }
    }

    /// A member has carried a request out.
    pub(super) fn on_done(&mut self, member: usize, number: u64, frame: Frame, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.get_mut(number) else { return };
        if pending.owed & bit(member) == 0 {
            return;
        }
        pending.owed &= !bit(member);
        if pending.owed != 0 {
            return;
        }
        let check = frame.header.check;
        let data: Bytes = frame.payload;
        self.finish(number, |header| Frame { header: Header { check, ..header }, payload: data }, out);
    }

    fn finish(&mut self, number: u64, answer: impl FnOnce(Header) -> Frame, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.remove(number) else { return };
        let header = pending.asked.reply(Status::Ok, self.epoch);
        out.push(Output::Send(pending.frontend, answer(header)));
        if self.pending.is_empty() {
            self.advance(out);
        }
    }
}
