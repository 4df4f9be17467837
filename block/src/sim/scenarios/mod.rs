//! What must hold whatever happens: each failure case by itself, and all of them
//! at random.

mod members;
mod snapshots;
mod switching;

use std::ops::Range;

use super::{network::Node, world::World};

/// As many seeds as a test run has time for, from one on; `MIDFLIGHT_SOAK` multiplies them, and
/// `MIDFLIGHT_WORLD` chooses a single one.
fn seeds_from(first: u64, count: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("MIDFLIGHT_WORLD") {
        Some(only) => only..only + 1,
        None => first..first + count * number("MIDFLIGHT_SOAK").unwrap_or(1),
    }
}

/// Worlds of as many seeds, each with its seed, after so many steps under load.
fn worlds(count: u64, steps: usize) -> impl Iterator<Item = (u64, World)> {
    seeds_from(0, count).map(move |seed| {
        let mut world = World::new(seed);
        busy(&mut world, steps);
        (seed, world)
    })
}

fn busy(world: &mut World, steps: usize) {
    for _ in 0..steps {
        if world.client.waiting() < 6 {
            world.ask();
        }
        world.step();
    }
}

fn steps_until(world: &mut World, what: &str, done: impl Fn(&World) -> bool) {
    for _ in 0..20_000 {
        if done(world) {
            return;
        }
        if world.client.waiting() < 6 {
            world.ask();
        }
        world.step();
    }
    panic!("never: {what}; {}", world.describe());
}

fn finish(world: &mut World) {
    world.settle();
    world.judge();
}

#[test]
fn a_planned_switch_drains_and_loses_nothing() {
    for (_, mut world) in worlds(50, 100) {
        world.switch();
        steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        busy(&mut world, 100);
        finish(&mut world);
        assert!(world.refused.is_empty(), "{:?}", world.refused);
    }
}

/// Case 1: the old engine hangs, wakes up later, and finds itself fenced out.
#[test]
fn a_hung_engine_is_fenced_and_its_requests_replayed() {
    for (_, mut world) in worlds(50, 150) {
        world.engines[0].paused = true;
        world.switch();
        steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        assert!(!world.switched[0].drained);
        world.engines[0].paused = false;
        busy(&mut world, 200);
        finish(&mut world);
    }
}

/// Case 2: killed in the middle of writes, restarted by its supervisor.
#[test]
fn a_killed_engine_comes_back_with_a_higher_incarnation() {
    for seed in seeds_from(0, 100) {
        let mut world = World::new(seed);
        let length = 50 + (seed as usize * 7) % 100;
        busy(&mut world, length);
        world.restart_engine(0);
        busy(&mut world, 200);
        finish(&mut world);
    }
}

/// Cases 3 and 4: the new engine dies before it has the volume; nothing happened.
#[test]
fn a_new_engine_that_dies_early_leaves_the_old_one_serving() {
    for (seed, mut world) in worlds(100, 100) {
        let new = world.switch();
        busy(&mut world, seed as usize % 20);
        if world.switched.is_empty() {
            world.kill_engine(new);
            steps_until(&mut world, "an end", |world| {
                !world.switched.is_empty() || !world.refused.is_empty()
            });
        }
        // The replicas may have promised the lost term: the coordinator goes on with the next.
        world.switch();
        busy(&mut world, 200);
        finish(&mut world);
    }
}

/// Case 16: everyone promised, but the frontend cannot reach the new engine.
#[test]
fn a_frontend_that_cannot_reach_the_new_engine_gets_another() {
    for (_, mut world) in worlds(50, 100) {
        let new = world.switch();
        busy(&mut world, 12);
        world.network.cut(Node::Frontend, Node::Engine(new));
        busy(&mut world, 100);
        world.network.break_cut();
        world.network.heal();
        busy(&mut world, 50);
        world.switch();
        busy(&mut world, 200);
        finish(&mut world);
    }
}

#[test]
fn nothing_is_lost_whatever_happens_to_engines() {
    for seed in seeds_from(1000, 300) {
        let mut world = World::new(seed);
        for _ in 0..30 {
            let pause = (world.dice() % 60) as usize;
            busy(&mut world, pause);
            let last = world.engines.len() - 1;
            match world.dice() % 6 {
                0..=2 => {
                    world.switch();
                }
                3 => world.restart_engine(last),
                4 => world.engines[last].paused = true,
                _ => world.engines.iter_mut().for_each(|engine| engine.paused = false),
            }
        }
        world.engines.iter_mut().for_each(|engine| engine.paused = false);
        busy(&mut world, 100);
        // However it ended, the coordinator's next term gets the volume.
        for _ in 0..3 {
            world.switch();
            busy(&mut world, 300);
        }
        finish(&mut world);
    }
}
