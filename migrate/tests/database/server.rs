//! Real etcd and Redis servers in temporary folders.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Etcd,
    Redis,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Etcd => "etcd",
            Program::Redis => "redis-server",
        }
    }

    fn arguments(self, port: u16, folder: &Path) -> Vec<String> {
        let folder = folder.display();
        match self {
            Program::Etcd => {
                let (client, peer) =
                    (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", free_port()));
                [
                    ("--data-dir", format!("{folder}/data")),
                    ("--listen-client-urls", client.clone()),
                    ("--advertise-client-urls", client),
                    ("--listen-peer-urls", peer.clone()),
                    ("--initial-advertise-peer-urls", peer.clone()),
                    ("--initial-cluster", format!("default={peer}")),
                    // Alone, it need not wait long for others before it serves.
                    ("--heartbeat-interval", "10".to_owned()),
                    ("--election-timeout", "100".to_owned()),
                    ("--logger", "zap".to_owned()),
                ]
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value])
                .collect()
            }
            Program::Redis => {
                ["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", &folder.to_string()]
                    .into_iter()
                    .chain(["--save", "", "--appendonly", "yes", "--appendfsync", "always"])
                    .map(str::to_owned)
                    .collect()
            }
        }
    }
}

/// A running server. It ends with this value, and with the thread that made it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) port: u16,
    extra: Vec<String>,
    folder: TempDir,
    child: Child,
}

impl Server {
    /// `None`, loudly, where the program is missing. `PORT` in the extra arguments is its port.
    pub(crate) fn start(program: Program, extra: &[&str]) -> Option<Server> {
        let there = |folder: PathBuf| folder.join(program.name()).exists();
        if !std::env::split_paths(&std::env::var_os("PATH")?).any(there) {
            skip(&format!("no {} on PATH: its driver is not tested", program.name()));
            return None;
        }
        let folder = folder();
        let extra: Vec<String> = extra.iter().map(|&word| word.to_owned()).collect();
        // Another process may take the port between our look and the server's.
        for _ in 0..5 {
            let port = free_port();
            let mut child = spawn(program, port, folder.path(), &extra);
            if listens(&mut child, port) {
                return Some(Server { program, port, extra, folder, child });
            }
            end(&mut child);
        }
        panic!("{} does not start: {}", program.name(), log(folder.path()));
    }

    pub(crate) fn kill(&mut self) {
        end(&mut self.child);
    }

    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.program, self.port, self.folder.path(), &self.extra);
        assert!(listens(&mut self.child, self.port), "{}", log(self.folder.path()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// In memory where that is possible: what is on trial is the order of writes, not the disk.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn spawn(program: Program, port: u16, folder: &Path, extra: &[String]) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", program.name()])
        .args(program.arguments(port, folder))
        .args(extra.iter().map(|word| word.replace("PORT", &port.to_string())))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn listens(child: &mut Child, port: u16) -> bool {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Says that something is not tested here. In CI nothing may be left out.
#[expect(clippy::print_stderr, reason = "whoever runs the tests must read it")]
pub(crate) fn skip(what: &str) {
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{what}");
    eprintln!("SKIPPED: {what}");
}
