//! The commands of a frontend or an engine from the side of whoever gives them.
//!
//! Invariant: one command at a time; an answer is known by the number of its
//! command, so one that comes too late is not taken for the next.

use std::{
    fs::File,
    io::{self, Read, Write},
    marker::PhantomData,
    net::TcpStream,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

use bytes::BytesMut;
use rustix::net::sockopt::{self, Timeout};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    engine,
    epoch::Epoch,
    frontend,
    net::address::Address,
    wire::{self, BadFrame, Frame, Header, Kind},
};

/// Frames to and from a process, one after another.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: File,
    input: BytesMut,
    chunk: Vec<u8>,
}

impl Wire {
    /// `chunk` bytes are read at once.
    pub(crate) fn connect(address: &Address, chunk: usize) -> io::Result<Wire> {
        let socket: OwnedFd = match address {
            Address::Unix(path) => UnixStream::connect(path)?.into(),
            Address::Tcp(address) => TcpStream::connect_timeout(address, CONNECT_WITHIN)?.into(),
        };
        Ok(Wire { stream: socket.into(), input: BytesMut::new(), chunk: vec![0; chunk] })
    }

    /// How long to wait for the next bytes.
    pub(crate) fn wait_at_most(&self, within: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.stream, Timeout::Recv, Some(within))?)
    }

    pub(crate) fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let mut raw = frame.header.encode(frame.payload.len()).to_vec();
        raw.extend_from_slice(&frame.payload);
        self.stream.write_all(&raw)
    }

    pub(crate) fn receive(&mut self) -> Result<Frame, ControlError> {
        loop {
            if let Ok(frame) = wire::decode(&mut self.input)? {
                return Ok(frame);
            }
            let count = match self.stream.read(&mut self.chunk) {
                // With a timeout set, the kernel gives up at every signal this process gets.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.input.extend_from_slice(&self.chunk[..count]);
        }
    }
}

/// Gives commands `C` and gets answers `A`.
#[derive(Debug)]
pub struct Caller<C, A> {
    wire: Wire,
    tag: u64,
    speaks: PhantomData<(C, A)>,
}

pub type FrontendControl = Caller<frontend::control::Command, frontend::control::Answer>;
pub type EngineControl = Caller<engine::control::Command, engine::control::Answer>;

/// An answer that may be a refusal.
pub trait Refusable: Sized {
    /// The answer, or why nothing was done.
    fn accepted(self) -> Result<Self, ControlError>;
}

impl Refusable for frontend::control::Answer {
    fn accepted(self) -> Result<Self, ControlError> {
        match self {
            Self::Refused(why) => Err(ControlError::Refused(why)),
            answer => Ok(answer),
        }
    }
}

impl Refusable for engine::control::Answer {
    fn accepted(self) -> Result<Self, ControlError> {
        match self {
            Self::Refused(why) => Err(ControlError::Refused(why)),
            Self::Busy(why) => Err(ControlError::Busy(why)),
            answer => Ok(answer),
        }
    }
}

const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Commands and their answers are short.
const CHUNK: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("talk to the process that serves the volume")]
    Io(#[from] io::Error),
    #[error("its answer is not readable")]
    Frame(#[from] BadFrame),
    #[error("its answer is not understood")]
    Json(#[from] serde_json::Error),
    #[error("refused: {0}")]
    Refused(String),
    /// The same command may succeed later.
    #[error("not now: {0}")]
    Busy(String),
}

impl<C: Serialize, A: DeserializeOwned + Refusable> Caller<C, A> {
    pub fn connect(address: &Address) -> Result<Caller<C, A>, ControlError> {
        let mut control = Caller { wire: Wire::connect(address, CHUNK)?, tag: 0, speaks: PhantomData };
        control.wait_at_most(Duration::from_secs(30))?;
        Ok(control)
    }

    /// How long each command may take.
    pub fn wait_at_most(&mut self, within: Duration) -> io::Result<()> {
        self.wire.wait_at_most(within)
    }

    /// Gives a command and waits for its end.
    pub fn call(&mut self, command: &C) -> Result<A, ControlError> {
        self.tag += 1;
        let header = Header::new(Kind::Control, self.tag, Epoch::NONE);
        self.wire.send(&Frame::with(header, serde_json::to_vec(command)?.into()))?;
        loop {
            let frame = self.wire.receive()?;
            if frame.header.tag == self.tag {
                let answer: A = serde_json::from_slice(&frame.payload)?;
                return answer.accepted();
            }
        }
    }
}
