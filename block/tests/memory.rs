//! How much memory an engine and a copy take for a large volume.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; figures are told"
)]

mod volume;

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use midflight_block::{
    blocks::REGION_BITS,
    engine::control::Command,
    nbd::client::{Ask, NbdClient},
    tour::{Layout, Plane},
};
use volume::{VOLUME, layout, status};

const TIB: u64 = 1 << 40;
const BLOCK: usize = 4096;
/// Of an engine and one replica together, for each TiB.
const MOST: u64 = 64 << 20;
/// What one place takes on a file system: a page of the snapshot, of its checksums, and of the head.
const PAGES: u64 = 3;
/// A disk may take minutes for the sync of blocks all over a large file.
const FROZEN_WITHIN: Duration = Duration::from_secs(20 * 60);

fn resident(pid: rustix::process::Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Writes one block in each of so many places, all over the volume, the next far away from the last.
fn touch(plane: &Plane, places: u64) {
    const STRIDE: u64 = 0x9e37_79b1;
    const DEPTH: u64 = 128;
    let mut client = NbdClient::connect(&plane.socket(), VOLUME).unwrap();
    let block = [3; BLOCK];
    for number in 0..places + DEPTH {
        if number < places {
            let place = number * STRIDE % places;
            client.send(number, Ask::Write { offset: place * (TIB / places), data: &block }).unwrap();
        }
        if number >= DEPTH {
            assert_eq!(client.receive(|_| Some(0)).unwrap().error, 0);
        }
    }
}

/// Where so many places fit: in memory if they do there, for what a disk takes to sync them says nothing of the engine.
fn folder_for(places: u64) -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    let needed = 2 * PAGES * places * BLOCK as u64;
    let has_room = |place: &Path| {
        rustix::fs::statvfs(place).is_ok_and(|place| place.f_bavail * place.f_frsize >= needed)
    };
    let in_memory = has_room(shared).then(|| tempfile::tempdir_in(shared)).and_then(Result::ok);
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// The flush ahead of a snapshot goes on when whoever asked for it has lost patience.
fn take_snapshot(plane: &mut Plane) {
    let (snapshot, began) = (Command::Snapshot { name: "one".into() }, Instant::now());
    while let Err(error) = plane.command(&snapshot) {
        assert!(began.elapsed() < FROZEN_WITHIN, "{error}");
        thread::sleep(Duration::from_millis(100));
    }
    println!("a snapshot took {} ms", began.elapsed().as_millis());
}

/// The engine's memory after a write in each of so many places, without a snapshot and with one.
fn resident_after(places: u64) -> [u64; 2] {
    let folder = folder_for(places);
    let layout = Layout { replicas: 1, ..layout(folder.path(), TIB) };
    let mut plane = Plane::start_with_local(layout).unwrap();
    touch(&plane, places);
    let bare = resident(plane.engine().pid());
    take_snapshot(&mut plane);
    touch(&plane, places);
    assert_eq!(status(&mut plane).layout.snapshots.len(), 1);
    [bare, resident(plane.engine().pid())]
}

fn assert_little(places: u64) {
    for (what, taken) in ["without a snapshot", "with a map"].into_iter().zip(resident_after(places)) {
        assert!(taken <= MOST, "{places} places: {} MiB {what}", taken >> 20);
        println!("{places} places: {} MiB {what}", taken >> 20);
    }
}

/// Nothing in memory grows with what is written: maps are read by parts, and what
/// counts since the last flush is bounded. So blocks all over a volume of 1 TiB cost
/// as much memory as all of its blocks would.
#[test]
fn a_volume_of_a_tebibyte_takes_little_memory() {
    assert_little(400);
}

/// Every region of 4 MiB is written to, and noted before.
#[test]
#[ignore = "262,144 regions take minutes: dev/soak block"]
fn a_volume_written_in_every_region_takes_little_memory() {
    assert_little(TIB >> REGION_BITS);
}
