//! Frontends that are replaced or killed while the engine lives.

use super::{busy, members::assert_whole, seeds_from, steps_until, worlds};
use crate::sim::world::World;

/// Case 11: replaced on purpose, nobody notices; killed, clients come anew, and nothing that was
/// acknowledged is lost.
#[test]
fn a_frontend_is_replaced_or_killed_and_the_engine_goes_on() {
    for (seed, mut world) in worlds(120, 100) {
        let on_purpose = seed % 2 == 0;
        if seed % 3 == 0 {
            world.switch();
            busy(&mut world, seed as usize % 25);
        }
        let (waiting, answered) = (world.client.waiting(), world.client.answered);
        world.replace_frontend(on_purpose);
        let forgotten = if on_purpose { 0 } else { waiting };
        assert_eq!(world.client.waiting(), waiting - forgotten);
        steps_until(&mut world, "it goes on", |world| world.client.answered > answered + 20);
        if seed % 3 == 0 {
            world.switch();
        }
        assert_whole(&mut world);
    }
}

/// Again and again, also in the middle of a rebuild, in which writes are held.
#[test]
fn nothing_is_lost_however_often_a_frontend_is_replaced() {
    for seed in seeds_from(12_000, 60) {
        let mut world = World::new(seed);
        busy(&mut world, 80);
        world.kill_replica(1);
        busy(&mut world, 200);
        world.start_replica(1);
        for _ in 0..10 {
            let pause = (world.dice() % 50) as usize;
            busy(&mut world, pause);
            let on_purpose = world.dice().is_multiple_of(2);
            world.replace_frontend(on_purpose);
        }
        // What a dead one had under way has come to its end when the next is answered.
        let answered = world.client.answered;
        steps_until(&mut world, "it goes on", |world| world.client.answered > answered + 20);
        assert_whole(&mut world);
    }
}
