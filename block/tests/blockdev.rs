//! A volume as a block device: ext4 on it, while engines and frontends change
//! under it. Needs root, /dev/fuse, loop devices and e2fsprogs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use midflight_block::tour::{DRAIN_WITHIN, Layout, Plane, replicas_equal};

/// Without it there is nothing to be tried, in CI neither.
const NOT_ROOT: &str = "not root";

/// Why the test cannot run here, if so.
fn hindrance() -> Option<&'static str> {
    let found = |program: &str| {
        Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    match () {
        () if !rustix::process::geteuid().is_root() => Some(NOT_ROOT),
        () if !Path::new("/dev/fuse").exists() => Some("no /dev/fuse"),
        () if !Path::new("/dev/loop-control").exists() => Some("no loop devices"),
        () if !found("mkfs.ext4") || !found("losetup") => Some("mkfs.ext4 or losetup is not installed"),
        () => None,
    }
}

/// One test at a time: a disk that is kept busy by the one makes the engines of the other late.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(clippy::print_stderr)]
fn skipped() -> bool {
    let why = hindrance();
    if let Some(why) = why {
        assert!(std::env::var_os("CI").is_none() || why == NOT_ROOT, "{why}");
        eprintln!("SKIPPED: {why}");
    }
    why.is_some()
}

const SWITCHED_WITHIN: Duration = Duration::from_secs(150);

fn layout(folder: &Path, size: u64) -> Layout {
    Layout {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_mfblock")),
        folder: folder.to_owned(),
        volume: "vol-1".into(),
        size,
        replicas: 3,
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&said));
}

/// A mounted file system that is gone when the test is.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Path, at: PathBuf) -> Mounted {
        fs::create_dir_all(&at).unwrap();
        run("mount", &["-t", "ext4", &device.display().to_string(), &at.display().to_string()]);
        Mounted(at)
    }

    fn unmount(self) {
        run("umount", &[&self.0.display().to_string()]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Gone already, unless the test failed.
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// What a failed test would leave behind of a block device.
struct Leftover {
    device: PathBuf,
    fuse: PathBuf,
}

impl Drop for Leftover {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = Command::new("losetup").arg("-d").arg(&self.device).stderr(Stdio::null()).status();
            let _ = Command::new("umount").arg("-l").arg(&self.fuse).stderr(Stdio::null()).status();
        }
    }
}

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    };
    std::iter::repeat_with(next).take(count / 4).flat_map(u32::to_ne_bytes).collect()
}

#[test]
fn ext4_is_made_filled_and_checked_while_engines_and_frontends_change() {
    if skipped() {
        return;
    }
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let mut plane = Plane::start(layout(folder.path(), 96 << 20)).unwrap();
    // After a frontend was killed nobody knows what it had asked for: all of it may have to be compared.
    plane.await_switches(SWITCHED_WITHIN).unwrap();
    let device = plane.expose().unwrap();
    let _leftover = Leftover { device: device.clone(), fuse: folder.path().join("fuse") };
    let name = device.display().to_string();
    let about = Path::new("/sys/block").join(device.file_name().unwrap()).join("loop");
    assert_eq!(fs::read_to_string(about.join("dio")).unwrap().trim(), "1", "direct I/O");
    run("mkfs.ext4", &["-q", "-F", &name]);
    let mounted = Mounted::new(&device, folder.path().join("ext4"));
    let at = mounted.0.clone();
    let writer = thread::spawn(move || {
        for number in 0..24u64 {
            let path = at.join(format!("file-{number}"));
            fs::write(&path, bytes(number, 1 << 20)).unwrap();
            fs::File::open(&path).unwrap().sync_all().unwrap();
        }
    });
    let mut round = 0;
    while !writer.is_finished() || round < 6 {
        match round % 3 {
            0 => drop(plane.switch(DRAIN_WITHIN).unwrap()),
            1 => plane.replace_frontend().unwrap(),
            _ => plane.restart_frontend().unwrap(),
        }
        round += 1;
        thread::sleep(Duration::from_millis(20));
    }
    writer.join().unwrap();
    let at = mounted.0.clone();
    mounted.unmount();
    let mounted = Mounted::new(&device, at);
    for number in 0..24u64 {
        let found = fs::read(mounted.0.join(format!("file-{number}"))).unwrap();
        assert!(found == bytes(number, 1 << 20), "file {number}");
    }
    run("fstrim", &[&mounted.0.display().to_string()]);
    mounted.unmount();
    run("e2fsck", &["-f", "-n", &name]);
    plane.withdraw().unwrap();
    assert!(!about.exists(), "the loop device is free");
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

/// Loop devices on a file, as the kernel tells.
fn loops_on(file: &Path) -> usize {
    let all = fs::read_dir("/sys/block").unwrap().flatten();
    let files = all.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    files.filter(|told| Path::new(told.trim_end()) == file).count()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + SWITCHED_WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_device_in_use_is_not_taken_away_and_one_that_went_is_made_anew() {
    if skipped() {
        return;
    }
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let (fuse, file) = (folder.path().join("fuse"), folder.path().join("fuse/volume"));
    let mut plane = Plane::start(layout(folder.path(), 32 << 20)).unwrap();
    // As a frontend leaves it that is killed before anybody knows of its device.
    fs::create_dir_all(&fuse).unwrap();
    fs::write(&file, [0; 4096]).unwrap();
    run("losetup", &["--find", &file.display().to_string()]);
    let device = plane.expose().unwrap();
    let _leftover = Leftover { device: device.clone(), fuse };
    until("what was left behind is gone", || loops_on(&file) == 1);
    let name = device.display().to_string();
    run("mkfs.ext4", &["-q", "-F", &name]);
    let mounted = Mounted::new(&device, folder.path().join("ext4"));
    for _ in 0..2 {
        let refused = format!("{:?}", plane.withdraw().unwrap_err());
        assert!(refused.contains("is in use: unmount what is on it"), "{refused}");
    }
    let kept = mounted.0.join("kept");
    fs::write(&kept, bytes(7, 1 << 20)).unwrap();
    fs::File::open(&kept).unwrap().sync_all().unwrap();
    mounted.unmount();
    until("it goes with its last user", || loops_on(&file) == 0);
    let device = plane.expose().unwrap();
    let _leftover = Leftover { device: device.clone(), fuse: folder.path().join("fuse") };
    assert_eq!(plane.expose().unwrap(), device, "given twice");
    let mounted = Mounted::new(&device, folder.path().join("ext4"));
    assert!(fs::read(&kept).unwrap() == bytes(7, 1 << 20));
    mounted.unmount();
    for _ in 0..2 {
        plane.withdraw().unwrap();
        assert_eq!(loops_on(&file), 0);
    }
}

/// A memory cgroup of our own, of either version; the processes in it must be gone before it is.
struct Group(PathBuf);

impl Group {
    const LIMIT: u64 = 96 << 20;

    fn new(of: &str) -> io::Result<Group> {
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (parent, limit) = match v1.exists() {
            true => (v1, "memory.limit_in_bytes"),
            false => {
                fs::write(v2.join("cgroup.subtree_control"), "+memory")?;
                (v2, "memory.max")
            }
        };
        let group = Group(parent.join(format!("midflight-{}-{of}", std::process::id())));
        fs::create_dir(&group.0)?;
        fs::write(group.0.join(limit), Group::LIMIT.to_string())?;
        Ok(group)
    }

    /// A program that runs another inside the group from its first moment.
    fn inside(&self, program: &str, at: &Path) -> PathBuf {
        let script =
            format!("#!/bin/sh\necho $$ > {}/cgroup.procs && exec {program} \"$@\"\n", self.0.display());
        fs::write(at, script).unwrap();
        fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
        at.to_owned()
    }

    fn members(&self) -> usize {
        fs::read_to_string(self.0.join("cgroup.procs")).unwrap().lines().count()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Whether a process here may say that it carries dirty pages away.
fn may_be_shielded() -> bool {
    let may = rustix::process::configure_io_flusher_behavior(true).is_ok();
    may && rustix::process::configure_io_flusher_behavior(false).is_ok()
}

/// The whole data plane is as short of memory as its client. Where it may be shielded they share what there
/// is: what it needs to write a page back must not wait for a page to be written back. Elsewhere each has
/// its own, as in pods.
#[test]
#[allow(clippy::print_stderr)]
fn dirtying_twice_the_memory_there_is_does_not_hang() {
    if skipped() {
        return;
    }
    let _turn = turn();
    let (group, others) = match Group::new("client").and_then(|group| Ok((group, Group::new("plane")?))) {
        Ok(groups) => groups,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "make a memory cgroup: {error}");
            eprintln!("SKIPPED: no memory cgroup to make: {error}");
            return;
        }
    };
    let of_plane = if may_be_shielded() { &group } else { &others };
    let folder = tempfile::tempdir().unwrap();
    let mfblock = of_plane.inside(env!("CARGO_BIN_EXE_mfblock"), &folder.path().join("mfblock"));
    let layout = Layout { binary: mfblock, replicas: 1, ..layout(folder.path(), 320 << 20) };
    let mut plane = Plane::start(layout).unwrap();
    assert_eq!(of_plane.members(), 4, "replica, engine, keeper and frontend");
    let device = plane.expose().unwrap();
    let _leftover = Leftover { device: device.clone(), fuse: folder.path().join("fuse") };
    run("mkfs.ext4", &["-q", "-F", &device.display().to_string()]);
    let mounted = Mounted::new(&device, folder.path().join("ext4"));
    let file = mounted.0.join("dirty").display().to_string();
    let megabytes = 2 * (Group::LIMIT >> 20);
    let mut writer = Command::new(group.inside("dd", &folder.path().join("dd")))
        .args(["if=/dev/zero", "bs=1M", "conv=fsync", "status=none"])
        .args([format!("of={file}"), format!("count={megabytes}")])
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(150);
    let status = loop {
        if let Some(status) = writer.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            let _ = writer.kill();
            panic!("the writer hangs");
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    assert_eq!(fs::metadata(&file).unwrap().len(), megabytes << 20);
    assert_eq!(of_plane.members(), 4, "none of them was killed");
    mounted.unmount();
    run("e2fsck", &["-f", "-n", &device.display().to_string()]);
    plane.withdraw().unwrap();
}
