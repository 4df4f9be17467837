//! An engine that serves one of the copies in its own process: the volume comes,
//! the process dies, the volume moves away and the copy stays.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{thread, time::Duration};

use midflight_block::tour::{DRAIN_WITHIN, Layout, Plane, replicas_equal};
use volume::{WHOLE_WITHIN, layout, until};

/// A plane of `replicas`, the first in the engine's process, under a client that
/// verifies; at the end nothing is lost and all copies are alike.
fn under_load(replicas: usize, act: impl FnOnce(&mut Plane)) {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout { replicas, ..layout(folder.path(), 8 << 20) };
    let mut plane = Plane::start_with_local(layout).unwrap();
    let load = volume::load(&plane, 3);
    act(&mut plane);
    plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    load.judge();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_process_of_engine_and_copy_is_killed_and_comes_back() {
    for replicas in [1, 3] {
        under_load(replicas, |plane| {
            for _ in 0..5 {
                thread::sleep(Duration::from_millis(30));
                plane.restart_engine().unwrap();
                let record = plane.record().unwrap();
                assert_eq!(record.in_service(), replicas, "no copy has missed anything: {record:?}");
            }
        });
    }
}

#[test]
fn the_volume_moves_to_another_process_and_its_copy_stays_in_service() {
    under_load(3, |plane| {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(30));
            plane.switch(DRAIN_WITHIN).unwrap();
            assert_eq!(plane.record().unwrap().in_service(), 3);
            assert!(!plane.replica(0).has_ended().unwrap(), "the first process goes on for its copy's sake");
        }
        let version = plane.record().unwrap().member_version;
        plane.restart_replica(0).unwrap();
        until("its loss is noticed", || plane.record().unwrap().member_version > version);
    });
}

#[test]
fn a_dead_copy_comes_back_in_the_process_of_the_next_engine() {
    under_load(3, |plane| {
        for number in [1, 2, 0] {
            thread::sleep(Duration::from_millis(30));
            plane.switch_to_copy(number, DRAIN_WITHIN).unwrap();
            plane.wait_until_whole(WHOLE_WITHIN).unwrap();
        }
    });
}
