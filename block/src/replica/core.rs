//! What a replica does with each message. Never waits: syncs are asked of the
//! driver and their end comes back as an input.
//!
//! Invariant: a write is applied only under exactly the promised epoch and only
//! from the process that obtained the promise; it is acknowledged only when that
//! promise is durable. So after `Promised(e)` no write of a lower epoch changes
//! a byte, whatever is still on its way.

use std::{collections::BTreeMap, io};

use serde::{Deserialize, Serialize};

use super::{
    absent::ReplicaKey,
    disk::Disk,
    layers::{Carried, Fetch, Patience, SyncPlan, is_full},
    promise::Standing,
    store::Store,
};
use crate::{
    epoch::Epoch,
    net::reactor::LinkId,
    wire::{
        Frame, Header, Kind, MAX_PAYLOAD, Status,
        hello::{Hello, VERSIONS},
        members::Promised,
    },
};

#[derive(Debug)]
pub enum Input {
    Frame(LinkId, Frame),
    Closed(LinkId),
    /// What `Output::Persist` asked for is durable.
    Persisted(Standing),
    /// What was written before `Output::Sync` is durable.
    Synced(Carried),
    /// The intent map as of `Output::SyncIntent` is durable.
    IntentSynced,
    /// The map of what this copy misses is durable as it was at `Output::SyncAbsent`.
    AbsentSynced(ReplicaKey),
    /// What `Output::Fetch` asked for is in memory, or was for a moment.
    Fetched(u64),
    /// There is time for work on the layers.
    Work,
    /// It is time to look for damage in a piece of the layers.
    Scrub,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    Send(LinkId, Frame),
    Close(LinkId),
    /// Make this durable, then say `Persisted`. One at a time.
    Persist(Standing),
    /// Sync all that was written, then say `Synced`. One at a time.
    Sync,
    /// Sync the intent map, then say `IntentSynced`. One at a time.
    SyncIntent,
    /// Sync the map of what this copy misses, and the folder, then say `AbsentSynced`.
    SyncAbsent(ReplicaKey),
    /// Wait until the disk has given what `fetch_plan` says, then say `Fetched`.
    Fetch(u64),
    /// The store cannot be trusted any more: stop at once.
    Die(String),
}

/// A process connected to this replica.
#[derive(Debug, Clone)]
struct Session {
    sender: u64,
}

/// Something that has to wait for the disk before it can be done.
#[derive(Debug, Clone)]
pub(super) enum Cold {
    Read(LinkId, Frame),
    Work,
    Scrub,
}

/// What a replica knows of its engines, beyond what is in its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Known {
    promised: Epoch,
    version: u64,
    served_in: u64,
    last_write: Epoch,
    owner: Option<u64>,
    writer: Option<u64>,
    /// Which process is at the other end of each connection.
    senders: Vec<(u64, u64)>,
}

#[derive(Debug, Clone)]
pub struct Replica<D: Disk> {
    volume: String,
    pub(super) store: Store<D>,
    /// Everything below is refused.
    promised: Epoch,
    /// Member version at which this copy was last told that it is in service.
    pub(super) version: u64,
    /// Run of the machine in which this copy was last in service.
    pub(super) served_in: u64,
    /// The present run of the machine.
    pub(super) boot: u64,
    /// Epoch of the last change of a byte; after a start, the highest it can be.
    pub(super) last_write: Epoch,
    /// What is on disk; a restart promises that epoch.
    durable: Standing,
    persisting: Option<Standing>,
    sessions: BTreeMap<LinkId, Session>,
    writer: Option<LinkId>,
    /// The process that obtained the promise, if that was in this replica's life.
    owner: Option<u64>,
    /// Answers that must not leave before this is durable.
    held: Vec<(Standing, LinkId, Frame)>,
    pub(super) syncing: Vec<(LinkId, Frame)>,
    pub(super) to_sync: Vec<(LinkId, Frame)>,
    /// Changes to regions that are not durably noted yet.
    pub(super) awaiting_note: Vec<(LinkId, Frame)>,
    pub(super) noting: Option<Vec<u64>>,
    /// Who waits until it is durable that a copy has left, or is whole again.
    pub(super) departures: Vec<(ReplicaKey, LinkId, Frame)>,
    /// Changes of the layers that wait for the end of a sync.
    pub(super) awaiting_sync: Vec<(LinkId, Frame)>,
    /// Who is told when the sync under way has made a step of the layout, or made ready for one; and who when the next has.
    pub(super) stepping: Vec<(LinkId, Frame)>,
    pub(super) to_step: Vec<(LinkId, Frame)>,
    /// What waits for the disk, by the number of its fetch.
    pub(super) cold: BTreeMap<u64, Cold>,
    pub(super) fetches: u64,
    /// Whether there was no room for work on the layers when it was last tried.
    pub(super) is_full: bool,
    /// Who is about to order a freeze.
    pub(super) freezer: Option<LinkId>,
}

impl<D: Disk> Replica<D> {
    /// `boot` names the present run of the machine.
    pub fn new(volume: String, store: Store<D>, durable: Standing, boot: u64) -> Replica<D> {
        Replica {
            volume,
            store,
            promised: durable.epoch,
            version: durable.version,
            served_in: durable.boot,
            boot,
            last_write: durable.epoch,
            durable,
            persisting: None,
            sessions: BTreeMap::new(),
            writer: None,
            owner: None,
            held: Vec::new(),
            syncing: Vec::new(),
            to_sync: Vec::new(),
            awaiting_note: Vec::new(),
            noting: None,
            departures: Vec::new(),
            awaiting_sync: Vec::new(),
            stepping: Vec::new(),
            to_step: Vec::new(),
            cold: BTreeMap::new(),
            fetches: 0,
            is_full: false,
            freezer: None,
        }
    }

    /// Whether nothing is under way that only this process knows of.
    pub(super) fn is_quiet(&self) -> bool {
        self.persisting.is_none()
            && self.noting.is_none()
            && self.departures.is_empty()
            && [&self.syncing, &self.to_sync, &self.awaiting_note, &self.awaiting_sync]
                .iter()
                .all(|waiting| waiting.is_empty())
            && self.stepping.is_empty()
            && self.held.is_empty()
            && self.cold.is_empty()
    }

    /// Whether it has noted that it serves in this run of its machine: what it lacks it would say.
    #[cfg(test)]
    pub(crate) fn vouches(&self) -> bool {
        self.served_in == self.boot
    }

    /// Whether someone on this connection waits for something that ends with it.
    #[cfg(test)]
    pub(crate) fn owes(&self, link: LinkId) -> bool {
        let waits = |waiting: &[(LinkId, Frame)]| waiting.iter().any(|(from, _)| *from == link);
        let cold = |cold: &Cold| matches!(cold, Cold::Read(from, _) if *from == link);
        let all = [&self.awaiting_note, &self.awaiting_sync, &self.syncing, &self.to_sync];
        let steps = [&self.stepping, &self.to_step];
        all.into_iter().chain(steps).any(|all| waits(all))
            || self.held.iter().any(|(_, to, _)| *to == link)
            || self.departures.iter().any(|(_, to, _)| *to == link)
            || self.cold.values().any(cold)
    }

    /// What a successor has to know of those who are connected. True only while it is quiet.
    pub(super) fn known(&self) -> Known {
        Known {
            promised: self.promised,
            version: self.version,
            served_in: self.served_in,
            last_write: self.last_write,
            owner: self.owner,
            writer: self.writer.map(LinkId::bits),
            senders: self.sessions.iter().map(|(link, session)| (link.bits(), session.sender)).collect(),
        }
    }

    /// Goes on where a predecessor stood; `links` says what its connections are called here.
    pub(super) fn go_on(&mut self, known: Known, links: &BTreeMap<u64, LinkId>) {
        let here = |link: u64| links.get(&link).copied();
        self.promised = known.promised;
        self.version = known.version;
        self.served_in = known.served_in;
        self.last_write = known.last_write;
        self.owner = known.owner;
        self.writer = known.writer.and_then(here);
        let session = |(link, sender)| Some((here(link)?, Session { sender }));
        self.sessions = known.senders.into_iter().filter_map(session).collect();
    }

    pub fn store(&self) -> &Store<D> {
        &self.store
    }

    /// What `Output::Sync` is to carry out.
    pub fn sync_plan(&mut self) -> io::Result<SyncPlan<D>> {
        let flushes = self.syncing.iter().any(|(link, _)| *link != LinkId::NOBODY);
        self.store.sync_plan(flushes)
    }

    /// What `Output::Fetch` is to carry out.
    pub fn fetch_plan(&self, number: u64) -> Fetch<D> {
        let layers = self.store.layers();
        let plan = match self.cold.get(&number) {
            Some(Cold::Read(_, frame)) => match self.sight(frame) {
                Some(sight) => layers.fetch(sight, frame.header.extent),
                None => Ok(Fetch::default()),
            },
            Some(Cold::Work) => layers.fetch_work(),
            Some(Cold::Scrub) => layers.fetch_scrub(),
            None => Ok(Fetch::default()),
        };
        // Whoever waits for it meets the same error.
        plan.unwrap_or_default()
    }

    /// Whether `Input::Work` would be of use. A freeze that is about to come would have to wait for its syncs, and writes with it.
    pub fn has_work(&self) -> bool {
        let fetching = self.cold.values().any(|cold| matches!(cold, Cold::Work));
        let may_work = self.syncing.is_empty() && self.freezer.is_none() && !fetching && !self.is_full;
        may_work && self.store.has_work()
    }

    /// Whether `Input::Scrub` would be of use now and then: it looks for damage, or for room.
    pub fn wants_to_scrub(&self) -> bool {
        self.is_full || self.store.can_scrub()
    }

    pub fn promised(&self) -> Epoch {
        self.promised
    }

    /// Epoch of the last change of a byte.
    pub fn last_write(&self) -> Epoch {
        self.last_write
    }

    pub fn apply(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Frame(link, frame) => self.on_frame(link, frame, out),
            Input::Closed(link) => self.on_closed(link),
            Input::Persisted(standing) => self.on_persisted(standing, out),
            Input::Synced(carried) => self.on_synced(carried, out),
            Input::IntentSynced => self.on_noted(out),
            Input::AbsentSynced(key) => self.on_departed(key, out),
            Input::Fetched(number) => self.on_fetched(number, out),
            Input::Work => self.on_work(out),
            Input::Scrub => self.on_scrub(out),
        }
    }

    pub(super) fn on_frame(&mut self, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        if !self.sessions.contains_key(&link) {
            return self.on_hello(link, &frame, out);
        }
        match frame.header.kind {
            Kind::Ping if !frame.payload.is_empty() => self.on_announced(link, &frame, out),
            Kind::Ping => self.answer(link, &frame.header, Status::Ok, out),
            Kind::Prepare => self.on_prepare(link, &frame.header, out),
            // What an engine before has begun ends before the next one hears which layers there are.
            Kind::Promise if self.store.layers().is_stepping() => {
                self.awaiting_sync.push((link, frame));
                self.sync_for_nobody(out);
            }
            Kind::Promise => self.on_promise(link, &frame.header, out),
            // What comes after a change of the layers is done after it.
            Kind::Write | Kind::Flush | Kind::Trim | Kind::Zero if self.is_change_awaited() => {
                self.awaiting_sync.push((link, frame));
            }
            Kind::Read | Kind::Write | Kind::Flush | Kind::Trim | Kind::Zero => {
                match self.refusal(link, &frame).or_else(|| self.malformed(&frame)) {
                    None => self.on_request(link, frame, out),
                    Some(status) => self.answer(link, &frame.header, status, out),
                }
            }
            Kind::Past | Kind::Changes => {
                match self.refusal(link, &frame).or_else(|| self.malformed(&frame)) {
                    None if frame.header.kind == Kind::Past => {
                        self.on_read(link, frame, Patience::InMemory, out);
                    }
                    None => self.on_changes(link, &frame, out),
                    Some(status) => self.answer(link, &frame.header, status, out),
                }
            }
            Kind::Settled if self.refusal(link, &frame).is_none() => {
                if let Err(error) = self.store.settled(frame.header.tag) {
                    out.push(Output::Die(error.to_string()));
                }
            }
            Kind::Settled => {}
            Kind::Depart
            | Kind::Absent
            | Kind::Forget
            | Kind::Standing
            | Kind::Join
            | Kind::Step
            | Kind::Layer => match self.refusal(link, &frame) {
                None => self.on_membership(link, &frame, out),
                Some(status) => self.answer(link, &frame.header, status, out),
            },
            Kind::Hello | Kind::Reply | Kind::Drain | Kind::Go | Kind::Control => {
                out.push(Output::Close(link));
            }
        }
    }

    fn on_hello(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        let hello = match frame.header.kind {
            Kind::Hello => Hello::accept(&frame.payload, &self.volume),
            _ => return out.push(Output::Close(link)),
        };
        match hello {
            Ok(hello) => {
                self.sessions.insert(link, Session { sender: hello.sender });
                let ours = Hello {
                    versions: VERSIONS,
                    volume: self.volume.clone(),
                    sender: 0,
                    size: self.store.size(),
                    epoch: self.promised,
                };
                let header = Header::new(Kind::Hello, frame.header.tag, self.promised);
                out.push(Output::Send(link, Frame::with(header, ours.encode())));
            }
            Err(error) => {
                let header = frame.header.reply(Status::Invalid, self.promised);
                out.push(Output::Send(link, Frame::with(header, error.to_string().into())));
            }
        }
    }

    fn on_prepare(&mut self, link: LinkId, header: &Header, out: &mut Vec<Output>) {
        if self.promised.fences_out(header.epoch) {
            return self.answer(link, header, Status::Fenced, out);
        }
        let answer = Frame::bare(header.reply(Status::Ok, header.epoch));
        self.answer_when_durable(Standing { epoch: header.epoch, ..Standing::default() }, link, answer, out);
    }

    fn on_promise(&mut self, link: LinkId, header: &Header, out: &mut Vec<Output>) {
        let epoch = header.epoch;
        let sender = self.sessions[&link].sender;
        let same_owner = self.owner.is_none_or(|owner| owner == sender);
        let acceptable = epoch > self.promised || epoch == self.promised && same_owner;
        if !acceptable || epoch == Epoch::NONE {
            return self.answer(link, header, Status::Fenced, out);
        }
        self.freezer = None;
        if let Some(old) = self.writer.replace(link).filter(|old| *old != link) {
            if self.owner == Some(sender) {
                self.sessions.remove(&old);
                out.push(Output::Close(old));
            } else {
                // A courtesy: it would find out with its next write.
                let fenced = Header { status: Status::Fenced, ..Header::new(Kind::Reply, header.tag, epoch) };
                out.push(Output::Send(old, Frame::bare(fenced)));
            }
        }
        self.owner = Some(sender);
        self.promised = epoch;
        self.persist(out);
        let promised = Promised {
            last_write: self.last_write,
            version: self.durable.version,
            lost_power: self.served_in != self.boot,
            regions: self.store.regions().runs().iter().map(|run| (run.first, run.count)).collect(),
            layout: self.store.layout(),
            damaged: !self.store.layers().is_whole(),
            damage: self.store.layers().damage(),
        };
        out.push(Output::Send(link, Frame::with(header.reply(Status::Ok, epoch), promised.encode())));
    }

    /// Why the sender may not ask anything, if so.
    pub(super) fn refusal(&self, link: LinkId, frame: &Frame) -> Option<Status> {
        let epoch = frame.header.epoch;
        if self.promised.fences_out(epoch) {
            return Some(Status::Fenced);
        }
        if epoch != self.promised || self.writer != Some(link) {
            return Some(Status::NotServing);
        }
        (!frame.intact()).then_some(Status::Corrupt)
    }

    /// What is wrong with a request for data, if anything.
    pub(super) fn malformed(&self, frame: &Frame) -> Option<Status> {
        let extent = frame.header.extent;
        let (length, brings) = (extent.length() as usize, frame.payload.len());
        let fits = extent.fits(self.store.size());
        let sound = match frame.header.kind {
            Kind::Write => fits && brings == length,
            Kind::Read => fits && brings == 0 && length <= MAX_PAYLOAD,
            Kind::Past => length <= MAX_PAYLOAD,
            Kind::Changes => true,
            _ => fits && brings == 0,
        };
        (!sound).then_some(Status::Invalid)
    }

    pub(super) fn answer(&self, link: LinkId, header: &Header, status: Status, out: &mut Vec<Output>) {
        out.push(Output::Send(link, Frame::bare(header.reply(status, self.promised))));
    }

    pub(super) fn answer_when_durable(
        &mut self,
        needed: Standing,
        link: LinkId,
        answer: Frame,
        out: &mut Vec<Output>,
    ) {
        if self.is_durable(needed) {
            return out.push(Output::Send(link, answer));
        }
        self.held.push((needed, link, answer));
        self.persist(out);
    }

    fn is_durable(&self, needed: Standing) -> bool {
        let same_boot = needed.boot == 0 || needed.boot == self.durable.boot;
        needed.epoch <= self.durable.epoch && needed.version <= self.durable.version && same_boot
    }

    /// Asks for whatever must become durable and is not yet.
    fn persist(&mut self, out: &mut Vec<Output>) {
        let held = self.held.iter().map(|(standing, ..)| standing.epoch).max().unwrap_or(Epoch::NONE);
        let epoch = held.max(self.promised).max(self.durable.epoch);
        let wanted = Standing { epoch, version: self.version, boot: self.served_in };
        if wanted != self.durable && self.persisting.is_none() {
            self.persisting = Some(wanted);
            out.push(Output::Persist(wanted));
        }
    }

    fn on_persisted(&mut self, standing: Standing, out: &mut Vec<Output>) {
        self.persisting = None;
        self.durable = standing;
        for (needed, link, frame) in std::mem::take(&mut self.held) {
            if self.is_durable(needed) {
                out.push(Output::Send(link, frame));
            } else {
                self.held.push((needed, link, frame));
            }
        }
        self.persist(out);
    }

    fn on_closed(&mut self, link: LinkId) {
        self.sessions.remove(&link);
        self.freezer.take_if(|freezer| *freezer == link);
        if self.writer == Some(link) {
            self.writer = None;
        }
        self.held.retain(|(_, to, _)| *to != link);
        // Their syncs end one by one, so their places stay.
        for (_, to, _) in self.departures.iter_mut().filter(|(_, to, _)| *to == link) {
            *to = LinkId::NOBODY;
        }
        self.awaiting_note.retain(|(from, _)| *from != link);
        self.awaiting_sync.retain(|(from, _)| *from != link);
        self.stepping.retain(|(to, _)| *to != link);
        self.to_step.retain(|(to, _)| *to != link);
        self.cold.retain(|_, cold| !matches!(cold, Cold::Read(from, _) if *from == link));
    }
}

pub(super) fn status_of(error: &io::Error) -> Status {
    if is_full(error) { Status::NoSpace } else { Status::Failed }
}
