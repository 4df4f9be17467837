//! The process of a v1 instance, started here or found again after this process was
//! started anew.
//!
//! A child has the instance's locked `lock` file as its standard input, so the lock
//! lives exactly as long as the child, whatever becomes of its parent, and the child
//! can be told from all others by what its descriptor 0 is. It says where it listens
//! in the file `address`.
//!
//! Invariant: at most one process of an instance at a time; while one follows another, at
//! most two, of which one has the instance's folder.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::FlockOperation,
    process::{Pid, PidfdFlags, Signal},
};

use super::spec::{Place, Shelf};
use crate::{net::address::Address, role::REFUSED};

#[derive(Debug)]
pub(super) struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    /// If this process is its parent and has to wait for it.
    child: Option<Child>,
    /// The lock file, as its standard input has it, if it was started while another held the lock.
    unlocked: Option<File>,
}

/// How often a starting process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A child that holds the lock and is not seen yet is between fork and exec.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

fn open_lock(place: &Place) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(place.lock())
}

/// The lock, if nobody has it.
fn take_lock(place: &Place) -> io::Result<Option<File>> {
    let lock = open_lock(place)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Process {
    pub(super) fn start(place: &Place, binary: &Path, arguments: &[String]) -> io::Result<Process> {
        let Some(lock) = take_lock(place)? else {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "its process still runs"));
        };
        Process::spawn(place, binary, arguments, lock)
    }

    /// Starts the successor of a process that runs: the lock is not its own before `follow`.
    pub(super) fn start_beside(place: &Place, binary: &Path, arguments: &[String]) -> io::Result<Process> {
        let lock = open_lock(place)?;
        let unlocked = Some(lock.try_clone()?);
        Ok(Process { unlocked, ..Process::spawn(place, binary, arguments, lock)? })
    }

    /// The process before it has ended: the lock is this one's.
    pub(super) fn follow(&mut self) -> io::Result<()> {
        match self.unlocked.take() {
            Some(lock) => Ok(rustix::fs::flock(&lock, FlockOperation::LockExclusive)?),
            None => Ok(()),
        }
    }

    fn spawn(place: &Place, binary: &Path, arguments: &[String], lock: File) -> io::Result<Process> {
        let said = File::create(place.address())?;
        let log = OpenOptions::new().create(true).append(true).open(place.log())?;
        let child = Command::new(binary)
            .args(arguments)
            .stdin(lock)
            .stdout(said)
            .stderr(log)
            // What the terminal sends to this process is not meant for it.
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Process { pid, pidfd, child: Some(child), unlocked: None })
    }

    /// The process that an instance manager before this one started, if it lives.
    pub(super) fn find(place: &Place) -> io::Result<Option<Process>> {
        let began = Instant::now();
        loop {
            let free = take_lock(place)?.is_some();
            if let Some(found) = scan(&place.lock())? {
                return Ok(Some(found));
            }
            if free {
                return Ok(None);
            }
            if began.elapsed() > SEEN_WITHIN {
                return Err(io::Error::other("its lock is held, and by nobody that can be seen"));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Ends it through this; a process that has ended meanwhile is no error.
    pub(super) fn ender(&self) -> io::Result<Ender> {
        self.pidfd.try_clone().map(Ender)
    }

    /// Waits until it says where it listens.
    pub(super) fn listens(&mut self, place: &Place, within: Duration) -> io::Result<Address> {
        let began = Instant::now();
        loop {
            let ended = wait(self.pidfd.as_fd(), LOOK_EVERY)?;
            let said = fs::read_to_string(place.address())?;
            if let Some((line, _)) = said.split_once('\n') {
                return line.parse().map_err(io::Error::other);
            }
            if ended {
                return Err(io::Error::other("it ended before it could be reached"));
            }
            if began.elapsed() > within {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not say where it listens"));
            }
        }
    }

    /// Waits until it has ended; says whether it was refused what it was started for.
    pub(super) fn was_refused(mut self) -> io::Result<bool> {
        match &mut self.child {
            Some(child) => Ok(child.wait()?.code() == Some(REFUSED.into())),
            None => Ok(false),
        }
    }

    /// Waits until it has ended; gives how, if that can be known.
    pub(super) fn wait(mut self) -> io::Result<String> {
        while !wait(self.pidfd.as_fd(), Duration::from_secs(3600))? {}
        match &mut self.child {
            Some(child) => child.wait().map(|status| status.to_string()),
            None => Ok("its process ended".into()),
        }
    }
}

/// Whether the process has ended, at the latest after `within`.
fn wait(pidfd: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    let mut wanted = [PollFd::new(&pidfd, PollFlags::IN)];
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    match rustix::event::poll(&mut wanted, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Ends a process that someone else waits for.
#[derive(Debug)]
pub(super) struct Ender(OwnedFd);

impl Ender {
    pub(super) fn kill(&self) {
        // It is gone already, or it goes now.
        let _ = rustix::process::pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// Ends every process that instance managers started in this folder; says how many.
/// None of them may be running.
pub fn end_all(folder: &Path) -> io::Result<usize> {
    let shelf = Shelf::open(folder)?;
    let mut ended = 0;
    for spec in shelf.load()? {
        if let Some(process) = Process::find(&shelf.place(&spec.key()))? {
            process.ender()?.kill();
            process.wait()?;
            ended += 1;
        }
    }
    Ok(ended)
}

/// The process whose standard input is this file.
fn scan(lock: &Path) -> io::Result<Option<Process>> {
    let wanted = fs::metadata(lock)?;
    let has_it = |pid: i32| {
        // Others' processes cannot be looked into, and are not ours.
        fs::metadata(format!("/proc/{pid}/fd/0"))
            .is_ok_and(|found| found.dev() == wanted.dev() && found.ino() == wanted.ino())
    };
    for entry in fs::read_dir("/proc")? {
        let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(pid) = Pid::from_raw(number).filter(|_| has_it(number)) else { continue };
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // Looked at again: had the pid changed hands, it would not hold the file now.
        if has_it(number) {
            return Ok(Some(Process { pid, pidfd, child: None, unlocked: None }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::{
        super::names::{Key, Kind},
        *,
    };

    #[test]
    fn a_process_is_found_again_and_only_one_lives() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let place = shelf.place(&Key { kind: Kind::Replica, name: "r-1".parse().unwrap() });
        fs::create_dir_all(place.lock().parent().unwrap()).unwrap();
        assert!(Process::find(&place).unwrap().is_none());
        let script = ["-c".to_owned(), "echo unix:/x; exec sleep 600".to_owned()];
        let shell = Path::new("/bin/sh");
        let mut first = Process::start(&place, shell, &script).unwrap();
        assert_eq!(first.listens(&place, Duration::from_secs(10)).unwrap().to_string(), "unix:/x");
        assert!(Process::start(&place, shell, &script).is_err());
        let again = Process::find(&place).unwrap().expect("it lives");
        assert_eq!(again.pid(), first.pid());
        again.ender().unwrap().kill();
        assert_eq!(again.wait().unwrap(), "its process ended");
        assert!(first.wait().unwrap().contains("signal"));
        assert!(Process::find(&place).unwrap().is_none());
        let script = ["-c".to_owned(), "exit 3".to_owned()];
        let mut ends = Process::start(&place, shell, &script).unwrap();
        assert!(ends.listens(&place, Duration::from_secs(10)).is_err());
        assert!(ends.wait().unwrap().contains('3'));
    }
}
