//! One volume at the frontend: which engine serves it, and how it changes.
//!
//! ```text
//! Connecting ─▶ Greeting ─▶ (Preparing ─▶ Standing by) ─▶ Going ─▶ Serving ─▶ Draining ─▶ gone
//! ```
//!
//! The frontend drives a switch-over by itself: the new engine is connected and
//! its epoch durable at the replicas before the pause begins; the pause is one
//! drain of the old engine and one promise at the replicas.
//!
//! Invariant: at any moment at most one engine is asked to serve, and an answer
//! is believed only from that one's connection.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    control::Switched,
    switch::Pause,
    table::{Op, Request, Table},
};
use crate::{
    epoch::Epoch,
    extent::Extent,
    net::{address::Address, reactor::LinkId},
    record::Attachment,
    wire::{
        CONTINUED, Frame, Header, Kind, Status,
        hello::{Hello, VERSIONS},
    },
};

#[derive(Debug)]
pub enum Input {
    Request(Request),
    Connected {
        to: Address,
        link: LinkId,
    },
    Unreachable {
        to: Address,
    },
    Frame(LinkId, Frame),
    Closed(LinkId),
    Switch {
        to: Address,
        drain_within: Duration,
    },
    /// The moment given by `deadline` has come.
    Tick,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    Answer(Answer),
    Send(LinkId, Frame),
    Connect(Address),
    Close(LinkId),
    Switched(Switched),
    /// The switch-over did not happen; the volume is where it was.
    NotSwitched(String),
    /// The volume is larger than a successor of this frontend would offer it.
    Grown,
}

/// What a client is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub client: LinkId,
    pub cookie: u64,
    pub op: Op,
    pub extent: Extent,
    pub status: Status,
    pub data: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Greeting,
    Preparing,
    Going,
    Serving,
    Draining { until: Instant },
}

/// One engine, as far as this volume has come with it.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    pub(super) address: Address,
    pub(super) link: Option<LinkId>,
    pub(super) stage: Stage,
}

impl Engine {
    pub(super) fn new(address: Address) -> Engine {
        Engine { address, link: None, stage: Stage::Connecting }
    }

    pub(super) fn has(&self, link: LinkId) -> bool {
        self.link == Some(link)
    }
}

/// How long the engine that was asked to serve may say nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    until: Instant,
    /// Whether it was asked if it is still there.
    probed: bool,
}

impl Lease {
    pub(super) fn from(now: Instant) -> Lease {
        Lease { until: now + LEASE, probed: false }
    }
}

/// Which engine serves a volume, as far as a frontend knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    pub engine: Address,
    /// Who else may have the volume by now.
    pub fallback: Option<Address>,
    /// The last epoch of which everything that was asked is known.
    pub epoch: Epoch,
    /// What the volume's record calls this attachment, if anything.
    #[serde(default)]
    pub attachment: Option<Attachment>,
}

impl Standing {
    /// Nothing is known but where the engine is.
    pub fn new(engine: Address) -> Standing {
        Standing { engine, fallback: None, epoch: Epoch::NONE, attachment: None }
    }
}

#[derive(Debug, Clone)]
pub struct Volume {
    pub(super) name: String,
    sender: u64,
    size: u64,
    /// Of the engine that served last.
    pub(super) epoch: Epoch,
    /// The epoch in which this frontend came without knowing what its predecessor
    /// had asked: it does not vouch for that one.
    blind_in: Option<Epoch>,
    pub(super) table: Table,
    pub(super) current: Engine,
    pub(super) next: Option<(Engine, Duration)>,
    /// Where to look for an engine when the current one is lost.
    pub(super) fallback: Option<Address>,
    pub(super) pause: Option<Pause>,
    pub(super) retry_at: Option<Instant>,
    /// Since when nobody serves.
    lost_at: Option<Instant>,
    /// Of the engine that was asked to serve: one that hangs is not waited for, whether
    /// anyone is there to give the volume to another or not.
    pub(super) lease: Option<Lease>,
    attachment: Option<Attachment>,
}

const HELLO: u64 = u64::MAX;
pub(super) const PREPARE: u64 = u64::MAX - 1;
pub(super) const DRAIN: u64 = u64::MAX - 2;
pub(super) const GO: u64 = u64::MAX - 3;
pub(super) const PROBE: u64 = u64::MAX - 4;
/// An engine that works on it may take longer to serve, but not to say that it is there.
const LEASE: Duration = Duration::from_millis(500);
/// An engine that was killed is back within milliseconds; one that stays away is asked ever less often.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LAST_RETRY: Duration = Duration::from_millis(50);
/// Share of the time since the engine was lost that passes before the next retry.
const RETRY_SHARE: u32 = 16;

impl Volume {
    /// A volume that is to be served by an engine; `out` says how to reach it.
    pub fn attach(name: String, size: u64, sender: u64, at: Standing, out: &mut Vec<Output>) -> Volume {
        out.push(Output::Connect(at.engine.clone()));
        Volume {
            name,
            sender,
            size,
            epoch: at.epoch,
            blind_in: None,
            table: Table::default(),
            current: Engine::new(at.engine),
            next: None,
            fallback: at.fallback,
            pause: None,
            retry_at: None,
            lost_at: None,
            lease: None,
            attachment: at.attachment,
        }
    }

    /// Where a successor would have to go on.
    pub fn standing(&self) -> Standing {
        let next = self.next.as_ref().map(|(next, _)| next.address.clone());
        Standing {
            engine: self.current.address.clone(),
            fallback: next.or_else(|| self.fallback.clone()),
            epoch: self.vouched(),
            attachment: self.attachment,
        }
    }

    /// Requests without an answer, in the order they came.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.table.requests()
    }

    /// The last epoch of which this frontend knows everything that was asked.
    fn vouched(&self) -> Epoch {
        if self.blind_in == Some(self.epoch) { Epoch::NONE } else { self.epoch }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Requests without an answer, gaps included.
    pub fn span(&self) -> usize {
        self.table.span()
    }

    /// Whether anything that comes on this connection is looked at.
    #[cfg(test)]
    pub(crate) fn listens_to(&self, link: LinkId) -> bool {
        self.current.has(link) || self.next.as_ref().is_some_and(|(next, _)| next.has(link))
    }

    /// Whether a new engine was asked to serve and has not answered.
    #[cfg(test)]
    pub(crate) fn is_going(&self) -> bool {
        self.next.as_ref().is_some_and(|(next, _)| next.stage == Stage::Going)
    }

    /// When `Tick` is wanted.
    pub fn deadline(&self) -> Option<Instant> {
        let lease = self.lease.map(|lease| lease.until);
        [self.deadline_of_live(), lease].into_iter().flatten().min()
    }

    /// The same while no engine hangs.
    pub(crate) fn deadline_of_live(&self) -> Option<Instant> {
        let drain = match self.current.stage {
            Stage::Draining { until } => Some(until),
            _ => None,
        };
        [drain, self.retry_at].into_iter().flatten().min()
    }

    pub fn apply(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Request(request) => self.on_request(request, out),
            Input::Connected { to, link } => self.on_connected(now, &to, link, out),
            Input::Unreachable { to } => self.on_unreachable(now, &to, out),
            Input::Frame(link, frame) => self.on_frame(now, link, frame, out),
            Input::Closed(link) => self.on_closed(now, link, out),
            Input::Switch { to, drain_within } => self.on_switch(to, drain_within, out),
            Input::Tick => self.on_tick(now, out),
        }
    }

    fn on_request(&mut self, request: Request, out: &mut Vec<Output>) {
        let open = (self.current.stage == Stage::Serving).then_some(self.epoch);
        if let (Some(frame), Some(link)) = (self.table.admit(request, open), self.current.link) {
            out.push(Output::Send(link, frame));
        }
    }

    fn on_connected(&mut self, now: Instant, to: &Address, link: LinkId, out: &mut Vec<Output>) {
        let engine = match &mut self.next {
            Some((next, _)) if next.stage == Stage::Connecting && next.address == *to => next,
            _ if self.current.stage == Stage::Connecting && self.current.address == *to => {
                self.lease = Some(Lease::from(now));
                &mut self.current
            }
            _ => return out.push(Output::Close(link)),
        };
        engine.link = Some(link);
        engine.stage = Stage::Greeting;
        let hello = Hello {
            versions: VERSIONS,
            volume: self.name.clone(),
            sender: self.attachment.map_or(self.sender, Attachment::bits),
            size: self.size,
            epoch: self.vouched(),
        };
        out.push(Output::Send(
            link,
            Frame::with(Header::new(Kind::Hello, HELLO, self.epoch), hello.encode()),
        ));
    }

    fn on_unreachable(&mut self, now: Instant, to: &Address, out: &mut Vec<Output>) {
        match &self.next {
            Some((next, _)) if next.stage == Stage::Connecting && next.address == *to => {
                self.abandon(now, "the new engine cannot be reached", out);
            }
            _ => self.retry_later(now),
        }
    }

    fn on_closed(&mut self, now: Instant, link: LinkId, out: &mut Vec<Output>) {
        if self.next.as_ref().is_some_and(|(next, _)| next.has(link)) {
            return self.abandon(now, "the new engine closed the connection", out);
        }
        if !self.current.has(link) {
            return;
        }
        let draining = matches!(self.current.stage, Stage::Draining { .. });
        self.lose_current(now);
        match &self.next {
            Some(_) if draining => self.go(now, out),
            Some((next, _)) if next.stage == Stage::Preparing => self.begin_pause(now, out),
            _ => {}
        }
    }

    /// The engine is gone: requests wait until it, or another, can be reached.
    fn lose_current(&mut self, now: Instant) {
        if matches!(self.current.stage, Stage::Greeting | Stage::Going) {
            self.lease = None;
        }
        self.current.link = None;
        self.current.stage = Stage::Connecting;
        self.retry_later(now);
    }

    fn retry_later(&mut self, now: Instant) {
        let lost_at = *self.lost_at.get_or_insert(now);
        self.retry_at = Some(now + ((now - lost_at) / RETRY_SHARE).clamp(FIRST_RETRY, LAST_RETRY));
    }

    fn on_frame(&mut self, now: Instant, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        if self.current.has(link) {
            return self.on_current(now, link, frame, out);
        }
        self.on_next(now, link, &frame, out);
    }

    fn on_current(&mut self, now: Instant, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        match (self.current.stage, header.kind, header.tag) {
            (Stage::Greeting, Kind::Hello, _) => match Hello::accept(&frame.payload, &self.name) {
                Ok(hello) if hello.epoch >= self.epoch => {
                    self.current.stage = Stage::Going;
                    self.lease = Some(Lease::from(now));
                    out.push(Output::Send(link, Frame::bare(Header::new(Kind::Go, GO, hello.epoch))));
                }
                _ => self.drop_current(now, link, out),
            },
            (Stage::Going, Kind::Reply, GO) if header.status == Status::Ok => self.serve(now, header, out),
            (Stage::Going, Kind::Reply, PROBE) => self.lease = Some(Lease::from(now)),
            // It has begun to serve meanwhile.
            (Stage::Serving | Stage::Draining { .. }, Kind::Reply, PROBE) => {}
            (Stage::Draining { .. }, Kind::Reply, DRAIN) => {
                if let Some(pause) = &mut self.pause {
                    pause.drained = header.status == Status::Ok;
                }
                self.go(now, out);
            }
            // It learns that everything that had to be sent again has been; we, how large the volume is.
            (Stage::Serving | Stage::Draining { .. }, Kind::Ping, _) => {
                self.ends_at(header.extent.offset(), out);
                out.push(Output::Send(link, Frame::bare(header.reply(Status::Ok, header.epoch))));
            }
            (Stage::Serving | Stage::Draining { .. }, Kind::Reply, _) => self.on_reply(now, link, frame, out),
            _ => self.drop_current(now, link, out),
        }
    }

    fn drop_current(&mut self, now: Instant, link: LinkId, out: &mut Vec<Output>) {
        out.push(Output::Close(link));
        self.lose_current(now);
    }

    /// The engine has taken over: what is unanswered goes first, then what waited.
    pub(super) fn serve(&mut self, now: Instant, ready: &Header, out: &mut Vec<Output>) {
        let Some(link) = self.current.link else { return };
        self.ends_at(ready.extent.offset(), out);
        if self.vouched() == Epoch::NONE && ready.flags & CONTINUED != 0 {
            self.blind_in = Some(ready.epoch);
        }
        self.epoch = ready.epoch;
        self.current.stage = Stage::Serving;
        self.retry_at = None;
        self.lost_at = None;
        self.lease = None;
        self.fallback = None;
        let replayed = self.table.replay(self.epoch, |frame| out.push(Output::Send(link, frame)));
        self.table.release(self.epoch, |frame| out.push(Output::Send(link, frame)));
        if let Some(pause) = &mut self.pause {
            pause.ended = Some(now);
            pause.replayed = replayed;
        }
        self.report(out);
    }

    /// The engine says where the volume ends; it never becomes smaller.
    fn ends_at(&mut self, size: u64, out: &mut Vec<Output>) {
        if size > self.size {
            self.size = size;
            out.push(Output::Grown);
        }
    }

    fn on_reply(&mut self, now: Instant, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        match header.status {
            Status::Ok if header.epoch == self.epoch && frame.intact() => {}
            // The last copy cannot do it, nor could it for another engine: the client is told.
            Status::Invalid | Status::NoSpace | Status::Failed => {}
            Status::Ok | Status::Fenced | Status::NotServing | Status::Corrupt => {
                return self.drop_current(now, link, out);
            }
        }
        let Some(request) = self.table.answer(header.tag) else { return };
        self.measure(now, request.arrived);
        out.push(Output::Answer(Answer {
            client: request.client,
            cookie: request.cookie,
            op: request.op,
            extent: request.extent,
            status: header.status,
            data: frame.payload,
        }));
        if self.table.has_free() && self.current.stage == Stage::Serving {
            self.table.release(self.epoch, |frame| out.push(Output::Send(link, frame)));
        }
        self.report(out);
    }

    /// The engine that was asked to serve is asked whether it is still there, and given up when it does
    /// not say so: the one before it may serve, if the replicas let it, or else the same one when it wakes.
    fn on_silence(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Some(lease) = self.lease.take() else { return };
        let next = self.next.as_ref().map(|(next, _)| next).filter(|next| next.stage == Stage::Going);
        let (stage, link) =
            next.map_or((self.current.stage, self.current.link), |next| (next.stage, next.link));
        let (is_next, Some(link)) = (next.is_some(), link) else { return };
        match stage {
            Stage::Going if !lease.probed => {
                self.lease = Some(Lease { until: now + LEASE, probed: true });
                out.push(Output::Send(link, Frame::bare(Header::new(Kind::Ping, PROBE, self.epoch))));
            }
            Stage::Going if is_next => self.abandon(now, "the new engine does not answer", out),
            Stage::Greeting | Stage::Going => self.drop_current(now, link, out),
            Stage::Connecting | Stage::Preparing | Stage::Serving | Stage::Draining { .. } => {}
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Output>) {
        if matches!(self.current.stage, Stage::Draining { until } if until <= now) {
            self.go(now, out);
        }
        if self.lease.is_some_and(|lease| lease.until <= now) {
            self.on_silence(now, out);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            let going = self.next.as_ref().is_some_and(|(next, _)| next.stage == Stage::Going);
            if self.current.stage == Stage::Connecting && !going {
                if let Some(other) = self.fallback.take() {
                    self.fallback = Some(std::mem::replace(&mut self.current.address, other));
                }
                out.push(Output::Connect(self.current.address.clone()));
            }
        }
    }
}
