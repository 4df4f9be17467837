//! What must hold whatever happens: each failure case by itself, and all of them
//! at random.

mod copying;
mod frontends;
mod members;
mod release;
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

/// Cases 3 and 4: the new engine dies before it has the volume; nothing happened, and nobody has to do
/// anything. (A promise of the lost term needs a coordinator: that is case 5.)
#[test]
fn a_new_engine_that_dies_early_leaves_the_old_one_serving() {
    let mut early = 0;
    for (seed, mut world) in worlds(100, 100) {
        let new = world.switch();
        busy(&mut world, seed as usize % 20);
        let epoch = world.engines[new].epoch;
        if !world.switched.is_empty() || (0..3).any(|at| world.promised(at) >= Some(epoch)) {
            continue;
        }
        early += 1;
        world.kill_engine(new);
        steps_until(&mut world, "an end", |world| !world.refused.is_empty());
        let answered = world.client.answered;
        steps_until(&mut world, "it goes on", |world| world.client.answered > answered + 20);
        assert!(world.is_serving(0) && world.switched.is_empty(), "{}", world.describe());
        finish(&mut world);
    }
    assert!(early > 0, "none died early");
}

/// Case 16: everyone promised, but the frontend cannot reach the new engine. Its lease ends, and the
/// coordinator gives the volume to one that it can reach.
#[test]
fn a_frontend_that_cannot_reach_the_new_engine_gets_another() {
    for (_, mut world) in worlds(50, 100) {
        let new = world.switch();
        let epoch = world.engines[new].epoch;
        steps_until(&mut world, "all have promised", |world| {
            (0..3).all(|at| world.promised(at) == Some(epoch))
        });
        assert!(world.switched.is_empty());
        world.network.cut(Node::Frontend, Node::Engine(new));
        steps_until(&mut world, "it is given up", |world| !world.refused.is_empty());
        let third = world.switch();
        steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        busy(&mut world, 200);
        finish(&mut world);
        assert!(world.is_serving(third), "{}", world.describe());
    }
}

/// The pause has a lease: a new engine that hangs when it is told to go is left for the old one, although no
/// coordinator is there to see it.
#[test]
fn an_engine_that_hangs_in_the_pause_is_left_for_the_old_one() {
    for (_, mut world) in worlds(50, 100) {
        let new = world.switch();
        steps_until(&mut world, "the pause has begun", |world| world.frontend.is_going());
        world.engines[new].paused = true;
        steps_until(&mut world, "it is given up", |world| !world.refused.is_empty());
        let answered = world.client.answered;
        steps_until(&mut world, "it goes on", |world| world.client.answered > answered + 20);
        assert!(world.is_serving(0), "{}", world.describe());
        finish(&mut world);
        // When it wakes nobody listens to it; the next switch happens as ever.
        world.engines[new].paused = false;
        world.switch();
        steps_until(&mut world, "switched", |world| !world.switched.is_empty());
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
