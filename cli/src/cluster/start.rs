//! Starts one process of a folder and waits until it is of use.
//!
//! The one invariant: when a start fails, nothing of it is left running.

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use tokio::{
    process::{Child, ChildStdout},
    time::{sleep, timeout},
};

use super::Announcement;
use crate::{
    args::LogFormat,
    failure::{Exit, Failure},
    folder::Folder,
    process::{Alive, Launch, Record, Role},
    session::Session,
};

/// A start that takes longer has failed.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often the record of a process that someone else started is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Node N has the address 127.0.0.(N+1); the control plane has 127.0.0.1.
pub(crate) fn node_address(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, number.saturating_add(1)).into()
}

/// A process that is not ready yet: whoever loses interest in it ends it.
struct Starting(Option<Child>);

impl Starting {
    fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.as_mut().and_then(|child| child.stdout.take())
    }

    fn succeeded(mut self) {
        self.0 = None;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Fails only if it has ended already.
            let _ = child.start_kill();
        }
    }
}

/// Knows how the processes of a folder are started.
#[derive(Debug, Clone)]
pub(crate) struct Starter {
    pub(crate) folder: Folder,
    /// The binary that plays every role.
    pub(crate) program: PathBuf,
    /// Where the API shall listen; the folder's last address if not given.
    listen: Option<SocketAddr>,
    /// Passed on to every process.
    options: Vec<OsString>,
}

impl Starter {
    pub(crate) fn new(
        session: &Session,
        folder: Folder,
        listen: Option<SocketAddr>,
    ) -> anyhow::Result<Starter> {
        let program = std::env::current_exe().context("find our own binary")?;
        let mut options: Vec<OsString> = Vec::new();
        if let Some(log) = &session.global.log {
            options.extend(["--log".into(), log.into()]);
        }
        if session.global.log_format == LogFormat::Json {
            options.extend(["--log-format".into(), "json".into()]);
        }
        Ok(Starter { folder, program, listen, options })
    }

    /// The role's process, which may run already, once it is ready.
    pub(crate) async fn take_or_start(&self, role: Role) -> anyhow::Result<(Role, Alive)> {
        let taking = || format!("take up {role} (its log is {})", self.folder.log(&role).display());
        let alive = match self.take(&role).await.with_context(taking)? {
            Some(alive) => alive,
            None => self.start(&role).await?,
        };
        Ok((role, alive))
    }

    /// The role's process if it runs. One that is still starting, begun by an `up` that has gone, is
    /// waited for; `None` also if it ends meanwhile.
    async fn take(&self, role: &Role) -> anyhow::Result<Option<Alive>> {
        let run = self.folder.run();
        let ready = async {
            loop {
                match Record::alive(&run, role)? {
                    None => return anyhow::Ok(None),
                    Some((record, alive)) if record.ready => return Ok(Some(alive)),
                    Some(_) => sleep(LOOK_EVERY).await,
                }
            }
        };
        timeout(READY_WITHIN, ready).await.unwrap_or_else(|_| Err(late()))
    }

    /// Returns when the process has said that it is ready.
    pub(crate) async fn start(&self, role: &Role) -> anyhow::Result<Alive> {
        let log = self.folder.log(role);
        let launch =
            Launch { program: self.program.clone(), arguments: self.arguments(role), log: log.clone() };
        let child = launch.spawn().with_context(|| format!("start {}", self.program.display()))?;
        self.await_ready(role, child)
            .await
            .with_context(|| format!("start {role} (its log is {})", log.display()))
    }

    async fn await_ready(&self, role: &Role, child: Child) -> anyhow::Result<Alive> {
        let mut starting = Starting(Some(child));
        let stdout = starting.stdout().context("the new process has no stdout")?;
        match timeout(READY_WITHIN, Announcement::read(stdout)).await {
            Ok(Ok(Some(Announcement::Ready))) => {}
            Ok(Ok(Some(Announcement::Failed(report)))) => return Err(report.into()),
            Ok(Ok(None)) => anyhow::bail!("it ended without a word"),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(late()),
        }
        let found = Record::alive(&self.folder.run(), role).context("look for the new process")?;
        let (_, alive) = found.context("it ended right after it was ready")?;
        starting.succeeded();
        Ok(alive)
    }

    fn arguments(&self, role: &Role) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = match role {
            Role::Up => vec!["up".into()],
            Role::Control => vec!["serve".into(), "--announce".into()],
            Role::Node(number) => {
                vec!["agent".into(), "--announce".into(), "--node".into(), number.to_string().into()]
            }
        };
        if let (Role::Control, Some(listen)) = (role, self.listen) {
            arguments.extend(["--listen".into(), listen.to_string().into()]);
        }
        arguments.extend(["--dir".into(), self.folder.root().into()]);
        arguments.extend(self.options.iter().cloned());
        arguments
    }
}

fn late() -> anyhow::Error {
    Failure::with(
        Exit::TimedOut,
        format!("not ready within {READY_WITHIN:?}"),
        "look into its log; a very busy machine may need a second try",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Recorded;

    #[tokio::test]
    async fn a_process_is_taken_up_when_it_is_ready_and_not_before() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().join("c"));
        folder.create_or_open().unwrap();
        let starter = Starter { folder, program: PathBuf::new(), listen: None, options: Vec::new() };
        assert!(starter.take(&Role::Control).await.unwrap().is_none(), "nobody plays it");

        let mut place = Recorded::take(&starter.folder.run(), Role::Control).unwrap().expect("free");
        let early = timeout(LOOK_EVERY * 5, starter.take(&Role::Control)).await;
        assert!(early.is_err(), "it is still starting");
        place.ready().unwrap();
        let taken = starter.take(&Role::Control).await.unwrap().expect("it runs");
        assert_eq!(u32::try_from(taken.pid).unwrap(), std::process::id());
    }
}
