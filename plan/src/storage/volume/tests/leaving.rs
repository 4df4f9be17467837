//! Copies that are told to leave, and to come back.

use jiff::SignedDuration;
use midflight_api::MemberMode;
use midflight_api::longhorn::{InstanceState, Robustness, VolumeState};
use proptest::prelude::*;

use super::super::*;
use super::world::World;
use crate::storage::schedule::Closed;

const LEAVE: InstanceState = InstanceState::Stopped;
const RUN: InstanceState = InstanceState::Running;

/// Whether the copy on a node is in service, and whether it runs.
fn copy(world: &World, node: &str) -> (bool, bool) {
    let member = world.seen.members().iter().find(|member| member.node_id == node).expect("a copy is there");
    let manager = world.seen.managers.iter().find(|manager| manager.node == node).expect("it is known");
    (member.mode == MemberMode::ReadWrite, manager.find(member.replica.as_str()).is_some())
}

#[test]
fn a_copy_leaves_keeps_its_place_and_comes_back() {
    for attached in [World::attached, World::attached_v1] {
        let mut world = attached();
        let nodes = world.nodes();
        let leaving = nodes[1].clone();
        world.tell(&leaving, LEAVE);
        assert!(matches!(world.settle(), Some(Wait::Left(left)) if left.len() == 1));
        assert_eq!(copy(&world, &leaving), (false, false));
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
        let waiting = decide(&world.seen).standing.waiting.expect("people are told why").to_string();
        assert!(waiting.contains("told to leave") && waiting.contains(&leaving), "{waiting}");

        // However long it is away, nobody takes its place.
        world.note_failures();
        world.seen.now += SignedDuration::from_hours(100);
        world.settle();
        assert_eq!((world.nodes(), world.seen.replicas.len()), (nodes, 3));

        world.tell(&leaving, RUN);
        assert_eq!(world.settle(), Some(Wait::Content));
        assert_eq!(copy(&world, &leaving), (true, true));
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    }
}

#[test]
fn no_new_copy_is_made_while_one_is_told_to_leave() {
    let mut world = World::attached();
    let nodes = world.nodes();
    world.tell(&nodes[1], LEAVE);
    world.settle();
    world.lose(&nodes[2]);
    world.seen.now += SignedDuration::from_hours(1);
    world.settle();
    assert_eq!(world.nodes(), nodes, "the one that is lost is not given up either");
    world.tell(&nodes[1], RUN);
    world.settle();
    assert_ne!(world.nodes(), nodes, "now it is");
}

/// Seed 004: a volume under upgrade gets no new replicas, also one that has none on the node of its engine.
#[test]
fn no_new_copy_is_made_while_the_node_of_the_engine_is_upgraded() {
    for (attached, is_v2) in [(World::attached as fn() -> World, true), (World::attached_v1, false)] {
        let mut world = attached();
        let nodes = world.nodes();
        let engine = world.seen.volume.spec.node_id.clone();
        let close = |world: &mut World, closed| {
            world.seen.places.iter_mut().find(|place| place.node == engine).expect("a place").closed = closed;
        };
        close(&mut world, Some(Closed::Upgrading));
        let lost = nodes.iter().find(|node| engine != node.as_str()).expect("there are three");
        world.lose(lost);
        world.seen.now += SignedDuration::from_hours(1);
        let wait = world.settle();
        assert_eq!(wait == Some(Wait::NodeUpgraded(engine.clone())), is_v2, "{wait:?}");
        assert_eq!(world.nodes() == nodes, is_v2, "v1 volumes have nothing to do with it");
        close(&mut world, None);
        world.settle();
        assert_ne!(world.nodes(), nodes, "now another takes its place");
    }
}

#[test]
fn the_last_copy_in_service_stays() {
    let mut world = World::attached();
    let nodes = world.nodes();
    nodes.iter().for_each(|node| world.tell(node, LEAVE));
    let Some(Wait::LastCopy { node, others, .. }) = world.settle() else { panic!("who blocks is named") };
    assert_eq!(copy(&world, node.as_str()), (true, true));
    assert_eq!(others.matches("is err").count(), 2, "{others}");
    assert_eq!(world.seen.in_service().count(), 1);
    // Another comes back: it may go now.
    let other = nodes.iter().find(|other| *other != node.as_str()).expect("there are three");
    world.tell(other, RUN);
    assert!(matches!(world.settle(), Some(Wait::Left(left)) if left.len() == 2));
    assert_eq!((copy(&world, other), copy(&world, node.as_str())), ((true, true), (false, false)));
}

#[test]
fn a_detached_volume_is_attached_without_the_copy_that_is_to_leave() {
    let mut world = World::attached();
    let nodes = world.nodes();
    world.attach("");
    world.settle();
    world.tell(&nodes[1], LEAVE);
    world.settle();
    assert_eq!(world.seen.in_service().count(), 3, "it has missed nothing");
    world.attach("n-1");
    world.settle();
    assert_eq!(copy(&world, &nodes[1]), (false, false));
    world.tell(&nodes[1], RUN);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
}

#[test]
fn the_target_moves_while_a_copy_is_away() {
    let mut world = World::attached();
    world.tell("n-1", LEAVE);
    world.settle();
    for target in ["n-2", "n-1"] {
        world.seen.volume.spec.target_node_id = target.into();
        world.settle();
        assert_eq!(world.target().0, target);
        assert_eq!(copy(&world, "n-1"), (false, false), "with the target on {target}");
    }
    world.tell("n-1", RUN);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(copy(&world, "n-1"), (true, true));
}

/// The engine lets a copy go after whoever gave the order has given it up, and after the copy was told to run again, or before.
#[test]
fn a_copy_that_is_let_go_too_late_comes_back() {
    for (attached, is_out) in
        [(World::attached as fn() -> World, false), (World::attached, true), (World::attached_v1, true)]
    {
        let mut world = attached();
        let leaving = world.nodes()[1].clone();
        world.is_slow = true;
        world.tell(&leaving, LEAVE);
        loop {
            let action = world.look().expect("it is let go");
            let is_order = matches!(action, Action::ReleaseReplica { .. });
            world.apply(action);
            if is_order {
                break;
            }
        }
        if is_out {
            world.engine_works();
            assert_eq!(copy(&world, &leaving), (false, true));
        }
        world.tell(&leaving, RUN);
        world.settle();
        world.engine_works();
        assert_eq!(world.settle(), Some(Wait::Content));
        assert_eq!(copy(&world, &leaving), (true, true));
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    }
}

/// An order that was not carried out in time is given again, until it is.
#[test]
fn a_copy_that_is_let_go_late_leaves_all_the_same() {
    let mut world = World::attached();
    let leaving = world.nodes()[1].clone();
    world.is_slow = true;
    world.tell(&leaving, LEAVE);
    for _ in 0..5 {
        let action = world.look().expect("it is let go");
        world.apply(action);
        world.engine_works();
    }
    assert_eq!(
        copy(&world, &leaving),
        (false, true),
        "it runs until the engine says that it knows it no more"
    );
    world.is_slow = false;
    assert!(matches!(world.settle(), Some(Wait::Left(left)) if left.len() == 1));
    assert_eq!(copy(&world, &leaving), (false, false));
}

proptest! {
    #[test]
    fn whoever_is_told_to_leave_a_copy_stays_and_all_come_back(
        events in prop::collection::vec((any::<bool>(), any::<bool>(), 0..3usize, 0..6usize), 1..12),
    ) {
        let mut world = World::attached();
        let nodes = world.nodes();
        for (leave, is_slow, number, steps) in events {
            world.is_slow = is_slow;
            world.tell(&nodes[number], if leave { LEAVE } else { RUN });
            for _ in 0..steps {
                if let Ok(action) = world.look() {
                    world.apply(action);
                }
                world.engine_works();
                prop_assert!(world.seen.in_service().count() > 0);
                prop_assert_eq!(world.seen.replicas.len(), 3);
            }
        }
        nodes.iter().for_each(|node| world.tell(node, RUN));
        prop_assert_eq!(world.settle(), Some(Wait::Content));
        prop_assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    }
}
