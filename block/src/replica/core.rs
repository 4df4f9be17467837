//! What a replica does with each message. Never waits: syncs are asked of the
//! driver and their end comes back as an input.
//!
//! Invariant: a write is applied only under exactly the promised epoch and only
//! from the process that obtained the promise; it is acknowledged only when that
//! promise is durable. So after `Promised(e)` no write of a lower epoch changes
//! a byte, whatever is still on its way.

use std::{collections::HashMap, io};

use super::{disk::Disk, store::Store};
use crate::{
    epoch::Epoch,
    net::reactor::LinkId,
    wire::{
        Frame, Header, Kind, Status,
        hello::{Hello, VERSIONS},
    },
};

#[derive(Debug)]
pub enum Input {
    Frame(LinkId, Frame),
    Closed(LinkId),
    /// The epoch of `Output::Persist` is durable.
    Persisted(Epoch),
    /// What was written before `Output::Sync` is durable.
    Synced,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    Send(LinkId, Frame),
    Close(LinkId),
    /// Make this epoch durable, then say `Persisted`. One at a time.
    Persist(Epoch),
    /// Sync all that was written, then say `Synced`. One at a time.
    Sync,
    /// The store cannot be trusted any more: stop at once.
    Die(String),
}

/// A process connected to this replica.
#[derive(Debug)]
struct Session {
    sender: u64,
    epoch: Epoch,
}

#[derive(Debug)]
pub struct Replica<D: Disk> {
    volume: String,
    store: Store<D>,
    /// Everything below is refused.
    promised: Epoch,
    /// The highest epoch on disk; a restart promises it.
    durable: Epoch,
    persisting: Option<Epoch>,
    sessions: HashMap<LinkId, Session>,
    writer: Option<LinkId>,
    /// The process that obtained the promise, if that was in this replica's life.
    owner: Option<u64>,
    /// Answers that must not leave before this epoch is durable.
    held: Vec<(Epoch, LinkId, Frame)>,
    syncing: Vec<(LinkId, Frame)>,
    to_sync: Vec<(LinkId, Frame)>,
}

impl<D: Disk> Replica<D> {
    pub fn new(volume: String, store: Store<D>, durable: Epoch) -> Replica<D> {
        Replica {
            volume,
            store,
            promised: durable,
            durable,
            persisting: None,
            sessions: HashMap::new(),
            writer: None,
            owner: None,
            held: Vec::new(),
            syncing: Vec::new(),
            to_sync: Vec::new(),
        }
    }

    pub fn store(&self) -> &Store<D> {
        &self.store
    }

    pub fn promised(&self) -> Epoch {
        self.promised
    }

    pub fn apply(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Frame(link, frame) => self.on_frame(link, frame, out),
            Input::Closed(link) => self.on_closed(link),
            Input::Persisted(epoch) => self.on_persisted(epoch, out),
            Input::Synced => self.on_synced(out),
        }
    }

    fn on_frame(&mut self, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let Some(session) = self.sessions.get(&link) else {
            return self.on_hello(link, &frame, out);
        };
        match frame.header.kind {
            Kind::Prepare => self.on_prepare(link, &frame.header, out),
            Kind::Promise => self.on_promise(link, &frame.header, out),
            Kind::Read | Kind::Write | Kind::Flush | Kind::Trim | Kind::Zero => {
                let refusal = self.refusal(link, session.epoch, &frame);
                match refusal {
                    None => self.on_request(link, frame, out),
                    Some(status) => self.refuse(link, &frame.header, status, out),
                }
            }
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
                self.sessions.insert(link, Session { sender: hello.sender, epoch: Epoch::NONE });
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
            return self.refuse(link, header, Status::Fenced, out);
        }
        let answer = Frame::bare(header.reply(Status::Ok, header.epoch));
        self.answer_when_durable(header.epoch, link, answer, out);
    }

    fn on_promise(&mut self, link: LinkId, header: &Header, out: &mut Vec<Output>) {
        let epoch = header.epoch;
        let sender = self.sessions[&link].sender;
        let same_owner = self.owner.is_none_or(|owner| owner == sender);
        let acceptable = epoch > self.promised || epoch == self.promised && same_owner;
        if !acceptable || epoch == Epoch::NONE {
            return self.refuse(link, header, Status::Fenced, out);
        }
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
        self.session_epoch(link, epoch);
        self.persist(epoch, out);
        out.push(Output::Send(link, Frame::bare(header.reply(Status::Ok, epoch))));
    }

    fn session_epoch(&mut self, link: LinkId, epoch: Epoch) {
        if let Some(session) = self.sessions.get_mut(&link) {
            session.epoch = epoch;
        }
    }

    /// Why a request may not be carried out, if so.
    fn refusal(&self, link: LinkId, session: Epoch, frame: &Frame) -> Option<Status> {
        let epoch = frame.header.epoch;
        if self.promised.fences_out(epoch) {
            return Some(Status::Fenced);
        }
        if epoch != session || epoch != self.promised || self.writer != Some(link) {
            return Some(Status::NotServing);
        }
        if !frame.header.extent.fits(self.store.size()) {
            return Some(Status::Invalid);
        }
        let expected =
            if frame.header.kind == Kind::Write { frame.header.extent.length() as usize } else { 0 };
        if frame.payload.len() != expected {
            return Some(Status::Invalid);
        }
        if !frame.intact() {
            return Some(Status::Corrupt);
        }
        None
    }

    fn refuse(&self, link: LinkId, header: &Header, status: Status, out: &mut Vec<Output>) {
        out.push(Output::Send(link, Frame::bare(header.reply(status, self.promised))));
    }

    fn on_request(&mut self, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = frame.header;
        let extent = header.extent;
        if header.kind == Kind::Read {
            let answer = match self.store.read(extent) {
                Ok(data) => Frame::with(Header { extent, ..header.reply(Status::Ok, header.epoch) }, data),
                Err(error) => Frame::bare(header.reply(status_of(&error), header.epoch)),
            };
            return out.push(Output::Send(link, answer));
        }
        let done = match header.kind {
            Kind::Write => self.store.write(extent.offset(), &frame.payload),
            Kind::Trim | Kind::Zero => self.store.clear(extent),
            _ => Ok(()),
        };
        let answer =
            Frame::bare(header.reply(done.as_ref().map_or_else(status_of, |()| Status::Ok), header.epoch));
        match done {
            Ok(()) if header.kind == Kind::Flush || header.fua() => {
                self.to_sync.push((link, answer));
                self.start_sync(out);
            }
            Ok(()) => self.answer_when_durable(header.epoch, link, answer, out),
            Err(error) => {
                out.push(Output::Send(link, answer));
                if error.kind() != io::ErrorKind::StorageFull {
                    out.push(Output::Die(format!("write to the store: {error}")));
                }
            }
        }
    }

    fn answer_when_durable(&mut self, epoch: Epoch, link: LinkId, answer: Frame, out: &mut Vec<Output>) {
        if epoch <= self.durable {
            return out.push(Output::Send(link, answer));
        }
        self.held.push((epoch, link, answer));
        self.persist(epoch, out);
    }

    fn persist(&mut self, epoch: Epoch, out: &mut Vec<Output>) {
        if epoch > self.durable && self.persisting.is_none() {
            self.persisting = Some(epoch);
            out.push(Output::Persist(epoch));
        }
    }

    fn on_persisted(&mut self, epoch: Epoch, out: &mut Vec<Output>) {
        self.persisting = None;
        self.durable = self.durable.max(epoch);
        let durable = self.durable;
        let (free, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(epoch, ..)| *epoch <= durable);
        self.held = held;
        let free: Vec<(Epoch, LinkId, Frame)> = free;
        out.extend(free.into_iter().map(|(_, link, frame)| Output::Send(link, frame)));
        let wanted =
            self.held.iter().map(|(epoch, ..)| *epoch).max().unwrap_or(Epoch::NONE).max(self.promised);
        self.persist(wanted, out);
    }

    fn start_sync(&mut self, out: &mut Vec<Output>) {
        if self.syncing.is_empty() && !self.to_sync.is_empty() {
            self.syncing = std::mem::take(&mut self.to_sync);
            out.push(Output::Sync);
        }
    }

    fn on_synced(&mut self, out: &mut Vec<Output>) {
        for (link, frame) in std::mem::take(&mut self.syncing) {
            let epoch = frame.header.epoch;
            self.answer_when_durable(epoch, link, frame, out);
        }
        self.start_sync(out);
    }

    fn on_closed(&mut self, link: LinkId) {
        self.sessions.remove(&link);
        if self.writer == Some(link) {
            self.writer = None;
        }
        self.held.retain(|(_, to, _)| *to != link);
    }
}

fn status_of(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::NoSpace,
        _ => Status::Failed,
    }
}
