//! Stops processes: asks first, insists later, and never takes the wrong one.

use std::{path::Path, time::Duration};

use anyhow::Context;
use futures::future::try_join_all;
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

/// Stops all that runs in a folder except what shall be spared: agents first, then control.
pub(crate) async fn stop(run: &Path, spared: &[Role]) -> anyhow::Result<Vec<Ended>> {
    let stopped = |role: &Role| *role != Role::Up && !spared.contains(role);
    let roles = Role::recorded(run)?.into_iter().filter(stopped);
    let (control, nodes): (Vec<_>, Vec<_>) = roles.partition(|role| *role == Role::Control);
    let mut ended = Vec::new();
    for roles in [nodes, control] {
        let all = try_join_all(roles.iter().map(|role| stop_one(run, role))).await?;
        ended.extend(all.into_iter().flatten());
    }
    Ok(ended)
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
    Ok(())
}
