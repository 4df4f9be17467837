//! Replica processes that follow each other on one folder, under load: engines stay
//! connected, nobody is dropped, nothing is copied.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use midflight_block::{
    caller::EngineControl,
    tour::{DRAIN_WITHIN, replicas_equal},
};
use volume::{VOLUME, start, status, until};

const SIZE: u64 = 8 << 20;

#[test]
fn replicas_are_replaced_under_load_and_no_engine_notices() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    let load = volume::load(&plane, 7);
    thread::sleep(Duration::from_millis(50));
    let before = plane.record().unwrap();
    for number in [0, 1, 2, 1, 0] {
        plane.replace_replica(number, None).unwrap();
    }
    let after = plane.record().unwrap();
    assert_eq!(before.member_version, after.member_version, "nobody was dropped");
    assert_eq!(status(&mut plane).copied_bytes, 0, "nothing was copied");
    // The one who has the folder now keeps the promises of the one before.
    plane.switch(DRAIN_WITHIN).unwrap();
    plane.replace_replica(2, None).unwrap();
    plane.replica(2).kill();
    until("it is dropped", || plane.record().unwrap().in_service() == 2);
    plane.restart_replica(2).unwrap();
    plane.wait_until_whole(volume::WHOLE_WITHIN).unwrap();
    load.judge();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_successor_that_may_not_have_the_folder_or_dies_leaves_the_old_process_serving() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    let load = volume::load(&plane, 8);
    let (copy, address) = (plane.replica_folder(0), plane.replica(0).address().clone());
    let successor = |volume: &str, size: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mfblock"));
        program.args(["replica", "--take-over", "--volume", volume, "--size", size, "--folder"]).arg(&copy);
        program.stdout(Stdio::null()).stderr(Stdio::piped());
        program
    };
    let other = successor("another", "8388608").output().unwrap();
    assert!(!other.status.success());
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(said.contains("it has a copy of vol-1, not of another"), "{said}");
    // Killed at any moment: either it has taken over, and the process it follows has ended, or that one goes on.
    for wait in 0..12 {
        let mut child = successor(VOLUME, "8388608").spawn().unwrap();
        thread::sleep(Duration::from_millis(3 * wait));
        child.kill().unwrap();
        child.wait().unwrap();
        until("the copy is served and in service", || {
            if plane.replica(0).has_ended().unwrap() {
                plane.restart_replica(0).unwrap();
            }
            EngineControl::connect(&address).is_ok()
                && status(&mut plane).in_service == 3
                && plane.record().unwrap().in_service() == 3
        });
    }
    load.judge();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}
