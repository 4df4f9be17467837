//! `midflight down`: stops everything that belongs to a folder.

use std::{path::Path, time::Duration};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{self, Ended},
    failure::{Exit, Failure},
    folder::{Backups, Folder, Purged},
    output::{Answer, Paint, quoted},
    process::{Lock, Record, Role},
    session::Session,
};

/// Stop the embedded cluster
///
/// Stops `midflight up` if it watches, the agents and the control plane. The data stays unless --purge is given, and backups stay
/// even then.
#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Also remove the data; backups in DIR/backups stay, for the next cluster in the folder
    #[arg(long)]
    purge: bool,
    /// With --purge: also remove the backups in DIR/backups; what a link there leads to stays
    #[arg(long, requires = "purge")]
    purge_backups: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stopped {
    folder: String,
    stopped: Vec<Ended>,
    purged: bool,
    /// How many backups were kept in the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_backups: Option<usize>,
}

impl Answer for Stopped {
    fn to_table(&self, _: Paint) -> String {
        let mut text = String::new();
        for ended in &self.stopped {
            let how = if ended.killed { "killed" } else { "stopped" };
            text += &format!("{how} {} (pid {})\n", ended.name, ended.pid);
        }
        if self.stopped.is_empty() {
            text += &format!("nothing runs in {}\n", self.folder);
        }
        if self.purged {
            text += &format!("removed the data in {}\n", self.folder);
        }
        if let Some(count) = self.kept_backups {
            let backups = if count == 1 { "backup" } else { "backups" };
            text += &format!(
                "kept {count} {backups} in {}; `midflight down --purge --purge-backups --dir {}` removes them\n",
                Path::new(&self.folder).join("backups").display(),
                quoted(&self.folder)
            );
        }
        text
    }
}

impl Down {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let folder = session.folder()?;
        let name = folder.root().display().to_string();
        if folder.marker()?.is_none() {
            let left = match self.purge && folder.root().exists() {
                true => Some(folder.purge(self.backups())?),
                false => None,
            };
            return session.answer(&Stopped::of(name, Vec::new(), left));
        }
        folder.create_or_open()?;
        let running = running(&folder)?;
        stop_watcher(&folder).await?;
        let _held = hold_up(&folder).await?;
        let mut stopped = cluster::stop(&folder.run(), &[]).await?;
        let by_watcher = running.into_iter().filter(|one| stopped.iter().all(|other| other.pid != one.pid));
        stopped = by_watcher.chain(stopped.iter().cloned()).collect();
        let left = match self.purge {
            true => Some(folder.purge(self.backups()).context("remove the data")?),
            false => None,
        };
        if left.is_some_and(|left| left.foreign) {
            session.say(format_args!("{name} holds files that are not midflight's; they were left"));
        }
        session.answer(&Stopped::of(name, stopped, left))
    }

    fn backups(&self) -> Backups {
        if self.purge_backups { Backups::Remove } else { Backups::Keep }
    }
}

impl Stopped {
    fn of(folder: String, stopped: Vec<Ended>, left: Option<Purged>) -> Stopped {
        let kept_backups = left.and_then(|left| left.backups);
        Stopped { folder, stopped, purged: left.is_some(), kept_backups }
    }
}

/// What runs before we begin; a watching `up` stops the others on its way out.
fn running(folder: &Folder) -> anyhow::Result<Vec<Ended>> {
    let mut running = Vec::new();
    for role in Role::recorded(&folder.run())? {
        if let Some((_, alive)) = Record::alive(&folder.run(), &role)? {
            running.push(Ended { name: role.to_string(), pid: alive.pid, killed: false });
        }
    }
    Ok(running)
}

/// A watching `up` would start again what we stop, so it goes first; it stops the others on its way.
async fn stop_watcher(folder: &Folder) -> anyhow::Result<()> {
    let watcher = Record::alive(&folder.run(), &Role::Up).context("look for a watching `midflight up`")?;
    if let Some((_, alive)) = watcher {
        cluster::end(&Role::Up, &alive).await?;
    }
    Ok(())
}

/// Keeps every `up` out while we stop things.
async fn hold_up(folder: &Folder) -> anyhow::Result<Lock> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        if let Some(lock) = Lock::take(&folder.run(), &Role::Up)? {
            return Ok(lock);
        }
        if Instant::now() > deadline {
            return Err(Failure::with(
                Exit::TimedOut,
                format!("another `midflight up` or `down` works on {}", folder.root().display()),
                "try again when it is done",
            ));
        }
        sleep(Duration::from_millis(20)).await;
    }
}
