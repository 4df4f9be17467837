//! Replicas that are told to leave, and what happens until the record says that they are out.

use super::{
    busy, finish,
    members::{assert_whole, assert_whole_again},
    steps_until, worlds,
};
use crate::{
    engine::{
        control::{Answer, Command},
        members::{Mode, Service},
    },
    sim::{nodes::address_of, world::World},
};

/// A copy that is told to leave is out, and stays out although it can be reached; nothing that it misses is lost when it comes back.
#[test]
fn a_replica_that_is_released_stays_away_until_another_engine_knows_it() {
    for (seed, mut world) in worlds(100, 100) {
        world.answers.clear();
        steps_until(&mut world, "it serves", |world| world.is_serving(0));
        release(&mut world, 1);
        busy(&mut world, 200);
        assert_eq!(world.mode(1), Mode::Out, "it is not asked to return");
        if seed % 2 == 0 {
            release(&mut world, 0);
            busy(&mut world, 50);
            world.command(&Command::Release { replica: "2".into() });
            assert!(matches!(world.answers.last(), Some(Answer::Refused(why)) if why.contains("the last")));
            busy(&mut world, 50);
        }
        if seed % 3 == 0 {
            world.restart_engine(0);
        } else {
            introduce(&mut world, 1);
            steps_until(&mut world, "it is asked to return", |world| world.mode(1) != Mode::Out);
            introduce(&mut world, 0);
        }
        assert_whole(&mut world);
    }
}

/// Steps in which nobody asks for anything.
fn rest_until(world: &mut World, what: &str, done: impl Fn(&World) -> bool) {
    for _ in 0..20_000 {
        if done(world) {
            return;
        }
        world.step();
    }
    panic!("never: {what}; {}", world.describe());
}

/// Bytes that the newest engine has copied.
fn copied(world: &mut World) -> u64 {
    world.answers.clear();
    world.command(&Command::Status);
    match world.answers.pop() {
        Some(Answer::Status(status)) => status.copied_bytes,
        other => panic!("{other:?}"),
    }
}

fn introduce(world: &mut World, at: usize) {
    world.command(&Command::Introduce { replica: at.to_string(), address: address_of(at) });
    assert_eq!(world.answers.last(), Some(&Answer::Done));
}

/// Asks again and again, as whoever lets a copy go does.
fn release(world: &mut World, at: usize) {
    let replica = at.to_string();
    for _ in 0..1000 {
        world.command(&Command::Release { replica: replica.clone() });
        if world.answers.last() == Some(&Answer::Done) {
            return;
        }
        (0..10).for_each(|_| _ = world.step());
    }
    panic!("{replica} is never let go; {}", world.describe());
}

/// Nobody flushes here but the engine itself: what was written long before a copy left is not copied to it.
#[test]
fn a_replica_that_is_released_misses_nothing_that_was_written_before() {
    for (seed, mut world) in worlds(60, 100) {
        if seed % 2 == 0 {
            world.switch();
            steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        }
        world.settle();
        release(&mut world, 1);
        assert_eq!(world.mode(1), Mode::Out);
        match seed % 3 {
            0 => world.restart_engine(world.engines.len() - 1),
            _ => introduce(&mut world, 1),
        }
        rest_until(&mut world, "every copy in service", World::is_whole);
        assert_eq!(copied(&mut world), 0);
        assert_whole(&mut world);
    }
}

/// Lets a copy go while the record cannot be changed.
fn half_released(world: &mut World) {
    steps_until(world, "it serves", |world| world.is_serving(0));
    world.shelf.reachable = false;
    let departs = |world: &World| {
        world.engines[0].core.as_ref().is_some_and(|core| core.services()[1] == Service::Departing)
    };
    for _ in 0..1000 {
        world.command(&Command::Release { replica: "1".into() });
        busy(world, 10);
        if departs(world) {
            return;
        }
    }
    panic!("it never departs; {}", world.describe());
}

/// A copy that is let go takes writes until the record says that it is out: nobody waits for the record.
#[test]
fn writes_go_on_while_a_replica_is_released() {
    for (seed, mut world) in worlds(60, 100) {
        half_released(&mut world);
        busy(&mut world, seed as usize);
        for _ in 0..3 {
            let acknowledged = world.client.ledger.all_acknowledged();
            steps_until(&mut world, "writes go on", |world| {
                world.client.ledger.all_acknowledged() != acknowledged
            });
        }
        assert_eq!(world.mode(1), Mode::InService);
        finish(&mut world);
        world.shelf.reachable = true;
        steps_until(&mut world, "out", |world| world.mode(1) == Mode::Out);
        busy(&mut world, 50);
        introduce(&mut world, 1);
        assert_whole(&mut world);
    }
}

/// Whoever let a copy go wants it back before the record says that it is out: it leaves, and returns to the same engine.
#[test]
fn a_replica_that_is_wanted_back_while_it_is_released_returns() {
    for (seed, mut world) in worlds(60, 100) {
        half_released(&mut world);
        busy(&mut world, seed as usize);
        introduce(&mut world, 1);
        busy(&mut world, seed as usize % 30);
        world.shelf.reachable = true;
        steps_until(&mut world, "out", |world| world.mode(1) == Mode::Out);
        assert_whole(&mut world);
        assert_eq!(world.engines.len(), 1, "no other engine was needed");
    }
}

/// Whatever ends before the record says that a copy is out: the copy, its power, the engine, those that stay. Nothing
/// is lost, and everyone is equal in the end.
#[test]
fn nothing_is_lost_when_someone_dies_while_a_replica_is_released() {
    for (seed, mut world) in worlds(240, 100) {
        half_released(&mut world);
        busy(&mut world, seed as usize % 50);
        match seed % 6 {
            0 => world.kill_replica(1),
            1 => world.lose_power(1),
            2 => world.restart_engine(0),
            3 => world.kill_replica(0),
            4 => [0, 2].into_iter().for_each(|at| world.kill_replica(at)),
            _ => {
                world.switch();
            }
        }
        busy(&mut world, seed as usize % 70);
        world.shelf.reachable = true;
        busy(&mut world, seed as usize % 90);
        assert_whole_again(&mut world);
    }
}
