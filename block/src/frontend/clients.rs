//! NBD clients of the frontend: from negotiation to requests, and answers back.
//!
//! Invariant: a volume has a bounded number of clients, and each of them a bounded number of
//! requests and of bytes under way, so one that floods waits for its own answers and not others for it.

use std::{collections::HashMap, io, os::fd::OwnedFd, time::Instant};

use bytes::BytesMut;

use super::{
    core::Answer,
    parked::{BadParcel, ParkedClient, ParkedStage, growable, pack, take, unpack},
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
    Request(Request),
    Close,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    all: HashMap<LinkId, Client>,
}

impl Clients {
    /// Greets a client, unless the volume has too many.
    pub(super) fn accept(&mut self, reactor: &mut Reactor, link: LinkId, volume: String) {
        if self.all.values().filter(|client| client.volume == volume).count() >= MOST_CLIENTS {
            tracing::warn!(volume, "too many clients");
            return reactor.close(link);
        }
        let mut greeting = BytesMut::new();
        let stage = Stage::Negotiating(Handshake::begin(&mut greeting));
        reactor.send_bytes(link, &greeting, bytes::Bytes::new());
        self.all.insert(link, Client { volume, stage, unanswered: 0, bytes: 0 });
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&Client> {
        self.all.get(&link)
    }

    pub(super) fn remove(&mut self, link: LinkId) -> Option<Client> {
        self.all.remove(&link)
    }

    /// Ends a conversation here, so that a successor can go on with it.
    pub(super) fn park(&mut self, reactor: &mut Reactor, link: LinkId) -> Option<(Vec<u8>, OwnedFd)> {
        let client = self.all.remove(&link)?;
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
        state: Vec<u8>,
        fd: OwnedFd,
    ) -> Result<(u64, LinkId), ResumeError> {
        let (parked, mut data) = unpack::<ParkedClient>(state)?;
        let input = take(&mut data, parked.input)?;
        let released = Released { fd, input: growable(&input), output: growable(&data), compact: false };
        let link = reactor.resume(released)?;
        let stage = match parked.stage {
            ParkedStage::Negotiating(handshake) => Stage::Negotiating(handshake),
            ParkedStage::Transmission { structured } => Stage::Transmission { structured },
        };
        self.all.insert(link, Client { volume: parked.volume, stage, unanswered: 0, bytes: 0 });
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
                Step::Transmission { structured } => client.stage = Stage::Transmission { structured },
            }
        }
        client.next_request(reactor, link, size, now)
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
    fn next_request(&mut self, reactor: &mut Reactor, link: LinkId, size: u64, now: Instant) -> Next {
        let Stage::Transmission { structured } = self.stage else { return Next::Close };
        loop {
            let Some(socket) = reactor.link(link) else { return Next::Close };
            let heavy = self.bytes + socket.backlog() as u64 > MOST_BYTES;
            if heavy || self.unanswered >= MOST_UNANSWERED {
                reactor.set_deaf(link, true);
                return Next::Full;
            }
            let request = match transmission::parse(&mut socket.input) {
                Ok(Some(request)) => request,
                Ok(None) => {
                    reactor.set_deaf(link, false);
                    return Next::Wait;
                }
                Err(error) => {
                    Self::complain(error);
                    return Next::Close;
                }
            };
            if request.command == Command::Disconnect {
                return Next::Close;
            }
            match admissible(&request, size) {
                Ok((op, extent)) => {
                    self.unanswered += 1;
                    self.bytes += weight(op, extent);
                    return Next::Request(Request {
                        client: link,
                        cookie: request.cookie,
                        op,
                        fua: request.flags & FLAG_FUA != 0,
                        extent,
                        check: checksum(&request.payload),
                        payload: request.payload,
                        arrived: now,
                    });
                }
                Err(errno) => {
                    let head = if structured {
                        ReplyHead::error(request.cookie, errno)
                    } else {
                        ReplyHead::simple(request.cookie, Some(errno))
                    };
                    reactor.send_bytes(link, head.as_slice(), bytes::Bytes::new());
                }
            }
        }
    }

    fn complain(error: BadRequest) {
        tracing::warn!(%error, "client disconnected");
    }
}

/// Flags that a command may carry.
fn known_flags(command: Command) -> u16 {
    const NO_HOLE: u16 = 1 << 1;
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
        Command::WriteZeroes => Op::Zero,
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
