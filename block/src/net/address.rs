//! Where a process can be reached.
//!
//! Invariant: every socket made here is non-blocking and closed on exec.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::PathBuf,
    str::FromStr,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt},
};
use serde::{Deserialize, Serialize};

/// `unix:PATH`, or `IP:PORT` for TCP.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        text.parse()
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(path.into()));
        }
        text.parse().map(Address::Tcp).map_err(|_| format!("{text} is neither unix:PATH nor IP:PORT"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// A socket that waits for connections.
#[derive(Debug)]
pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// A dead process leaves its Unix socket file behind: it is replaced.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Unix(path) => {
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener))
            }
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
        }
    }

    /// A socket that another process has opened at an address.
    pub fn given(socket: OwnedFd, at: &Address) -> Listener {
        match at {
            Address::Unix(_) => Listener::Unix(socket.into()),
            Address::Tcp(_) => Listener::Tcp(socket.into()),
        }
    }

    /// The address with the port that the kernel chose.
    pub fn address(&self, asked: &Address) -> io::Result<Address> {
        match self {
            Listener::Unix(_) => Ok(asked.clone()),
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
        }
    }

    /// Whether this is where a connection to an address would arrive.
    pub(super) fn is_at(&self, address: &Address) -> bool {
        match (self, address) {
            (Listener::Unix(listener), Address::Unix(path)) => {
                listener.local_addr().is_ok_and(|at| at.as_pathname() == Some(path))
            }
            (Listener::Tcp(listener), Address::Tcp(to)) => listener.local_addr().is_ok_and(|at| at == *to),
            (Listener::Unix(_), Address::Tcp(_)) | (Listener::Tcp(_), Address::Unix(_)) => false,
        }
    }

    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                widen(&stream);
                Ok(stream.into())
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                prepare(stream)
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// What one side of a Unix socket may send before the other has read it. The kernel's own choice is less than
/// two requests of 128 KiB, and then both sides are woken for every piece of one.
const SEND_AHEAD: usize = 1 << 20;

/// Where the kernel does not allow it, less has to do.
fn widen(socket: &impl AsFd) {
    let _ = sockopt::set_socket_send_buffer_size(socket, SEND_AHEAD);
}

fn prepare(stream: TcpStream) -> io::Result<OwnedFd> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

/// Begins to connect. The socket becomes writable when it is connected or has failed.
pub(super) fn begin_connect(address: &Address) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let open = |family| socket_with(family, SocketType::STREAM, flags, None);
    let (fd, begun) = match address {
        Address::Unix(path) => {
            let fd = open(AddressFamily::UNIX)?;
            widen(&fd);
            let begun = rustix::net::connect(&fd, &SocketAddrUnix::new(path.as_path())?);
            (fd, begun)
        }
        Address::Tcp(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = open(family)?;
            sockopt::set_tcp_nodelay(&fd, true)?;
            let begun = rustix::net::connect(&fd, address);
            (fd, begun)
        }
    };
    match begun {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_they_are_written() {
        for text in ["unix:/run/engine.sock", "127.0.0.1:9000", "[::1]:80"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert!("engine.sock".parse::<Address>().is_err());
    }
}
