//! Threads of a daemon: a call that gets nowhere holds up nobody but its caller.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs::{self, File},
    io::Write,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use midflight_handover::kernel::{self, Waiting};
use rustix::mount::MountFlags;
use support::{MODES, Mode, PATIENCE, skipped, start};

/// A file system whose server takes calls and answers none, until it is dropped.
struct Hanging {
    at: PathBuf,
    _session: OwnedFd,
}

impl Hanging {
    fn new(at: &Path) -> Hanging {
        fs::create_dir_all(at).unwrap();
        let session = kernel::mount(at, "fuse", MountFlags::empty(), "", Waiting::Blocks).unwrap();
        Hanging { at: at.to_owned(), _session: session }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        kernel::unmount(&self.at);
    }
}

/// Each of them takes the only thread that waits; that must be noticed before the next program can be answered.
#[test]
fn calls_that_hang_hold_up_no_other_program() {
    if skipped() {
        return;
    }
    for mode in MODES {
        let served = start(mode);
        let hanging: Vec<Hanging> =
            (0..3).map(|number| Hanging::new(&served.source.join(format!("away/{number}")))).collect();
        thread::scope(|programs| {
            for number in 0..hanging.len() {
                let away = served.mount.join(format!("away/{number}"));
                // It ends when nothing hangs any more. Whether it hangs already does not matter: the others are answered before and
                // after.
                programs.spawn(move || drop(fs::metadata(away)));
                let (done, answered) = mpsc::channel();
                let path = served.mount.join(number.to_string());
                programs.spawn(move || {
                    fs::write(&path, "text").unwrap();
                    done.send(fs::read(&path).unwrap()).unwrap();
                });
                let read = answered.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("held up in {mode:?}"));
                assert_eq!(read, b"text");
            }
            drop(hanging);
        });
    }
}

#[test]
fn programs_that_wait_for_the_disk_all_get_on() {
    if skipped() {
        return;
    }
    let served = start(Mode::Exclusive);
    thread::scope(|programs| {
        for number in 0..4 {
            let path = served.mount.join(number.to_string());
            programs.spawn(move || {
                let mut file = File::create_new(path).unwrap();
                for _ in 0..50 {
                    file.write_all(b"line\n").unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    for number in 0..4 {
        assert_eq!(fs::read(served.source.join(number.to_string())).unwrap(), b"line\n".repeat(50));
    }
}
