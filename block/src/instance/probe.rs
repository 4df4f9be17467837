//! Asks replicas what they have promised.
//!
//! Invariant: asking changes nothing, and nobody who does not answer is waited for
//! longer than the time given.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use bytes::BytesMut;

use super::{names::Name, spec::Seat};
use crate::{
    epoch::Epoch,
    net::address::Address,
    role,
    wire::{
        self, Frame, Header, Kind,
        hello::{Hello, VERSIONS},
    },
};

/// A replica that lives answers in much less.
const ANSWERS_WITHIN: Duration = Duration::from_millis(200);

/// The highest promise of those that answer.
pub(super) fn highest_promise(volume: &Name, members: &[Seat]) -> Option<Epoch> {
    thread::scope(|scope| {
        let asked: Vec<_> =
            members.iter().map(|seat| scope.spawn(move || promise(volume, &seat.address).ok())).collect();
        asked.into_iter().filter_map(|answer| answer.join().ok().flatten()).max()
    })
}

fn promise(volume: &Name, address: &Address) -> io::Result<Epoch> {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
            ask(stream, volume)
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, ANSWERS_WITHIN)?;
            stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
            ask(stream, volume)
        }
    }
}

fn ask(mut stream: impl Read + Write, volume: &Name) -> io::Result<Epoch> {
    let hello = Hello {
        versions: VERSIONS,
        volume: volume.to_string(),
        sender: role::process_name(),
        size: 0,
        epoch: Epoch::NONE,
    };
    let frame = Frame::with(Header::new(Kind::Hello, 0, Epoch::NONE), hello.encode());
    stream.write_all(&frame.header.encode(frame.payload.len()))?;
    stream.write_all(&frame.payload)?;
    let mut input = BytesMut::new();
    loop {
        if let Ok(frame) = wire::decode(&mut input).map_err(io::Error::other)? {
            return Hello::accept(&frame.payload, volume.as_str())
                .map(|hello| hello.epoch)
                .map_err(io::Error::other);
        }
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        input.extend_from_slice(&chunk[..count]);
    }
}
