//! Which threads of a daemon work: as few as there is work for.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, DirEntry, File},
    io::Write,
    thread,
    time::Instant,
};

use support::{Mode, PATIENCE, Served, skipped, start};

/// How often each thread that works on calls has waited.
fn waits(served: &Served) -> BTreeMap<OsString, u64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", served.pid().as_raw_nonzero())).unwrap().flatten();
    let works = |task: &DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("fuse-"))
    };
    let count = |task: DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        (task.file_name(), count.unwrap().trim().parse().unwrap())
    };
    tasks.filter(works).map(count).collect()
}

/// The kernel wakes those who wait in turn: were all awake, each would get a quarter of the calls.
#[test]
fn one_program_comes_to_be_served_by_one_thread() {
    const CALLS: u64 = 2000;
    if skipped() {
        return;
    }
    let served = start(Mode::Exclusive);
    let until = Instant::now() + PATIENCE;
    for round in 0.. {
        let before = waits(&served);
        (0..CALLS).for_each(|number| assert!(!served.mount.join(format!("{round}-{number}")).exists()));
        let since = |(task, count): (OsString, u64)| count - before.get(&task).copied().unwrap_or_default();
        let meanwhile: Vec<u64> = waits(&served).into_iter().map(since).collect();
        if meanwhile.iter().any(|by_one| by_one * 10 > meanwhile.iter().sum::<u64>() * 9) {
            return;
        }
        assert!(Instant::now() < until, "threads take turns: {meanwhile:?}");
    }
}

#[test]
fn programs_that_wait_for_the_disk_do_not_wait_for_each_other() {
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
    let waits = waits(&served);
    assert!(waits.values().filter(|count| **count > 10).count() > 1, "one thread did it all: {waits:?}");
}
