//! Real processes: a volume under load moves from engine to engine, engines hang
//! and die, and nothing that was acknowledged is lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{thread, time::Duration};

use midflight_block::tour::{DRAIN_WITHIN, Plane, replicas_equal, switch_under_load};
use rustix::process::Signal;
use volume::{layout, start};

const SIZE: u64 = 8 << 20;

/// Keeps a client busy while `act` does things to the plane; what it saw is clean.
fn under_load(plane: &mut Plane, act: impl FnOnce(&mut Plane)) {
    let load = volume::load(plane, 3);
    act(plane);
    load.judge();
}

#[test]
fn nothing_is_lost_over_switches_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let told = switch_under_load(layout(folder.path(), SIZE), 10).unwrap();
    assert!(told.is_clean(), "{told:?}");
    assert!(told.client.writes > 0 && told.client.verified_blocks > 0, "{told:?}");
    assert_eq!(told.switches.len(), 10);
    assert!(told.switches.windows(2).all(|pair| pair[0].epoch < pair[1].epoch));
}

#[test]
fn a_hung_engine_is_left_behind_and_cannot_write_when_it_wakes() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    under_load(&mut plane, |plane| {
        let mut replayed = 0;
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(30));
            plane.engine().signal(Signal::STOP).unwrap();
            let (switched, old) = plane.switch_keeping_old(DRAIN_WITHIN).unwrap();
            let mut old = old.expect("it serves no copy");
            assert!(!switched.drained);
            replayed += switched.replayed;
            old.signal(Signal::CONT).unwrap();
            assert!(
                !old.wait_for_end(Duration::from_secs(10)).unwrap().success(),
                "it finds itself fenced out"
            );
        }
        // It may be stopped just when it has answered everything, and the client may get no CPU until the pause.
        assert!(replayed > 0, "engines that are stopped cannot have answered everything");
    });
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_killed_engine_is_restarted_and_the_client_only_waits() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    under_load(&mut plane, |plane| {
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(30));
            plane.restart_engine().unwrap();
        }
        plane.switch(DRAIN_WITHIN).unwrap();
    });
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}
