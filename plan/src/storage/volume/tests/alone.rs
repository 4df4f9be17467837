//! Volumes that no client reaches: they change their image and grow all the same.

use midflight_api::Size;
use midflight_api::longhorn::{
    DataEngine, EngineChangeState, Frontend, InstanceState, Robustness, VolumeState,
};

use super::super::*;
use super::world::{Fault, NEW, OLD, World};
use crate::storage::engine_image::binary;

const LARGER: u64 = 2 << 20;

fn standby() -> World {
    let mut world = World::new(3, 3);
    world.seen.volume.spec.data_engine = DataEngine::V1;
    world.seen.volume.spec.from_backup = "file:///backups?backup=b&volume=v".into();
    world.seen.volume.spec.standby = true;
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert_eq!(world.image(), OLD);
    world
}

#[test]
fn a_standby_follows_its_image_forth_and_back() {
    let mut world = standby();
    for (image, other) in [(NEW, OLD), (OLD, NEW)] {
        world.seen.volume.spec.image = image.into();
        assert_eq!(world.image(), other, "it is upgrading");
        assert_eq!(world.settle(), Some(Wait::Content));
        assert_eq!((world.image().as_str(), world.programs()), (image, vec![binary(&image.into())]));
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        assert_eq!(world.seen.change().state, EngineChangeState::Done);
        assert!(world.seen.endpoint().is_none(), "nobody reaches it");
    }
}

#[test]
fn a_standby_keeps_its_engine_when_the_next_does_not_start() {
    let mut world = standby();
    world.fault = Some(Fault::DoesNotStart);
    world.seen.volume.spec.image = NEW.into();
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.image().as_str(), world.programs()), (OLD, vec![binary(&OLD.into())]));
    assert_eq!(world.seen.change().state, EngineChangeState::Failed);
}

/// What is asked of it later, snapshots, backups and growth, only an engine does that serves.
#[test]
fn a_volume_that_never_had_a_frontend_is_let_serve() {
    for engine in [DataEngine::V1, DataEngine::V2] {
        let mut world = World::new(3, 3);
        world.seen.volume.spec.data_engine = engine;
        world.seen.volume.spec.frontend = Frontend::None;
        world.attach("n-1");
        assert_eq!(world.settle(), Some(Wait::Content));
        assert!(world.seen.serving.as_ref().is_some_and(|serving| serving.serving));
        assert_eq!(world.seen.known_size(), Some(world.seen.volume.spec.size));
    }
}

#[test]
fn a_volume_without_a_frontend_follows_its_image() {
    let mut world = World::new(3, 3);
    world.seen.volume.spec.data_engine = DataEngine::V1;
    world.seen.volume.spec.disable_frontend = true;
    world.attach("n-1");
    world.settle();
    // Nobody lets it serve.
    world.seen.serving.as_mut().unwrap().serving = false;
    world.seen.volume.spec.image = NEW.into();
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.image().as_str(), world.programs()), (NEW, vec![binary(&NEW.into())]));
}

/// The API refuses the wish of a volume that was seen attached; it may come a moment before that.
#[test]
fn a_volume_that_is_to_have_another_frontend_is_taken_from_its_clients() {
    for (frontend, disabled, is_offered) in
        [(Frontend::None, false, false), (Frontend::Nbd, true, false), (Frontend::Blockdev, false, true)]
    {
        let mut world = World::attached();
        assert!(world.seen.endpoint().is_some_and(|endpoint| endpoint.starts_with("nbd")));
        let spec = &mut world.seen.volume.spec;
        (spec.frontend, spec.disable_frontend) = (frontend, disabled);
        let mut withdrawn = false;
        while let Ok(action) = world.look() {
            withdrawn |= matches!(action, Action::Withdraw { .. });
            let is_second_offer = withdrawn && matches!(action, Action::Offer { .. });
            world.apply(action);
            if is_second_offer {
                break;
            }
        }
        assert!(withdrawn, "{frontend:?}");
        assert_eq!(world.seen.endpoint().is_some(), is_offered, "{frontend:?}");
        assert_eq!(world.standing().0, VolumeState::Attached);
    }
}

#[test]
fn a_detached_volume_grows_by_itself_and_is_detached_again() {
    for processes in [true, false] {
        let mut world = if processes { World::attached_v1() } else { World::attached() };
        world.attach("");
        world.settle();
        world.seen.volume.spec.size = Size::from_bytes(LARGER);
        assert_ne!(world.standing().0, VolumeState::Detached, "it has something to do");
        let mut offered = false;
        while let Ok(action) = world.look() {
            world.apply(action);
            offered |= world.seen.endpoint().is_some();
        }
        assert!(!offered, "nobody reaches it meanwhile");
        assert_eq!(world.standing(), (VolumeState::Detached, Robustness::Unknown));
        assert_eq!(world.seen.known_size(), Some(Size::from_bytes(LARGER)));
        assert!(world.programs().is_empty(), "nothing runs");
    }
}

#[test]
fn whoever_leaves_a_volume_that_has_to_grow_reaches_it_no_more() {
    let mut world = World::attached();
    world.seen.volume.spec.size = Size::from_bytes(LARGER);
    world.attach("");
    assert!(matches!(world.look(), Ok(Action::Withdraw { .. })), "clients first");
    world.settle();
    assert_eq!(world.standing().0, VolumeState::Detached);
    assert_eq!(world.seen.known_size(), Some(Size::from_bytes(LARGER)));
}

#[test]
fn a_volume_that_was_never_attached_has_the_size_it_is_given() {
    let mut world = World::new(3, 3);
    world.settle();
    world.seen.volume.spec.size = Size::from_bytes(LARGER);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing().0, VolumeState::Detached);
}

#[test]
fn an_image_that_was_chosen_while_detached_and_does_not_start_can_be_left() {
    let mut world = World::attached_v1();
    world.attach("");
    world.settle();
    world.seen.volume.spec.image = NEW.into();
    world.settle();
    world.fault = Some(Fault::DoesNotStart);
    world.attach("n-1");
    for _ in 0..10 {
        match world.look() {
            Ok(action) => world.apply(action),
            Err(wait) => panic!("{wait}"),
        }
    }
    assert_eq!(world.in_charge().state, InstanceState::Error);
    assert_eq!(world.standing().0, VolumeState::Attaching);
    let waiting = decide(&world.seen).standing.waiting.unwrap().to_string();
    assert!(waiting.starts_with("its engine does not run"), "{waiting}");

    world.seen.volume.spec.image = OLD.into();
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.image().as_str(), world.programs()), (OLD, vec![binary(&OLD.into())]));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
}
