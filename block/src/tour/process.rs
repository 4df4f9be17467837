//! A data-plane process started by this one.
//!
//! Invariant: when its handle is dropped the process is gone.

use std::{
    ffi::OsStr,
    fs::OpenOptions,
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::PidfdFlags,
};

use crate::net::address::Address;

#[derive(Debug)]
pub struct Process {
    child: Child,
    address: Address,
    says: BufReader<ChildStdout>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("start {program}")]
    Start { program: String, source: io::Error },
    #[error("{role} ended before it could be reached")]
    Ended { role: String },
}

impl Process {
    /// Starts a role and waits until it says where it can be reached. What it has
    /// to say otherwise is added to the file `log`.
    pub fn start<I>(binary: &Path, role: &str, arguments: I, log: &Path) -> Result<Process, StartError>
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let start = |source| StartError::Start { program: binary.display().to_string(), source };
        let log = OpenOptions::new().create(true).append(true).open(log).map_err(start)?;
        let mut child = Command::new(binary)
            .arg(role)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(start)?;
        let mut says = BufReader::new(child.stdout.take().expect("its stdout is piped"));
        match next_address(&mut says).map_err(start)? {
            Some(address) => Ok(Process { child, address, says }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(StartError::Ended { role: role.to_owned() })
            }
        }
    }

    /// Waits until it says where else it can be reached.
    pub fn second_address(&mut self) -> io::Result<Address> {
        next_address(&mut self.says)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Whether it has ended, by itself or by a signal.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    pub fn signal(&self, signal: rustix::process::Signal) -> io::Result<()> {
        Ok(rustix::process::kill_process(self.pid(), signal)?)
    }

    /// Waits until it ends by itself.
    pub fn wait_for_end(&mut self, within: Duration) -> io::Result<ExitStatus> {
        let pidfd = rustix::process::pidfd_open(self.pid(), PidfdFlags::empty())?;
        let mut wanted = [PollFd::new(&pidfd, PollFlags::IN)];
        let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
        if rustix::event::poll(&mut wanted, Some(&limit))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.child.wait()
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself already; either way it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next_address(says: &mut impl BufRead) -> io::Result<Option<Address>> {
    let mut line = String::new();
    says.read_line(&mut line)?;
    Ok(line.trim().parse().ok())
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
