//! Requests: sent to the members, counted, answered once.
//!
//! Invariant: an answer `Ok` to anything that changes data means that no member
//! which the record counts still owes its acknowledgement, but for one that is
//! being copied to: that one has caught up before it may come into service.

use super::{
    control::Trouble,
    core::{Engine, Output, Phase},
    members::{Mask, bit},
};
use crate::{
    blocks::{BLOCK_BITS, Blocks, REGION_BITS, Run},
    extent::Extent,
    net::reactor::LinkId,
    wire::{Frame, Header, Kind, MAX_PAYLOAD, Status, past::Past},
};

/// Who waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    Frontend(LinkId),
    /// Someone who reads a snapshot beside the frontend.
    Reader(LinkId, Past),
    /// The copy of a piece: its read, then its write. The number is the copying's.
    Copy(u64),
    /// The flush after everything has been copied.
    Copied(u64),
    /// The change of the layout under way.
    Operation,
    /// The flush, and what members are told, before writes wait for such a change.
    Ahead,
    /// The flush before this member is let go: what all have synced it does not miss.
    Release(usize),
    /// A flush of our own, so that little is unflushed when a member fails.
    Nobody,
}

/// A request that is being carried out.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) asked: Header,
    pub(super) asker: Asker,
    /// Members that still owe an answer.
    pub(super) owed: Mask,
    /// Whether its frontend has the answer already, ahead of the member that is being copied to.
    pub(super) answered: bool,
}

impl Pending {
    fn new(asked: Header, asker: Asker, owed: Mask) -> Pending {
        Pending { asked, asker, owed, answered: false }
    }
}

/// Blocks that a member may lack if it loses power now: those written since the
/// last flush that everyone completed.
#[derive(Debug, Clone, Default)]
pub(super) struct Unflushed {
    since: Blocks,
    /// Regions in which engines before may have left something unsynced. They are not
    /// made blocks of before someone has to know: that would be in the pause.
    inherited: Blocks,
    /// A flush under way, and what was written before it.
    closing: Option<Closing>,
    changes: u64,
}

#[derive(Debug, Clone)]
struct Closing {
    flush: u64,
    blocks: Blocks,
    inherited: Blocks,
}

impl Unflushed {
    pub(super) fn inherit(&mut self, regions: &Blocks) {
        self.inherited.extend(regions);
    }

    fn note(&mut self, extent: Extent) {
        self.since.insert_all(Run::touched(extent.offset(), u64::from(extent.length()), BLOCK_BITS));
        self.changes += 1;
    }

    /// `under_way` are changes that a member may carry out after the flush.
    fn flush_began(&mut self, number: u64, under_way: Blocks) {
        if self.closing.is_none() {
            let blocks = std::mem::replace(&mut self.since, under_way);
            let inherited = std::mem::take(&mut self.inherited);
            self.closing = Some(Closing { flush: number, blocks, inherited });
            self.changes = 0;
        }
    }

    /// The next flush is accounted for in any case: sent after the one under way, it covers what that one covers.
    fn take_account(&mut self) {
        if let Some(closing) = self.closing.take() {
            self.since.extend(&closing.blocks);
            self.inherited.extend(&closing.inherited);
        }
    }

    /// Whether it is time for a flush that nobody asks for. One at a time is enough.
    fn is_much(&self) -> bool {
        self.closing.is_none() && (self.changes >= FLUSH_AFTER || self.since.leaves() >= MOST_LEAVES)
    }

    /// Changes since the last flush that was accounted for.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether everything that was ever written is durable everywhere.
    pub(super) fn is_nothing(&self) -> bool {
        self.closing.is_none() && self.since.is_empty() && self.inherited.is_empty()
    }

    /// Says whether the flush was one that we keep account of.
    fn flush_ended(&mut self, number: u64) -> bool {
        let ours = self.closing.as_ref().is_some_and(|closing| closing.flush == number);
        if ours {
            self.closing = None;
        }
        ours
    }

    /// `limit` is how many blocks the volume has.
    pub(super) fn all(&self, limit: u64) -> Blocks {
        let mut all = self.since.clone();
        all.extend(&self.inherited.refine(REGION_BITS, BLOCK_BITS, limit));
        if let Some(closing) = &self.closing {
            all.extend(&closing.blocks);
            all.extend(&closing.inherited.refine(REGION_BITS, BLOCK_BITS, limit));
        }
        all
    }
}

/// Reads of one such region go to one member: its page cache then serves a part
/// of the volume, and a stream of reads stays with one process.
const READ_REGION_BITS: u32 = 21;
/// Changes after which we flush if the client does not: what a member that loses power would
/// be copied again. Sooner, and the disks are kept busy with what is about to be written again.
const FLUSH_AFTER: u64 = 1 << 20;
/// Pieces of the set of unflushed blocks after which we flush as well, for the memory they take.
const MOST_LEAVES: usize = 1 << 16;
/// What a member that is being copied to may be behind the answers, in bytes: it is kept in memory for it.
const MOST_AHEAD: u64 = 8 << 20;
/// What a request without data counts for there.
const LEAST_AHEAD: u64 = 4 << 10;

pub(super) fn changes(kind: Kind) -> bool {
    matches!(kind, Kind::Write | Kind::Trim | Kind::Zero)
}

/// Whether members may let go of regions that were not written to since a few such flushes. Those around a change of the
/// layout follow each other at once: they would let go of all, and the next write to each would have to be noted first.
fn lets_regions_go(asker: Asker) -> bool {
    match asker {
        Asker::Operation | Asker::Ahead => false,
        Asker::Frontend(_)
        | Asker::Reader(..)
        | Asker::Copy(_)
        | Asker::Copied(_)
        | Asker::Release(_)
        | Asker::Nobody => true,
    }
}

/// What a request that was answered ahead of a member counts for.
fn weight(asked: &Header) -> u64 {
    match asked.kind {
        Kind::Write => u64::from(asked.extent.length()).max(LEAST_AHEAD),
        _ => LEAST_AHEAD,
    }
}

fn reads(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::Past | Kind::Changes)
}

impl Engine {
    /// Someone asks about a snapshot: any member in service can tell.
    pub(super) fn on_reader(&mut self, reader: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let known = |id: u64| self.layout.snapshots.iter().any(|snapshot| snapshot.id == id);
        let extent = frame.header.extent;
        let answerable = extent.fits(self.size) && extent.length() as usize <= MAX_PAYLOAD;
        let past = Past::decode(&frame.payload).filter(|past| answerable && known(past.snapshot));
        let refusal = match past {
            _ if self.phase != Phase::Serving => Status::NotServing,
            None => Status::Invalid,
            Some(past) => {
                let asked = Header { epoch: self.epoch, check: 0, ..frame.header.clone() };
                let asker = Asker::Reader(reader, past);
                let number = self.pending.push(Pending::new(asked, asker, 0));
                return self.send_read(number, out);
            }
        };
        out.push(Output::Send(reader, Frame::bare(frame.header.reply(refusal, self.epoch))));
    }

    pub(super) fn on_request(&mut self, frontend: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let asked = &frame.header;
        // What a member would refuse is refused here: it would be taken for that member's fault.
        let length = asked.extent.length() as usize;
        let sound = match asked.kind {
            Kind::Write => frame.payload.len() == length,
            Kind::Read => frame.payload.is_empty() && length <= MAX_PAYLOAD,
            _ => frame.payload.is_empty(),
        };
        if asked.epoch != self.epoch || !asked.extent.fits(self.size) || !sound {
            let status = if asked.epoch == self.epoch { Status::Invalid } else { Status::NotServing };
            return out.push(Output::Send(frontend, Frame::bare(asked.reply(status, self.epoch))));
        }
        let must_wait =
            |extent| self.holds_writes() || self.is_being_copied(extent) || self.is_answered_ahead(extent);
        if changes(asked.kind) && must_wait(asked.extent) {
            return self.held.push_back((frontend, frame));
        }
        let asker = Asker::Frontend(frontend);
        if asked.kind == Kind::Read {
            let number = self.pending.push(Pending::new(frame.header, asker, 0));
            return self.send_read(number, out);
        }
        self.send_all(frame, asker, out);
        if self.unflushed.is_much() {
            self.settle(out);
        }
    }

    /// Sends a change or a flush to everyone who gets every write.
    fn send_all(&mut self, frame: Frame, asker: Asker, out: &mut Vec<Output>) {
        let mut header = frame.header.clone();
        let number = self.pending.push(Pending::new(frame.header, asker, self.members.needed()));
        header.tag = number;
        match header.kind {
            Kind::Flush => {
                self.unsettled = false;
                let under_way = self.being_changed();
                self.unflushed.flush_began(number, under_way);
            }
            _ => self.unflushed.note(header.extent),
        }
        for (_, link) in self.members.receivers() {
            out.push(Output::Send(link, Frame { header: header.clone(), payload: frame.payload.clone() }));
        }
    }

    /// Sends something to one member for a purpose of our own.
    pub(super) fn send_to(&mut self, members: Mask, frame: Frame, asker: Asker, out: &mut Vec<Output>) {
        let mut header = frame.header.clone();
        header.tag = self.pending.push(Pending::new(frame.header, asker, members));
        for (at, link) in self.members.receivers() {
            if members & bit(at) != 0 {
                out.push(Output::Send(
                    link,
                    Frame { header: header.clone(), payload: frame.payload.clone() },
                ));
            }
        }
    }

    /// Flushes for a purpose of our own, so that what was answered before is accounted for when it ends.
    pub(super) fn flush(&mut self, asker: Asker, out: &mut Vec<Output>) {
        self.unflushed.take_account();
        self.send_all(Frame::bare(Header::new(Kind::Flush, 0, self.epoch)), asker, out);
    }

    /// Flushes without being asked.
    pub(super) fn settle(&mut self, out: &mut Vec<Output>) {
        self.send_all(Frame::bare(Header::new(Kind::Flush, 0, self.epoch)), Asker::Nobody, out);
    }

    /// Sends a read to the member in this process, else to the one its region belongs to. With nobody to ask, it
    /// waits: a client sees a pause, never an error.
    fn send_read(&mut self, number: u64, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.get_mut(number) else { return };
        let count = self.members.usable().count();
        let turn = (pending.asked.extent.offset() >> READ_REGION_BITS) as usize;
        let near = self.members.usable().find(|(member, _)| self.near == Some(*member));
        let by_turn = || self.members.usable().nth(turn % count.max(1));
        let Some((member, link)) = near.or_else(by_turn) else { return };
        pending.owed = bit(member);
        let header = Header { tag: number, ..pending.asked.clone() };
        let frame = match pending.asker {
            Asker::Reader(_, past) => Frame::with(header, past.encode()),
            _ => Frame::bare(header),
        };
        out.push(Output::Send(link, frame));
    }

    /// Asks someone else for the reads that a lost member owed.
    pub(super) fn reread(&mut self, lost: usize, out: &mut Vec<Output>) {
        let orphaned = |pending: &Pending| {
            matches!(pending.asker, Asker::Frontend(_) | Asker::Reader(..))
                && reads(pending.asked.kind)
                && pending.owed & !bit(lost) == 0
        };
        let orphans: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| orphaned(pending)).map(|(number, _)| number).collect();
        for number in orphans {
            self.send_read(number, out);
        }
        let useless = |pending: &Pending| {
            matches!(pending.asker, Asker::Copy(_))
                && pending.asked.kind == Kind::Read
                && pending.owed == bit(lost)
        };
        let useless: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| useless(pending)).map(|(number, _)| number).collect();
        for number in useless {
            self.pending.remove(number);
        }
    }

    /// Whether a change under way touches an extent.
    pub(super) fn is_being_changed(&self, extent: Extent) -> bool {
        let touches =
            |pending: &Pending| changes(pending.asked.kind) && pending.asked.extent.overlaps(extent);
        self.pending.iter().any(|(_, pending)| touches(pending))
    }

    /// Whether the member that is being copied to still has to carry a change out here that was answered. It may carry
    /// out two at once in either order, so the next one waits.
    fn is_answered_ahead(&self, extent: Extent) -> bool {
        let touches = |pending: &Pending| {
            pending.answered && changes(pending.asked.kind) && pending.asked.extent.overlaps(extent)
        };
        self.ahead > 0 && self.pending.iter().any(|(_, pending)| touches(pending))
    }

    /// Whether a change is under way that another frontend asked for.
    pub(super) fn changes_of_others(&self, frontend: LinkId) -> bool {
        let foreign = |pending: &Pending| match pending.asker {
            Asker::Frontend(link) => link != frontend && changes(pending.asked.kind),
            Asker::Reader(..)
            | Asker::Copy(_)
            | Asker::Copied(_)
            | Asker::Operation
            | Asker::Ahead
            | Asker::Release(_)
            | Asker::Nobody => false,
        };
        self.pending.iter().any(|(_, pending)| !pending.answered && foreign(pending))
    }

    /// Blocks of the changes under way.
    pub(super) fn being_changed(&self) -> Blocks {
        let mut blocks = Blocks::default();
        for (_, pending) in self.pending.iter().filter(|(_, pending)| changes(pending.asked.kind)) {
            let extent = pending.asked.extent;
            blocks.insert_all(Run::touched(extent.offset(), u64::from(extent.length()), BLOCK_BITS));
        }
        blocks
    }

    /// Nobody waits for this member any more: the record says that it is out.
    pub(super) fn discount(&mut self, member: usize, out: &mut Vec<Output>) {
        let mut freed = Vec::new();
        for (number, pending) in self.pending.iter_mut() {
            if !reads(pending.asked.kind) && pending.owed & bit(member) != 0 {
                pending.owed &= !bit(member);
                freed.push(number);
            }
        }
        for number in freed {
            self.on_fewer_owed(number, None, out);
        }
    }

    /// A member has carried a request out.
    pub(super) fn on_done(&mut self, member: usize, number: u64, frame: Frame, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.get_mut(number) else { return };
        if pending.owed & bit(member) == 0 {
            return;
        }
        pending.owed &= !bit(member);
        self.on_fewer_owed(number, Some(frame), out);
    }

    fn on_fewer_owed(&mut self, number: u64, last: Option<Frame>, out: &mut Vec<Output>) {
        match self.pending.get(number) {
            Some(pending) if pending.owed == 0 => self.finish(number, last, out),
            Some(_) => self.answer_ahead(number, out),
            None => {}
        }
    }

    /// Answers a frontend without the member that is being copied to, if that is all who is waited for and not too far
    /// behind: it comes into service when it has caught up.
    fn answer_ahead(&mut self, number: u64, out: &mut Vec<Output>) {
        let lagging = self.lagging();
        let Some(pending) = self.pending.get_mut(number) else { return };
        let Asker::Frontend(frontend) = pending.asker else { return };
        let is_last = lagging != 0 && pending.owed == lagging && !reads(pending.asked.kind);
        if !is_last || pending.answered || self.ahead >= MOST_AHEAD {
            return;
        }
        pending.answered = true;
        self.ahead += weight(&pending.asked);
        let answer = pending.asked.reply(Status::Ok, self.epoch);
        out.push(Output::Send(frontend, Frame::bare(answer)));
        if matches!(self.phase, Phase::Draining { .. }) {
            self.advance(out);
        }
    }

    /// The member that is being copied to has done what was answered ahead of it.
    fn on_caught_up(&mut self, asked: &Header, out: &mut Vec<Output>) {
        let was_full = self.ahead >= MOST_AHEAD;
        self.ahead -= weight(asked);
        if was_full && self.ahead < MOST_AHEAD {
            let all: Vec<u64> = self.pending.iter().map(|(number, _)| number).collect();
            all.into_iter().for_each(|number| self.answer_ahead(number, out));
        }
        self.release_held(out);
    }

    fn finish(&mut self, number: u64, last: Option<Frame>, out: &mut Vec<Output>) {
        let Some(pending) = self.pending.remove(number) else { return };
        if matches!(self.trouble, Some(Trouble::Full { .. })) && pending.asked.kind == Kind::Write {
            // There is room again.
            self.trouble = None;
        }
        if pending.asked.kind == Kind::Flush {
            let settled = self.unflushed.flush_ended(number) && lets_regions_go(pending.asker);
            for (_, link) in self.members.receivers().filter(|_| settled) {
                out.push(Output::Send(link, Frame::bare(Header::new(Kind::Settled, number, self.epoch))));
            }
        }
        match pending.asker {
            Asker::Frontend(_) if pending.answered => self.on_caught_up(&pending.asked, out),
            Asker::Frontend(link) | Asker::Reader(link, _) => {
                let mut answer = Frame::bare(pending.asked.reply(Status::Ok, self.epoch));
                if let Some(frame) = last {
                    answer.header.check = frame.header.check;
                    answer.payload = frame.payload;
                }
                out.push(Output::Send(link, answer));
            }
            Asker::Copy(copying) => self.on_copied(copying, &pending.asked, last, out),
            Asker::Copied(copying) => self.on_all_copied(copying, out),
            Asker::Operation => self.on_operated(out),
            Asker::Ahead => self.on_ready(out),
            Asker::Release(member) => self.depart(member, out),
            Asker::Nobody => {}
        }
        self.after_request(out);
    }

    /// Goes on with what waited for the end of a request.
    pub(super) fn after_request(&mut self, out: &mut Vec<Output>) {
        self.operate(out);
        if self.copying.is_some() {
            self.copy_on(out);
        }
        if matches!(self.phase, Phase::Draining { .. }) {
            self.advance(out);
        }
        self.greet_successor(out);
    }
}
