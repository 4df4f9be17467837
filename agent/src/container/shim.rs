//! The parent of a container: starts it, writes down what it says and how it ends, and leaves nothing of it behind.
//!
//! The one invariant: when the shim ends by itself, the container's end is on disk, and no process of the container is left but those
//! that the kernel does not let end.

use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
};

use jiff::Timestamp;
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, setsid, wait,
    },
};

use super::{
    COMMAND, Exit, MARK, Room, RoomError,
    end::{Left, end},
    log::Log,
    room::Main,
};
use crate::process::Identity;

/// What stops a shim from doing its work.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error("keep the room of the container")]
    Room(#[from] RoomError),
    #[error("{doing}")]
    System { doing: &'static str, source: io::Error },
}

/// Runs the container of a room to its end. One that was begun before is left alone.
pub fn shim(folder: &Path) -> Result<(), ShimError> {
    let room = Room::at(folder);
    let _lock = room.lock()?;
    if !room.take(&Identity::own().map_err(system("look at the own process"))?)? {
        return Ok(());
    }
    // Whoever starts it may have made it the leader of a session already.
    let _ = setsid();
    set_child_subreaper(Some(getpid())).map_err(|errno| system("adopt orphans")(errno.into()))?;
    let started_at = Timestamp::now();
    let mut child = start(&room).map_err(system("start the container"))?;
    let identity = Identity::of(child.id()).map_err(system("look at the container's process"))?;
    let main = Pid::from_raw(identity.pid).expect("a process that runs has an id");
    room.write_main(&Main { identity, started_at })?;
    say_started();

    let log = Arc::new(Log::open(room.log()).map_err(system("open the log"))?);
    let copiers = [copy(&log, "stdout", child.stdout.take()), copy(&log, "stderr", child.stderr.take())];
    let status = wait_for(main);
    // What was run beside the container has other parents, and its mark.
    let left = end(room.path(), end_children);
    let copied = match left {
        Left::Nobody => copiers.into_iter().try_for_each(|copier| copier.join().expect("no panic")),
        // Who is left may never close what it says.
        Left::Somebody => Ok(()),
    };
    room.write_exit(&exit(&room, status.map_err(system("wait for the container"))?, started_at))?;
    copied.map_err(system("read what the container says"))
}

/// Writes down what is said, until that ends.
fn copy(
    log: &Arc<Log>,
    stream: &'static str,
    said: Option<impl Read + Send + 'static>,
) -> JoinHandle<io::Result<()>> {
    let log = Arc::clone(log);
    thread::spawn(move || said.map_or(Ok(()), |said| log.copy(stream, said)))
}

fn start(room: &Room) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args([COMMAND, "init"]).arg(room.path()).arg(getpid().as_raw_nonzero().to_string());
    command.env(MARK, room.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// The agent waits for this word; one that has died meanwhile is no failure.
fn say_started() {
    let _ = writeln!(io::stdout(), "started");
    let _ = io::stdout().flush();
}

/// Reaps everything until the container's own process has ended.
fn wait_for(main: Pid) -> io::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == main => return Ok(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Kills and reaps children, and gives those that are there still. Orphans among the container's processes have become ours, and
/// nobody but us reaps them, so none of the ids can have gone to a stranger.
fn end_children() -> io::Result<Vec<i32>> {
    for pid in children()? {
        // One that cannot be killed keeps nobody from the others.
        let _ = kill_process(pid, Signal::KILL);
    }
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                let there = children()?;
                // Else the last of them has just ended.
                if !there.is_empty() {
                    return Ok(there.into_iter().map(Pid::as_raw_pid).collect());
                }
            }
            Err(Errno::CHILD) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn children() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        // A thread that has just ended has no children.
        let text = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)));
    }
    Ok(found)
}

fn exit(room: &Room, status: WaitStatus, started_at: Timestamp) -> Exit {
    let signal = status.terminating_signal();
    let code = signal.map_or_else(|| status.exit_status().unwrap_or(1), |signal| 128 + signal);
    let refused = fs::read_to_string(room.error()).ok().filter(|why| !why.is_empty());
    let reason = match (&refused, code) {
        (Some(_), _) => "StartError",
        (None, 0) => "Completed",
        (None, _) => "Error",
    };
    let code = if refused.is_some() { 128 } else { code };
    Exit { code, signal, started_at, finished_at: Timestamp::now(), reason: reason.into(), message: refused }
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> ShimError {
    move |source| ShimError::System { doing, source }
}
