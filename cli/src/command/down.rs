//! `midflight down`: stops everything that belongs to a folder.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{self, Ended},
    failure::{Exit, Failure},
    folder::{Folder, Purged},
    output::{Answer, Paint},
    process::{Lock, Record, Role},
    session::Session,
};

/// Stop the embedded cluster
///
/// Stops `midflight up` if it watches, the agents and the control plane. The data stays unless --purge is given.
#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Also remove the data, and backups that are kept in the folder
    #[arg(long)]
    purge: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stopped {
    folder: String,
    stopped: Vec<Ended>,
    purged: bool,
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
        text
    }
}

impl Down {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let folder = session.folder()?;
        let name = folder.root().display().to_string();
        if folder.marker()?.is_none() {
            let purged = self.purge && folder.root().exists();
            if purged {
                folder.purge()?;
            }
            return session.answer(&Stopped { folder: name, stopped: Vec::new(), purged });
        }
        folder.create_or_open()?;
        let running = running(&folder)?;
        stop_watcher(&folder).await?;
        let _held = hold_up(&folder).await?;
        let mut stopped = cluster::stop(&folder.run(), &[]).await?;
        let by_watcher = running.into_iter().filter(|one| stopped.iter().all(|other| other.pid != one.pid));
        stopped = by_watcher.chain(stopped.iter().cloned()).collect();
        if self.purge && folder.purge().context("remove the data")? == Purged::ForeignFilesStay {
            session.say(format_args!("{name} holds files that are not midflight's; they were left"));
        }
        session.answer(&Stopped { folder: name, stopped, purged: self.purge })
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
