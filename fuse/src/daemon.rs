//! The process that serves one folder at one mount point.
//!
//! Invariant: a mount that nobody serves is never left behind by an end that was asked
//! for, and the next start removes what a crash has left.

use std::{
    fs,
    io::{self, Write},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering, mpsc},
    thread,
    time::{Duration, Instant},
};

use midflight_handover::kernel::{self, Waiting};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatxFlags, flock, open, statx},
    io::Errno,
    mount::MountFlags,
    process::{Resource, Rlimit, getrlimit, setrlimit, umask},
};

use crate::{
    folder::{Caching, Crowd, Folder},
    nudge,
    session::{Session, SessionError, shake_hands},
};

/// What mount tables call a mount of ours.
const KIND: &str = "fuse.midflight";

/// Serve a folder at a mount point until asked to end.
///
/// Says where it serves as its first line on stdout. Asked to end, it unmounts and goes on for
/// those who still hold files.
#[derive(Debug, Clone, clap::Args)]
pub struct FuseArgs {
    /// Where workloads find the folder.
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// Folder that is served.
    #[arg(long, value_name = "FOLDER")]
    pub source: PathBuf,
    /// Nobody else changes the folder meanwhile: the kernel may remember everything.
    #[arg(long)]
    pub exclusive: bool,
    /// Refuse every change.
    #[arg(long)]
    pub read_only: bool,
    /// Calls that are worked on at the same time.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// How long those who hold files are served after being asked to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    pub drain_seconds: u32,
    /// From how many files on the kernel is asked to forget those that nobody uses
    /// [default: three quarters of the descriptors that the process may have]
    #[arg(long, value_name = "N")]
    pub most_nodes: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("open the folder {}", path.display())]
    Source { path: PathBuf, source: Errno },
    #[error("{} is served by another process that keeps others out", path.display())]
    Taken { path: PathBuf },
    #[error("make the mount point {}", path.display())]
    MountPoint { path: PathBuf, source: io::Error },
    #[error("something is mounted at {} already", path.display())]
    Mounted { path: PathBuf },
    #[error("{} lies in the folder that would be served there", path.display())]
    Inside { path: PathBuf },
    #[error("mount at {}", path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error("listen for signals")]
    Signals { source: io::Error },
    #[error("wait for signals")]
    Wait { source: Errno },
    #[error("serve {}", path.display())]
    Session { path: PathBuf, source: SessionError },
}

/// Serves until it is asked to end, or unmounted by someone else.
pub fn run(args: &FuseArgs) -> Result<(), DaemonError> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let wake = Arc::new(wake.map_err(|source| DaemonError::Wait { source })?);
    let signals = |source| DaemonError::Signals { source };
    nudge::prepare().map_err(signals)?;
    let asked = nudge::on_end(&wake).map_err(signals)?;
    let limit = raise_limits();
    make_room(&wake, limit);
    let most_nodes = args.most_nodes.unwrap_or(limit / 4 * 3);
    let crowd = Arc::new(Crowd::new(most_nodes, Arc::clone(&wake)));

    let caching = if args.exclusive { Caching::Exclusive } else { Caching::Shared };
    let (folder, _lock) = take(args, caching, Arc::clone(&crowd))?;
    let device = mount(args)?;
    let served = shake_hands(&device, caching)
        .and_then(|()| Session::serve(device, folder, usize::from(args.threads), Arc::clone(&wake)));
    let session = served.map_err(|source| {
        kernel::unmount(&args.mount);
        DaemonError::Session { path: args.mount.clone(), source }
    })?;
    announce(&args.mount);
    while !asked.load(Ordering::Relaxed) && !session.is_over() {
        wait(&wake, None)?;
        if crowd.take() {
            shrink(args);
        }
    }
    // Those who hold files keep them; nobody new comes in.
    kernel::unmount(&args.mount);
    let until = Instant::now() + Duration::from_secs(u64::from(args.drain_seconds));
    while !session.is_over() && Instant::now() < until {
        wait(&wake, Some(until))?;
    }
    if !session.is_over() {
        tracing::warn!(mount = %args.mount.display(), "ends though files are still held");
    }
    session.stop();
    Ok(())
}

/// Opens the folder, and keeps it from a process with which caching would be wrong.
fn take(args: &FuseArgs, caching: Caching, crowd: Arc<Crowd>) -> Result<(Folder, OwnedFd), DaemonError> {
    let failed = |source| DaemonError::Source { path: args.source.clone(), source };
    let folder = Folder::open(&args.source, caching, crowd).map_err(failed)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = open(&args.source, flags, Mode::empty()).map_err(failed)?;
    let how = match caching {
        Caching::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Caching::Shared => FlockOperation::NonBlockingLockShared,
    };
    match flock(&lock, how) {
        Ok(()) => Ok((folder, lock)),
        Err(Errno::WOULDBLOCK) => Err(DaemonError::Taken { path: args.source.clone() }),
        Err(source) => Err(failed(source)),
    }
}

fn mount(args: &FuseArgs) -> Result<OwnedFd, DaemonError> {
    let path = || args.mount.clone();
    if clear(&args.mount) == Cleared::Hangs {
        return Err(DaemonError::Mounted { path: path() });
    }
    let failed = |source| DaemonError::MountPoint { path: path(), source };
    fs::create_dir_all(&args.mount).map_err(failed)?;
    let at = fs::canonicalize(&args.mount).map_err(failed)?;
    if is_mount_point(&at).map_err(failed)? {
        return Err(DaemonError::Mounted { path: path() });
    }
    if fs::canonicalize(&args.source).is_ok_and(|source| at.starts_with(source)) {
        return Err(DaemonError::Inside { path: path() });
    }
    let options = ",default_permissions,allow_other";
    kernel::mount(&at, KIND, flags(args), options, Waiting::Blocks)
        .map_err(|source| DaemonError::Mount { path: path(), source })
}

/// Nothing in a dataset makes anyone more powerful.
fn flags(args: &FuseArgs) -> MountFlags {
    let read_only = if args.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    MountFlags::NOSUID | MountFlags::NODEV | read_only
}

/// What a look for mounts that nobody serves came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cleared {
    Done,
    /// One is there whose daemon gives no answer.
    Hangs,
}

/// Removes mounts that nobody serves any more.
fn clear(at: &Path) -> Cleared {
    loop {
        match answer(at) {
            None => return Cleared::Hangs,
            Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => {}
            Some(_) => return Cleared::Done,
        }
        tracing::info!(mount = %at.display(), "removes a mount that nobody serves");
        if let Err(error) = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH) {
            tracing::warn!(mount = %at.display(), %error, "it cannot be removed");
            return Cleared::Done;
        }
    }
}

/// Asks whoever serves a place, also for what the kernel remembers: that it tells of a session that has ended, too. Nothing if there
/// is no answer: whoever hangs would keep us without a word.
fn answer(at: &Path) -> Option<Result<(), Errno>> {
    const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
    let (tell, told) = mpsc::channel();
    let asked = at.to_owned();
    let asking = thread::Builder::new().name("ask".to_owned()).spawn(move || {
        let answer = statx(CWD, &asked, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop);
        // Nobody may wait for it any more.
        let _ = tell.send(answer);
    });
    asking.ok().and_then(|_| told.recv_timeout(ANSWERS_WITHIN).ok())
}

/// What the table of mounts says; whoever serves it need not answer.
fn is_mount_point(at: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let listed = as_listed(at);
    let place = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4) == Some(&listed[..]);
    Ok(table.split(|byte| *byte == b'\n').any(place))
}

/// A place as the table has it: blanks and the like are octal.
fn as_listed(at: &Path) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    at.as_os_str().as_bytes().iter().flat_map(escaped).collect()
}

/// One descriptor is held for everything that the kernel knows of; gives how many there may be.
fn raise_limits() -> usize {
    // Callers' own masks are in the modes that the kernel sends.
    umask(Mode::empty());
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let most = most.unwrap_or(1 << 20);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).is_err() {
        let hard = getrlimit(Resource::Nofile).maximum;
        // What is allowed anyway cannot fail.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard });
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

/// Room for many descriptors is made at once: where threads share them, the kernel has to wait for all of these whenever it makes more.
fn make_room(some: &OwnedFd, limit: usize) {
    const ENOUGH: usize = 1 << 16;
    let last = i32::try_from(limit.min(ENOUGH)).map_or(0, |limit| limit - 1);
    // Otherwise room is made when it is needed.
    let _ = rustix::io::fcntl_dupfd_cloexec(some, last);
}

/// Has the kernel forget what nobody uses: it does so when a file system is mounted anew in place.
fn shrink(args: &FuseArgs) {
    let at = &args.mount;
    /// So that a crowd that is all in use does not keep us busy.
    const AT_MOST_EVERY: Duration = Duration::from_millis(200);
    tracing::debug!(mount = %at.display(), "has the kernel forget unused files");
    if let Err(error) = rustix::mount::mount_remount(at, flags(args), c"") {
        tracing::warn!(mount = %at.display(), %error, "the kernel forgets nothing");
    }
    thread::sleep(AT_MOST_EVERY);
}

/// Waits for a signal, for the end of the session, or for a point in time.
fn wait(wake: &OwnedFd, until: Option<Instant>) -> Result<(), DaemonError> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut [PollFd::new(wake, PollFlags::IN)], left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(source) => return Err(DaemonError::Wait { source }),
    }
    // Nothing to read: the time has come.
    let _ = rustix::io::read(wake, &mut [0; 8]);
    Ok(())
}

/// Tells whoever started this process that workloads may come.
fn announce(at: &Path) {
    let mut out = io::stdout();
    // Nobody has to listen: a process started by hand serves all the same.
    let _ = writeln!(out, "{}", at.display()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_the_table_has_them() {
        assert_eq!(as_listed(Path::new("/mnt/a b\\c\td\ne")), b"/mnt/a\\040b\\134c\\011d\\012e");
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(is_mount_point(Path::new("/")).unwrap());
        assert!(!is_mount_point(tempfile::tempdir().unwrap().path()).unwrap());
    }
}
