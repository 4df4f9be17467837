//! A worker as seen by the tool: started clean, watched, never left behind.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use super::child::children;
use super::{SHARED, Worker};

/// What a worker may find of its surroundings.
const ENVIRONMENT: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];

/// Bytes kept of what a worker says on its stderr: the last.
const TAIL: usize = 4096;

/// How long a worker may take to end what its command left running.
const CLEAN_UP: Duration = Duration::from_secs(5);

/// A running worker and everything it started; killed when dropped.
///
/// The thread that starts it must outlive it: the kernel counts the end of
/// that thread as the end of the parent.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    ended: OwnedFd,
    said: Option<JoinHandle<Vec<u8>>>,
}

impl Process {
    pub(super) fn start(
        worker: &Worker,
        mode: &[&str],
        command: &[String],
        folder: &Path,
    ) -> io::Result<(Process, ChildStdin, ChildStdout)> {
        let mut child = Command::new(&worker.program)
            .args(&worker.arguments)
            .args(mode)
            .args(command)
            .env_clear()
            .envs(ENVIRONMENT)
            .envs(worker.shared.as_ref().map(|folder| (SHARED, folder)))
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let stderr = child.stderr.take();
        let pid = Pid::from_child(&child);
        let ended = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(ended) => ended,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.into());
            }
        };
        let said = stderr.map(|stderr| std::thread::spawn(move || tail(stderr)));
        let process = Process { child, ended, said };
        Ok((process, input.expect("it was asked for"), output.expect("it was asked for")))
    }

    /// Waits for its end; `None` when the deadline passes first.
    pub(super) fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        if readable(&self.ended, deadline)? { self.child.wait().map(Some) } else { Ok(None) }
    }

    /// Ends it and what it started, and gives what it last said. A worker that watches a command ends what that has
    /// left, also in other sessions, as soon as the command is gone.
    pub(super) fn kill(&mut self) -> (Option<ExitStatus>, String) {
        if let Ok(None) = self.child.try_wait() {
            let below = children(Pid::from_child(&self.child));
            for child in &below {
                let _ = kill_process(*child, Signal::KILL);
            }
            if !below.is_empty() {
                let _ = readable(&self.ended, Instant::now() + CLEAN_UP);
            }
        }
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let status = self.child.wait().ok();
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        (status, String::from_utf8_lossy(&said).trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn tail(mut stderr: impl Read) -> Vec<u8> {
    let mut kept = vec![];
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        let surplus = kept.len().saturating_sub(TAIL);
        kept.drain(..surplus);
    }
    kept
}

/// How a worker ended, in words.
pub(super) fn how_it_ended(status: Option<ExitStatus>, said: &str) -> String {
    let how = match status {
        Some(status) => match (status.signal(), status.code()) {
            (Some(signal), _) if said.contains("memory allocation") => {
                format!("it ran out of memory (signal {signal})")
            }
            (Some(11), _) => "it overflowed its stack (signal 11)".to_owned(),
            (Some(24), _) => "it used up its processor time (signal 24)".to_owned(),
            (Some(signal), _) => format!("it was killed by signal {signal}"),
            (None, Some(code)) => format!("it ended with exit code {code}"),
            (None, None) => "it ended".to_owned(),
        },
        None => "it ended".to_owned(),
    };
    // Our own runtime's advice to programmers is none to operators.
    let said: Vec<&str> =
        said.lines().filter(|line| !line.starts_with("note: run with `RUST_BACKTRACE")).collect();
    if said.is_empty() { how } else { format!("{how}: {}", said.join("\n")) }
}

/// Reads with a deadline, moved on by [`Timed::extend`].
pub(super) struct Timed<R> {
    inner: R,
    deadline: Instant,
}

impl<R: Read + AsFd> Timed<R> {
    pub(super) fn new(inner: R, deadline: Instant) -> Timed<R> {
        Timed { inner, deadline }
    }

    pub(super) fn extend(&mut self, by: Duration) {
        self.deadline = Instant::now() + by;
    }
}

impl<R: Read + AsFd> Read for Timed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if readable(&self.inner, self.deadline)? {
            self.inner.read(buffer)
        } else {
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

fn readable(what: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(what, PollFlags::IN)];
        match poll(&mut polled, Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
