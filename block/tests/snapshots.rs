//! Snapshots of real processes: taken under load, missed by a replica that was
//! dead, damaged on disk, reverted to; and a volume that grows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{os::unix::fs::FileExt, path::Path};

use midflight_block::{
    engine::control::{Answer, Command},
    nbd::client::{Ask, NbdClient},
    replica::{
        disk::Folder,
        layers::{Patience, Worked},
        serve::boot,
        store::Store,
    },
    tour::{Plane, replicas_equal},
};
use volume::{VOLUME, WHOLE_WITHIN, start, status, until};

const SIZE: u64 = 8 << 20;
/// The oldest layer of a copy.
const IMAGE: &str = "layer-0000000000000000.img";
const DAMAGED_AT: usize = 100;

fn snapshot(plane: &mut Plane, name: &str) {
    assert_eq!(
        plane.command(&Command::Snapshot { name: name.into() }).expect("the plane works"),
        Answer::Done
    );
}

fn read_all(plane: &Plane) -> Vec<u8> {
    let mut client = NbdClient::connect(&plane.socket(), VOLUME).expect("the plane works");
    let piece = |offset| {
        let reply = client.call(Ask::Read { offset, length: 1 << 20 }).expect("the plane works");
        assert_eq!(reply.error, 0);
        reply.data.to_vec()
    };
    (0..SIZE).step_by(1 << 20).flat_map(piece).collect()
}

fn write(plane: &Plane, fill: u8) {
    let mut client = NbdClient::connect(&plane.socket(), VOLUME).expect("the plane works");
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
    let mut plane = start(folder.path(), SIZE);
    let load = volume::load(&plane, 9);
    snapshot(&mut plane, "one");
    plane.replica(1).kill();
    until("it is dropped", || plane.record().unwrap().in_service() == 2);
    snapshot(&mut plane, "two");
    plane.restart_replica(1).unwrap();
    plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    snapshot(&mut plane, "three");
    assert_eq!(plane.command(&Command::RemoveSnapshot { name: "one".into() }).unwrap(), Answer::Done);
    plane.restart_engine().unwrap();
    load.judge();
    let layout = status(&mut plane).layout;
    let names: Vec<&str> = layout.snapshots.iter().map(|snapshot| &snapshot.name[..]).collect();
    assert_eq!(names, ["two", "three"]);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

/// A plane with a snapshot, one copy of which was damaged while its process was dead.
fn with_damage(folder: &Path) -> (Plane, Vec<u8>) {
    let mut plane = start(folder, SIZE);
    write(&plane, 7);
    snapshot(&mut plane, "one");
    let before = read_all(&plane);
    plane.replica(0).kill();
    until("it is dropped", || plane.record().unwrap().in_service() == 2);
    let copy = plane.replica_folder(0);
    seal(&copy);
    let image = std::fs::OpenOptions::new().read(true).write(true).open(copy.join(IMAGE)).unwrap();
    for offset in (DAMAGED_AT as u64..SIZE).step_by(1 << 20) {
        image.write_all_at(&[8], offset).unwrap();
    }
    plane.restart_replica(0).unwrap();
    (plane, before)
}

#[test]
fn a_damaged_block_of_a_snapshot_is_not_served_and_heals() {
    let folder = tempfile::tempdir().unwrap();
    let (mut plane, before) = with_damage(folder.path());
    assert!(read_all(&plane) == before, "a damaged block was served");
    heal(&mut plane);
    assert!(read_all(&plane) == before);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn damage_that_nobody_reads_is_found_and_heals() {
    let folder = tempfile::tempdir().unwrap();
    let (mut plane, before) = with_damage(folder.path());
    heal(&mut plane);
    assert!(read_all(&plane) == before);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

/// Waits until the damage was found and the copy is whole again, starting its process
/// anew when that has ended for it.
fn heal(plane: &mut Plane) {
    let path = plane.replica_folder(0).join(IMAGE);
    // Its layers may be files of other names by now.
    let is_damaged = || std::fs::read(&path).is_ok_and(|image| image.get(DAMAGED_AT) == Some(&8));
    until("the damage is mended", || {
        if plane.replica(0).has_ended().unwrap() {
            plane.restart_replica(0).unwrap();
        }
        plane.tend().unwrap();
        !is_damaged() && plane.record().unwrap().in_service() == 3
    });
}

/// Does what the replica would do in the background.
fn seal(copy: &Path) {
    let folder = Folder::take(copy).expect("the plane works");
    let mut store = Store::open(&folder, SIZE, boot()).expect("the plane works");
    while store.has_work() {
        if store.work(Patience::Wait).expect("the plane works") == Worked::WantsSync {
            let plan = store.sync_plan(false).expect("the plane works");
            let carried = plan.carry_out(&folder).expect("the plane works");
            store.synced(carried).expect("the plane works");
        }
    }
}

#[test]
fn a_volume_is_reverted_and_grows_under_its_clients() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), SIZE);
    write(&plane, 1);
    let good = read_all(&plane);
    snapshot(&mut plane, "good");
    write(&plane, 2);
    assert!(read_all(&plane) != good);
    assert_eq!(plane.command(&Command::Revert { name: "good".into(), head: None }).unwrap(), Answer::Done);
    assert!(read_all(&plane) == good);
    assert_eq!(plane.command(&Command::Expand { size: 2 * SIZE }).unwrap(), Answer::Done);
    assert_eq!(status(&mut plane).layout.size, 2 * SIZE);
    let connect = |plane: &Plane| NbdClient::connect(&plane.socket(), VOLUME).unwrap();
    until("clients see the new size", || connect(&plane).size() == 2 * SIZE);
    let mut client = connect(&plane);
    assert_eq!(client.call(Ask::Write { offset: 2 * SIZE - 4096, data: &[3; 4096] }).unwrap().error, 0);
    plane.restart_engine().unwrap();
    let end = Ask::Read { offset: 2 * SIZE - 4096, length: 4096 };
    assert_eq!(client.call(end).unwrap().data[..], [3; 4096]);
    // There is no engine to tell the next frontend.
    plane.engine().kill();
    plane.restart_frontend().unwrap();
    let mut client = connect(&plane);
    assert_eq!(client.size(), 2 * SIZE, "who follows a killed frontend offers all of it");
    plane.restart_engine().unwrap();
    assert_eq!(client.call(end).unwrap().data[..], [3; 4096]);
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}
