//! What an engine does with each message.
//!
//! ```text
//! Observing ─prepare▶ Preparing ─▶ Prepared ─go▶ Promising ─▶ (Converging) ─▶ Serving ─drain▶ Draining ─▶ Drained
//!     └───────────────────────────────────────go▶  ▲ └──────────────── go ─────────────────────────────────┘
//!                                      any ── a higher promise or term is seen, the last member is lost ──▶ Ended
//! ```
//!
//! Invariant: a write is acknowledged when every member that the record counts
//! has acknowledged it under this engine's epoch, and not before; only a member that
//! is being copied to may follow later, and has followed before the record says that
//! it is in service. A member is discounted only after the record says so; until then
//! its writes wait.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    control::Trouble,
    copying::Copying,
    layout::Operation,
    members::{Members, Mode, Service},
    paths::PATIENCE_S,
    requests::{Asker, Pending, Unflushed},
    suspension::Suspension,
    throttle::Throttle,
};
use crate::{
    blocks::BLOCK_BITS,
    epoch::Epoch,
    net::{address::Address, reactor::LinkId},
    record::Attachment,
    window::Window,
    wire::{
        Frame, Header, Kind, Status,
        hello::{Hello, VERSIONS},
        layout::Layout,
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
    /// The record has been changed as `Output::Change` asked.
    Changed(Change),
    /// So much time has passed since a rebuild began to wait, or since this was said.
    Passed(Duration),
    /// There is time for the flush that `wants_to_settle` speaks of.
    Settle,
    /// The record has a higher term than this engine's, and nobody is on the way from it any more, or it has asked
    /// for a change.
    Outbid {
        by: Epoch,
    },
}

/// A change of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub member: usize,
    pub mode: Mode,
    /// The member version after the change; the record must have the one before.
    pub version: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    Send(LinkId, Frame),
    Close(LinkId),
    /// Change the record under this engine's term. One at a time; until it is
    /// done, or someone else has the volume, try again.
    Change(Change),
    /// The member can be reached there.
    Reach {
        member: usize,
        address: Address,
    },
    /// A member may be silent for this long.
    Patience(Duration),
    /// Someone has a higher epoch: this engine has lost the volume.
    Fenced {
        by: Epoch,
    },
    /// The record has given the volume to another engine.
    Outbid {
        by: Epoch,
    },
    /// The last member in service is lost: whether it has what was under way only
    /// an engine can find out that starts anew.
    Stranded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Observing,
    Preparing {
        tag: u64,
    },
    Prepared,
    Promising {
        tag: u64,
    },
    Converging {
        tag: u64,
    },
    Serving,
    Draining {
        tag: u64,
    },
    Drained,
    /// It has lost the volume, or everyone who stores it.
    Ended,
}

/// What an engine is told when it starts.
#[derive(Debug, Clone)]
pub struct Seat {
    pub volume: String,
    pub epoch: Epoch,
    /// Names this process.
    pub sender: u64,
    /// Member version of the record.
    pub version: u64,
    /// Key and mode of each member, as the record has them.
    pub members: Vec<(u64, Mode)>,
    /// Members that are rebuilt when they return, until it is told of others.
    pub permitted: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Engine {
    pub(super) volume: String,
    pub(super) sender: u64,
    pub(super) epoch: Epoch,
    pub(super) version: u64,
    pub(super) size: u64,
    pub(super) layout: Layout,
    pub(super) phase: Phase,
    pub(super) members: Members,
    pub(super) frontend: Option<LinkId>,
    /// The only attachment whose frontend is listened to, if the record names one.
    pub(super) attachment: Option<Attachment>,
    /// A frontend that asked for the volume while changes of another are under way, and with which tag:
    /// what it asks for next may touch the same blocks, so it waits for their end.
    pub(super) welcome: Option<(LinkId, u64)>,
    /// The last epoch under which the frontend was served.
    pub(super) frontend_epoch: Epoch,
    pub(super) pending: Window<Pending>,
    /// How far the member that is being copied to is behind what was answered, in bytes.
    pub(super) ahead: u64,
    /// Changes that wait until what they touch has been copied.
    pub(super) held: VecDeque<(LinkId, Frame)>,
    pub(super) unflushed: Unflushed,
    /// Whether nothing was flushed since this engine began to serve.
    pub(super) unsettled: bool,
    pub(super) changing: Option<Change>,
    pub(super) copying: Option<Copying>,
    /// How many copyings there were.
    pub(super) copyings: u64,
    /// Whether the frontend has sent again what an engine before had left undone:
    /// until then copies may differ there.
    pub(super) replayed: bool,
    pub(super) operation: Option<Operation>,
    pub(super) suspension: Suspension,
    /// How many layers this engine has named.
    pub(super) layers: u64,
    pub(super) throttle: Throttle,
    /// Seconds that a member may be silent.
    pub(super) patience: u32,
    /// Members that are rebuilt when they return.
    pub(super) permitted: Arc<[String]>,
    /// Bytes that rebuilds have copied.
    pub(super) copied: u64,
    /// The member in this process, if there is one.
    pub(super) near: Option<usize>,
    /// What the record calls the members.
    pub(super) names: Vec<String>,
    /// What the only member in service could not do last.
    pub(super) trouble: Option<Trouble>,
    /// What was found damaged in members since this engine has the volume, and whether it was copied anew.
    pub(super) damaged: BTreeMap<usize, (String, bool)>,
}

const PREPARE: u64 = u64::MAX;
const PROMISE: u64 = u64::MAX - 1;
const HELLO: u64 = u64::MAX - 2;
pub(super) const REPLAYED: u64 = u64::MAX - 3;
/// Tags from here on are not requests for data.
pub(super) const CONTROL: u64 = 1 << 62;

impl Engine {
    pub fn new(seat: Seat) -> Engine {
        Engine {
            members: Members::new(&seat.members, seat.version),
            volume: seat.volume,
            sender: seat.sender,
            epoch: seat.epoch,
            version: seat.version,
            size: 0,
            layout: Layout::default(),
            phase: Phase::Observing,
            frontend: None,
            attachment: None,
            welcome: None,
            frontend_epoch: Epoch::NONE,
            pending: Window::default(),
            ahead: 0,
            held: VecDeque::new(),
            unflushed: Unflushed::default(),
            unsettled: false,
            changing: None,
            copying: None,
            copyings: 0,
            replayed: false,
            operation: None,
            suspension: Suspension::default(),
            layers: 0,
            throttle: Throttle::default(),
            patience: PATIENCE_S,
            permitted: seat.permitted.into(),
            copied: 0,
            near: None,
            names: Vec::new(),
            trouble: None,
            damaged: BTreeMap::new(),
        }
    }

    /// Listens to the frontend of this attachment only.
    pub fn listen_to(&mut self, attachment: Option<Attachment>) {
        self.attachment = attachment;
    }

    /// What to call members by in answers; without a name each has its number.
    pub fn call_members(&mut self, names: Vec<String>) {
        self.names = names;
    }

    /// This member needs no wire: while it is in service, reads go to it.
    pub fn read_first_from(&mut self, member: usize) {
        self.near = Some(member);
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The member version of the record, as far as this engine knows.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether a frontend is connected.
    pub(super) fn is_attached(&self) -> bool {
        self.frontend.is_some()
    }

    /// What each member is used for.
    pub fn services(&self) -> Vec<Service> {
        self.members.iter().map(|(_, member)| member.service).collect()
    }

    pub(super) fn blocks(&self) -> u64 {
        self.size.div_ceil(1 << BLOCK_BITS)
    }

    /// Whether a new connection to this member would be of use.
    pub fn may_connect(&self, member: usize) -> bool {
        let all = self.members.iter();
        let state = all
            .filter(|(_, member)| !member.released)
            .find(|(at, _)| *at == member)
            .map(|(_, member)| (member.service, member.promise.is_some()));
        match self.phase {
            Phase::Observing | Phase::Preparing { .. } | Phase::Prepared => {
                matches!(state, Some((Service::In, _)))
            }
            Phase::Promising { .. } => matches!(state, Some((Service::In, false))),
            Phase::Serving => matches!(state, Some((Service::Out, _))) && self.copying.is_none(),
            Phase::Converging { .. } | Phase::Draining { .. } | Phase::Drained | Phase::Ended => false,
        }
    }

    /// Whether a flush would be of use that nobody asks for: it syncs what engines before have left
    /// unsynced, and keeps the disks busy, so it is not to fall into the time of a switch-over.
    pub fn wants_to_settle(&self) -> bool {
        self.unsettled && self.phase == Phase::Serving
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
            Input::Changed(change) => self.on_changed(change, out),
            Input::Passed(time) => self.on_passed(time, out),
            Input::Settle if self.wants_to_settle() => self.settle(out),
            Input::Settle => {}
            Input::Outbid { .. } if self.phase == Phase::Ended => {}
            Input::Outbid { by } => self.end(Output::Outbid { by }, out),
        }
    }

    pub(super) fn hello(&self) -> Hello {
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
            self.forget_waiting();
        }
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
                PROMISE => self.on_promised(at, &frame, out),
                tag if tag >= CONTROL => self.on_told(at, tag, &frame, out),
                number => self.on_done(at, number, frame, out),
            },
            status => {
                let why = String::from_utf8_lossy(&frame.payload);
                tracing::warn!(member = at, ?status, %why, "member failed");
                let (tag, status) = (header.tag, header.status);
                if !self.bear(at, tag, status, out) {
                    self.on_lost(at, out);
                }
            }
        }
    }

    fn on_member_hello(&mut self, at: usize, frame: &Frame, out: &mut Vec<Output>) {
        match Hello::accept(&frame.payload, &self.volume) {
            Ok(hello) if hello.epoch > self.epoch => self.on_fenced(hello.epoch, out),
            Ok(hello) => {
                if self.members.service(at) == Service::In {
                    self.size = self.size.max(hello.size);
                }
                let member = self.members.get(at);
                member.greeted = true;
                member.newest = hello.versions.newest;
                if member.service == Service::Out
                    && let Some(link) = member.link
                {
                    out.push(Output::Send(
                        link,
                        Frame::bare(Header::new(Kind::Promise, PROMISE, self.epoch)),
                    ));
                }
                self.advance(out);
            }
            Err(error) => {
                tracing::warn!(member = at, %error, "member refused");
                self.on_lost(at, out);
            }
        }
    }

    pub(super) fn on_fenced(&mut self, by: Epoch, out: &mut Vec<Output>) {
        if self.phase != Phase::Ended {
            self.end(Output::Fenced { by }, out);
        }
    }

    pub(super) fn end(&mut self, why: Output, out: &mut Vec<Output>) {
        self.phase = Phase::Ended;
        self.pending = Window::default();
        self.ahead = 0;
        self.forget_waiting();
        self.copying = None;
        self.operation = None;
        out.extend(self.frontend.take().map(Output::Close));
        out.push(why);
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
        match self.phase {
            Phase::Preparing { tag } if self.members.all_in(|member| member.prepared) => {
                self.reach(Phase::Prepared, tag, out);
            }
            Phase::Preparing { .. } => self.ask_members(Kind::Prepare, PREPARE, out),
            Phase::Promising { tag } if self.members.all_in(|member| member.promise.is_some()) => {
                self.on_all_promised(tag, out);
            }
            Phase::Promising { .. } => self.ask_members(Kind::Promise, PROMISE, out),
            Phase::Draining { tag } if self.is_drained() => {
                self.reach(Phase::Drained, tag, out);
            }
            Phase::Observing
            | Phase::Prepared
            | Phase::Converging { .. }
            | Phase::Serving
            | Phase::Draining { .. }
            | Phase::Drained
            | Phase::Ended => {}
        }
    }

    /// A flush of our own may go on: nobody waits for it, and the next engine flushes by itself. So may what only
    /// a member that is being copied to has left to do: the next engine begins anew with that one.
    fn is_drained(&self) -> bool {
        let waits = |asker: Asker| match asker {
            Asker::Frontend(_) | Asker::Reader(..) | Asker::Copy(_) | Asker::Copied(_) | Asker::Operation => {
                true
            }
            Asker::Ahead | Asker::Release(_) | Asker::Nobody => false,
        };
        let owed = self.pending.iter().any(|(_, pending)| waits(pending.asker) && !pending.answered);
        !owed && self.held.is_empty() && self.operation.is_none()
    }

    pub(super) fn reach(&mut self, phase: Phase, tag: u64, out: &mut Vec<Output>) {
        self.phase = phase;
        let header = Header { extent: self.whole(), ..Header::new(Kind::Reply, tag, self.epoch) };
        out.extend(self.frontend.map(|link| Output::Send(link, Frame::bare(header))));
    }
}
