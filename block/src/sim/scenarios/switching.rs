//! Switch-overs that are left half done, begun twice, or meet a dead node.

use std::time::Duration;

use super::{busy, finish, members::assert_whole, steps_until, worlds};
use crate::{
    engine::members::Mode,
    epoch::Epoch,
    frontend::core::{Input, Standing},
    sim::{
        network::Node,
        nodes::{Nodes, address_of},
        world::World,
    },
};

const DRAIN_WITHIN: Duration = Duration::from_millis(20);

fn promised(world: &World, epoch: Epoch) -> usize {
    let promised =
        |at: &usize| world.replicas[*at].core.as_ref().is_some_and(|core| core.promised() == epoch);
    (0..world.replicas.len()).filter(promised).count()
}

/// Gives the volume's next term to an engine of which the frontend does not know.
pub(super) fn start_successor(world: &mut World) -> usize {
    world.hand_over();
    world.start_engine(Epoch::of_term(world.shelf.record.term))
}

pub(super) fn tell_frontend(world: &mut World, engine: usize) {
    world.feed_frontend(Input::Switch { to: address_of(engine), drain_within: DRAIN_WITHIN });
}

/// Case 5: the new engine dies when some, or all, replicas have promised, or when it
/// has served; the next one gets the volume.
#[test]
fn a_new_engine_that_dies_with_promises_is_followed_by_a_third() {
    for (seed, mut world) in worlds(60, 100) {
        let new = world.switch();
        let epoch = world.engines[new].epoch;
        match seed % 4 {
            0 => {
                steps_until(&mut world, "served", |world| !world.switched.is_empty());
                busy(&mut world, 20);
            }
            count => steps_until(&mut world, "promises", |world| promised(world, epoch) >= count as usize),
        }
        world.kill_engine(new);
        busy(&mut world, 30);
        world.switch();
        busy(&mut world, 150);
        assert_whole(&mut world);
    }
}

/// Case 9, and a replica in the engine's own process: both die at once, in the middle
/// of a switch or without one, and come back together or one by one.
#[test]
fn an_engine_dies_together_with_a_replica() {
    for (seed, mut world) in worlds(120, 100) {
        if seed % 2 == 0 {
            world.switch();
            busy(&mut world, seed as usize % 25);
        }
        world.kill_replica(0);
        world.restart_engine(0);
        if seed % 3 == 0 {
            world.start_replica(0);
            busy(&mut world, 50);
        } else {
            busy(&mut world, 100);
            world.start_replica(0);
        }
        if seed % 2 == 0 {
            world.switch();
        }
        assert_whole(&mut world);
    }
}

/// The record names the next engine long before the frontend is told of it: until that has gone over, the engine before
/// serves on, however often it looks at the record. Afterwards it ends, be it that no replica tells it.
#[test]
fn an_engine_that_is_to_be_followed_serves_until_the_frontend_has_gone_over() {
    for (seed, mut world) in worlds(60, 100) {
        let next = start_successor(&mut world);
        for _ in 0..5 {
            world.look_at_record(0);
            busy(&mut world, seed as usize % 30);
        }
        let answered = world.client.answered;
        steps_until(&mut world, "it goes on", |world| world.client.answered > answered + 20);
        assert!(world.is_serving(0), "{}", world.describe());
        tell_frontend(&mut world, next);
        steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        assert!(world.switched[0].drained, "the old one answered what it had begun");
        world.look_at_record(0);
        assert!(world.engines[0].core.is_none(), "{}", world.describe());
        busy(&mut world, 100);
        finish(&mut world);
    }
}

/// Without a word of a switch-over, or with clients elsewhere, a higher term is the end of an engine.
#[test]
fn an_engine_ends_at_once_when_nobody_is_on_the_way_from_it() {
    for (_, mut world) in worlds(20, 100) {
        start_successor(&mut world);
        world.shelf.record.switching = false;
        world.look_at_record(0);
        assert!(world.engines[0].core.is_none());
    }
}

/// A frontend that was killed has a successor that finds the engine before the last one: what it reads there is refused
/// by every replica that has promised to the last one, and it goes on to that.
#[test]
fn a_successor_of_the_frontend_that_finds_the_old_engine_reads_nothing_old() {
    for (seed, mut world) in worlds(60, 100) {
        let before = world.frontend.standing();
        let next = start_successor(&mut world);
        tell_frontend(&mut world, next);
        steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        busy(&mut world, seed as usize % 20);
        let known = Standing { fallback: Some(address_of(next)), ..before };
        world.replace_frontend_by(Standing { epoch: Epoch::NONE, ..known }, false);
        let answered = world.client.answered;
        steps_until(&mut world, "it goes on", |world| world.client.answered > answered + 20);
        assert!(world.is_serving(next), "{}", world.describe());
        finish(&mut world);
    }
}

/// Case 12: the coordinator dies after any of its steps; whoever follows it drives
/// the same switch on.
#[test]
fn a_switch_that_its_coordinator_left_behind_is_driven_on() {
    for (seed, mut world) in worlds(80, 100) {
        let step = seed % 4;
        // The term is taken; the engine is started; the frontend is told; it has moved.
        let engine = match step {
            0 => {
                world.hand_over();
                None
            }
            _ => Some(start_successor(&mut world)),
        };
        if step >= 2 {
            tell_frontend(&mut world, engine.expect("it was started"));
        }
        if step == 3 {
            steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        }
        busy(&mut world, seed as usize % 40);
        let term = Epoch::of_term(world.shelf.record.term);
        let engine = engine.unwrap_or_else(|| world.start_engine(term));
        let before = world.switched.len() + world.refused.len();
        tell_frontend(&mut world, engine);
        steps_until(&mut world, "an end", |world| world.switched.len() + world.refused.len() > before);
        busy(&mut world, 100);
        finish(&mut world);
        let serving = world.engines[engine].core.as_ref().map(|core| core.phase());
        assert_eq!(serving, Some(crate::engine::core::Phase::Serving), "step {step}: {}", world.describe());
    }
}

/// Case 13: two coordinators switch at once. The record gives each a term of its own;
/// the higher one has the volume, in whatever order the frontend hears of them.
#[test]
fn of_two_coordinators_the_one_with_the_higher_term_wins() {
    for (seed, mut world) in worlds(80, 100) {
        let (first, second) = (start_successor(&mut world), start_successor(&mut world));
        let order = if seed % 2 == 0 { [first, second] } else { [second, first] };
        for engine in order {
            tell_frontend(&mut world, engine);
            busy(&mut world, seed as usize % 30);
        }
        busy(&mut world, 200);
        // Whose switch was refused looks at the record and drives on what it says.
        tell_frontend(&mut world, second);
        busy(&mut world, 200);
        assert_whole(&mut world);
    }
}

/// Case 15: the old engine is cut off from one replica while the record moves on. It
/// cannot drop that replica, so what it had under way is answered by the new one.
#[test]
fn an_engine_cut_off_from_a_replica_cannot_drop_it_after_the_record_has_moved_on() {
    for (seed, mut world) in worlds(60, 100) {
        world.network.cut(Node::Engine(0), Node::Replica(2));
        busy(&mut world, 60);
        assert_eq!(world.mode(2), Mode::InService, "nobody has told the engine yet");
        let engine = start_successor(&mut world);
        world.network.break_cut();
        busy(&mut world, seed as usize % 40);
        assert_eq!(world.mode(2), Mode::InService, "an engine of an older term changed the record");
        tell_frontend(&mut world, engine);
        busy(&mut world, 100);
        world.network.heal();
        assert_whole(&mut world);
    }
}

/// Case 18: the same command again, early, late and after its end, changes nothing.
#[test]
fn a_switch_asked_for_again_and_again_happens_once() {
    for (seed, mut world) in worlds(60, 100) {
        let engine = start_successor(&mut world);
        for _ in 0..4 {
            tell_frontend(&mut world, engine);
            busy(&mut world, seed as usize % 12);
        }
        busy(&mut world, 300);
        tell_frontend(&mut world, engine);
        busy(&mut world, 100);
        assert_whole(&mut world);
        assert_eq!(promised(&world, world.engines[engine].epoch), 3, "{}", world.describe());
    }
}
