//! A process gives its work straight to its successor while both live.
//!
//! ```text
//! a process ◀── asks ── its successor      Hatch ◀── Line
//!           ── state, descriptors ──▶
//! ```
//!
//! Invariant: what is said arrives whole and in order, or the line is cut; it is cut when the
//! other process ends.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::net::{SocketFlags, accept_with, sockopt};

use crate::{
    packet,
    parcel::{seal, unseal},
};

/// What one message is made of besides its descriptors.
const MESSAGE: &[u8] = b"handover";

/// Where successors ask.
#[derive(Debug)]
pub struct Hatch {
    door: OwnedFd,
}

impl Hatch {
    /// Listens for processes of the same user; a dead predecessor's socket file is replaced.
    pub fn open(path: &Path) -> io::Result<Hatch> {
        Ok(Hatch { door: packet::listen(path, 1)? })
    }

    /// Waits for a successor.
    pub fn accept(&self) -> io::Result<Line> {
        Ok(Line { socket: accept_with(&self.door, SocketFlags::CLOEXEC)? })
    }
}

/// Readable when a successor asks.
impl AsFd for Hatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }
}

/// One end of what two processes say to each other.
#[derive(Debug)]
pub struct Line {
    socket: OwnedFd,
}

impl Line {
    pub fn connect(path: &Path) -> io::Result<Line> {
        Ok(Line { socket: packet::connect(path)? })
    }

    /// How long the other side may take to say something.
    pub fn wait_at_most(&self, within: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(within))?)
    }

    /// State of any size, and few descriptors.
    pub fn say(&self, state: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let state = seal(state)?;
        let all: Vec<BorrowedFd<'_>> =
            [state.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
        packet::send(&self.socket, MESSAGE, &all)
    }

    /// What was said; `None` when the other process has ended.
    pub fn hear(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let Some((message, descriptors)) = packet::receive(&self.socket)? else { return Ok(None) };
        let mut descriptors = descriptors.into_iter();
        match (message == MESSAGE, descriptors.next()) {
            (true, Some(state)) => Ok(Some((unseal(state)?, descriptors.collect()))),
            (_, _) => Err(io::Error::new(io::ErrorKind::InvalidData, "that is no message of a handover")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt, thread};

    use super::*;

    #[test]
    fn what_is_said_is_heard_with_its_descriptors_until_the_other_side_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (at, file) = (folder.path().join("hatch"), folder.path().join("file"));
        let hatch = Hatch::open(&at).unwrap();
        let other = thread::spawn(move || {
            let line = Line::connect(&at).unwrap();
            std::fs::write(&file, "hello").unwrap();
            line.say(&[7; 1 << 20], &[File::open(&file).unwrap().as_fd()]).unwrap();
            line.say(b"", &[]).unwrap();
        });
        let line = hatch.accept().unwrap();
        let (state, descriptors) = line.hear().unwrap().unwrap();
        assert_eq!((state.len(), descriptors.len()), (1 << 20, 1));
        let mut found = [0; 5];
        File::from(descriptors.into_iter().next().unwrap()).read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"hello");
        assert_eq!(line.hear().unwrap().unwrap().0, b"");
        other.join().unwrap();
        assert!(line.hear().unwrap().is_none());
    }
}
