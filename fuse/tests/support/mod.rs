//! A served folder that is gone when the test is, and numbers that look like chance.

#![allow(dead_code, reason = "every test uses its part")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

/// Longest that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

/// Whether this machine cannot mount; says so, and fails where that may not be.
#[allow(clippy::print_stderr)]
pub(crate) fn skipped() -> bool {
    let why = match () {
        () if !rustix::process::geteuid().is_root() => "not root",
        () if !Path::new("/dev/fuse").exists() => "no /dev/fuse",
        () => return false,
    };
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "FUSE cannot be tested: {why}");
    eprintln!("SKIPPED: {why}");
    true
}

/// What the kernel may remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

/// The options of a daemon that serves so.
pub(crate) fn options(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Exclusive => &["--exclusive"],
        Mode::Shared => &[],
    }
}

pub(crate) const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

/// A daemon of its own process.
pub(crate) struct Served {
    pub(crate) mount: PathBuf,
    pub(crate) source: PathBuf,
    child: Child,
    _folder: Option<TempDir>,
}

#[allow(unsafe_code)]
fn command(source: &Path, mount: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mffuse"));
    command.arg("fuse").arg("--source").arg(source).arg("--mount").arg(mount).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: a system call that neither allocates nor locks.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
}

/// Starts a daemon that serves one folder at another, or says why it did not.
pub(crate) fn start_at(source: &Path, mount: &Path, more: &[&str]) -> Result<Served, String> {
    let mut child = command(source, mount, more).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let mut why = String::new();
        child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        assert!(!child.wait().unwrap().success(), "ended without a word");
        return Err(why);
    }
    Ok(Served { mount: mount.to_owned(), source: source.to_owned(), child, _folder: None })
}

/// Serves an empty folder.
pub(crate) fn start(mode: Mode) -> Served {
    let folder = tempfile::Builder::new().prefix("mffuse-").tempdir().unwrap();
    let (source, mount) = (folder.path().join("source"), folder.path().join("mount"));
    fs::create_dir(&source).unwrap();
    let mut served = start_at(&source, &mount, options(mode)).unwrap();
    served._folder = Some(folder);
    served
}

impl Served {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for the end of the process.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the daemon does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH).is_ok() {}
    }
}

/// How many mounts there are at or below a folder.
pub(crate) fn mounts_below(folder: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let folder = folder.display().to_string();
    table.lines().filter(|line| line.split(' ').nth(4).is_some_and(|at| at.starts_with(&folder))).count()
}

/// Numbers that follow from a seed (splitmix).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.roll(among.len() as u64) as usize]
    }
}
