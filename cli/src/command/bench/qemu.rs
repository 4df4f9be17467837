//! qemu's own block servers, as peers.
//!
//! The one invariant: when its handle is dropped the process is gone.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;

const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Where a server listens.
#[derive(Debug, Clone)]
pub(super) enum Socket {
    Unix(PathBuf),
    Tcp(u16),
}

impl Socket {
    /// A port that is free now.
    pub(super) fn free_port() -> anyhow::Result<Socket> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
        Ok(Socket::Tcp(listener.local_addr().context("find a free port")?.port()))
    }

    fn answers(&self) -> bool {
        match self {
            Socket::Unix(path) => UnixStream::connect(path).is_ok(),
            Socket::Tcp(port) => TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).is_ok(),
        }
    }
}

/// What a server serves.
pub(super) enum Source<'a> {
    File(&'a Path),
    /// Every write to all, every read to the first.
    Quorum(&'a [Socket]),
    /// Another server, to which it connects again when that goes away.
    Reconnecting(&'a Socket),
}

pub(super) struct QemuNbd {
    child: Child,
}

impl QemuNbd {
    /// Starts a server and waits until it can be reached.
    pub(super) fn start(source: &Source, at: &Socket) -> anyhow::Result<QemuNbd> {
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--shared=8"]);
        match at {
            Socket::Unix(path) => command.arg("--socket").arg(path),
            Socket::Tcp(port) => command.args(["--bind=127.0.0.1", &format!("--port={port}")]),
        };
        match source {
            Source::File(path) => {
                command.args(["--format=raw", "--cache=writeback", "--aio=threads"]).arg(path)
            }
            Source::Quorum(children) => {
                let children = children.iter().enumerate();
                let children = children.map(|(at, child)| reach(&format!("children.{at}."), child));
                let children = children.collect::<Vec<_>>().join(",");
                command
                    .arg("--image-opts")
                    .arg(format!("driver=quorum,vote-threshold=2,read-pattern=fifo,{children}"))
            }
            Source::Reconnecting(back) => {
                command.arg("--image-opts").arg(format!("{},reconnect-delay=10", reach("", back)))
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| missing("qemu-nbd", "qemu-utils", error))?;
        let mut server = QemuNbd { child };
        let deadline = Instant::now() + READY_WITHIN;
        while !at.answers() {
            if let Some(status) = server.child.try_wait().context("look after qemu-nbd")? {
                anyhow::bail!("qemu-nbd ended at once: {status}");
            }
            anyhow::ensure!(Instant::now() < deadline, "qemu-nbd cannot be reached");
            thread::sleep(LOOK_AGAIN);
        }
        Ok(server)
    }

    /// Ends it and waits until it is gone.
    pub(super) fn end(mut self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("end qemu-nbd")?;
        self.child.wait().context("wait for qemu-nbd").map(drop)
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn reach(prefix: &str, server: &Socket) -> String {
    match server {
        Socket::Tcp(port) => format!(
            "{prefix}driver=nbd,{prefix}server.type=inet,{prefix}server.host=127.0.0.1,{prefix}server.port={port}"
        ),
        Socket::Unix(path) => {
            format!("{prefix}driver=nbd,{prefix}server.type=unix,{prefix}server.path={}", path.display())
        }
    }
}

/// Why a program could not be started.
pub(super) fn missing(program: &str, package: &str, error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Failure::error(
            format!("{program} is not installed"),
            format!("install the package {package}"),
        );
    }
    anyhow::Error::new(error).context(format!("start {program}"))
}
