//! Volumes that come from a backup: what they do while somebody else restores them.

use midflight_api::Size;
use midflight_api::longhorn::{Robustness, VolumeState};

use super::super::*;
use super::world::World;

fn from_backup(standby: bool) -> World {
    let mut world = World::new(3, 3);
    world.seen.volume.spec.from_backup = "file:///backups?backup=b&volume=v".into();
    world.seen.volume.spec.standby = standby;
    world
}

fn restored(world: &mut World, standby: bool) {
    let status = world.seen.volume.status.get_or_insert_default();
    (status.restore_initiated, status.restore_required, status.is_standby) = (true, false, standby);
}

fn is_offered(world: &World) -> bool {
    world.seen.endpoint().is_some()
}

#[test]
fn is_attached_without_clients_until_it_holds_its_backup() {
    let mut world = from_backup(false);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert!(!is_offered(&world) && decide(&world.seen).standing.frontend_disabled);
    restored(&mut world, false);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing().0, VolumeState::Detached);
}

#[test]
fn whoever_asked_for_it_waits_until_it_holds_its_backup() {
    let mut world = from_backup(false);
    world.attach("n-2");
    world.settle();
    assert_eq!(world.standing().0, VolumeState::Attaching);
    assert!(!is_offered(&world));
    restored(&mut world, false);
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert!(is_offered(&world) && !decide(&world.seen).standing.frontend_disabled);
}

#[test]
fn a_standby_serves_nobody_and_leaves_a_node_that_is_lost() {
    let mut world = from_backup(true);
    world.settle();
    restored(&mut world, true);
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert!(!is_offered(&world));
    let at = world.seen.attached_node().unwrap().to_string();
    world.lose(&at);
    world.settle();
    assert_ne!(world.seen.attached_node().unwrap().to_string(), at);
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));

    world.return_of(&at);
    world.seen.volume.spec.standby = false;
    world.attach("n-3");
    world.settle();
    assert!(!is_offered(&world), "it is a standby until it holds the newest");
    restored(&mut world, false);
    world.settle();
    assert!(is_offered(&world));
}

#[test]
fn waits_for_a_size_that_its_backup_has() {
    let mut world = from_backup(false);
    world.seen.volume.spec.size = Size::default();
    assert_eq!(world.settle(), Some(Wait::NoSize));
    assert!(world.seen.replicas.is_empty());
}
