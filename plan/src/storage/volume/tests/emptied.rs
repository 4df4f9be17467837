//! Replicas leave a node that is emptied.

use midflight_api::longhorn::{Robustness, VolumeState};

use super::super::*;
use super::world::World;

fn empty(world: &mut World, node: &str) {
    for replica in &mut world.seen.replicas {
        replica.spec.eviction_requested = replica.spec.instance.node_id == node;
    }
    for place in world.seen.places.iter_mut().filter(|place| place.node == node) {
        place.closed = Some(crate::storage::schedule::Closed::Off);
    }
}

#[test]
fn a_replica_leaves_when_another_is_in_its_place() {
    let mut world = World::attached();
    let node = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    empty(&mut world, &node);
    for _ in 0..20 {
        let Ok(action) = decide(&world.seen).next else { break };
        world.apply(action);
        world.engine_works();
        assert!(world.seen.in_service().count() >= 3, "never fewer copies than before");
    }
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert!(!world.nodes().contains(&node), "{:?}", world.nodes());
    assert_eq!(world.seen.replicas.len(), 3);
}

#[test]
fn a_detached_volume_is_brought_up_for_it_where_that_is_wanted() {
    let mut world = World::new(4, 3);
    world.settle();
    let node = world.nodes()[1].clone();
    empty(&mut world, &node);
    assert!(matches!(world.settle(), Some(Wait::CannotLeave { .. })));
    world.seen.rebuilds_detached = true;
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing().0, VolumeState::Detached);
    assert!(!world.nodes().contains(&node), "{:?}", world.nodes());
    assert_eq!(world.seen.in_service().count(), 3);
}

#[test]
fn it_stays_where_no_other_node_has_room_and_while_nobody_serves() {
    let mut world = World::new(3, 3);
    world.settle();
    empty(&mut world, "n-2");
    assert!(matches!(world.settle(), Some(Wait::CannotLeave { .. })));
    world.attach("n-1");
    assert!(matches!(world.settle(), Some(Wait::NoPlace(_))));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert_eq!(world.nodes(), ["n-1", "n-2", "n-3"]);
}
