//! A small NBD client for the checker and the tour: one connection, many
//! requests under way.
//!
//! Invariant: replies are matched by cookie; anything else on the stream is an
//! error, never skipped.

use std::{
    io::{self, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("talk to the NBD server")]
    Io(#[from] io::Error),
    #[error("the NBD server refused the export ({0:#x})")]
    Refused(u32),
    #[error("the NBD server sent {0}")]
    Protocol(&'static str),
}

impl ClientError {
    /// Whether the server, or the way to it, is gone; connecting again may help.
    pub fn is_cut(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        match self {
            Self::Io(error) => matches!(
                error.kind(),
                BrokenPipe | ConnectionRefused | ConnectionReset | NotFound | UnexpectedEof
            ),
            Self::Refused(_) | Self::Protocol(_) => false,
        }
    }
}

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask<'a> {
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
    },
    Zero {
        offset: u64,
        length: u32,
    },
    /// Zeroes that keep their room on the disks.
    SolidZero {
        offset: u64,
        length: u32,
    },
    Trim {
        offset: u64,
        length: u32,
    },
    Flush,
}

/// An answer; `error` 0 means success.
#[derive(Debug)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

#[derive(Debug)]
pub struct NbdClient {
    input: BufReader<UnixStream>,
    output: UnixStream,
    size: u64,
}

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;

impl NbdClient {
    /// Connects to the export of that name on a Unix socket.
    pub fn connect(socket: &Path, export: &str) -> Result<NbdClient, ClientError> {
        let output = UnixStream::connect(socket)?;
        output.set_read_timeout(Some(Duration::from_secs(60)))?;
        let input = BufReader::with_capacity(256 << 10, output.try_clone()?);
        let mut client = NbdClient { input, output, size: 0 };
        client.negotiate(export)?;
        Ok(client)
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut raw = [0; N];
        self.input.read_exact(&mut raw)?;
        Ok(raw)
    }

    fn negotiate(&mut self, export: &str) -> Result<(), ClientError> {
        let greeting = self.take::<18>()?;
        if u64_at(&greeting, 0) != NBD_MAGIC || u64_at(&greeting, 8) != OPTION_MAGIC {
            return Err(ClientError::Protocol("no greeting"));
        }
        let mut hello = u32::from(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(option::GO.to_be_bytes());
        hello.extend((export.len() as u32 + 6).to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        hello.extend(0u16.to_be_bytes());
        self.output.write_all(&hello)?;
        loop {
            let head = self.take::<20>()?;
            if u64_at(&head, 0) != OPTION_REPLY_MAGIC {
                return Err(ClientError::Protocol("no option reply"));
            }
            let mut body = vec![0; u32_at(&head, 16).min(4096) as usize];
            self.input.read_exact(&mut body)?;
            match u32_at(&head, 12) {
                answer::ACK => return Ok(()),
                answer::INFO if body.len() >= 10 && u16_at(&body, 0) == info::EXPORT => {
                    self.size = u64_at(&body, 2);
                }
                answer::INFO => {}
                refused => return Err(ClientError::Refused(refused)),
            }
        }
    }

    pub fn send(&mut self, cookie: u64, ask: Ask<'_>) -> Result<(), ClientError> {
        const NO_HOLE: u16 = 1 << 1;
        let flags = if let Ask::SolidZero { .. } = ask { NO_HOLE } else { 0 };
        let (kind, offset, length, data): (u16, u64, u32, &[u8]) = match ask {
            Ask::Read { offset, length } => (0, offset, length, &[]),
            Ask::Write { offset, data } => (1, offset, data.len() as u32, data),
            Ask::Flush => (3, 0, 0, &[]),
            Ask::Trim { offset, length } => (4, offset, length, &[]),
            Ask::Zero { offset, length } | Ask::SolidZero { offset, length } => (6, offset, length, &[]),
        };
        let mut raw = Vec::with_capacity(28 + data.len());
        raw.extend(REQUEST_MAGIC.to_be_bytes());
        raw.extend(flags.to_be_bytes());
        raw.extend(kind.to_be_bytes());
        raw.extend(cookie.to_be_bytes());
        raw.extend(offset.to_be_bytes());
        raw.extend(length.to_be_bytes());
        raw.extend(data);
        Ok(self.output.write_all(&raw)?)
    }

    /// Waits for the next answer. `read_length` tells how much data a cookie's
    /// answer brings.
    pub fn receive(&mut self, read_length: impl Fn(u64) -> Option<u32>) -> Result<Reply, ClientError> {
        let head = self.take::<16>()?;
        if u32_at(&head, 0) != SIMPLE_MAGIC {
            return Err(ClientError::Protocol("no reply where one was due"));
        }
        let cookie = u64_at(&head, 8);
        let error = u32_at(&head, 4);
        let length =
            read_length(cookie).ok_or(ClientError::Protocol("an answer to nothing that was asked"))?;
        let mut data = vec![0; if error == 0 { length as usize } else { 0 }];
        self.input.read_exact(&mut data)?;
        Ok(Reply { cookie, error, data })
    }

    /// Waits until an answer comes, but no longer than this. Says whether one is there.
    pub fn answers_within(&self, longest: Duration) -> io::Result<bool> {
        if !self.input.buffer().is_empty() {
            return Ok(true);
        }
        let limit = Timespec::try_from(longest).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let mut wanted = [PollFd::new(&self.output, PollFlags::IN)];
        match rustix::event::poll(&mut wanted, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks one thing and waits for it.
    pub fn call(&mut self, ask: Ask<'_>) -> Result<Reply, ClientError> {
        let length = if let Ask::Read { length, .. } = ask { length } else { 0 };
        self.send(0, ask)?;
        self.receive(|_| Some(length))
    }
}
