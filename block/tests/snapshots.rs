//! Snapshots of real processes: taken under load, missed by a replica that was
//! dead, damaged on disk, reverted to; and a volume that grows.

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use midflight_block::{
    check::workload::Workload,
    engine::control::{Answer, Command, Status},
    nbd::client::{Ask, NbdClient},
    replica::{disk::Folder, serve::boot, store::Store},
    tour::{Layout, Plane, replicas_equal},
};

const SIZE: u64 = 8 << 20;
const WHOLE_WITHIN: Duration = Duration::from_secs(60);

fn start(folder: &Path) -> Plane {
    Plane::start(Layout {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_mfblock")),
        folder: folder.to_owned(),
        volume: "vol-1".into(),
        size: SIZE,
        replicas: 3,
    })
    .expect("the plane starts")
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WHOLE_WITHIN, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn snapshot(plane: &mut Plane, name: &str) {
    assert_eq!(
        plane.command(&Command::Snapshot { name: name.into() }).expect("the plane works"),
        Answer::Done
    );
}

fn status(plane: &mut Plane) -> Status {
    match plane.command(&Command::Status).expect("the plane works") {
        Answer::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

fn read_all(plane: &Plane) -> Vec<u8> {
    let mut client = NbdClient::connect(&plane.socket(), "vol-1").expect("the plane works");
    let piece = |offset| {
        let reply = client.call(Ask::Read { offset, length: 1 << 20 }).expect("the plane works");
        assert_eq!(reply.error, 0);
        reply.data.to_vec()
    };
    (0..SIZE).step_by(1 << 20).flat_map(piece).collect()
}

fn write(plane: &Plane, fill: u8) {
    let mut client = NbdClient::connect(&plane.socket(), "vol-1").expect("the plane works");
    for offset in (0..SIZE).step_by(1 << 20) {
        let data = vec![fill; 1 << 19];
        assert_eq!(client.call(Ask::Write { offset, data: &data }).expect("the plane works").error, 0);
    }
    // What everyone has on disk is not copied to who was away for a moment.
    assert_eq!(client.call(Ask::Flush).expect("the plane works").error, 0);
}

#[test]
fn snapshots_under_load_reach_a_replica_that_was_dead() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path());
    let stop = Arc::new(AtomicBool::new(false));
    let client = {
        let workload =
            Workload { socket: plane.socket(), volume: "vol-1".into(), depth: 8, blocks: 0, seed: 9 };
        let stop = Arc::clone(&stop);
        thread::spawn(move || workload.run(Duration::from_secs(600), &stop))
    };
    snapshot(&mut plane, "one");
    plane.replica(1).kill();
    until("it is dropped", || plane.record().unwrap().in_service() == 2);
    snapshot(&mut plane, "two");
    plane.restart_replica(1).unwrap();
    plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    snapshot(&mut plane, "three");
    assert_eq!(plane.command(&Command::RemoveSnapshot { name: "one".into() }).unwrap(), Answer::Done);
    plane.restart_engine().unwrap();
    stop.store(true, Ordering::Relaxed);
    let report = client.join().unwrap().unwrap();
    assert!(report.is_clean() && report.writes > 0, "{report:?}");
    let layout = status(&mut plane).layout;
    let names: Vec<&str> = layout.snapshots.iter().map(|snapshot| &snapshot.name[..]).collect();
    assert_eq!(names, ["two", "three"]);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn a_damaged_block_of_a_snapshot_is_not_served_and_heals() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path());
    write(&plane, 7);
    snapshot(&mut plane, "one");
    let before = read_all(&plane);
    plane.replica(0).kill();
    until("it is dropped", || plane.record().unwrap().in_service() == 2);
    let copy = plane.replica_folder(0);
    seal(&copy);
    let image =
        std::fs::OpenOptions::new().read(true).write(true).open(copy.join("layer-0000000000000000.img"));
    let image = image.unwrap();
    for offset in (100..SIZE).step_by(1 << 20) {
        image.write_all_at(&[8], offset).unwrap();
    }
    plane.restart_replica(0).unwrap();
    plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    let version = plane.record().unwrap().member_version;
    assert!(read_all(&plane) == before, "a damaged block was served");
    until("the damage is noticed", || plane.record().unwrap().member_version > version);
    plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    assert!(read_all(&plane) == before);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

/// Does what the replica would do in the background.
fn seal(copy: &Path) {
    let folder = Folder::take(copy).expect("the plane works");
    let mut store = Store::open(&folder, SIZE, boot()).expect("the plane works");
    while store.has_work() {
        store.work().expect("the plane works");
    }
}

#[test]
fn a_volume_is_reverted_and_grows_under_its_clients() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path());
    write(&plane, 1);
    let good = read_all(&plane);
    snapshot(&mut plane, "good");
    write(&plane, 2);
    assert!(read_all(&plane) != good);
    assert_eq!(plane.command(&Command::Revert { name: "good".into() }).unwrap(), Answer::Done);
    assert!(read_all(&plane) == good);
    assert_eq!(plane.command(&Command::Expand { size: 2 * SIZE }).unwrap(), Answer::Done);
    assert_eq!(status(&mut plane).layout.size, 2 * SIZE);
    let connect = || NbdClient::connect(&plane.socket(), "vol-1").unwrap();
    until("clients see the new size", || connect().size() == 2 * SIZE);
    let mut client = connect();
    assert_eq!(client.call(Ask::Write { offset: 2 * SIZE - 4096, data: &[3; 4096] }).unwrap().error, 0);
    plane.restart_engine().unwrap();
    assert_eq!(client.call(Ask::Read { offset: 2 * SIZE - 4096, length: 4096 }).unwrap().data[..], [3; 4096]);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}
