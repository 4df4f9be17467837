//! The engine of a v2 volume moves to another node under its clients, and home again.

use jiff::SignedDuration;
use midflight_api::longhorn::{Robustness, TargetMoveReason, TargetMoveState, VolumeState};
use proptest::prelude::*;

use super::super::*;
use super::world::{NEW, NODES, OLD, Trouble, World};

fn aim(world: &mut World, node: &str) {
    world.seen.volume.spec.target_node_id = node.into();
}

/// Where engines of the volume are.
fn engines(world: &World) -> Vec<String> {
    world.seen.engines().map(|(manager, _)| manager.node.to_string()).collect()
}

#[test]
fn the_target_moves_away_and_home() {
    for home in ["n-1", ""] {
        let mut world = World::attached();
        assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::None));
        // One with a copy there, and one without.
        for away in ["n-2", "n-4"] {
            aim(&mut world, away);
            assert_eq!(world.settle(), Some(Wait::Content), "{away}");
            assert_eq!(world.target(), (away.to_owned(), TargetMoveState::Done));
            assert_eq!(engines(&world), [away]);
            assert_eq!(world.seen.target_move().pause_us, 1);
            aim(&mut world, home);
            assert_eq!(world.settle(), Some(Wait::Content), "{away}");
            assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::Done));
            assert_eq!((engines(&world), world.seen.target_move().from.as_str()), (vec!["n-1".into()], away));
        }
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        assert_eq!(world.record().term.number(), 5, "a term for each move");
    }
}

#[test]
fn the_image_is_that_of_the_instance_manager_in_which_the_engine_is() {
    let mut world = World::attached();
    world.manager("im-n-2").image = NEW.into();
    assert_eq!(world.image(), OLD);
    aim(&mut world, "n-2");
    world.settle();
    assert_eq!(world.image(), NEW);
}

#[test]
fn a_node_that_does_not_serve_is_left_for_home() {
    use TargetMoveReason::{EngineFailed, NodeLost, NotInTime, SwitchFailed};
    #[rustfmt::skip]
    let cases = [
        (Trouble::DoesNotStart,    EngineFailed),
        (Trouble::DoesNotTakeOver, SwitchFailed),
        (Trouble::NeverServes,     NotInTime),
        (Trouble::NodeDies,        NodeLost),
    ];
    for (trouble, reason) in cases {
        let mut world = World::attached();
        world.trouble = Some(("n-2", trouble));
        aim(&mut world, "n-2");
        assert!(
            matches!(world.settle(), Some(Wait::TargetFailed { .. } | Wait::Missing { .. })),
            "{trouble:?}"
        );
        assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::Failed), "{trouble:?}");
        assert_eq!(world.seen.target_move().reason, reason, "{trouble:?}");
        assert_eq!(world.record().term.number(), 3, "{trouble:?}: it went back under a higher term");

        // It is tried again when somebody asks again.
        world.trouble = None;
        world.return_of("n-2");
        aim(&mut world, "");
        world.settle();
        assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::TakenBack), "{trouble:?}");
        aim(&mut world, "n-2");
        world.settle();
        assert_eq!(world.target(), ("n-2".to_owned(), TargetMoveState::Done), "{trouble:?}");
    }
}

#[test]
fn a_target_that_cannot_come_home_serves_where_it_was_and_tries_again() {
    for trouble in [Trouble::DoesNotStart, Trouble::DoesNotTakeOver, Trouble::NeverServes] {
        let mut world = World::attached();
        aim(&mut world, "n-2");
        world.settle();
        world.trouble = Some(("n-1", trouble));
        aim(&mut world, "");
        let Some(Wait::NotHome { node, until, .. }) = world.settle() else { panic!("{trouble:?}") };
        assert_eq!((node.as_str(), world.target()), ("n-1", ("n-2".to_owned(), TargetMoveState::Failed)));
        world.trouble = None;
        world.seen.now = until;
        assert_eq!(world.settle(), Some(Wait::Content), "{trouble:?}");
        assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::Done), "{trouble:?}");
    }
}

#[test]
fn a_volume_whose_temporary_target_is_lost_serves_from_home() {
    let mut world = World::attached();
    aim(&mut world, "n-4");
    world.settle();
    world.lose("n-4");
    assert_eq!(world.target().0, "", "nobody has seen it serve");
    assert!(matches!(world.settle(), Some(Wait::TargetFailed { .. })));
    assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::Failed));
    assert_eq!(world.seen.target_move().reason, TargetMoveReason::NodeLost);
    world.return_of("n-4");
    world.settle();
    assert_eq!(engines(&world), ["n-1"], "what was left there is ended");
    assert_eq!(world.target().0, "n-1");
}

#[test]
fn nothing_moves_while_the_frontend_cannot_be_told() {
    let mut world = World::attached();
    aim(&mut world, "n-2");
    world.settle();
    world.lose("n-1");
    assert_eq!(world.settle().map(|wait| matches!(wait, Wait::Missing { .. })), Some(true));
    assert_eq!(world.target(), ("n-2".to_owned(), TargetMoveState::Done), "it serves on without its home");
    world.lose("n-2");
    assert_eq!(world.settle(), Some(Wait::NoManager("n-2".into())));
    world.return_of("n-1");
    world.settle();
    assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::Failed));
}

#[test]
fn a_target_waits_for_an_instance_manager() {
    let mut world = World::attached();
    world.lose("n-4");
    aim(&mut world, "n-4");
    assert_eq!(world.settle(), Some(Wait::NoTarget("n-4".into())));
    assert_eq!(world.target(), ("n-1".to_owned(), TargetMoveState::None));
    world.return_of("n-4");
    world.settle();
    assert_eq!(world.target(), ("n-4".to_owned(), TargetMoveState::Done));
}

#[test]
fn detaching_ends_the_target_wherever_it_is() {
    for steps in 0..8 {
        let mut world = World::attached();
        aim(&mut world, "n-2");
        for _ in 0..steps {
            if let Ok(action) = world.look() {
                world.apply(action);
            }
        }
        world.attach("");
        assert_eq!(world.settle(), Some(Wait::Content), "{steps} steps");
        assert_eq!((world.standing().0, world.target().0), (VolumeState::Detached, String::new()));
        assert_eq!(world.seen.volume.spec.target_node_id, "", "{steps} steps");
        assert!(engines(&world).is_empty(), "{steps} steps");
        world.attach("n-3");
        assert_eq!(world.settle(), Some(Wait::Content), "{steps} steps");
        assert_eq!(world.target().0, "n-3");
    }
}

#[test]
fn a_volume_of_processes_keeps_its_engine_at_home() {
    let mut world = World::attached_v1();
    aim(&mut world, "n-2");
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(engines(&world), ["n-1"]);
}

proptest! {
    /// Whatever is asked of the target and whichever nodes are lost, the volume serves once they are back, and the record's
    /// terms only grow.
    #[test]
    fn the_target_ends_where_it_is_asked_to_be(
        events in prop::collection::vec((0..4u8, 0..4usize, 0..6usize), 1..10),
    ) {
        let mut world = World::attached();
        let mut away: Vec<usize> = Vec::new();
        let mut term = world.record().term;
        for (event, number, steps) in events {
            match event {
                0 if away.len() < 2 && !away.contains(&number) => {
                    away.push(number);
                    world.lose(NODES[number]);
                }
                1 => {
                    away.retain(|node| *node != number);
                    world.return_of(NODES[number]);
                }
                _ => aim(&mut world, NODES[number]),
            }
            world.seen.now += SignedDuration::from_secs(10);
            for _ in 0..steps {
                if let Ok(action) = world.look() {
                    world.apply(action);
                }
                world.engine_works();
            }
            prop_assert!(world.record().term >= term);
            term = world.record().term;
        }
        NODES.iter().for_each(|node| world.return_of(node));
        world.settle();
        aim(&mut world, "");
        world.seen.now += SignedDuration::from_secs(60);
        world.settle();
        aim(&mut world, "n-3");
        world.seen.now += SignedDuration::from_secs(60);
        world.settle();
        prop_assert_eq!(world.target(), ("n-3".to_owned(), TargetMoveState::Done));
        prop_assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        prop_assert_eq!(engines(&world), ["n-3"]);
    }
}
