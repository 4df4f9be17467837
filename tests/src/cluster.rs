//! A cluster of `midflight up`, as a user has it, in a folder of its own.
//!
//! The one invariant: dropping it ends every process that it started.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::place;

/// A process that was killed is gone in much less.
const DIES_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A running cluster.
pub struct Cluster {
    binary: PathBuf,
    folder: TempDir,
}

impl Cluster {
    /// Starts one with so many nodes; it is ready when this returns.
    pub async fn up(nodes: u8) -> anyhow::Result<Cluster> {
        let cluster = Cluster { binary: place::midflight()?, folder: TempDir::with_prefix("mf-up.")? };
        cluster.midflight(&["up", "--detach", "--nodes", &nodes.to_string()]).await?;
        Ok(cluster)
    }

    /// Starts what has died of it.
    pub async fn start(&self) -> anyhow::Result<()> {
        self.midflight(&["up", "--detach"]).await.map(drop)
    }

    /// Runs the binary on this cluster, and gives what it prints.
    pub async fn midflight(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.binary);
        let output = command.args(arguments).env("MIDFLIGHT_DIR", self.dir()).output().await;
        let output = output.context("run midflight")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "midflight {arguments:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Kills the agent of a node and every process of its pods.
    pub async fn kill_node(&self, node: &str) -> anyhow::Result<()> {
        let record = std::fs::read(self.dir().join("run").join(format!("{node}.json")))?;
        let record: serde_json::Value = serde_json::from_slice(&record)?;
        let pods = self.dir().join("nodes").join(node).join("pods").display().to_string();
        let of_pod = |process: &std::fs::DirEntry| {
            // Containers have their folder in their environment, their parents among their arguments.
            ["environ", "cmdline"].iter().any(|file| {
                let text = std::fs::read(process.path().join(file)).unwrap_or_default();
                String::from_utf8_lossy(&text).contains(&pods)
            })
        };
        let found = std::fs::read_dir("/proc")?.flatten().filter(of_pod);
        let pids = found.filter_map(|process| process.file_name().into_string().ok());
        let mut kill = Command::new("kill");
        kill.arg("-9").arg(record["pid"].to_string()).args(pids);
        // Those whose parents were faster have ended already, which it complains of.
        kill.output().await?;
        Ok(())
    }

    /// The process of a role that `up` started.
    pub fn process(&self, role: &str) -> anyhow::Result<i32> {
        let record = std::fs::read(self.dir().join("run").join(format!("{role}.json")))?;
        let record: serde_json::Value = serde_json::from_slice(&record)?;
        let pid = record["pid"].as_i64().context("a record has a pid")?;
        Ok(i32::try_from(pid)?)
    }

    /// The processes of a role that the pods of a node run, and what those have started.
    pub fn processes_of(&self, node: &str, role: &str) -> anyhow::Result<Vec<i32>> {
        let pods = self.dir().join("nodes").join(node).join("pods").display().to_string();
        let is_one = |process: &std::fs::DirEntry| {
            let read = |file: &str| std::fs::read(process.path().join(file)).unwrap_or_default();
            let arguments = read("cmdline");
            let is_role = arguments.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes());
            is_role && String::from_utf8_lossy(&read("environ")).contains(&pods)
        };
        let found = std::fs::read_dir("/proc")?.flatten().filter(is_one);
        Ok(found.filter_map(|process| process.file_name().to_str()?.parse().ok()).collect())
    }

    /// Kills processes; none of their threads lives when this returns.
    pub async fn kill(&self, pids: &[i32]) -> anyhow::Result<()> {
        // Those who were faster have ended already, which it complains of.
        Command::new("kill").arg("-9").args(pids.iter().map(ToString::to_string)).output().await?;
        let deadline = Instant::now() + DIES_WITHIN;
        while pids.iter().any(|pid| lives(*pid)) {
            ensure!(Instant::now() < deadline, "{pids:?} were killed and live");
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Ends all of it and removes its data.
    pub async fn purge(&self) -> anyhow::Result<()> {
        self.midflight(&["down", "--purge"]).await.map(drop)
    }

    /// Its folder.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("c")
    }

    /// Room for a file that is not of the cluster.
    pub fn room(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir().join("kubeconfig")
    }
}

/// Whether a thread of a process runs still; the first may be gone before the others are.
fn lives(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let state = |thread: std::fs::DirEntry| -> Option<char> {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // After the name, which may hold anything.
        stat.rsplit_once(") ")?.1.chars().next()
    };
    threads.filter_map(state).any(|state| !matches!(state, 'Z' | 'X'))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = std::process::Command::new(&self.binary).args(["down", "--dir"]).arg(self.dir()).output();
        if !std::thread::panicking() {
            let output = down.expect("midflight down can be run");
            assert!(output.status.success(), "midflight down: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
