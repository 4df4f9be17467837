//! Tells a process from a later one that got the same pid.
//!
//! The one invariant: a signal only ever reaches the process that was meant,
//! because it goes through a pidfd whose owner was checked by its start time.

use std::{fs, io, os::fd::OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};

use super::system;

/// Names one process for all time: pids come again, pid and start time do not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub pid: i32,
    /// Clock ticks from the boot to the start of the process.
    start_ticks: u64,
    /// The kernel's boot id: ticks count from there.
    boot: String,
}

impl Identity {
    pub fn own() -> io::Result<Identity> {
        Identity::of(std::process::id())
    }

    /// Of a child that was not waited for, so that the pid is still its.
    pub(crate) fn of(child: u32) -> io::Result<Identity> {
        let pid = i32::try_from(child).map_err(io::Error::other)?;
        Ok(Identity { pid, start_ticks: start_ticks(pid)?, boot: boot()? })
    }

    /// The process itself if it still runs, `None` if it has ended (even if
    /// its parent has not noticed yet) or if the pid belongs to another now.
    pub fn open(&self) -> io::Result<Option<Alive>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        if boot()? != self.boot {
            return Ok(None);
        }
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Looked at after the pidfd was opened: if the start time is the recorded one,
        // that process held the pid all along, so the pidfd is its.
        match start_ticks(self.pid) {
            Ok(ticks) if ticks == self.start_ticks => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => return Ok(None),
            Err(error) => return Err(error),
        }
        if has_ended(&pidfd)? {
            return Ok(None);
        }
        Ok(Some(Alive { pid: self.pid, pidfd }))
    }
}

/// A handle on a process that ran when it was made.
#[derive(Debug)]
pub struct Alive {
    pub pid: i32,
    pidfd: OwnedFd,
}

impl Alive {
    /// Sends a signal; a process that has ended meanwhile is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// For system calls on the process.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Waits until the process has ended.
    pub async fn ended(&self) -> io::Result<()> {
        system::readable(self.pidfd.try_clone()?).await
    }
}

/// A pidfd is readable from the end of its process on.
fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Field 22 of `/proc/PID/stat`; the command name before it may hold anything but ends at the last `)`.
fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest);
    let ticks =
        after_name.and_then(|rest| rest.split_whitespace().nth(19)).and_then(|field| field.parse().ok());
    ticks.ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no start time")))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, Identity) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let identity = Identity { pid, start_ticks: start_ticks(pid).unwrap(), boot: boot().unwrap() };
        (child, identity)
    }

    #[test]
    fn knows_itself() {
        let own = Identity::own().unwrap();
        assert_eq!(own.open().unwrap().map(|alive| alive.pid), Some(own.pid));
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_touched() {
        let (mut child, identity) = sleeper();
        let earlier = Identity { start_ticks: identity.start_ticks - 1, ..identity.clone() };
        let other_boot = Identity { boot: "earlier".into(), ..identity };
        assert!(earlier.open().unwrap().is_none());
        assert!(other_boot.open().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn sees_the_end_before_the_parent_has_looked() {
        let (mut child, identity) = sleeper();
        let alive = identity.open().unwrap().expect("it runs");
        alive.signal(Signal::KILL).unwrap();
        alive.ended().await.unwrap();
        assert!(identity.open().unwrap().is_none(), "a zombie has ended");
        child.wait().unwrap();
        assert!(identity.open().unwrap().is_none());
        alive.signal(Signal::TERM).unwrap();
    }
}
