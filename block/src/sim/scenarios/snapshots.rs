//! Snapshots, reverts and expansion under load, and what becomes of them when
//! someone dies in the middle.

use super::{
    busy,
    members::{assert_whole, assert_whole_again, disturb},
    seeds_from, steps_until, worlds,
};
use crate::{
    check::pattern::BLOCK,
    engine::control::{Answer, Command},
    sim::world::{BLOCKS, World},
};

/// Takes a snapshot under load. Every block in it is at least what was acknowledged
/// before, and nothing that was asked for only later.
pub(super) fn snapshot(world: &mut World, name: &str) -> bool {
    let before: Vec<u64> = (0..BLOCKS).map(|address| world.client.ledger.acknowledged(address)).collect();
    // An engine that has just taken over, or is rebuilding, asks to be asked again.
    for _ in 0..100 {
        let answers = world.answers.len();
        world.command(&Command::Snapshot { name: name.into() });
        steps_until(world, "a snapshot", |world| world.answers.len() > answers);
        if world.answers.last() == Some(&Answer::Done) {
            break;
        }
        busy(world, 20);
    }
    if world.answers.last() != Some(&Answer::Done) {
        return false;
    }
    let at = world.in_service().next().expect("someone is in service");
    let snapshots = world.snapshots(at);
    let (_, content) = snapshots.iter().find(|(known, _)| known == name).expect("the snapshot is there");
    for (address, block) in content.chunks(BLOCK).enumerate() {
        let judged = world.client.ledger.judge(address as u64, block, before[address]);
        assert!(judged.is_ok(), "{}", judged.unwrap_err());
    }
    true
}

#[test]
fn a_snapshot_is_the_same_moment_everywhere_and_stays() {
    for (_, mut world) in worlds(60, 80) {
        assert!(snapshot(&mut world, "one"));
        let one = world.snapshots(0).remove(0).1;
        busy(&mut world, 80);
        assert!(snapshot(&mut world, "two"));
        world.switch();
        busy(&mut world, 150);
        assert_whole(&mut world);
        let kept = world.snapshots(2);
        assert_eq!(kept.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["one", "two"]);
        assert!(kept[0].1 == one, "a snapshot has changed");
        world.command(&Command::RemoveSnapshot { name: "one".into() });
        busy(&mut world, 200);
        assert_whole(&mut world);
        assert_eq!(world.snapshots(1).len(), 1);
    }
}

/// A replica that was away while snapshots were taken gets them too.
#[test]
fn a_replica_that_missed_snapshots_is_rebuilt_with_them() {
    for (seed, mut world) in worlds(60, 60) {
        assert!(snapshot(&mut world, "before"));
        busy(&mut world, 40);
        world.kill_replica(1);
        steps_until(&mut world, "dropped", |world| world.shelf.record.in_service() == 2);
        assert!(snapshot(&mut world, "missed"));
        busy(&mut world, 40);
        if seed % 3 == 0 {
            let answers = world.answers.len();
            world.command(&Command::RemoveSnapshot { name: "before".into() });
            steps_until(&mut world, "removed", |world| world.answers.len() > answers);
        }
        assert!(snapshot(&mut world, "missed too"));
        busy(&mut world, 40);
        world.start_replica(1);
        assert_whole(&mut world);
        assert!(world.snapshots(1).iter().any(|(name, _)| name == "missed"));
    }
}

fn frozen(world: &World) -> Vec<usize> {
    let alive = (0..3).filter(|at| world.replicas[*at].core.is_some());
    alive.filter(|at| !world.snapshots(*at).is_empty()).collect()
}

/// A freeze reaches one copy, which dies with the engine; the others write on in the layer that it has
/// frozen, and freeze it later. Its layer has the same name and is another one.
#[test]
fn a_layer_that_one_copy_froze_early_is_copied_anew() {
    for (seed, mut world) in worlds(60, 80) {
        let asked = (0..100).any(|_| {
            world.command(&Command::Snapshot { name: "lost".into() });
            (0..300).any(|_| {
                busy(&mut world, 1);
                frozen(&world).len() == 1
            })
        });
        assert!(asked, "{}", world.describe());
        let early = frozen(&world)[0];
        world.kill_replica(early);
        world.restart_engine(0);
        steps_until(&mut world, "dropped", |world| world.shelf.record.in_service() == 2);
        busy(&mut world, 100);
        assert!(snapshot(&mut world, "again"));
        busy(&mut world, seed as usize % 60);
        world.start_replica(early);
        assert_whole(&mut world);
    }
}

/// The answer to a revert was lost, and it is asked for again: what was written since stays.
#[test]
fn a_revert_that_is_asked_for_again_throws_nothing_away() {
    for (_, mut world) in worlds(40, 80) {
        assert!(snapshot(&mut world, "good"));
        busy(&mut world, 40);
        world.settle();
        let revert = Command::Revert { name: "good".into(), head: Some(4711) };
        world.answers.clear();
        world.command(&revert);
        for _ in 0..500 {
            world.step();
        }
        assert_eq!(world.answers, [Answer::Done]);
        // What was acknowledged before is gone on purpose.
        (0..BLOCKS).for_each(|address| world.client.ledger.reduce(address, 0));
        busy(&mut world, 60);
        for later in ["later", "later still"] {
            world.answers.clear();
            world.command(&revert);
            assert_eq!(world.answers, [Answer::Done], "at once");
            assert!(snapshot(&mut world, later));
        }
        assert_whole(&mut world);
        assert_eq!(world.snapshots(0).len(), 3);
        world.command(&Command::Revert { name: "good".into(), head: Some(0) });
        assert!(matches!(world.answers.last(), Some(Answer::Refused(_))));
    }
}

/// A folder that was lost is noticed, although the record says that it is in service.
#[test]
fn a_replica_with_an_empty_folder_is_rebuilt_and_never_trusted() {
    for (seed, mut world) in worlds(40, 100) {
        if seed % 2 == 0 {
            assert!(snapshot(&mut world, "one"));
        }
        world.kill_replica(0);
        world.replicas[0].disk = Default::default();
        if seed % 4 < 2 {
            world.restart_engine(0);
        }
        world.start_replica(0);
        steps_until(&mut world, "noticed", |world| world.shelf.record.member_version > 1);
        assert_whole(&mut world);
    }
}

#[test]
fn a_revert_brings_the_volume_back() {
    for (_, mut world) in worlds(40, 80) {
        assert!(snapshot(&mut world, "good"));
        let good = world.snapshots(0).remove(0).1;
        busy(&mut world, 80);
        assert!(snapshot(&mut world, "bad"));
        world.settle();
        world.command(&Command::Revert { name: "good".into(), head: None });
        for _ in 0..500 {
            world.step();
        }
        assert_eq!(world.answers.last(), Some(&Answer::Done));
        for at in 0..3 {
            assert!(world.content(at) == good, "replica {at}");
            assert_eq!(world.snapshots(at).len(), 1);
        }
    }
}

#[test]
fn an_expanded_volume_is_larger_everywhere_also_for_who_was_away() {
    for (seed, mut world) in worlds(30, 80) {
        if seed % 2 == 0 {
            assert!(snapshot(&mut world, "one"));
        }
        if seed % 3 == 0 {
            world.kill_replica(2);
            steps_until(&mut world, "dropped", |world| world.shelf.record.in_service() == 2);
        }
        let size = (BLOCKS + 5) * BLOCK as u64;
        busy(&mut world, 100);
        world.command(&Command::Expand { size });
        busy(&mut world, 100);
        steps_until(&mut world, "the frontend knows it", |world| world.frontend.size() == size);
        world.replace_frontend(false);
        assert_eq!(world.frontend.size(), size, "who follows knows it, too");
        world.client.grow(BLOCKS + 5);
        let behind = |world: &World| (BLOCKS..BLOCKS + 5).any(|at| world.client.ledger.acknowledged(at) > 0);
        steps_until(&mut world, "written behind the old end", behind);
        if world.replicas[2].core.is_none() {
            world.start_replica(2);
        }
        assert_whole(&mut world);
        for node in &world.replicas {
            assert_eq!(node.core.as_ref().map(|core| core.store().size()), Some(size));
        }
    }
}

#[test]
fn snapshots_are_equal_whatever_happens_to_anyone() {
    for seed in seeds_from(9000, 200) {
        let mut world = World::new(seed);
        for round in 0..20 {
            let pause = (world.dice() % 60) as usize;
            busy(&mut world, pause);
            match world.dice() % 4 {
                0 => world.command(&Command::Snapshot { name: format!("s{round}") }),
                1 => {
                    let name = format!("s{}", world.dice() % 20);
                    world.command(&Command::RemoveSnapshot { name });
                }
                _ => disturb(&mut world),
            }
        }
        assert_whole_again(&mut world);
    }
}
