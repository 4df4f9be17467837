//! Replicas that fail, stay away, lose power and come back.

use super::{
    busy, finish, seeds_from, steps_until,
    switching::{start_successor, tell_frontend},
    worlds,
};
use crate::{
    engine::{
        control::{Answer, Command, Trouble},
        members::Mode,
    },
    sim::{network::Node, nodes::address_of, world::World},
    wire::Status,
};

/// Every copy is in service again and they are alike.
pub(super) fn assert_whole(world: &mut World) {
    steps_until(world, "every copy in service", World::is_whole);
    finish(world);
    for at in 1..world.replicas.len() {
        let (one, other) = (world.content(0), world.content(at));
        let differ = one.iter().zip(&other).position(|(one, other)| one != other);
        assert_eq!(differ, None, "replica {at} differs; {:?}", world.shelf.record.members);
        assert!(world.snapshots(0) == world.snapshots(at), "snapshots of replica {at} differ");
    }
}

/// Misfortunes end; everyone is started who is dead, and a coordinator gives the volume to the next term.
pub(super) fn assert_whole_again(world: &mut World) {
    world.shelf.reachable = true;
    world.network.break_cut();
    world.network.heal();
    world.engines.iter_mut().for_each(|engine| engine.paused = false);
    world.replicas.iter().for_each(|node| node.disk.mend());
    for at in 0..world.replicas.len() {
        if world.replicas[at].core.is_none() {
            world.start_replica(at);
        }
    }
    world.switch();
    busy(world, 500);
    world.switch();
    assert_whole(world);
}

/// Case 6 without a switch, and case 7: meanwhile the volume may have moved on to a higher epoch than the
/// one that the copy has promised.
#[test]
fn a_replica_that_dies_is_dropped_and_comes_back_by_rebuild() {
    for (seed, mut world) in worlds(100, 100) {
        world.kill_replica(1);
        steps_until(&mut world, "dropped", |world| world.mode(1) == Mode::Out);
        busy(&mut world, 100);
        if seed % 2 == 0 {
            world.switch();
            steps_until(&mut world, "switched", |world| !world.switched.is_empty());
            busy(&mut world, 50);
        }
        world.judge();
        world.start_replica(1);
        let newest = world.engines.last().expect("an engine").epoch;
        assert_eq!(world.promised(1) < Some(newest), seed % 2 == 0, "an old promise");
        assert_whole(&mut world);
        assert_eq!(world.promised(1), Some(newest));
    }
}

#[test]
fn a_replica_that_loses_power_gets_back_what_it_had_not_synced() {
    for (seed, mut world) in worlds(200, 150) {
        world.lose_power(2);
        if seed % 2 == 0 {
            steps_until(&mut world, "dropped", |world| world.mode(2) == Mode::Out);
            busy(&mut world, 50);
        }
        world.start_replica(2);
        steps_until(&mut world, "noticed", |world| world.shelf.record.member_version > 1);
        assert_whole(&mut world);
    }
}

/// Cases 14 and 15: while the record cannot be changed writes wait; nothing is
/// acknowledged that only some have.
#[test]
fn writes_wait_while_the_record_cannot_be_reached() {
    for (_, mut world) in worlds(50, 100) {
        world.shelf.reachable = false;
        world.kill_replica(0);
        busy(&mut world, 300);
        let acknowledged = world.client.ledger.all_acknowledged();
        busy(&mut world, 200);
        assert_eq!(world.mode(0), Mode::InService);
        assert_eq!(world.client.ledger.all_acknowledged(), acknowledged, "only reads can go on");
        world.shelf.reachable = true;
        world.start_replica(0);
        assert_whole(&mut world);
    }
}

/// Case 14: once the record has the next term, the switch itself needs it no more.
#[test]
fn a_switch_is_completed_while_the_record_cannot_be_reached() {
    for (seed, mut world) in worlds(50, 100) {
        let new = start_successor(&mut world);
        busy(&mut world, seed as usize % 20);
        world.shelf.reachable = false;
        tell_frontend(&mut world, new);
        steps_until(&mut world, "switched", |world| !world.switched.is_empty());
        let acknowledged = world.client.ledger.all_acknowledged();
        steps_until(&mut world, "writes go on", |world| {
            world.client.ledger.all_acknowledged() != acknowledged
        });
        assert!(world.is_serving(new));
        world.shelf.reachable = true;
        assert_whole(&mut world);
    }
}

/// Case 6: a replica dies in the middle of a switch.
#[test]
fn a_replica_that_dies_in_a_switch_is_dropped_by_the_new_engine() {
    for (seed, mut world) in worlds(100, 100) {
        world.switch();
        busy(&mut world, seed as usize % 25);
        world.kill_replica(1);
        steps_until(&mut world, "dropped", |world| world.mode(1) == Mode::Out);
        world.start_replica(1);
        // The engine that dropped it may have been the old one, and the new one given up.
        world.switch();
        assert_whole(&mut world);
    }
}

/// Of two copies in service one lost power, and the other, which has everything, is only away: it is
/// waited for, and not given up for one that lacks what was acknowledged.
#[test]
fn a_copy_that_lost_power_does_not_stand_in_for_one_that_is_away() {
    for (seed, mut world) in worlds(100, 100) {
        world.kill_replica(0);
        steps_until(&mut world, "dropped", |world| world.mode(0) == Mode::Out);
        busy(&mut world, 40);
        world.lose_power(1);
        world.kill_replica(2);
        world.start_replica(1);
        if seed % 2 == 0 {
            world.start_replica(0);
        }
        world.restart_engine(0);
        busy(&mut world, 300);
        assert_eq!(world.mode(2), Mode::InService, "{}", world.describe());
        world.start_replica(2);
        if seed % 2 == 1 {
            world.start_replica(0);
        }
        assert_whole(&mut world);
    }
}

/// Whom the newest engine says that it waits for.
fn waits_for(world: &mut World) -> Vec<String> {
    world.answers.clear();
    world.command(&Command::Status);
    match world.answers.pop() {
        Some(Answer::Status(status)) => status.waits_for,
        other => panic!("{other:?}"),
    }
}

/// While all others lack something the one that is away is waited for, for as long as it takes, and the engine says
/// so. Only its removal ends that: then what was flushed is there, and the rest as after a loss of power.
#[test]
fn a_wait_for_a_copy_that_is_gone_ends_with_its_removal() {
    for (seed, mut world) in worlds(100, 100) {
        assert_eq!(waits_for(&mut world), Vec::<String>::new());
        world.kill_replica(2);
        (0..2).for_each(|at| world.lose_power(at));
        (0..2).for_each(|at| world.start_replica(at));
        world.restart_engine(0);
        steps_until(&mut world, "all who are there have promised", |world| {
            (0..2).all(|at| world.promised(at) == Some(world.engines[0].epoch))
        });
        busy(&mut world, 200 + seed as usize);
        if !world.is_serving(0) {
            assert_eq!(waits_for(&mut world), ["2"], "{}", world.describe());
            world.client.forget_unflushed();
        }
        world.remove_last();
        assert_whole(&mut world);
        assert_eq!(waits_for(&mut world), Vec::<String>::new());
    }
}

/// An engine that starts while nobody is there goes on with whoever comes first and has everything; it
/// does not insist on the one that it gave up last.
#[test]
fn any_copy_that_has_everything_ends_the_wait_for_all() {
    for (seed, mut world) in worlds(90, 100) {
        (0..3).for_each(|at| world.kill_replica(at));
        world.restart_engine(0);
        busy(&mut world, 300);
        assert!(!world.is_serving(0));
        assert_ne!(waits_for(&mut world), Vec::<String>::new());
        let first = seed as usize % 3;
        world.start_replica(first);
        steps_until(&mut world, "it serves with one", |world| world.is_serving(0));
        (0..3).filter(|at| *at != first).for_each(|at| world.start_replica(at));
        assert_whole(&mut world);
    }
}

/// A copy vouches for the volume from the moment it has noted durably in which run of its machine it
/// serves. Before all in service have, nothing is acknowledged: one that is restarted sooner counts as
/// new, and no acknowledged write is lost by that.
#[test]
fn nothing_is_acknowledged_before_every_copy_has_noted_that_it_serves() {
    for seed in seeds_from(0, 100) {
        let mut world = World::new(seed);
        for power in [true, false] {
            let before = world.client.ledger.all_acknowledged();
            while !(0..3).all(|at| world.has_noted(at)) {
                assert_eq!(world.client.ledger.all_acknowledged(), before, "{}", world.describe());
                busy(&mut world, 1);
            }
            assert_whole(&mut world);
            world.restart_everything(power);
        }
        assert!((0..3).all(|at| world.has_noted(at)), "without a loss of power they know it still");
        assert_whole(&mut world);
    }
}

/// Reads that wait for a disk are answered in the end, and right, whoever serves then.
#[test]
fn reads_of_what_is_not_in_memory_are_answered_across_a_switch() {
    for (seed, mut world) in worlds(60, 100) {
        (0..3).for_each(|at| world.replicas[at].disk.chill());
        busy(&mut world, seed as usize % 40);
        world.switch();
        (0..3).for_each(|at| world.replicas[at].disk.chill());
        assert_whole(&mut world);
    }
}

/// Case 8 in a switch: a replica that cannot store its promise never answers it, and the new engine goes on
/// without it.
#[test]
fn a_replica_that_cannot_store_its_promise_is_dropped_by_the_new_engine() {
    for (seed, mut world) in worlds(60, 100) {
        let new = world.switch();
        busy(&mut world, seed as usize % 12);
        match seed % 2 {
            0 => world.replicas[1].disk.fail_sync(),
            _ => world.replicas[1].disk.fail_write(),
        }
        steps_until(&mut world, "dropped", |world| world.mode(1) == Mode::Out);
        if !world.is_serving(new) {
            world.switch();
        }
        busy(&mut world, 100);
        world.judge();
        world.start_replica(1);
        assert_whole(&mut world);
    }
}

/// What the newest engine says is wrong with the last copy.
fn trouble(world: &mut World) -> Option<Trouble> {
    world.answers.clear();
    world.command(&Command::Status);
    match world.answers.pop() {
        Some(Answer::Status(status)) => status.trouble.map(|trouble| *trouble),
        other => panic!("{other:?}"),
    }
}

/// The last copy meets damage, or a full disk: nobody can be asked instead, so the client is told, the engine says
/// what is wrong, and whatever else is asked is served. With another copy in service nobody was told.
#[test]
fn what_the_last_copy_cannot_do_is_told_and_not_tried_for_ever() {
    for (seed, mut world) in worlds(60, 100) {
        for at in [1, 2] {
            world.kill_replica(at);
            steps_until(&mut world, "dropped", |world| world.mode(at) == Mode::Out);
        }
        assert_eq!(trouble(&mut world), None);
        world.client.may_fail = true;
        let expected = match seed % 2 {
            0 => {
                world.replicas[0].disk.fail_read();
                Status::Failed
            }
            _ => {
                world.replicas[0].disk.fill_images();
                Status::NoSpace
            }
        };
        steps_until(&mut world, "the client is told", |world| world.client.failed.len() > 2);
        assert!(world.client.failed.iter().all(|status| *status == expected), "{:?}", world.client.failed);
        let told = trouble(&mut world);
        match expected {
            Status::NoSpace => assert_eq!(told, Some(Trouble::Full { replica: "0".into() })),
            _ => assert!(matches!(told, Some(Trouble::Failed { .. })), "{told:?}"),
        }
        assert!(world.is_serving(0), "{}", world.describe());
        world.replicas[0].disk.mend();
        world.settle();
        world.client.may_fail = false;
        [1, 2].into_iter().for_each(|at| world.start_replica(at));
        assert_whole(&mut world);
        assert_eq!(trouble(&mut world), None);
    }
}

/// Case 8: a replica that cannot persist counts as dead.
#[test]
fn a_replica_whose_disk_fails_or_is_full_is_dropped() {
    for (seed, mut world) in worlds(60, 100) {
        if seed % 2 == 0 {
            world.replicas[1].disk.fail_sync();
        } else {
            world.replicas[1].disk.set_full(true);
        }
        steps_until(&mut world, "dropped", |world| world.mode(1) == Mode::Out);
        busy(&mut world, 100);
        world.judge();
    }
}

/// Case 10: the client's node is gone and with it what was under way.
#[test]
fn copies_are_made_equal_when_nobody_knows_what_was_under_way() {
    for seed in seeds_from(0, 200) {
        let mut world = World::new(seed);
        busy(&mut world, 50 + seed as usize % 100);
        world.restart_everything(seed % 2 == 0);
        busy(&mut world, 150);
        assert_whole(&mut world);
    }
}

/// The last copy in service is gone for a while: everyone waits for it.
#[test]
fn the_last_copy_in_service_is_waited_for() {
    for (seed, mut world) in worlds(100, 100) {
        for at in 0..3 {
            world.kill_replica(at);
            busy(&mut world, (seed % 40) as usize * at);
        }
        assert!(world.shelf.record.in_service() > 0);
        for at in 0..3 {
            world.start_replica((seed as usize + at) % 3);
            busy(&mut world, seed as usize % 30);
        }
        assert_whole(&mut world);
    }
}

/// An engine dies with a change of the record on its way, also with the one that
/// calls a rebuild done, and its successor in the same term has begun.
#[test]
fn a_change_that_arrives_after_its_engine_died_puts_nobody_wrongly_in_service() {
    for (seed, mut world) in worlds(300, 60) {
        world.kill_replica(1);
        steps_until(&mut world, "dropped", |world| world.mode(1) == Mode::Out);
        world.start_replica(1);
        if seed % 3 > 0 {
            steps_until(&mut world, "rebuilding", |world| world.mode(1) == Mode::Rebuilding);
        }
        busy(&mut world, seed as usize % 60);
        world.shelf.reachable = false;
        busy(&mut world, 40);
        world.restart_engine(0);
        busy(&mut world, seed as usize % 20);
        world.shelf.reachable = true;
        busy(&mut world, 200);
        world.judge();
        assert_whole(&mut world);
    }
}

#[test]
fn nothing_is_lost_whatever_happens_to_anyone() {
    for seed in seeds_from(5000, 400) {
        let mut world = World::new(seed);
        for _ in 0..25 {
            let pause = (world.dice() % 80) as usize;
            busy(&mut world, pause);
            disturb(&mut world);
        }
        assert_whole_again(&mut world);
    }
}

/// One misfortune. Any process may be killed, any connection cut or broken; power is lost, and disks fail, only while
/// the volume has another copy that is in service, knows it, was never away, and that no engine has lost touch with.
pub(super) fn disturb(world: &mut World) {
    let last = world.engines.len() - 1;
    let victim = (world.dice() % world.replicas.len() as u64) as usize;
    let others_serve = world.in_service().any(|at| at != victim && world.vouches(at));
    match world.dice() % 24 {
        20 | 21 => world.command(&Command::Release { replica: victim.to_string() }),
        22 => {
            let (replica, address) = (victim.to_string(), address_of(victim));
            world.command(&Command::Introduce { replica, address });
        }
        0 | 1 => {
            world.switch();
        }
        2 => world.restart_engine(last),
        3 => world.engines[last].paused = true,
        4 | 5 => world.engines.iter_mut().for_each(|engine| engine.paused = false),
        6 => world.kill_replica(victim),
        7 if others_serve => world.lose_power(victim),
        8 => world.shelf.reachable = !world.shelf.reachable,
        10 => world.replicas[victim].disk.chill(),
        9 if world.dice().is_multiple_of(4) => {
            let power = world.dice().is_multiple_of(2);
            world.restart_everything(power);
        }
        13 => {
            let (engine, replica) = (Node::Engine(last), Node::Replica(victim));
            match world.dice() % 4 {
                0 => world.network.cut_way(engine, replica),
                1 => world.network.cut_way(replica, engine),
                2 => world.network.cut_way(Node::Frontend, engine),
                _ => world.network.cut_way(engine, Node::Frontend),
            }
        }
        14 | 15 => world.network.break_cut(),
        16 => {
            let links: Vec<_> = world.network.whole().collect();
            if let Some(link) = links.get(world.dice() as usize % links.len().max(1)) {
                world.network.sever(*link);
            }
        }
        17 if others_serve => {
            world.client.may_fail = true;
            match world.dice() % 4 {
                0 => world.replicas[victim].disk.fail_read(),
                1 => world.replicas[victim].disk.fail_write(),
                2 => world.replicas[victim].disk.fail_sync(),
                _ => world.replicas[victim].disk.set_full(true),
            }
        }
        18 => {
            let on_purpose = world.dice().is_multiple_of(2);
            world.replace_frontend(on_purpose);
        }
        _ => {
            if world.replicas[victim].core.is_none() {
                world.start_replica(victim);
            }
        }
    }
}
