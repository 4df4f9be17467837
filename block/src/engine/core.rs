//! What an engine does with each message.
//!
//! ```text
//! Observing ─prepare▶ Preparing ─▶ Prepared ─go▶ Promising ─▶ Serving ─drain▶ Draining ─▶ Drained
//!     └───────────────────────────────────────go▶     any ── a higher promise is seen ──▶ Fenced
//! ```
//!
//! Invariant: a write is acknowledged when every member that the record counts
//! has acknowledged it under this engine's epoch, and not before. A member is
//! discounted only after the record says so; until then its writes wait.

use super::{
    members::{Members, Service},
    requests::Pending,
};
use crate::{
    epoch::Epoch,
    extent::Extent,
    net::reactor::LinkId,
    window::Window,
    wire::{
        Frame, Header, Kind, Status,
        hello::{Hello, VERSIONS},
    },
};

#[derive(Debug)]
pub enum Input {
    /// A connection to a member stands.
    Connected {
        member: usize,
        link: LinkId,
    },
    /// A member does not answer.
    Unreachable {
        member: usize,
    },
    /// From a member, or else from a frontend.
    Frame(LinkId, Frame),
    Closed(LinkId),
    /// The record has been changed: this member is out.
    Dropped {
        member: usize,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    Send(LinkId, Frame),
    Close(LinkId),
    /// Change the record so that this member is out, then say `Dropped`.
    Drop {
        member: usize,
    },
    /// Someone promised a higher epoch: this engine has lost the volume.
    Fenced {
        by: Epoch,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Observing,
    Preparing { tag: u64 },
    Prepared,
    Promising { tag: u64 },
    Serving,
    Draining { tag: u64 },
    Drained,
    Fenced,
}

#[derive(Debug)]
pub struct Engine {
    volume: String,
    sender: u64,
    pub(super) epoch: Epoch,
    pub(super) size: u64,
    pub(super) phase: Phase,
    pub(super) members: Members,
    frontend: Option<LinkId>,
    pub(super) pending: Window<Pending>,
}

const PREPARE: u64 = u64::MAX;
const PROMISE: u64 = u64::MAX - 1;
const HELLO: u64 = u64::MAX - 2;

impl Engine {
    /// `sender` names this process; `members` is how many the record counts.
    pub fn new(volume: String, epoch: Epoch, sender: u64, members: usize) -> Engine {
        Engine {
            volume,
            sender,
            epoch,
            size: 0,
            phase: Phase::Observing,
            members: Members::new(members),
            frontend: None,
            pending: Window::default(),
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether a new connection to this member would be of use.
    pub fn may_connect(&self, member: usize) -> bool {
        match self.phase {
            Phase::Observing | Phase::Preparing { .. } | Phase::Prepared => true,
            Phase::Promising { .. } => self
                .members
                .iter()
                .any(|(at, state)| at == member && state.service == Service::In && !state.promised),
            Phase::Serving | Phase::Draining { .. } | Phase::Drained | Phase::Fenced => false,
        }
    }

    pub fn apply(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Connected { member, link } => self.on_connected(member, link, out),
            Input::Unreachable { member } => self.on_lost(member, out),
            Input::Frame(link, frame) => match self.members.by_link(link) {
                Some(member) => self.on_member(member, link, frame, out),
                None => self.on_frontend(link, frame, out),
            },
            Input::Closed(link) => self.on_closed(link, out),
            Input::Dropped { member } => self.on_dropped(member, out),
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            versions: VERSIONS,
            volume: self.volume.clone(),
            sender: self.sender,
            size: self.size,
            epoch: self.epoch,
        }
    }

    fn on_connected(&mut self, at: usize, link: LinkId, out: &mut Vec<Output>) {
        let header = Header::new(Kind::Hello, HELLO, self.epoch);
        out.push(Output::Send(link, Frame::with(header, self.hello().encode())));
        let member = self.members.get(at);
        member.link = Some(link);
        member.greeted = false;
        member.asked = None;
    }

    fn on_closed(&mut self, link: LinkId, out: &mut Vec<Output>) {
        if let Some(member) = self.members.by_link(link) {
            return self.on_lost(member, out);
        }
        if self.frontend == Some(link) {
            self.frontend = None;
        }
    }

    /// A member is gone. Before the promise it may come back; after it the
    /// session is over, and the record must say so.
    fn on_lost(&mut self, at: usize, out: &mut Vec<Output>) {
        let member = self.members.get(at);
        if let Some(link) = member.link.take() {
            out.push(Output::Close(link));
        }
        member.greeted = false;
        member.prepared = false;
        match self.phase {
            Phase::Promising { .. } | Phase::Serving | Phase::Draining { .. } => {
                if member.service == Service::In {
                    member.service = Service::Leaving;
                }
                self.reread(at, out);
                self.ask_to_drop(out);
            }
            Phase::Observing | Phase::Preparing { .. } | Phase::Prepared | Phase::Drained | Phase::Fenced => {
            }
        }
    }

    /// Tells the frontend where the volume ends.
    fn whole(&self) -> Extent {
        Extent::new(self.size, 0).unwrap_or(Extent::EMPTY)
    }

    fn ask_to_drop(&mut self, out: &mut Vec<Output>) {
        if !self.members.someone_stays() {
            return;
        }
        let leaving = self.members.iter().filter(|(_, member)| member.service == Service::Leaving);
        out.extend(leaving.map(|(member, _)| Output::Drop { member }));
    }

    fn on_dropped(&mut self, at: usize, out: &mut Vec<Output>) {
        self.members.get(at).service = Service::Out;
        self.discount(at, out);
        self.advance(out);
    }

    fn on_member(&mut self, at: usize, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        if header.kind == Kind::Hello {
            return self.on_member_hello(at, &frame, out);
        }
        match header.status {
            Status::Fenced => self.on_fenced(header.epoch, out),
            Status::Ok if header.kind != Kind::Reply => out.push(Output::Close(link)),
            Status::Ok => match header.tag {
                PREPARE => {
                    self.members.get(at).prepared = true;
                    self.advance(out);
                }
                PROMISE => {
                    self.members.get(at).promised = true;
                    self.ask_to_drop(out);
                    self.advance(out);
                }
                number => self.on_done(at, number, frame, out),
            },
            status => {
                let why = String::from_utf8_lossy(&frame.payload);
                tracing::warn!(member = at, ?status, %why, "member failed");
                self.on_lost(at, out);
            }
        }
    }

    fn on_member_hello(&mut self, at: usize, frame: &Frame, out: &mut Vec<Output>) {
        match Hello::accept(&frame.payload, &self.volume) {
            Ok(hello) if hello.epoch > self.epoch => self.on_fenced(hello.epoch, out),
            Ok(hello) => {
                self.size = if self.size == 0 { hello.size } else { self.size.min(hello.size) };
                self.members.get(at).greeted = true;
                self.advance(out);
            }
            Err(error) => {
                tracing::warn!(member = at, %error, "member refused");
                self.on_lost(at, out);
            }
        }
    }

    fn on_fenced(&mut self, by: Epoch, out: &mut Vec<Output>) {
        if self.phase == Phase::Fenced {
            return;
        }
        self.phase = Phase::Fenced;
        self.pending = Window::default();
        out.extend(self.frontend.take().map(Output::Close));
        out.push(Output::Fenced { by });
    }

    fn on_frontend(&mut self, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        if header.kind == Kind::Hello {
            return self.on_frontend_hello(link, &frame, out);
        }
        if self.frontend != Some(link) {
            return out.push(Output::Close(link));
        }
        let tag = header.tag;
        match (header.kind, self.phase) {
            (Kind::Read | Kind::Write | Kind::Flush | Kind::Trim | Kind::Zero, Phase::Serving) => {
                self.on_request(link, frame, out);
            }
            (Kind::Prepare, Phase::Observing | Phase::Preparing { .. }) => {
                self.phase = Phase::Preparing { tag };
                self.advance(out);
            }
            (
                Kind::Go,
                Phase::Observing | Phase::Preparing { .. } | Phase::Prepared | Phase::Promising { .. },
            ) => {
                self.phase = Phase::Promising { tag };
                self.advance(out);
            }
            (Kind::Drain, Phase::Serving | Phase::Draining { .. }) => {
                self.phase = Phase::Draining { tag };
                self.advance(out);
            }
            (Kind::Prepare, Phase::Prepared) | (Kind::Go, Phase::Serving) | (Kind::Drain, Phase::Drained) => {
                let reply = Header { extent: self.whole(), ..header.reply(Status::Ok, self.epoch) };
                out.push(Output::Send(link, Frame::bare(reply)));
            }
            _ => out.push(Output::Send(link, Frame::bare(header.reply(Status::NotServing, self.epoch)))),
        }
    }

    fn on_frontend_hello(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        match Hello::accept(&frame.payload, &self.volume) {
            Ok(_) if self.phase == Phase::Fenced => out.push(Output::Close(link)),
            Ok(_) => {
                if let Some(old) = self.frontend.replace(link)
                    && old != link
                {
                    out.push(Output::Close(old));
                }
                let header = Header::new(Kind::Hello, frame.header.tag, self.epoch);
                out.push(Output::Send(link, Frame::with(header, self.hello().encode())));
            }
            Err(error) => {
                let header = frame.header.reply(Status::Invalid, self.epoch);
                out.push(Output::Send(link, Frame::with(header, error.to_string().into())));
            }
        }
    }

    /// Asks each member once per connection; those that come late are asked then.
    fn ask_members(&mut self, kind: Kind, tag: u64, out: &mut Vec<Output>) {
        let usable: Vec<(usize, LinkId)> = self.members.usable().collect();
        for (at, link) in usable {
            if self.members.get(at).asked.replace(tag) != Some(tag) {
                out.push(Output::Send(link, Frame::bare(Header::new(kind, tag, self.epoch))));
            }
        }
    }

    /// Takes the step that the last event made possible, if any.
    pub(super) fn advance(&mut self, out: &mut Vec<Output>) {
        let (tag, next) = match self.phase {
            Phase::Preparing { tag } if self.members.all_counted(|member| member.prepared) => {
                (tag, Phase::Prepared)
            }
            Phase::Promising { tag }
                if self.members.someone_stays() && self.members.all_counted(|member| member.promised) =>
            {
                (tag, Phase::Serving)
            }
            Phase::Draining { tag } if self.pending.is_empty() => (tag, Phase::Drained),
            Phase::Preparing { .. } => return self.ask_members(Kind::Prepare, PREPARE, out),
            Phase::Promising { .. } => return self.ask_members(Kind::Promise, PROMISE, out),
            Phase::Observing
            | Phase::Prepared
            | Phase::Serving
            | Phase::Draining { .. }
            | Phase::Drained
            | Phase::Fenced => return,
        };
        self.phase = next;
        let header = Header { extent: self.whole(), ..Header::new(Kind::Reply, tag, self.epoch) };
        out.extend(self.frontend.map(|link| Output::Send(link, Frame::bare(header))));
    }
}
