//! Stops processes: asks first, insists later, and never takes the wrong one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use futures::future::try_join_all;
use midflight_agent::pod::{self, Stopped};
use rustix::process::Signal;
use serde::Serialize;
use tokio::time::timeout;

use crate::process::{Alive, Record, Role};

/// How long a process may take to end by itself.
const GRACE: Duration = Duration::from_secs(20);

/// How one process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) pid: i32,
    /// It did not end by itself and was killed.
    pub(crate) killed: bool,
}

/// Stops all that runs in a folder except what shall be spared: agents first, then their pods unless anything is
/// spared, then control.
pub(crate) async fn stop(run: &Path, spared: &[Role]) -> anyhow::Result<Vec<Ended>> {
    let stopped = |role: &Role| *role != Role::Up && !spared.contains(role);
    let roles = Role::recorded(run)?.into_iter().filter(stopped);
    let (control, nodes): (Vec<_>, Vec<_>) = roles.partition(|role| *role == Role::Control);
    let mut ended = Vec::new();
    let all = try_join_all(nodes.iter().map(|role| stop_one(run, role))).await?;
    ended.extend(all.into_iter().flatten());
    if spared.is_empty() {
        let nodes = nodes_of(run)?;
        let stopped = try_join_all(nodes.iter().map(|data| pod::stop_all(data)));
        let stopped = stopped.await.context("stop the pods of the nodes")?;
        let ends = |Stopped { name, pid, killed }| Ended { name, pid, killed };
        ended.extend(stopped.into_iter().flatten().map(ends));
    }
    let all = try_join_all(control.iter().map(|role| stop_one(run, role))).await?;
    ended.extend(all.into_iter().flatten());
    Ok(ended)
}

/// The folders of all nodes, whether their agents run or not.
fn nodes_of(run: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let nodes = run.with_file_name("nodes");
    match fs::read_dir(&nodes) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("read {}", nodes.display())),
    }
}

async fn stop_one(run: &Path, role: &Role) -> anyhow::Result<Option<Ended>> {
    let looking = || format!("look for {role}");
    let Some((_, alive)) = Record::alive(run, role).with_context(looking)? else { return Ok(None) };
    end(role, &alive).await.map(Some)
}

/// Ends one process.
pub(crate) async fn end(role: &Role, alive: &Alive) -> anyhow::Result<Ended> {
    let stopping = || format!("stop {role} (pid {})", alive.pid);
    alive.signal(Signal::TERM).with_context(stopping)?;
    let killed = timeout(GRACE, alive.ended()).await.is_err();
    if killed {
        alive.signal(Signal::KILL).with_context(stopping)?;
        alive.ended().await.with_context(stopping)?;
    }
    Ok(Ended { name: role.to_string(), pid: alive.pid, killed })
}

/// Kills all that runs in a folder, for those who cannot wait.
pub(crate) fn kill(run: &Path) -> anyhow::Result<()> {
    for role in Role::recorded(run)?.into_iter().filter(|role| *role != Role::Up) {
        if let Some((_, alive)) = Record::alive(run, &role)? {
            alive.signal(Signal::KILL).with_context(|| format!("kill {role} (pid {})", alive.pid))?;
        }
    }
    for data in nodes_of(run)? {
        pod::kill_all(&data).context("kill the pods of a node")?;
    }
    Ok(())
}
