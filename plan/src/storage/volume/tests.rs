//! A volume is driven through its life in a small world that does what it is told.

mod alone;
mod emptied;
mod integrity;
mod leaving;
mod rebuilds;
mod salvage;
mod standby;
mod targets;
mod unsettled;
mod wiped;
mod world;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use midflight_api::Size;
use midflight_api::longhorn::{EngineChangeState, Robustness, VolumeState};
use proptest::prelude::*;

use self::world::{Fault, NEW, NODES, OLD, World, start};
use super::*;
use crate::storage::engine_image::binary;

#[test]
fn lives_from_its_making_to_its_end() {
    let mut world = World::new(3, 3);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Detached, Robustness::Unknown));
    assert_eq!(world.nodes(), ["n-1", "n-2", "n-3"]);

    world.attach("n-2");
    assert_eq!(world.standing().0, VolumeState::Attaching);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));

    world.attach("n-3");
    assert_eq!(world.standing().0, VolumeState::Detaching);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(decide(&world.seen).standing.node, "n-3");
    assert_eq!(world.record().term.number(), 2);

    world.attach("");
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Detached, Robustness::Unknown));
    assert!(world.seen.managers.iter().all(|manager| manager.instances.is_empty()), "nothing runs");

    world.seen.volume.metadata.deletion_timestamp = Some(Time(start()));
    assert_eq!(world.settle(), None);
    assert!(world.seen.replicas.is_empty() && world.seen.record.is_none() && world.seen.engine.is_none());
}

#[test]
fn its_owner_is_where_it_is_or_was_and_at_first_where_its_first_replica_is() {
    let mut world = World::new(3, 3);
    world.settle();
    world.seen.replicas.sort_by_key(ResourceExt::name_any);
    let first = world.seen.replicas[0].spec.instance.node_id.clone();
    let owner = |world: &World| decide(&world.seen).standing.owner;
    assert_eq!(owner(&world), first);
    let other = NODES.into_iter().find(|node| first != *node).unwrap();
    world.attach(other);
    world.settle();
    assert_eq!(owner(&world), other);
    world.seen.volume.status.get_or_insert_default().owner_id = other.into();
    world.attach("");
    world.settle();
    assert_eq!((owner(&world).as_str(), world.standing().0), (other, VolumeState::Detached));
}

#[test]
fn an_engine_is_told_how_fast_rebuilds_may_go_before_one_begins() {
    let mut world = World::attached();
    let limit = |world: &World| world.seen.serving.as_ref().and_then(|serving| serving.rebuild_limit);
    assert_eq!(limit(&world), Some(0));
    world.seen.rebuild_limit = 7_000_000;
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(limit(&world), Some(7_000_000));
    // The engine of the next attachment knows nothing of it.
    world.attach("");
    world.settle();
    world.attach("n-2");
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(limit(&world), Some(7_000_000));
    // One that cannot tell is not told again and again.
    world.seen.serving.as_mut().unwrap().rebuild_limit = None;
    assert_eq!(world.settle(), Some(Wait::Content));
}

#[test]
fn an_engine_is_told_how_long_to_wait_for_a_copy() {
    let mut world = World::attached();
    let patience = |world: &World| world.seen.serving.as_ref().and_then(|serving| serving.patience);
    assert_eq!((patience(&world), world.settle()), (Some(8), Some(Wait::Content)));
    world.seen.patience = 30;
    assert!(matches!(decide(&world.seen).next, Ok(Action::Bear { seconds: 30, .. })));
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(patience(&world), Some(30));
    world.seen.serving.as_mut().unwrap().patience = None;
    assert_eq!(world.settle(), Some(Wait::Content), "one that cannot tell is not told again and again");
}

/// It was started again, and its keeper too: it knows nothing of what the node had.
#[test]
fn a_frontend_that_has_forgotten_a_volume_is_told_of_it_again() {
    let mut world = World::attached();
    assert_eq!(world.settle(), Some(Wait::Content));
    world.seen.serving.as_mut().unwrap().attached = false;
    assert!(matches!(decide(&world.seen).next, Ok(Action::Offer { .. })));
    assert_eq!(world.settle(), Some(Wait::Content));
}

/// A volume that was detached while one of its three copies was lost, and the node of that one.
fn detached_without_one() -> (World, String) {
    let mut world = World::attached();
    let lost = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    world.lose(&lost);
    world.settle();
    world.attach("");
    world.settle();
    (world, lost)
}

#[test]
fn a_detached_volume_is_rebuilt_where_that_is_wanted() {
    let (mut world, lost) = detached_without_one();
    assert_eq!((world.standing().0, world.seen.in_service().count()), (VolumeState::Detached, 2));

    world.seen.rebuilds_detached = true;
    assert!(matches!(world.settle(), Some(Wait::Missing { .. })), "its node is away");
    assert_eq!((world.standing().0, world.record().term.number()), (VolumeState::Detached, 1));
    world.return_of(&lost);
    let Ok(Action::TakeTerm { .. }) = decide(&world.seen).next else {
        panic!("it is not brought up: {:?}", decide(&world.seen).next);
    };
    assert_eq!(decide(&world.seen).standing.state, VolumeState::Attaching);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.standing().0, world.seen.in_service().count()), (VolumeState::Detached, 3));
    assert!(world.seen.endpoint().is_none(), "no client was offered it");
    assert_eq!(world.record().term.number(), 2, "it was brought up once");
}

#[test]
fn a_detached_volume_gets_another_copy_for_one_that_does_not_return() {
    let mut world = World::attached();
    let lost = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    world.lose(&lost);
    world.settle();
    world.attach("");
    world.seen.rebuilds_detached = true;
    world.settle();
    world.seen.now = start() + SignedDuration::from_secs(601);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.standing().0, world.seen.in_service().count()), (VolumeState::Detached, 3));
    assert!(!world.nodes().contains(&lost), "{:?}", world.nodes());
}

#[test]
fn an_engine_without_a_frontend_makes_copies_whole() {
    let mut world = World::new(3, 3);
    world.seen.volume.spec.frontend = midflight_api::longhorn::Frontend::None;
    world.settle();
    world.attach("n-1");
    assert_eq!(world.settle(), Some(Wait::Content));
    world.lose("n-2");
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
    world.return_of("n-2");
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
}

/// The record calls both whole, and only one of them can be reached.
#[test]
fn of_two_copies_the_one_that_is_lost_goes_first() {
    for lost in ["n-1", "n-2"] {
        let mut world = World::new(2, 2);
        world.settle();
        world.attach("n-1");
        world.settle();
        world.attach("");
        world.settle();
        world.lose(lost);
        world.seen.volume.spec.number_of_replicas = 1;
        world.settle();
        let other = if lost == "n-1" { "n-2" } else { "n-1" };
        assert_eq!(world.seen.kept().count(), 1, "{lost}");
        assert_eq!(world.seen.kept().next().unwrap().spec.instance.node_id, other, "{lost}");
    }
}

#[test]
fn a_replica_that_is_deleted_stays_until_another_that_is_whole_can_be_reached() {
    let mut world = World::new(2, 2);
    world.settle();
    world.attach("n-1");
    world.settle();
    world.attach("");
    world.settle();
    world.lose("n-2");
    let there =
        world.seen.replicas.iter_mut().find(|replica| replica.spec.instance.node_id == "n-1").unwrap();
    there.metadata.deletion_timestamp = Some(Time(start()));
    let name = there.name_any();
    let wait = world.settle();
    assert!(world.seen.member(&name).is_some(), "{wait:?}");
    assert!(matches!(wait, Some(Wait::LastWhole { .. } | Wait::NoPlace(_))), "{wait:?}");
    world.return_of("n-2");
    world.settle();
    assert!(world.seen.member(&name).is_none());
}

#[test]
fn a_detached_volume_is_not_rebuilt_under_an_upgrade_of_its_nodes() {
    let (mut world, lost) = detached_without_one();
    world.return_of(&lost);
    world.seen.rebuilds_detached = true;
    let close = |world: &mut World, closed| {
        world.seen.places.iter_mut().find(|place| place.node == "n-1").unwrap().closed = closed;
    };
    close(&mut world, Some(crate::storage::schedule::Closed::Upgrading));
    world.settle();
    assert_eq!((world.standing().0, world.record().term.number()), (VolumeState::Detached, 1));
    close(&mut world, None);
    world.settle();
    assert_eq!((world.standing().0, world.seen.in_service().count()), (VolumeState::Detached, 3));
}

#[test]
fn more_replicas_than_nodes_leave_it_degraded() {
    let mut world = World::new(2, 3);
    assert!(matches!(world.settle(), Some(Wait::NoPlace(_))));
    world.attach("n-1");
    assert!(matches!(world.settle(), Some(Wait::NoPlace(_))));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
    assert!(decide(&world.seen).standing.scheduled.is_err());
}

#[test]
fn a_copy_that_returns_is_used_again_and_one_that_does_not_is_replaced() {
    let mut world = World::attached();
    let lost = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    world.lose(&lost);
    assert!(matches!(world.settle(), Some(Wait::Missing { .. })));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
    world.return_of(&lost);
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    world.note_failures();

    world.lose(&lost);
    world.seen.now = start() + SignedDuration::from_secs(601);
    assert!(world.settle().is_some());
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert!(!world.nodes().contains(&lost), "{:?}", world.nodes());
    assert_eq!(world.seen.replicas.len(), 4, "what is on the lost node is removed when that is back");
    world.return_of(&lost);
    world.settle();
    assert_eq!(world.seen.replicas.len(), 3);
}

#[test]
fn the_number_of_replicas_follows_the_spec() {
    for attached in [true, false] {
        let mut world = World::attached();
        if !attached {
            world.attach("");
            world.settle();
        }
        for wanted in [4, 1, 2] {
            world.seen.volume.spec.number_of_replicas = wanted;
            world.settle();
            assert_eq!(world.nodes().len(), usize::try_from(wanted).unwrap(), "attached: {attached}");
            assert_eq!(world.seen.members().len(), world.nodes().len(), "attached: {attached}");
        }
        world.attach("n-1");
        world.settle();
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    }
}

#[test]
fn grows_once_it_serves() {
    let mut world = World::attached();
    world.seen.volume.spec.size = Size::from_bytes(2 << 20);
    world.settle();
    assert_eq!(world.seen.serving.as_ref().unwrap().size, Size::from_bytes(2 << 20));
}

#[test]
fn waits_for_the_copies_that_have_all_data() {
    let mut world = World::new(3, 2);
    world.settle();
    let nodes = world.nodes();
    nodes.iter().for_each(|node| world.lose(node));
    let third = NODES.iter().find(|node| !nodes.contains(&(**node).to_owned())).unwrap();
    world.attach(third);
    assert!(matches!(world.settle(), Some(Wait::NoCopy(_))));
    world.return_of(&nodes[0]);
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
}

#[test]
fn a_node_that_is_lost_with_its_clients_gives_the_volume_up() {
    let mut world = World::attached();
    world.lose("n-1");
    world.attach("n-2");
    world.settle();
    assert_eq!(decide(&world.seen).standing.node, "n-2");
    assert_eq!(world.record().term.number(), 2, "whoever is left on n-1 is fenced out");
}

/// Its frontend outlives its instance manager, and has to be told.
#[test]
fn a_volume_stays_attached_to_a_node_that_cannot_tell_its_frontend_otherwise() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 4] = [
        ("detached", |world| world.attach("")),
        ("attached elsewhere", |world| world.attach("n-2")),
        ("deleted", |world| world.seen.volume.metadata.deletion_timestamp = Some(Time(start()))),
        ("detached to grow", |world| {
            world.attach("");
            world.seen.volume.spec.size = Size::from_bytes(2 << 20);
        }),
    ];
    for (case, change) in changes {
        let mut world = World::attached();
        world.lose_manager("n-1");
        change(&mut world);
        let wait = world.settle();
        assert_eq!(wait, Some(Wait::NoManager("n-1".into())), "{case}");
        assert!(world.seen.endpoint().is_some(), "{case}: the frontend has it still");
        let told = decide(&world.seen).standing.waiting.expect("it is shown").to_string();
        assert!(told.starts_with("node n-1 has no running instance manager"), "{case}: {told}");
        // Either end of that will do.
        let mut lost = world.clone();
        world.return_of("n-1");
        lost.lose("n-1");
        for mut world in [world, lost] {
            world.settle();
            assert!(world.seen.attached_node().is_none_or(|node| node == "n-2"), "{case}");
        }
    }
}

#[test]
fn a_volume_on_a_node_that_is_gone_for_good_is_deleted() {
    let mut world = World::attached();
    world.lose("n-1");
    world.seen.places.retain(|place| place.node != "n-1");
    world.seen.volume.metadata.deletion_timestamp = Some(Time(start()));
    assert_eq!(world.settle(), None);
    assert!(world.seen.record.is_none() && world.seen.replicas.is_empty());
}

#[test]
fn an_attached_volume_follows_its_image_forth_and_back() {
    let mut world = World::attached_v1();
    for (image, other) in [(NEW, OLD), (OLD, NEW)] {
        world.seen.volume.spec.image = image.into();
        assert_eq!(world.image(), other, "it is upgrading");
        assert_eq!(world.settle(), Some(Wait::Content));
        assert_eq!((world.image().as_str(), world.programs()), (image, vec![binary(&image.into())]));
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        assert_eq!(world.seen.change().state, EngineChangeState::Done);
    }
    assert_eq!(world.record().term.number(), 3);
}

#[test]
fn a_detached_volume_changes_its_image_at_once() {
    let mut world = World::attached_v1();
    world.attach("");
    world.settle();
    world.seen.volume.spec.image = NEW.into();
    world.settle();
    assert_eq!(world.image(), NEW);
    world.attach("n-2");
    world.settle();
    assert_eq!(world.programs(), [binary(&NEW.into())]);
    assert_eq!(world.seen.change().state, EngineChangeState::None, "nothing changed under clients");
}

#[test]
fn an_image_that_does_not_serve_leaves_the_old_one_serving() {
    use Fault::{CrashesAfterIt, DoesNotStart, HangsInTheSwitch, ReplicasDoNotFollow};
    for fault in [DoesNotStart, HangsInTheSwitch, CrashesAfterIt, ReplicasDoNotFollow] {
        let mut world = World::attached_v1();
        world.fault = Some(fault);
        world.seen.volume.spec.image = NEW.into();
        assert_eq!(world.settle(), Some(Wait::Content), "{fault:?}");
        assert_eq!((world.image().as_str(), world.programs()), (OLD, vec![binary(&OLD.into())]), "{fault:?}");
        assert_eq!(world.seen.change().state, EngineChangeState::Failed, "{fault:?}");
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy), "{fault:?}");
        // It is tried again only when somebody asks again.
        world.seen.volume.spec.image = OLD.into();
        world.settle();
        assert_eq!(world.seen.change().state, EngineChangeState::TakenBack, "{fault:?}");
        world.fault = None;
        world.seen.volume.spec.image = NEW.into();
        assert_eq!(world.settle(), Some(Wait::Content), "{fault:?}");
        assert_eq!((world.image().as_str(), world.programs()), (NEW, vec![binary(&NEW.into())]), "{fault:?}");
    }
}

#[test]
fn a_volume_that_is_not_whole_keeps_its_engine_until_it_is() {
    let mut world = World::attached_v1();
    let lost = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    world.lose(&lost);
    world.seen.volume.spec.image = NEW.into();
    assert!(matches!(world.settle(), Some(Wait::Missing { .. })));
    assert_eq!(world.image(), OLD);
    world.return_of(&lost);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.image().as_str(), world.programs()), (NEW, vec![binary(&NEW.into())]));
}

#[test]
fn a_volume_that_is_detached_in_the_middle_has_its_new_image_afterwards() {
    for steps in 0..12 {
        let mut world = World::attached_v1();
        world.seen.volume.spec.image = NEW.into();
        for _ in 0..steps {
            match world.look() {
                Ok(action) => world.apply(action),
                Err(_) => world.seen.now += SignedDuration::from_secs(5),
            }
        }
        world.attach("");
        world.settle();
        assert_eq!(
            (world.standing().0, world.image().as_str()),
            (VolumeState::Detached, NEW),
            "{steps} steps"
        );
        assert!(world.programs().is_empty(), "{steps} steps");
        world.attach("n-1");
        assert_eq!(world.settle(), Some(Wait::Content), "{steps} steps");
        assert_eq!(
            (world.image().as_str(), world.programs()),
            (NEW, vec![binary(&NEW.into())]),
            "{steps} steps"
        );
    }
}

#[test]
fn engines_of_a_volume_are_known_by_their_names() {
    assert!(is_engine_of("vol-1", "vol-1-e-0") && is_engine_of("vol-1", "vol-1-e-12"));
    assert!(!is_engine_of("vol-1", "vol-1-r-0") && !is_engine_of("vol-1", "vol-1-e-1-e-0"));
    assert!(!is_engine_of("vol-1", "vol-10-e-0") && !is_engine_of("vol-1", "vol-1-e-"));
}

proptest! {
    #[test]
    fn whatever_happens_it_settles_and_keeps_a_copy(
        processes: bool,
        events in prop::collection::vec((0..6u8, 0..4usize), 1..12),
    ) {
        let mut world = if processes { World::attached_v1() } else { World::attached() };
        let mut away: Vec<usize> = Vec::new();
        for (event, number) in events {
            match event {
                0 if away.len() < 2 && !away.contains(&number) => {
                    away.push(number);
                    world.lose(NODES[number]);
                }
                1 => {
                    away.retain(|node| *node != number);
                    world.return_of(NODES[number]);
                }
                2 => world.attach(NODES[number]),
                3 => world.attach(""),
                4 => world.seen.volume.spec.image = if number < 2 { OLD } else { NEW }.into(),
                _ => world.seen.volume.spec.number_of_replicas = i32::try_from(number).unwrap() + 1,
            }
            world.seen.now += SignedDuration::from_secs(400);
            world.settle();
            world.note_failures();
        }
        NODES.iter().for_each(|node| world.return_of(node));
        world.attach("n-1");
        world.settle();
        prop_assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        world.seen.volume.metadata.deletion_timestamp = Some(Time(start()));
        prop_assert_eq!(world.settle(), None);
        prop_assert!(world.seen.managers.iter().all(|manager| manager.instances.is_empty()));
    }
}

#[test]
fn names_do_not_come_again() {
    assert_ne!(attachment("a", midflight_api::Term::FIRST), attachment("b", midflight_api::Term::FIRST));
    assert_ne!(replica_name("v", "a", "first/0"), replica_name("v", "a", "version/0"));
}
