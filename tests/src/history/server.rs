//! An API server in a process of its own, to be killed and started again.
//!
//! The one invariant: when a new life is announced, the old process is dead, so
//! nothing it was asked can happen any more.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::record::Moment;

/// A server's life between two kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub number: u32,
    pub address: SocketAddr,
    /// When the life before was surely over.
    pub since: Moment,
}

/// Measures moments.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(self) -> Moment {
        Moment(u64::try_from(self.0.elapsed().as_nanos()).expect("a test does not last for centuries"))
    }
}

#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    folder: PathBuf,
    clock: Clock,
    child: Child,
    lives: watch::Sender<Life>,
}

impl Server {
    /// Starts `program FOLDER`, which says `listening on ADDRESS` when it serves.
    pub async fn start(program: &Path, folder: &Path, clock: Clock) -> Server {
        let (child, address) = spawn(program, folder).await;
        let (lives, _) = watch::channel(Life { number: 0, address, since: clock.now() });
        Server { program: program.into(), folder: folder.into(), clock, child, lives }
    }

    pub fn lives(&self) -> watch::Receiver<Life> {
        self.lives.subscribe()
    }

    pub async fn kill_and_restart(&mut self) {
        self.child.kill().await.expect("the process is ours to kill");
        let since = self.clock.now();
        let (child, address) = spawn(&self.program, &self.folder).await;
        self.child = child;
        self.lives.send_modify(|life| *life = Life { number: life.number + 1, address, since });
    }

    pub async fn stop(mut self) {
        self.child.kill().await.expect("the process is ours to kill");
    }
}

async fn spawn(program: &Path, folder: &Path) -> (Child, SocketAddr) {
    let mut child = Command::new(program)
        .arg(folder)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the server can be started");
    let output = child.stdout.take().expect("its output is ours");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).await.expect("its output can be read");
    let address = line.trim().strip_prefix("listening on ").and_then(|address| address.parse().ok());
    (child, address.unwrap_or_else(|| panic!("the server did not start, it said {line:?}")))
}
