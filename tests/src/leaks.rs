//! What a cluster of `midflight up` holds of the machine and of its API, to see that something left nothing behind.
//!
//! The one invariant: only what belongs to the cluster's own folder is counted, since other clusters may run beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::{Discovery, verbs};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep};

/// Kinds that come and go by themselves.
const RESTLESS: [&str; 2] = ["Event", "Lease"];
/// What the names of processes begin with.
const PROCESS: &str = "process ";
const PATIENCE: Duration = Duration::from_secs(150);

/// Things by their kind and name, and how many of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held(BTreeMap<String, usize>);

impl Held {
    /// What there is now of a cluster whose folder this is.
    pub async fn now(folder: &Path, client: &Client) -> anyhow::Result<Held> {
        let mut held = Held::on_machine(folder)?;
        let discovery = Discovery::new(client.clone()).run().await?;
        for (kind, can) in discovery.groups().flat_map(|group| group.recommended_resources()) {
            if !can.supports_operation(verbs::LIST) || RESTLESS.contains(&kind.kind.as_str()) {
                continue;
            }
            let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
            for object in all.list(&ListParams::default()).await? {
                held.add(format!("object {} {}", kind.kind, object.name_any()));
            }
        }
        Ok(held)
    }

    /// The same without the API: processes, sockets they listen on, mounts and loop devices.
    pub fn on_machine(folder: &Path) -> anyhow::Result<Held> {
        let mut held = Held::default();
        let text = folder.display().to_string();
        let processes = processes(&text)?;
        for (_, role) in &processes {
            held.add(format!("{PROCESS}{role}"));
        }
        for role in ports(&processes)? {
            held.add(format!("port of {role}"));
        }
        for socket in lines("/proc/net/unix")?.iter().filter(|line| is_listening(line)) {
            if let Some(path) = socket.split_whitespace().find(|word| word.starts_with(&text)) {
                held.add(format!("socket {path}"));
            }
        }
        for mount in lines("/proc/self/mountinfo")? {
            if let Some(at) = mount.split_whitespace().nth(4).filter(|at| at.starts_with(&text)) {
                held.add(format!("mount {at}"));
            }
        }
        for device in loops(&text)? {
            held.add(format!("loop device {device}"));
        }
        Ok(held)
    }

    fn add(&mut self, what: String) {
        *self.0.entry(what).or_default() += 1;
    }

    /// What is here and was not there before.
    fn beyond(&self, before: &Held) -> Vec<&String> {
        let more = |(what, count): &(&String, &usize)| **count > before.0.get(*what).copied().unwrap_or(0);
        self.0.iter().filter(more).map(|(what, _)| what).collect()
    }

    /// Whether every process is there that was there before.
    pub fn has_processes_of(&self, before: &Held) -> bool {
        let mut processes = before.0.iter().filter(|(what, _)| what.starts_with(PROCESS));
        processes.all(|(what, count)| self.0.get(what).is_some_and(|now| now >= count))
    }

    /// Waits until nothing is there that was not there before.
    pub async fn until_no_more(&self, folder: &Path, client: &Client) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Held::now(folder, client).await?;
            let left = now.beyond(self);
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("left behind: {left:?}");
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Nothing is there at all, or it is named.
    pub fn ensure_none(&self) -> anyhow::Result<()> {
        ensure!(self.0.is_empty(), "left behind: {:?}", self.0);
        Ok(())
    }
}

/// The processes that have the folder in their arguments or environment, with their roles.
fn processes(folder: &str) -> anyhow::Result<Vec<(u32, String)>> {
    let of_cluster = |process: &PathBuf| {
        let words = |file: &str| {
            let text = std::fs::read(process.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        let arguments = words("cmdline");
        let is_ours = arguments.contains(folder) || words("environ").contains(folder);
        let role = arguments.split('\0').nth(1).unwrap_or_default().to_owned();
        let pid = process.file_name()?.to_str()?.parse::<u32>().ok()?;
        is_ours.then_some((pid, role))
    };
    let all = std::fs::read_dir("/proc").context("list processes")?.flatten().map(|entry| entry.path());
    Ok(all.filter_map(|process| of_cluster(&process)).collect())
}

/// The roles of the processes that listen, once for each TCP port.
fn ports(processes: &[(u32, String)]) -> anyhow::Result<Vec<String>> {
    let said = Command::new("ss").args(["-H", "-t", "-l", "-n", "-p"]).output().context("run ss")?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let role_of = |line: &str| {
        let has = |pid: &u32| line.contains(&format!("pid={pid},"));
        processes.iter().find(|(pid, _)| has(pid)).map(|(_, role)| role.clone())
    };
    Ok(said.lines().filter_map(role_of).collect())
}

/// Whether a line of `/proc/net/unix` is of a socket that accepts.
fn is_listening(line: &str) -> bool {
    const ACCEPTS: &str = "00010000";
    line.split_whitespace().nth(3) == Some(ACCEPTS)
}

/// The loop devices on files below the folder.
fn loops(folder: &str) -> anyhow::Result<Vec<String>> {
    let devices = std::fs::read_dir("/sys/block").context("list block devices")?.flatten();
    let of_cluster = |device: &std::fs::DirEntry| {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        file.contains(folder)
    };
    let name = |device: std::fs::DirEntry| device.file_name().into_string().ok();
    Ok(devices.filter(of_cluster).filter_map(name).collect())
}

fn lines(path: &str) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(text.lines().map(ToOwned::to_owned).collect())
}
