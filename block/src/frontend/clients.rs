//! NBD clients of the frontend: from negotiation to requests, and answers back.
//!
//! Invariant: a volume has a bounded number of clients, and each of them a bounded number of
//! requests and of bytes under way, so one that floods waits for its own answers and not others for it. Who has not
//! finished negotiating keeps nobody out.
//! What all of them keep together is bounded by `room`.

use std::{io, os::fd::OwnedFd, time::Instant};

use bytes::BytesMut;

use super::{
    core::Answer,
    negotiating::Negotiating,
    parked::{BadParcel, ParkedClient, ParkedStage, growable, pack, take, unpack},
    room::{self, Room, Share},
    table::{Op, Request},
};
use crate::{
    extent::Extent,
    nbd::{
        MAX_LENGTH,
        handshake::{Export, Handshake, Step},
        transmission::{self, BadRequest, Command, Errno, FLAG_FUA, ReplyHead},
    },
    net::{
        by_link::ByLink,
        link::Released,
        reactor::{LinkId, Reactor},
    },
    wire::{Status, checksum},
};

pub(super) const MOST_UNANSWERED: usize = 128;
/// Clients of one volume at a time.
const MOST_CLIENTS: usize = 256;
/// Answers that a client may leave unread while it negotiates: no honest one asks on without reading.
const MOST_UNTAKEN: usize = 256 << 10;
/// Data a client may have asked for and not taken before it has to wait.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Debug)]
enum Stage {
    Negotiating(Handshake),
    Transmission { structured: bool },
}

#[derive(Debug)]
pub(super) struct Client {
    /// The volume whose socket it came through.
    pub(super) volume: String,
    stage: Stage,
    unanswered: usize,
    /// Data of its unanswered requests.
    bytes: u64,
    share: Share,
}

impl Client {
    pub(super) fn is_negotiating(&self) -> bool {
        matches!(self.stage, Stage::Negotiating(_))
    }

    fn new(volume: String, stage: Stage) -> Client {
        Client { volume, stage, unanswered: 0, bytes: 0, share: Share::default() }
    }
}

/// Why a client cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResumeError {
    #[error("read what was left behind")]
    Parcel(#[from] BadParcel),
    #[error("watch its socket")]
    Watch(#[from] io::Error),
}

/// Data that a request brings or asks for.
fn weight(op: Op, extent: Extent) -> u64 {
    match op {
        Op::Read | Op::Write => u64::from(extent.length()),
        Op::Flush | Op::Trim | Op::Zero => 0,
    }
}

/// What a client's bytes amount to.
pub(super) enum Next {
    /// Nothing whole has arrived.
    Wait,
    /// It has to take, or to be given, answers first.
    Full,
    /// It asks for data from now on.
    Negotiated,
    Request(Request),
    Close,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    all: ByLink<Client>,
    negotiating: Negotiating,
    room: Room,
}

impl Clients {
    /// Greets a client. If the volume has too many, whoever has negotiated longest goes; if all have finished, the new one.
    pub(super) fn accept(&mut self, reactor: &mut Reactor, link: LinkId, volume: String, now: Instant) {
        if self.all.values().filter(|client| client.volume == volume).count() >= MOST_CLIENTS {
            let is_of_volume = |link| self.get(link).is_some_and(|client| client.volume == volume);
            let Some(longest) = self.negotiating.first(is_of_volume) else {
                tracing::warn!(volume, "too many clients");
                return reactor.close(link);
            };
            tracing::warn!(volume, "too many clients: who has negotiated longest goes");
            self.send_away(reactor, longest);
        }
        let mut greeting = BytesMut::new();
        let stage = Stage::Negotiating(Handshake::begin(&mut greeting));
        reactor.send_bytes(link, &greeting, bytes::Bytes::new());
        self.add(link, Client::new(volume, stage), now);
    }

    fn add(&mut self, link: LinkId, client: Client, now: Instant) {
        if client.is_negotiating() {
            self.negotiating.begin(link, now);
        }
        self.all.insert(link, client);
    }

    fn send_away(&mut self, reactor: &mut Reactor, link: LinkId) {
        reactor.close(link);
        self.remove(link);
    }

    /// Sends away whose negotiation takes too long.
    pub(super) fn tick(&mut self, reactor: &mut Reactor, now: Instant) {
        for link in self.negotiating.overdue(now) {
            tracing::warn!("a client does not finish negotiating");
            self.send_away(reactor, link);
        }
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&Client> {
        self.all.get(&link)
    }

    pub(super) fn remove(&mut self, link: LinkId) -> Option<Client> {
        let client = self.all.remove(&link)?;
        self.negotiating.end(link);
        self.room.leave(&client.share);
        Some(client)
    }

    /// When to look again whether there is room for those who wait for it, or whether a negotiation takes too long.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        [self.room.deadline(now), self.negotiating.deadline()].into_iter().flatten().min()
    }

    /// Counts anew what everyone keeps, and says how much that is of a volume. If there is no room for so many
    /// more bytes of it, who keeps others from theirs without taking or sending anything is sent away.
    fn count(&mut self, reactor: &mut Reactor, volume: &str, more: u64, now: Instant) -> u64 {
        let (mut of_volume, mut idle) = (0, Vec::new());
        for (link, client) in &mut self.all {
            let asks = matches!(client.stage, Stage::Transmission { .. });
            let Some(socket) = reactor.link(*link).filter(|_| asks) else { continue };
            let counted = self.room.count(&mut client.share, client.bytes, socket, now);
            of_volume += if client.volume == volume { counted } else { 0 };
            idle.extend(client.share.is_idle(socket, now).then_some(*link));
        }
        if self.room.is_short(of_volume + more) {
            for link in idle {
                tracing::warn!(volume, "a client takes nothing while others wait for room");
                self.send_away(reactor, link);
            }
        }
        of_volume
    }

    /// Whether a client may have its next request under way.
    fn has_room(&mut self, reactor: &mut Reactor, link: LinkId, now: Instant) -> bool {
        let Some(client) = self.all.get_mut(&link) else { return false };
        let Some(socket) = reactor.link(link) else { return true };
        client.share.waits = false;
        self.room.count(&mut client.share, client.bytes, socket, now);
        let kept = client.bytes + socket.backlog() as u64;
        let heavy = kept > MOST_BYTES;
        let next = transmission::asked(&socket.input);
        let free = match heavy || client.unanswered >= MOST_UNANSWERED {
            true => false,
            false if self.room.is_ample(next) => true,
            false => {
                let volume = client.volume.clone();
                let of_volume = self.count(reactor, &volume, next, now);
                let clients = self.of_volume(&volume).len();
                !self.room.is_short(of_volume + next) || kept + next <= room::own(clients)
            }
        };
        if let (false, Some(client), Some(socket)) = (free, self.all.get_mut(&link), reactor.link(link)) {
            client.share.waits = true;
            self.room.count(&mut client.share, client.bytes, socket, now);
        }
        free
    }

    /// Ends a conversation here, so that a successor can go on with it.
    pub(super) fn park(&mut self, reactor: &mut Reactor, link: LinkId) -> Option<(Vec<u8>, OwnedFd)> {
        let client = self.all.remove(&link)?;
        self.negotiating.end(link);
        let Released { fd, input, output, .. } = reactor.release(link)?;
        let stage = match client.stage {
            Stage::Negotiating(handshake) => ParkedStage::Negotiating(handshake),
            Stage::Transmission { structured } => ParkedStage::Transmission { structured },
        };
        let parked = ParkedClient { volume: client.volume, number: link.bits(), stage, input: input.len() };
        Some((pack(&parked, &[&input, &output]), fd))
    }

    /// Goes on with a conversation; gives the client's number with the predecessor.
    pub(super) fn resume(
        &mut self,
        reactor: &mut Reactor,
        (state, fd): (Vec<u8>, OwnedFd),
        now: Instant,
    ) -> Result<(u64, LinkId), ResumeError> {
        let (parked, mut data) = unpack::<ParkedClient>(state)?;
        let input = take(&mut data, parked.input)?;
        let released = Released { fd, input: growable(&input), output: growable(&data), compact: false };
        let link = reactor.resume(released)?;
        let stage = match parked.stage {
            ParkedStage::Negotiating(handshake) => Stage::Negotiating(handshake),
            ParkedStage::Transmission { structured } => Stage::Transmission { structured },
        };
        self.add(link, Client::new(parked.volume, stage), now);
        Ok((parked.number, link))
    }

    /// A request that a client had asked of the predecessor.
    pub(super) fn owes(&mut self, link: LinkId, op: Op, extent: Extent) {
        if let Some(client) = self.all.get_mut(&link) {
            client.unanswered += 1;
            client.bytes += weight(op, extent);
        }
    }

    pub(super) fn links(&self) -> Vec<LinkId> {
        self.all.keys().copied().collect()
    }

    pub(super) fn of_volume(&self, volume: &str) -> Vec<LinkId> {
        self.all.iter().filter(|(_, client)| client.volume == volume).map(|(link, _)| *link).collect()
    }

    /// The next thing to do for a client. `size` is its volume's.
    pub(super) fn next(&mut self, reactor: &mut Reactor, link: LinkId, size: u64, now: Instant) -> Next {
        let Some(client) = self.all.get_mut(&link) else { return Next::Wait };
        if let Stage::Negotiating(handshake) = &mut client.stage {
            let Some(socket) = reactor.link(link) else { return Next::Close };
            let mut reply = BytesMut::new();
            let export = Export { name: &client.volume, size };
            let step = handshake.advance(&mut socket.input, &mut reply, &export);
            let untaken = socket.backlog() + reply.len();
            reactor.send_bytes(link, &reply, bytes::Bytes::new());
            match step {
                Step::Wait if untaken > MOST_UNTAKEN => return Next::Close,
                Step::Wait => return Next::Wait,
                Step::Close => return Next::Close,
                Step::Transmission { structured } => {
                    client.stage = Stage::Transmission { structured };
                    self.negotiating.end(link);
                    return Next::Negotiated;
                }
            }
        }
        loop {
            let free = self.has_room(reactor, link, now);
            let Some(client) = self.all.get_mut(&link) else { return Next::Wait };
            if !free {
                reactor.set_deaf(link, true);
                return Next::Full;
            }
            if let Some(next) = client.next_request(reactor, link, size, now) {
                return next;
            }
        }
    }

    /// Sends an answer, if the client is still there.
    pub(super) fn answer(&mut self, reactor: &mut Reactor, answer: Answer) {
        let Some(client) = self.all.get_mut(&answer.client) else { return };
        client.unanswered -= 1;
        client.bytes -= weight(answer.op, answer.extent);
        let error = match answer.status {
            Status::Ok => None,
            Status::Invalid => Some(Errno::Invalid),
            Status::NoSpace => Some(Errno::NoSpace),
            Status::Fenced | Status::NotServing | Status::Failed | Status::Corrupt => Some(Errno::Io),
        };
        let structured = matches!(client.stage, Stage::Transmission { structured: true });
        let head = match error {
            None if answer.op == Op::Read && structured => {
                ReplyHead::data(answer.cookie, answer.extent.offset(), answer.data.len() as u32)
            }
            Some(errno) if structured => ReplyHead::error(answer.cookie, errno),
            error => ReplyHead::simple(answer.cookie, error),
        };
        reactor.send_bytes(answer.client, head.as_slice(), answer.data);
    }
}

impl Client {
    /// The next request, if there is a whole one and it can be carried out; `None` if it was answered at once.
    fn next_request(&mut self, reactor: &mut Reactor, link: LinkId, size: u64, now: Instant) -> Option<Next> {
        let Stage::Transmission { structured } = self.stage else { return Some(Next::Close) };
        let Some(socket) = reactor.link(link) else { return Some(Next::Close) };
        let request = match transmission::parse(&mut socket.input) {
            Ok(Some(request)) => request,
            Ok(None) => {
                reactor.set_deaf(link, false);
                return Some(Next::Wait);
            }
            Err(error) => {
                Self::complain(error);
                return Some(Next::Close);
            }
        };
        if request.command == Command::Disconnect {
            return Some(Next::Close);
        }
        match admissible(&request, size) {
            Ok((op, extent)) => {
                self.unanswered += 1;
                self.bytes += weight(op, extent);
                let payload = match request.command {
                    Command::WriteZeroes if op == Op::Write => vec![0; extent.length() as usize].into(),
                    _ => request.payload,
                };
                Some(Next::Request(Request {
                    client: link,
                    cookie: request.cookie,
                    op,
                    fua: request.flags & FLAG_FUA != 0,
                    extent,
                    check: checksum(&payload),
                    payload,
                    arrived: now,
                }))
            }
            Err(errno) => {
                let head = if structured {
                    ReplyHead::error(request.cookie, errno)
                } else {
                    ReplyHead::simple(request.cookie, Some(errno))
                };
                reactor.send_bytes(link, head.as_slice(), bytes::Bytes::new());
                None
            }
        }
    }

    fn complain(error: BadRequest) {
        tracing::warn!(%error, "client disconnected");
    }
}

/// The zeroes are to take their room on the disks.
const NO_HOLE: u16 = 1 << 1;

/// Flags that a command may carry.
fn known_flags(command: Command) -> u16 {
    const DF: u16 = 1 << 2;
    match command {
        Command::WriteZeroes => FLAG_FUA | NO_HOLE,
        Command::Read => FLAG_FUA | DF,
        _ => FLAG_FUA,
    }
}

fn admissible(request: &transmission::Request, size: u64) -> Result<(Op, Extent), Errno> {
    let op = match request.command {
        Command::Read => Op::Read,
        Command::Write => Op::Write,
        Command::Flush => return Ok((Op::Flush, Extent::EMPTY)),
        Command::Trim => Op::Trim,
        Command::WriteZeroes if request.flags & NO_HOLE == 0 => Op::Zero,
        Command::WriteZeroes if request.length > MAX_LENGTH => return Err(Errno::NotSupported),
        Command::WriteZeroes => Op::Write,
        Command::Disconnect | Command::Unknown(_) => return Err(Errno::NotSupported),
    };
    if request.flags & !known_flags(request.command) != 0 {
        return Err(Errno::Invalid);
    }
    if op == Op::Read && request.length > MAX_LENGTH {
        return Err(Errno::Invalid);
    }
    let extent = Extent::new(request.offset, request.length).filter(|extent| extent.fits(size));
    let past_end = if op == Op::Write || op == Op::Zero { Errno::NoSpace } else { Errno::Invalid };
    extent.map(|extent| (op, extent)).ok_or(past_end)
}
