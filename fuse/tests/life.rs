//! How a daemon begins and ends: nobody finds a mount that nobody serves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs::{self, File},
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

use rustix::{io::Errno, process::Signal};

use support::{MODES, Mode, PATIENCE, mounts_below, options, skipped, start, start_at};

#[test]
fn an_end_that_is_asked_for_leaves_nothing() {
    if skipped() {
        return;
    }
    for mode in MODES {
        let mut served = start(mode);
        fs::write(served.mount.join("file"), "kept").unwrap();
        served.signal(Signal::TERM);
        assert!(served.ended().success());
        assert_eq!(mounts_below(&served.mount), 0);
        assert_eq!(fs::read_to_string(served.source.join("file")).unwrap(), "kept");
    }
}

#[test]
fn those_who_hold_files_are_served_to_the_end() {
    if skipped() {
        return;
    }
    for mode in MODES {
        let mut served = start(mode);
        let mut file = File::create_new(served.mount.join("file")).unwrap();
        served.signal(Signal::TERM);
        let until = Instant::now() + PATIENCE;
        while mounts_below(&served.mount) > 0 {
            assert!(Instant::now() < until, "the mount stays");
            thread::sleep(Duration::from_millis(2));
        }
        file.write_all(b"written after the end began").unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert!(served.ended().success());
        let written = fs::read_to_string(served.source.join("file")).unwrap();
        assert_eq!(written, "written after the end began");
    }
}

#[test]
fn nobody_holds_a_daemon_for_ever() {
    if skipped() {
        return;
    }
    let served = start(Mode::Shared);
    let (source, mount) = (served.source.join("more"), served.source.parent().unwrap().join("other"));
    fs::create_dir(&source).unwrap();
    let mut other = start_at(&source, &mount, &["--drain-seconds", "0"]).unwrap();
    let mut file = File::create_new(mount.join("file")).unwrap();
    other.signal(Signal::TERM);
    assert!(other.ended().success());
    let error = file.write_all(b"too late").unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOTCONN), "{error}");
}

#[test]
fn the_next_start_removes_what_a_crash_left() {
    if skipped() {
        return;
    }
    for mode in MODES {
        let mut crashed = start(mode);
        fs::write(crashed.mount.join("file"), "before").unwrap();
        // The kernel remembers what the folder is like, and tells it though nobody serves it any more.
        for _ in 0..2 {
            assert!(fs::metadata(&crashed.mount).unwrap().is_dir());
        }
        crashed.signal(Signal::KILL);
        crashed.ended();
        assert_eq!(fs::metadata(&crashed.mount).is_ok(), mode == Mode::Exclusive);
        let error = fs::metadata(crashed.mount.join("never asked for")).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOTCONN), "{error}");

        let mut next = start_at(&crashed.source, &crashed.mount, options(mode)).unwrap();
        assert_eq!(mounts_below(&next.mount), 1);
        assert_eq!(fs::read_to_string(next.mount.join("file")).unwrap(), "before");
        next.signal(Signal::TERM);
        assert!(next.ended().success());
        assert_eq!(mounts_below(&next.mount), 0);
    }
}

/// What hangs there is not waited for: nobody would see why the next one does not come.
#[test]
fn the_next_start_refuses_a_place_whose_daemon_hangs() {
    if skipped() {
        return;
    }
    let hangs = start(Mode::Shared);
    hangs.signal(Signal::STOP);
    let why = start_at(&hangs.source, &hangs.mount, &[]).err().unwrap();
    assert!(why.contains("mounted at"), "{why}");
    hangs.signal(Signal::CONT);
    fs::write(hangs.mount.join("file"), "served").unwrap();
}

#[test]
fn an_unmount_by_someone_else_ends_it() {
    if skipped() {
        return;
    }
    let mut served = start(Mode::Exclusive);
    rustix::mount::unmount(&served.mount, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(served.ended().success());
}

#[test]
fn what_cannot_be_served_is_refused_in_words() {
    if skipped() {
        return;
    }
    let served = start(Mode::Exclusive);
    let folder = served.source.parent().unwrap();
    let other = folder.join("other");
    fs::create_dir(&other).unwrap();
    let file = folder.join("file");
    File::create_new(&file).unwrap();
    let bound = folder.join("a bound folder");
    fs::create_dir(&bound).unwrap();
    rustix::mount::mount_bind(&other, &bound).unwrap();
    #[rustfmt::skip]
    let cases = [
        ("no such folder",   folder.join("gone"),   folder.join("at"),   "No such file or directory"),
        ("no folder",        file.clone(),          folder.join("at"),   "Not a directory"),
        ("kept by another",  served.source.clone(), folder.join("at"),   "keeps others out"),
        ("mounted already",  other.clone(),         served.mount.clone(), "mounted at"),
        ("the same device",  other.clone(),         bound.clone(),       "mounted at"),
        ("in the folder",    other.clone(),         other.join("at"),    "lies in the folder"),
        ("no mount point",   other.clone(),         file.join("at"),     "make the mount point"),
    ];
    for (name, source, mount, expected) in cases {
        let why = start_at(&source, &mount, &[]).err().unwrap();
        assert!(why.contains(expected), "{name}: {why}");
    }
    rustix::mount::unmount(&bound, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(mounts_below(folder), 1);
}

#[test]
fn a_folder_that_goes_away_gives_errors_and_no_hang() {
    if skipped() {
        return;
    }
    for mode in MODES {
        let served = start(mode);
        fs::write(served.mount.join("file"), "held").unwrap();
        let mut held = File::open(served.mount.join("file")).unwrap();
        fs::remove_dir_all(&served.source).unwrap();
        let mut text = String::new();
        held.read_to_string(&mut text).unwrap();
        assert_eq!(text, "held");
        let error = fs::write(served.mount.join("new"), "x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        // A deleted folder lists as empty or as gone; both are what the folder itself says.
        if let Ok(lines) = fs::read_dir(&served.mount) {
            assert_eq!(lines.filter(Result::is_ok).count(), 0);
        }
    }
}

#[test]
fn a_read_only_mount_refuses_changes() {
    if skipped() {
        return;
    }
    let served = start(Mode::Shared);
    fs::write(served.source.join("file"), "there").unwrap();
    let mount = served.source.parent().unwrap().join("other");
    let other = start_at(&served.source, &mount, &["--read-only"]).unwrap();
    assert_eq!(fs::read_to_string(other.mount.join("file")).unwrap(), "there");
    let error = fs::write(other.mount.join("file"), "changed").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn what_one_daemon_writes_another_reads_at_once() {
    if skipped() {
        return;
    }
    let served = start(Mode::Shared);
    let mount = served.source.parent().unwrap().join("other");
    let other = start_at(&served.source, &mount, &[]).unwrap();
    for round in 0..20 {
        let (here, there) = if round % 2 == 0 { (&served, &other) } else { (&other, &served) };
        let text = "x".repeat(round * 1000 + 1);
        fs::write(here.mount.join("file"), &text).unwrap();
        assert_eq!(fs::read_to_string(there.mount.join("file")).unwrap(), text);
        let name = format!("entry-{round}");
        fs::create_dir(here.mount.join(&name)).unwrap();
        assert!(there.mount.join(&name).is_dir());
        fs::remove_dir(there.mount.join(&name)).unwrap();
        assert!(!here.mount.join(&name).exists());
    }
    // Both append; nothing is lost.
    let path = |served: &support::Served| served.mount.join("log");
    let mut logs =
        [&served, &other].map(|served| File::options().create(true).append(true).open(path(served)).unwrap());
    for round in 0..50 {
        for log in &mut logs {
            writeln!(log, "{round}").unwrap();
        }
    }
    assert_eq!(fs::read_to_string(path(&served)).unwrap().lines().count(), 100);
}

#[test]
fn the_kernel_forgets_before_descriptors_run_out() {
    if skipped() {
        return;
    }
    let served = start(Mode::Shared);
    let (source, mount) = (served.source.join("many"), served.source.parent().unwrap().join("other"));
    fs::create_dir(&source).unwrap();
    let other = start_at(&source, &mount, &["--most-nodes", "500"]).unwrap();
    let held = File::create_new(mount.join("held")).unwrap();
    for number in 0..3000 {
        fs::write(mount.join(number.to_string()), "x").unwrap();
    }
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", other.pid().as_raw_nonzero())).unwrap().count();
    let until = Instant::now() + PATIENCE;
    while descriptors() > 1100 {
        assert!(Instant::now() < until, "{} descriptors", descriptors());
        fs::metadata(mount.join("1")).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
    held.set_len(5).unwrap();
    assert_eq!(fs::metadata(mount.join("held")).unwrap().len(), 5);
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 3001);
}
