//! What a replica does with requests that it may carry out.
//!
//! Invariant: an answer `Ok` to a flush, or to anything with FUA, leaves only
//! after a sync that began after it was applied.

use std::io;

use super::{
    core::{Output, Replica, status_of},
    disk::Disk,
    promise::Standing,
};
use crate::{
    net::reactor::LinkId,
    wire::{
        Frame, Header, Kind, PARTIAL, Status,
        layout::{Layout, Step},
        members::{Joined, Missing},
        past::Past,
    },
};

impl<D: Disk> Replica<D> {
    pub(super) fn on_request(&mut self, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let extent = header.extent;
        match header.kind {
            Kind::Read => {
                let read = match header.layer.checked_sub(1) {
                    None => self.store.read(extent),
                    Some(place) => self.store.layers().read_layer(place.into(), extent),
                };
                if let Err(error) = self.store.note_damage() {
                    return out.push(Output::Die(error.to_string()));
                }
                let answer = match read {
                    Ok(data) => {
                        Frame::with(Header { extent, ..header.reply(Status::Ok, header.epoch) }, data)
                    }
                    Err(error) => Frame::bare(header.reply(status_of(&error), header.epoch)),
                };
                out.push(Output::Send(link, answer));
            }
            Kind::Flush => {
                self.store.flush_began(header.tag);
                self.to_sync.push((link, Frame::bare(header.reply(Status::Ok, header.epoch))));
                self.start_sync(out);
            }
            _ if header.layer > 0 => {
                let data = (header.kind == Kind::Write).then_some(&frame.payload[..]);
                let done = self.store.fill(usize::from(header.layer) - 1, extent, data);
                self.answer_change(link, header, done, out);
            }
            _ => match self.store.admit(extent) {
                Ok(true) => {
                    let done = self.change(&frame);
                    self.answer_change(link, header, done, out);
                }
                Ok(false) => {
                    self.awaiting_note.push((link, frame));
                    self.start_note(out);
                }
                Err(error) => self.fail(link, header, &error, out),
            },
        }
    }

    fn change(&mut self, frame: &Frame) -> io::Result<()> {
        self.last_write = frame.header.epoch;
        match frame.header.kind {
            Kind::Write => self.store.write(frame.header.extent.offset(), &frame.payload),
            _ => self.store.clear(frame.header.extent),
        }
    }

    fn answer_change(&mut self, link: LinkId, header: &Header, done: io::Result<()>, out: &mut Vec<Output>) {
        let answer = Frame::bare(header.reply(Status::Ok, header.epoch));
        match done {
            Ok(()) if header.fua() => {
                self.to_sync.push((link, answer));
                self.start_sync(out);
            }
            Ok(()) => self.answer_when_durable(self.needed(header), link, answer, out),
            Err(error) => self.fail(link, header, &error, out),
        }
    }

    /// What must be durable before a change is acknowledged: the promise, and in
    /// which run of the machine this copy serves.
    fn needed(&self, header: &Header) -> Standing {
        Standing { epoch: header.epoch, version: 0, boot: self.served_in }
    }

    /// A full disk can be told; any other failure ends this replica.
    fn fail(&self, link: LinkId, header: &Header, error: &io::Error, out: &mut Vec<Output>) {
        let status = status_of(error);
        self.answer(link, header, status, out);
        if status != Status::NoSpace {
            out.push(Output::Die(error.to_string()));
        }
    }

    fn start_note(&mut self, out: &mut Vec<Output>) {
        if self.noting.is_none() && !self.awaiting_note.is_empty() {
            self.noting = Some(self.store.begin_note());
            out.push(Output::SyncIntent);
        }
    }

    /// Regions are noted: the changes that waited are looked at anew, for the
    /// promise may have moved on meanwhile.
    pub(super) fn on_noted(&mut self, out: &mut Vec<Output>) {
        if let Some(regions) = self.noting.take() {
            self.store.noted(&regions);
        }
        for (link, frame) in std::mem::take(&mut self.awaiting_note) {
            self.on_frame(link, frame, out);
        }
        self.start_note(out);
    }

    fn start_sync(&mut self, out: &mut Vec<Output>) {
        if self.syncing.is_empty() && !self.to_sync.is_empty() {
            self.syncing = std::mem::take(&mut self.to_sync);
            out.push(Output::Sync);
        }
    }

    pub(super) fn on_synced(&mut self, out: &mut Vec<Output>) {
        for (link, frame) in std::mem::take(&mut self.syncing) {
            let needed = self.needed(&frame.header);
            self.answer_when_durable(needed, link, frame, out);
        }
        for (link, frame) in std::mem::take(&mut self.awaiting_sync) {
            self.on_frame(link, frame, out);
        }
        self.start_sync(out);
    }

    pub(super) fn on_membership(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let ok = Frame::bare(header.reply(Status::Ok, header.epoch));
        // Writes wait behind these: who only hears that it is in service need not.
        let rebuilds = match header.kind {
            Kind::Join | Kind::Step => true,
            Kind::Standing => self.store.layers().is_filling(),
            _ => false,
        };
        if rebuilds && !self.syncing.is_empty() {
            return self.awaiting_sync.push((link, frame.clone()));
        }
        if header.kind == Kind::Standing {
            if let Err(error) = self.store.filled() {
                return self.fail(link, header, &error, out);
            }
            self.version = header.extent.offset();
            self.served_in = self.boot;
            let needed = Standing { epoch: header.epoch, version: self.version, boot: self.boot };
            return self.answer_when_durable(needed, link, ok, out);
        }
        match header.kind {
            Kind::Join => return self.on_join(link, frame, out),
            Kind::Step => return self.on_step(link, frame, out),
            Kind::Layer => return self.tell_layer(link, header, out),
            _ => {}
        }
        let Some(missing) = Missing::decode(&frame.payload, self.store.blocks()) else {
            return self.answer(link, header, Status::Invalid, out);
        };
        let done = match header.kind {
            Kind::Depart if header.flags & PARTIAL != 0 => {
                self.store.absent.add(missing.replica, &missing.blocks)
            }
            Kind::Depart => self.store.absent.begin(missing.replica, missing.from, &missing.blocks),
            Kind::Forget => self.store.absent.forget(missing.replica),
            _ => return self.tell_missing(link, header, missing.replica, out),
        };
        match done {
            Ok(()) => out.push(Output::Send(link, ok)),
            Err(error) => self.fail(link, header, &error, out),
        }
    }

    fn on_join(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let Some(wanted) = Layout::decode(&frame.payload) else {
            return self.answer(link, header, Status::Invalid, out);
        };
        match self.store.adopt(&wanted) {
            Ok(snapshots) => {
                let joined = Joined { snapshots };
                let reply = header.reply(Status::Ok, header.epoch);
                out.push(Output::Send(link, Frame::with(reply, joined.encode())));
            }
            Err(error) => self.fail(link, header, &error, out),
        }
    }

    fn on_step(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let Some(step) = Step::decode(&frame.payload) else {
            return self.answer(link, header, Status::Invalid, out);
        };
        match self.store.take_step(&step) {
            Ok(()) => {
                self.last_write = self.last_write.max(header.epoch);
                self.answer(link, header, Status::Ok, out);
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.answer(link, header, Status::Invalid, out);
            }
            Err(error) => self.fail(link, header, &error, out),
        }
    }

    fn tell_layer(&self, link: LinkId, header: &Header, out: &mut Vec<Output>) {
        match self.store.layers().blocks_of(usize::from(header.layer) - 1) {
            Ok(blocks) => {
                let held = Missing { replica: 0, from: 0, blocks };
                let reply = Header { layer: header.layer, ..header.reply(Status::Ok, header.epoch) };
                out.push(Output::Send(link, Frame::with(reply, held.encode())));
            }
            Err(error) => self.fail(link, header, &error, out),
        }
    }

    /// A piece of work on the layers. What it finds damaged is noted; this process
    /// ends, and its copy comes back by rebuild.
    pub(super) fn on_work(&mut self, out: &mut Vec<Output>) {
        if self.has_work() {
            let worked = self.store.work();
            self.mourn(worked, out);
        }
    }

    /// Reads a piece of the layers to find damage, which has the same end.
    pub(super) fn on_scrub(&mut self, out: &mut Vec<Output>) {
        let scrubbed = self.store.scrub();
        self.mourn(scrubbed, out);
    }

    fn mourn(&mut self, done: io::Result<()>, out: &mut Vec<Output>) {
        if let Err(error) = done {
            let noted = self.store.note_damage();
            let why = noted.err().map_or(error.to_string(), |worse| format!("{error}; {worse}"));
            if status_of(&error) != Status::NoSpace {
                out.push(Output::Die(why));
            }
        }
    }

    /// What a snapshot was, or where it differs. One that is not here (any more) is told
    /// by an empty answer: that is no fault of this copy.
    pub(super) fn on_past(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let told = Past::decode(&frame.payload).map_or(Ok(None), |past| match header.kind {
            Kind::Past => self.store.layers().read_past(past.snapshot, header.extent),
            _ => {
                let changes = self.store.layers().changes(past.snapshot, past.since);
                let encode = |blocks| Missing { replica: past.snapshot, from: 0, blocks }.encode();
                changes.map(|blocks| blocks.map(encode))
            }
        });
        if let Err(error) = self.store.note_damage() {
            return out.push(Output::Die(error.to_string()));
        }
        let reply = Header { extent: header.extent, ..header.reply(Status::Ok, header.epoch) };
        out.push(Output::Send(
            link,
            match told {
                Ok(Some(data)) => Frame::with(reply, data),
                Ok(None) => Frame::bare(reply),
                Err(error) => Frame::bare(header.reply(status_of(&error), header.epoch)),
            },
        ));
    }

    fn tell_missing(&self, link: LinkId, header: &Header, replica: u64, out: &mut Vec<Output>) {
        match self.store.absent.get(replica) {
            Some((from, blocks)) => {
                let missing = Missing { replica, from, blocks };
                out.push(Output::Send(
                    link,
                    Frame::with(header.reply(Status::Ok, header.epoch), missing.encode()),
                ));
            }
            None => out.push(Output::Send(link, Frame::bare(header.reply(Status::Ok, header.epoch)))),
        }
    }
}
