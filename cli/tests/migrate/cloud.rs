//! A folder with a made-up cloud in a database of its own, and the command line that works on it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    dump::{self, Dump},
    foreign,
    server::{self, Program, Server},
    support::{self, BINARY, text},
};

pub(crate) const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/migrations/dragonflow");

pub(crate) const DRAGONFLOW: &str = "dragonflow";
pub(crate) const GENERATION: &str = "generation";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Embedded,
    Etcd,
    Redis,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Embedded, Kind::Etcd, Kind::Redis];
pub(crate) const SERVERS: [Kind; 2] = [Kind::Etcd, Kind::Redis];

/// Servers end with it.
pub(crate) struct Cloud {
    pub(crate) kind: Kind,
    pub(crate) layout: &'static str,
    pub(crate) server: Option<Server>,
    folder: TempDir,
}

impl Cloud {
    /// In one file.
    pub(crate) fn new(layout: &'static str, ports: usize) -> Cloud {
        Cloud::on(Kind::Embedded, layout, ports).expect("a file can always be made")
    }

    /// `None` where the server is not installed.
    pub(crate) fn on(kind: Kind, layout: &'static str, ports: usize) -> Option<Cloud> {
        Cloud::with(kind, layout, ports, &[])
    }

    /// With more arguments for the server.
    pub(crate) fn with(kind: Kind, layout: &'static str, ports: usize, extra: &[&str]) -> Option<Cloud> {
        let cloud = Cloud::empty(kind, layout, extra)?;
        cloud.fill(ports);
        Some(cloud)
    }

    /// Without a single row.
    pub(crate) fn empty(kind: Kind, layout: &'static str, extra: &[&str]) -> Option<Cloud> {
        let server = match kind {
            Kind::Embedded => None,
            Kind::Etcd => Some(Server::start(Program::Etcd, extra)?),
            Kind::Redis => Some(Server::start(Program::Redis, extra)?),
        };
        let cloud = Cloud { kind, layout, server, folder: server::folder() };
        if let Some(server) = &cloud.server {
            // It listens before it serves.
            support::eventually("the server answers", || {
                server.program != Program::Etcd || cloud.run(&["status"]).status.success()
            });
        }
        Some(cloud)
    }

    pub(crate) fn fill(&self, ports: usize) {
        let keys = if self.kind == Kind::Etcd && self.layout == DRAGONFLOW { "etcd" } else { "redis" };
        self.ok(&["sample", "cloud.backup", "--ports", &ports.to_string(), "--keys", keys]);
        self.on_store(&["restore", "cloud.backup", "--no-backup"]);
        self.on_store(&["finalize"]);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn store(&self) -> String {
        match &self.server {
            None => "embedded:nb.redb".to_owned(),
            Some(server) => self.through(server.port),
        }
    }

    /// The same database by way of another port.
    pub(crate) fn through(&self, port: u16) -> String {
        let scheme = if self.kind == Kind::Etcd { "etcd" } else { "redis" };
        format!("{scheme}://127.0.0.1:{port}")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("migrate").args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MIDFLIGHT_STORE", self.store()).env("MIDFLIGHT_LAYOUT", self.layout);
        command.env_remove("MIDFLIGHT_LOG");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Begins a command and goes on.
    pub(crate) fn begin(&self, command: &mut Command) -> Running {
        let log = fs::File::create(self.path("running.log")).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Running { child, log: self.path("running.log") }
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{self:?} {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A command that must fail with this code. Gives what it said.
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    }

    pub(crate) fn on_store(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        serde_json::from_str(&self.ok(&all)).unwrap()
    }

    /// The same, with the example migrations.
    pub(crate) fn with_examples(&self, arguments: &[&str]) -> Value {
        let (migrations, models) =
            (format!("{EXAMPLES}/migrations"), format!("{EXAMPLES}/models/queens.toml"));
        let mut all = arguments.to_vec();
        all.extend(["--path", &migrations, "--models", &models]);
        self.on_store(&all)
    }

    /// Tries again for as long as the lock of a run that died is there.
    pub(crate) fn insist(&self, arguments: &[&str]) -> Output {
        let began = Instant::now();
        loop {
            let output = self.run(arguments);
            let locked =
                text(&output.stderr).contains("is locked by") || text(&output.stdout).contains("! locked by");
            if !locked || began.elapsed() > Duration::from_secs(30) {
                return output;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A command that must be refused with this code, and change nothing at all. Gives what it said.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let before = self.dump();
        let output = self.run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{self:?} {arguments:?}: {stderr}");
        self.dump().assert_same(&before, &format!("{self:?} {arguments:?}"));
        stderr
    }

    pub(crate) fn dump(&self) -> Dump {
        match &self.server {
            None => Dump::of_file(&self.path("nb.redb"), self.layout),
            Some(server) => Dump::of_server(server, self.layout),
        }
    }

    /// Writes a row as a service of the cloud would, behind the tool's back.
    pub(crate) fn scribble(&self, table: &str, id: &str, value: &str) {
        let generation = self.dump().generation;
        match (&self.server, self.layout) {
            (None, layout) => dump::write_to_file(&self.path("nb.redb"), layout, (table, id), value),
            (Some(server), DRAGONFLOW) if self.kind == Kind::Etcd => {
                foreign::set(server, &format!("/{table}/{id}"), value);
            }
            (Some(server), DRAGONFLOW) => foreign::set(server, &format!("{{{table}.}}{id}"), value),
            (Some(server), _) if self.kind == Kind::Etcd => {
                foreign::set(server, &format!("/midflight/g/{generation}/{table}/{id}"), value);
            }
            (Some(server), _) => {
                foreign::redis(
                    server.port,
                    &["HSET", &format!("{{midflight}}:g/{generation}:{table}"), id, value],
                );
            }
        }
    }

    /// Makes a migration.
    pub(crate) fn migration(&self, name: &str, day: u32, table: &str, body: &str) {
        let folder = self.path("own").join(name);
        fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "id = \"test.{name}\"\nrelease = \"test\"\ndescription = \"{name}\"\n\
             proposed_at = \"2020-01-{day:02}T00:00:00Z\"\ntables = [\"{table}\"]\n{body}\n"
        );
        fs::write(folder.join("migration.toml"), text).unwrap();
    }
}

impl std::fmt::Debug for Cloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.kind, self.layout)
    }
}

/// A command under way. It ends with this value.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        support::signal(i32::try_from(self.child.id()).unwrap(), signal);
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end: the exit code (none where it was killed), and what it said.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        (status.code(), fs::read_to_string(&self.log).unwrap())
    }

    /// Waits for its end, and gives the most memory it had, in MiB.
    pub(crate) fn end_measured(&mut self) -> (Option<i32>, String, u64) {
        let (status, mut most) = (format!("/proc/{}/status", self.child.id()), 0);
        while self.child.try_wait().unwrap().is_none() {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
            most = most.max(kib.unwrap_or(0) / 1024);
            std::thread::sleep(Duration::from_millis(20));
        }
        let (code, said) = self.end();
        (code, said, most)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
