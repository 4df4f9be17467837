//! The frontend's commands from the side of whoever gives them.
//!
//! Invariant: one command at a time; an answer is known by the number of its
//! command, so one that comes too late is not taken for the next.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use bytes::BytesMut;

use super::control::{Answer, Command};
use crate::{
    epoch::Epoch,
    net::address::Address,
    wire::{self, BadFrame, Frame, Header, Kind},
};

#[derive(Debug)]
pub struct FrontendControl {
    stream: UnixStream,
    input: BytesMut,
    tag: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("talk to the frontend")]
    Io(#[from] io::Error),
    #[error("the frontend's answer is not readable")]
    Frame(#[from] BadFrame),
    #[error("the frontend's answer is not understood")]
    Json(#[from] serde_json::Error),
    #[error("{0} is not the control socket of a frontend")]
    Address(Address),
    #[error("the frontend refused: {0}")]
    Refused(String),
}

impl FrontendControl {
    pub fn connect(address: &Address) -> Result<FrontendControl, ControlError> {
        let Address::Unix(path) = address else { return Err(ControlError::Address(address.clone())) };
        let stream = UnixStream::connect(path)?;
        let mut control = FrontendControl { stream, input: BytesMut::new(), tag: 0 };
        control.wait_at_most(Duration::from_secs(30))?;
        Ok(control)
    }

    /// How long each command may take.
    pub fn wait_at_most(&mut self, within: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(within))
    }

    /// Gives a command and waits for its end.
    pub fn call(&mut self, command: &Command) -> Result<Answer, ControlError> {
        self.tag += 1;
        let frame = Frame::with(
            Header::new(Kind::Control, self.tag, Epoch::NONE),
            serde_json::to_vec(command)?.into(),
        );
        let mut raw = frame.header.encode(frame.payload.len()).to_vec();
        raw.extend_from_slice(&frame.payload);
        self.stream.write_all(&raw)?;
        loop {
            if let Ok(frame) = wire::decode(&mut self.input)? {
                if frame.header.tag != self.tag {
                    continue;
                }
                return match serde_json::from_slice(&frame.payload)? {
                    Answer::Refused(why) => Err(ControlError::Refused(why)),
                    answer => Ok(answer),
                };
            }
            let mut chunk = [0; 4096];
            let count = match self.stream.read(&mut chunk) {
                // With a timeout set, the kernel gives up at every signal this process gets.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.input.extend_from_slice(&chunk[..count]);
        }
    }
}
