//! How much memory an engine and a copy take for a large volume.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::fs;

use midflight_block::{
    engine::control::{Answer, Command},
    nbd::client::{Ask, NbdClient},
    tour::{Layout, Plane},
};
use volume::{VOLUME, layout, status};

const TIB: u64 = 1 << 40;
const BLOCK: usize = 4096;
/// Of an engine and one replica together, for each TiB.
const MOST: u64 = 64 << 20;

fn resident(pid: rustix::process::Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Writes one block in each of so many places, all over the volume.
fn touch(plane: &Plane, places: u64) {
    let mut client = NbdClient::connect(&plane.socket(), VOLUME).unwrap();
    let block = [3; BLOCK];
    for number in 0..places {
        // No two of them are neighbours, in whatever order.
        let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places;
        let ask = Ask::Write { offset: place * (TIB / places), data: &block };
        assert_eq!(client.call(ask).unwrap().error, 0);
    }
}

/// Nothing in memory grows with what is written: maps are read by parts, and what
/// counts since the last flush is bounded. So blocks all over a volume of 1 TiB cost
/// as much memory as all of its blocks would.
#[test]
fn a_volume_of_a_tebibyte_takes_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout { replicas: 1, ..layout(folder.path(), TIB) };
    let mut plane = Plane::start_with_local(layout).unwrap();
    touch(&plane, 400);
    let bare = resident(plane.engine().pid());
    assert!(bare <= MOST, "{} MiB without a snapshot", bare >> 20);
    let snapshot = Command::Snapshot { name: "one".into() };
    assert_eq!(plane.command(&snapshot).unwrap(), Answer::Done);
    touch(&plane, 400);
    let with_map = resident(plane.engine().pid());
    assert!(with_map <= MOST, "{} MiB with a map", with_map >> 20);
    assert_eq!(status(&mut plane).layout.size, TIB);
}
