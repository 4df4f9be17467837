//! What is told of a volume whose steps are refused, and what becomes of it.

use midflight_api::longhorn::{
    Condition, ConditionStatus, DataEngine, InstanceState, Robustness, VolumeState,
};

use super::super::*;
use super::world::{NEW, NODES, OLD, World};
use crate::storage::engine_image::binary;

/// A volume of this image that is asked for, and the first process that it needs.
fn to_start(image: &str, engine: DataEngine) -> (World, Action) {
    let mut world = World::new(3, 3);
    world.seen.volume.spec.data_engine = engine;
    world.seen.volume.spec.image = image.into();
    world.settle();
    world.attach("n-1");
    loop {
        match world.look().unwrap() {
            start @ Action::StartReplica { .. } => return (world, start),
            step => world.apply(step),
        }
    }
}

fn told(world: &World) -> Option<(&'static str, String)> {
    let waiting = decide(&world.seen).standing.waiting?;
    Some((waiting.reason(), waiting.to_string()))
}

/// Writes down why a step was refused, as the controller does.
fn note(world: &mut World, action: &Action, why: &str) {
    let unsettled = refused(&world.seen, action, why).expect("it was an order");
    let condition = Condition {
        kind: SETTLED.into(),
        status: ConditionStatus::False,
        reason: unsettled.reason().into(),
        message: unsettled.to_string().into(),
        ..Condition::default()
    };
    world.seen.volume.status.get_or_insert_default().conditions.set(condition);
}

#[test]
fn an_image_that_is_not_where_it_is_needed_is_a_reason_by_itself() {
    let on = |nodes: &[&str], complaint: &str| {
        let nodes = nodes.iter().map(|node| NodeName::from(*node)).collect();
        vec![Deployed { image: OLD.into(), nodes, complaint: complaint.into() }]
    };
    let failing = format!("{OLD} on n-1: ErrImagePull: it is not there");
    #[rustfmt::skip]
    let cases = [
        ("on every node",   DataEngine::V1, on(&NODES, ""),               None),
        ("no EngineImage",  DataEngine::V1, Vec::new(),                   Some(("NoEngineImage",  "there is no EngineImage of midflight.local/engine:old, so that no node has it; create one, or set spec.image to an image that there is"))),
        ("cannot be had",   DataEngine::V1, on(&[], &failing),            Some(("ImageOnNoNode",  "engine image midflight.local/engine:old is on no node: n-1: ErrImagePull: it is not there"))),
        ("comes",           DataEngine::V1, on(&[], ""),                  Some(("ImageOnNoNode",  "engine image midflight.local/engine:old is on no node: it is on its way"))),
        ("on another node", DataEngine::V1, on(&["n-4"], ""),             Some(("ImageNotOnNode", ""))),
        ("without process", DataEngine::V2, Vec::new(),                   None),
    ];
    for (case, engine, images, expected) in cases {
        let (mut world, start) = to_start(OLD, engine);
        world.seen.images = images;
        assert_eq!(decide(&world.seen).next, Ok(start.clone()), "{case}: it is tried all the same");
        let found = told(&world);
        assert_eq!(found.as_ref().map(|(reason, _)| *reason), expected.map(|(reason, _)| reason), "{case}");
        let message = found.map(|(_, message)| message).unwrap_or_default();
        assert!(message.starts_with(expected.map_or("", |(_, message)| message)), "{case}: {message}");
        let refused = refused(&world.seen, &start, "no such file").map(|unsettled| unsettled.reason());
        assert_eq!(refused, Some(expected.map_or("Refused", |(reason, _)| reason)), "{case}");
    }
}

#[test]
fn a_refusal_is_told_while_the_same_step_is_tried_and_no_longer() {
    for engine in [DataEngine::V1, DataEngine::V2] {
        let (mut world, start) = to_start(OLD, engine);
        assert_eq!(told(&world), None, "nothing was refused yet");
        note(&mut world, &start, "the disk is full");
        let Action::StartReplica { replica, .. } = &start else { unreachable!("it starts one") };
        let (reason, message) = told(&world).expect("it was refused");
        let expected = format!("start replica {replica} on node n-");
        assert!(reason == "Refused" && message.starts_with(&expected), "{message}");
        assert!(message.ends_with(": the disk is full"), "{message}");
        assert_eq!(world.look(), Ok(start.clone()), "it is tried again");
        world.apply(start);
        assert_eq!(told(&world), None, "the next step was not refused");
        assert_eq!(world.settle(), Some(Wait::Content));
        assert_eq!(told(&world), None);
    }
}

#[test]
fn copies_that_all_have_failed_are_started_again_and_say_why_they_are_not() {
    let (mut world, _) = to_start(OLD, DataEngine::V1);
    while let Ok(start @ Action::StartReplica { .. }) = world.look() {
        let Action::StartReplica { manager, replica, .. } = &start else { unreachable!("it starts one") };
        let (manager, replica) = (manager.clone(), replica.clone());
        if world.manager(&manager).find(replica.as_str()).is_some() {
            break;
        }
        world.apply(start);
        let failed = world.manager(&manager).instances.iter_mut().find(|one| one.name == replica.as_str());
        failed.expect("it was started").state = InstanceState::Error;
    }
    let again = world.look().expect("one of them is started again");
    note(&mut world, &again, "the disk is full");
    assert!(matches!(told(&world), Some(("Refused", message)) if message.ends_with("the disk is full")));
    world.apply(again);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
}

/// Every word that is new is a write, and every write wakes the volume.
#[test]
fn what_is_said_of_a_step_before_and_after_it_is_refused_is_the_same() {
    let mut world = World::attached();
    world.in_charge().state = InstanceState::Error;
    world.in_charge().why = "it ended".into();
    let start = world.look().expect("it is started again");
    let shown = decide(&world.seen).standing.waiting.expect("it does not run");
    assert_eq!(refused(&world.seen, &start, "the disk is full"), Some(shown));

    let (world, start) = to_start(OLD, DataEngine::V2);
    let why = |why: &str| refused(&world.seen, &start, why).expect("it was an order");
    let (first, again) = (why("port 1 is taken"), why("port 2 is taken"));
    assert!(again.is_said_by(first.reason(), &first.to_string()));
    assert!(!again.is_said_by("Waiting", &first.to_string()));
    assert!(!again.is_said_by(first.reason(), "stop replica r on node n: port 1 is taken"));
}

#[test]
fn steps_that_no_instance_manager_is_ordered_are_refused_by_none() {
    let (world, _) = to_start(OLD, DataEngine::V2);
    assert_eq!(refused(&world.seen, &Action::EndAttachment, "no"), None);
    assert_eq!(refused(&world.seen, &Action::Withdraw { manager: None }, "no"), None);
}

/// A name that was mistyped when the volume was made is corrected where the volume is attached.
#[test]
fn a_volume_of_which_nothing_runs_takes_another_image_at_once() {
    let typo = "midflight.local/engine:odl";
    let (mut world, start) = to_start(typo, DataEngine::V1);
    note(&mut world, &start, "no such file");
    assert!(matches!(told(&world), Some(("NoEngineImage", _))));
    world.seen.volume.spec.image = NEW.into();
    let Ok(Action::StartReplica { image, .. }) = world.look() else { panic!("it starts a replica") };
    assert_eq!(image, NEW);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert_eq!((world.image().as_str(), world.programs()), (NEW, vec![binary(&NEW.into())]));
    assert_eq!(world.record().term.number(), 1, "nobody had the volume, so nothing changed hands");
}

#[test]
fn a_volume_whose_node_is_lost_says_so_until_the_node_is_back() {
    let mut world = World::attached();
    world.seen.lost.insert("n-1".into());
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy), "only its agent is gone");
    assert_eq!(told(&world), None);

    world.lose("n-1");
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Unknown));
    let (reason, why) = told(&world).unwrap();
    assert_eq!(reason, NODE_LOST);
    assert!(why.contains("node n-1") && why.contains("attached to another node"), "{why}");

    world.attach("n-2");
    world.settle();
    assert_eq!(
        (world.standing().0, decide(&world.seen).standing.node.as_str()),
        (VolumeState::Attached, "n-2")
    );
    assert_ne!(told(&world).map(|(reason, _)| reason), Some(NODE_LOST));

    world.attach("n-1");
    world.return_of("n-1");
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
}
