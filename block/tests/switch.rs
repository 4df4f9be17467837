//! Real processes: a volume under load moves from engine to engine, engines hang
//! and die, and nothing that was acknowledged is lost.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use midflight_block::{
    check::workload::{Report, Workload},
    tour::{DRAIN_WITHIN, Layout, Plane, replicas_equal, switch_under_load},
};
use rustix::process::Signal;

fn layout(folder: &tempfile::TempDir) -> Layout {
    Layout {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_mfblock")),
        folder: folder.path().to_owned(),
        volume: "vol-1".into(),
        size: 8 << 20,
        replicas: 3,
    }
}

/// Keeps a client busy while `act` does things to the plane; gives its report.
fn under_load(plane: &mut Plane, act: impl FnOnce(&mut Plane)) -> Report {
    let stop = Arc::new(AtomicBool::new(false));
    let workload = Workload { socket: plane.socket(), volume: "vol-1".into(), depth: 16, blocks: 0, seed: 3 };
    let client = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || workload.run(Duration::from_secs(600), &stop))
    };
    act(plane);
    stop.store(true, Ordering::Relaxed);
    client.join().expect("the client does not panic").expect("the client is not cut off")
}

fn assert_clean(report: &Report) {
    assert_eq!(report.complaints, Vec::<String>::new());
    assert_eq!(report.errors, 0);
    assert!(report.writes > 0 && report.verified_blocks > 0, "{report:?}");
}

#[test]
fn nothing_is_lost_over_switches_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let told = switch_under_load(layout(&folder), 10).unwrap();
    assert_clean(&told.client);
    assert!(told.replicas_equal);
    assert_eq!(told.switches.len(), 10);
    assert!(told.switches.windows(2).all(|pair| pair[0].epoch < pair[1].epoch));
}

#[test]
fn a_hung_engine_is_left_behind_and_cannot_write_when_it_wakes() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = Plane::start(layout(&folder)).unwrap();
    let report = under_load(&mut plane, |plane| {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(30));
            plane.engine().signal(Signal::STOP).unwrap();
            let (switched, mut old) = plane.switch_keeping_old(DRAIN_WITHIN).unwrap();
            assert!(!switched.drained);
            assert!(switched.replayed > 0, "a stopped engine cannot have answered everything");
            old.signal(Signal::CONT).unwrap();
            assert!(
                !old.wait_for_end(Duration::from_secs(10)).unwrap().success(),
                "it finds itself fenced out"
            );
        }
    });
    assert_clean(&report);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_killed_engine_is_restarted_and_the_client_only_waits() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = Plane::start(layout(&folder)).unwrap();
    let report = under_load(&mut plane, |plane| {
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(30));
            plane.restart_engine().unwrap();
        }
        plane.switch(DRAIN_WITHIN).unwrap();
    });
    assert_clean(&report);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}
