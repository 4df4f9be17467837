//! The real binary in a folder of its own. Whatever a test does, dropping the
//! sandbox ends every process that it started.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub(crate) mod datasets;
pub(crate) mod pods;
pub(crate) mod registry;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_midflight");
const PATIENCE: Duration = Duration::from_secs(150);

/// The next version of the binary. After `dev/test` has built it, cargo finds nothing left to do.
pub(crate) fn next() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--workspace", "--bin", "midflight-next"]);
    cargo.args(["--features", "midflight/next,midflight/failpoints"]);
    let built = cargo.stdin(Stdio::null()).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    Path::new(BINARY).with_file_name("midflight-next")
}

pub(crate) struct Sandbox {
    root: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        Sandbox { root: tempfile::Builder::new().prefix("mf-").tempdir_in("/tmp").unwrap() }
    }

    /// The cluster's folder; made by `up`.
    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("c")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .env("MIDFLIGHT_DIR", self.dir())
            .env_remove("MIDFLIGHT_LOG")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed, and gives its stdout.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stderr), self.logs());
        text(&output.stdout)
    }

    /// Runs a command that must fail with the code, and gives its stderr.
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains("\n  try: "), "{stderr}");
        stderr
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        serde_json::from_str(&self.ok(&all)).unwrap()
    }

    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The pid in a role's record.
    pub(crate) fn pid(&self, role: &str) -> Option<i32> {
        let record = std::fs::read(self.dir().join("run").join(format!("{role}.json"))).ok()?;
        let record: Value = serde_json::from_slice(&record).ok()?;
        i32::try_from(record["pid"].as_i64()?).ok()
    }

    /// The pid of a role that must run.
    pub(crate) fn running(&self, role: &str) -> i32 {
        let pid = self.pid(role).unwrap_or_else(|| panic!("{role} has no record{}", self.logs()));
        assert!(lives(pid), "{role} does not run{}", self.logs());
        pid
    }

    /// A read with the admin's kubeconfig.
    pub(crate) fn get(&self, path: &str) -> Result<String, String> {
        self.call("kubeconfig", http::Request::get(path).body(Vec::new()).unwrap())
    }

    /// One request with a kubeconfig of the cluster's folder.
    pub(crate) fn call(&self, kubeconfig: &str, request: http::Request<Vec<u8>>) -> Result<String, String> {
        let kubeconfig = self.dir().join(kubeconfig);
        runtime().block_on(async {
            let file = kube::config::Kubeconfig::read_from(kubeconfig).map_err(|error| error.to_string())?;
            let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await;
            let client = kube::Client::try_from(config.map_err(|error| error.to_string())?).unwrap();
            client.request_text(request).await.map_err(|error| error.to_string())
        })
    }

    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        for entry in std::fs::read_dir(self.dir().join("logs")).into_iter().flatten().flatten() {
            let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            all += &format!(
                "\n--- {}\n{}",
                entry.path().display(),
                tail.into_iter().rev().collect::<Vec<_>>().join("\n")
            );
        }
        all
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.run(&["down"]);
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn lives(pid: i32) -> bool {
    // Its first thread may be gone before the others are, and a zombie whose parent has not looked yet does not live.
    let Ok(process) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else { return false };
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 0
}

pub(crate) fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the killed process ends", || !lives(pid));
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What is below a folder, with the bytes of those that are files.
pub(crate) fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            files.extend(files_below(&entry.path()));
        } else if entry.path().is_file() {
            files.push((entry.path(), std::fs::read(entry.path()).unwrap()));
        } else {
            files.push((entry.path(), Vec::new()));
        }
    }
    files.sort();
    files
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
