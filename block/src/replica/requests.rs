//! What a replica does with requests that it may carry out.
//!
//! Invariant: an answer `Ok` to a flush, or to anything with FUA, leaves only
//! after a sync that began after it was applied.

use std::io;

use super::{
    absent::ReplicaKey,
    core::{Cold, Output, Replica, status_of},
    disk::Disk,
    layers::{Carried, Patience, Sight, Worked},
    promise::Standing,
};
use crate::{
    net::reactor::LinkId,
    wire::{
        Frame, Header, Kind, PARTIAL, SOON, Status,
        layout::{Layout, Step},
        members::{Joined, Missing},
        past::Past,
    },
};

/// Whether something was not done because the disk would have to be waited for.
fn is_cold<T>(done: &io::Result<T>) -> bool {
    matches!(done, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl<D: Disk> Replica<D> {
    pub(super) fn on_request(&mut self, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let extent = header.extent;
        match header.kind {
            Kind::Read => self.on_read(link, frame, Patience::InMemory, out),
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

    /// What a read looks at. A snapshot may be gone.
    pub(super) fn sight(&self, frame: &Frame) -> Option<Sight> {
        match (frame.header.kind, frame.header.layer.checked_sub(1)) {
            (Kind::Past, _) => {
                let past = Past::decode(&frame.payload)?;
                self.store.layers().place_of(past.snapshot).map(Sight::Snapshot)
            }
            (_, None) => Some(Sight::Live),
            (_, Some(place)) => Some(Sight::Layer(place.into())),
        }
    }

    /// What is not in memory is fetched by someone who may wait; nothing else does. A snapshot that
    /// is not here (any more) is told by an empty answer: that is no fault of this copy.
    pub(super) fn on_read(&mut self, link: LinkId, frame: Frame, patience: Patience, out: &mut Vec<Output>) {
        let header = &frame.header;
        let look = |sight| self.store.layers().look(sight, header.extent, patience);
        let seen = self.sight(&frame).map(look).transpose();
        if is_cold(&seen) {
            return self.fetch(Cold::Read(link, frame), out);
        }
        if let Err(error) = self.store.note_damage() {
            return out.push(Output::Die(error.to_string()));
        }
        let reply = Header { extent: header.extent, ..header.reply(Status::Ok, header.epoch) };
        let answer = match seen {
            Ok(Some(data)) => Frame::with(reply, data),
            Ok(None) => Frame::bare(reply),
            Err(error) => Frame::bare(header.reply(status_of(&error), header.epoch)),
        };
        out.push(Output::Send(link, answer));
    }

    fn fetch(&mut self, cold: Cold, out: &mut Vec<Output>) {
        self.fetches += 1;
        self.cold.insert(self.fetches, cold);
        out.push(Output::Fetch(self.fetches));
    }

    /// Does what waited, after another look at whether it may be done. It does not wait a second time.
    pub(super) fn on_fetched(&mut self, number: u64, out: &mut Vec<Output>) {
        match self.cold.remove(&number) {
            Some(Cold::Read(link, frame)) => {
                match self.refusal(link, &frame).or_else(|| self.malformed(&frame)) {
                    None => self.on_read(link, frame, Patience::Wait, out),
                    Some(status) => self.answer(link, &frame.header, status, out),
                }
            }
            Some(Cold::Work) if self.has_work() => self.work(Patience::Wait, out),
            Some(Cold::Scrub) => self.scrub(Patience::Wait, out),
            Some(Cold::Work) | None => {}
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
            self.stepping = std::mem::take(&mut self.to_step);
            out.push(Output::Sync);
        }
    }

    /// Whether a change of the layers waits for which writes have to wait. The removal of a snapshot is none: what a
    /// read gives is the same before and after it.
    pub(super) fn is_change_awaited(&self) -> bool {
        let is_removal = |frame: &Frame| {
            frame.header.kind == Kind::Step
                && matches!(Step::decode(&frame.payload), Some(Step::Remove { .. }))
        };
        self.awaiting_sync.iter().any(|(_, frame)| !is_removal(frame))
    }

    pub(super) fn on_synced(&mut self, carried: Carried, out: &mut Vec<Output>) {
        if let Err(error) = self.store.synced(carried) {
            return out.push(Output::Die(error.to_string()));
        }
        let status = match carried {
            Carried::Out => Status::Ok,
            Carried::ButForTheChain => Status::NoSpace,
        };
        self.is_full |= status == Status::NoSpace;
        for (link, mut answer) in std::mem::take(&mut self.stepping) {
            answer.header.status = status;
            out.push(Output::Send(link, answer));
        }
        let answers = std::mem::take(&mut self.syncing).into_iter();
        for (link, frame) in answers.filter(|(link, _)| *link != LinkId::NOBODY) {
            let needed = self.needed(&frame.header);
            self.answer_when_durable(needed, link, frame, out);
        }
        for (link, frame) in std::mem::take(&mut self.awaiting_sync) {
            self.on_frame(link, frame, out);
        }
        self.start_sync(out);
    }

    /// Syncs what the layers have to have on disk; no client is told.
    pub(super) fn sync_for_nobody(&mut self, out: &mut Vec<Output>) {
        let done = Header::new(Kind::Reply, 0, self.promised());
        self.to_sync.push((LinkId::NOBODY, Frame::bare(done)));
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
        // What is not durable yet is made so beside the loop; writes go on.
        let is_durable = match header.kind {
            Kind::Depart if header.flags & PARTIAL != 0 => {
                self.store.absent.add(missing.replica, &missing.blocks).map(|()| true)
            }
            Kind::Depart => {
                self.store.absent.begin(missing.replica, missing.from, &missing.blocks).map(|()| false)
            }
            Kind::Forget => self.store.absent.forget(missing.replica).map(|()| false),
            _ => return self.tell_missing(link, header, missing.replica, out),
        };
        match is_durable {
            Ok(true) => out.push(Output::Send(link, ok)),
            Ok(false) => {
                self.departures.push((missing.replica, link, ok));
                out.push(Output::SyncAbsent(missing.replica));
            }
            Err(error) => self.fail(link, header, &error, out),
        }
    }

    /// It is durable that a copy has left or is whole again, as far as it was told when the sync began. Writes were not kept waiting.
    pub(super) fn on_departed(&mut self, key: ReplicaKey, out: &mut Vec<Output>) {
        let Some(at) = self.departures.iter().position(|(other, ..)| *other == key) else { return };
        let (_, link, answer) = self.departures.remove(at);
        if link != LinkId::NOBODY {
            out.push(Output::Send(link, answer));
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
        self.freezer = None;
        let made = match self.store.begin_step(&step) {
            Ok(true) => Ok(false),
            Ok(false) => self.store.take_step(&step).map(|()| true),
            Err(error) => Err(error),
        };
        match made {
            Ok(is_durable) => {
                self.last_write = self.last_write.max(header.epoch);
                let is_frozen = matches!(step, Step::Freeze { .. });
                let is_soon_enough = is_frozen && header.flags & SOON != 0;
                if is_durable || is_soon_enough {
                    self.answer(link, header, Status::Ok, out);
                } else {
                    self.to_step.push((link, Frame::bare(header.reply(Status::Ok, self.promised()))));
                }
                if !is_durable {
                    self.sync_for_nobody(out);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.answer(link, header, Status::Invalid, out);
            }
            Err(error) => self.fail(link, header, &error, out),
        }
    }

    /// A step is about to come: what takes long is done ahead of it. Whoever cannot is as ready as without it.
    pub(super) fn on_announced(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let step = Step::decode(&frame.payload).filter(|_| self.refusal(link, frame).is_none());
        if matches!(step, Some(Step::Freeze { .. })) {
            self.freezer = Some(link);
        }
        let wants_sync = step.is_some_and(|step| self.store.prepare(&step).unwrap_or(false));
        if !wants_sync {
            return self.answer(link, header, Status::Ok, out);
        }
        self.to_step.push((link, Frame::bare(header.reply(Status::Ok, self.promised()))));
        self.sync_for_nobody(out);
    }

    fn tell_layer(&self, link: LinkId, header: &Header, out: &mut Vec<Output>) {
        let Some(place) = header.layer.checked_sub(1) else {
            return self.answer(link, header, Status::Invalid, out);
        };
        match self.store.layers().blocks_of(place.into()) {
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
            self.work(Patience::InMemory, out);
        }
    }

    fn work(&mut self, patience: Patience, out: &mut Vec<Output>) {
        let worked = self.store.work(patience);
        match worked {
            Ok(Worked::Piece) => {}
            Ok(Worked::WantsSync) => self.sync_for_nobody(out),
            worked if is_cold(&worked) => self.fetch(Cold::Work, out),
            Err(error) => self.mourn(&error, out),
        }
    }

    /// Reads a piece of the layers to find damage, which has the same end.
    pub(super) fn on_scrub(&mut self, out: &mut Vec<Output>) {
        self.is_full = false;
        if !self.cold.values().any(|cold| matches!(cold, Cold::Scrub)) {
            self.scrub(Patience::InMemory, out);
        }
    }

    fn scrub(&mut self, patience: Patience, out: &mut Vec<Output>) {
        match self.store.scrub(patience) {
            Ok(()) => {}
            scrubbed if is_cold(&scrubbed) => self.fetch(Cold::Scrub, out),
            Err(error) => self.mourn(&error, out),
        }
    }

    fn mourn(&mut self, error: &io::Error, out: &mut Vec<Output>) {
        let noted = self.store.note_damage();
        let why = noted.err().map_or(error.to_string(), |worse| format!("{error}; {worse}"));
        match status_of(error) {
            Status::NoSpace => self.is_full = true,
            _ => out.push(Output::Die(why)),
        }
    }

    /// Where a snapshot differs from another; an empty answer when one is not here (any more).
    pub(super) fn on_changes(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        let reply = Header { extent: header.extent, ..header.reply(Status::Ok, header.epoch) };
        let past = Past::decode(&frame.payload);
        let changes = past.map_or(Ok(None), |past| self.store.layers().changes(past.snapshot, past.since));
        let answer = match (changes, past) {
            (Ok(Some(blocks)), Some(Past { snapshot: replica, .. })) => {
                Frame::with(reply, Missing { replica, from: 0, blocks }.encode())
            }
            (Ok(_), _) => Frame::bare(reply),
            (Err(error), _) => Frame::bare(header.reply(status_of(&error), header.epoch)),
        };
        out.push(Output::Send(link, answer));
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
