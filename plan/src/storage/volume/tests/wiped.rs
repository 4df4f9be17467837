//! Disks that come back without what they held.

use midflight_api::longhorn::{Robustness, VolumeState};

use super::super::*;
use super::world::World;

/// What happened before the volume was to be served, and what it waits for then.
#[test]
fn a_copy_without_its_data_never_stands_for_one_that_has_it() {
    let healthy = (VolumeState::Attached, Robustness::Healthy);
    let detached = || {
        let mut world = World::attached();
        world.attach("");
        world.settle();
        world
    };
    let wiped = |nodes: &[&str]| {
        let mut world = detached();
        nodes.iter().for_each(|node| world.wipe(node));
        world
    };
    let missed = || {
        let mut world = detached();
        world.attach("n-1");
        world.settle();
        world.lose("n-2");
        world.settle();
        world.wipe("n-2");
        world.return_of("n-2");
        world
    };
    #[rustfmt::skip]
    let cases = [
        ("all have data",           wiped(&[]),             true),
        ("one of three has none",   wiped(&["n-2"]),        true),
        ("one of three has",        wiped(&["n-2", "n-3"]), true),
        ("a copy that was missed",  missed(),               true),
        ("none of three has",       wiped(&["n-1", "n-2", "n-3"]), false),
    ];
    for (case, mut world, serves) in cases {
        world.attach("n-1");
        for _ in 0..60 {
            let had = world.with_data();
            let Ok(action) = world.look() else { break };
            if let Action::StartReplica { replica, existing, .. } = &action {
                let served = world.seen.in_service().any(|member| member.replica == *replica);
                assert!(had.contains(replica) || *existing == served, "{case}: {replica} is begun anew");
            }
            world.apply(action);
            world.engine_works();
        }
        assert_eq!(world.standing() == healthy, serves, "{case}: {:?}", world.standing());
        assert_eq!(world.with_data().len(), if serves { 3 } else { 0 }, "{case}");
    }
}

/// Nobody has written to it, and whoever was asked may not have heard of it.
#[test]
fn a_volume_that_never_served_begins_its_copies_anew() {
    let mut world = World::new(3, 3);
    world.settle();
    world.attach("n-1");
    ["n-1", "n-2", "n-3"].iter().for_each(|node| world.wipe(node));
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
}
