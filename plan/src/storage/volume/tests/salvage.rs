//! A volume that has lost all that had its data serves what is left, when somebody asks for that.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use midflight_api::ReplicaName;
use midflight_api::longhorn::{InstanceState, ReplicaSpec, Robustness, VolumeState};

use super::super::*;
use super::world::{MOST_STEPS, NODES, World, start};

/// Two copies: the older one is there, the one with all data is lost. The volume waits on the third node.
fn bereft() -> (World, ReplicaName, ReplicaName) {
    let mut world = World::new(3, 2);
    world.settle();
    let nodes = world.nodes();
    let third = *NODES.iter().find(|node| !nodes.contains(&(**node).to_owned())).unwrap();
    world.attach(third);
    world.settle();
    world.lose(&nodes[1]);
    world.settle();
    world.attach("");
    world.settle();
    world.lose(&nodes[0]);
    world.return_of(&nodes[1]);
    world.attach(third);
    let on = |node: &String| {
        let replica =
            world.seen.replicas.iter().find(|replica| replica.spec.instance.node_id == node.as_str());
        ReplicaName::from(replica.unwrap().name_any())
    };
    let (lost, older) = (on(&nodes[0]), on(&nodes[1]));
    assert!(matches!(world.settle(), Some(Wait::NoCopy(_))), "nobody serves older data unasked");
    (world, lost, older)
}

fn ask(world: &mut World, replica: &ReplicaName) {
    let spec = spec_of(world, replica);
    spec.instance.salvage_requested = true;
    spec.last_healthy_at = "2026-01-01T00:00:00Z".into();
}

fn spec_of<'a>(world: &'a mut World, replica: &ReplicaName) -> &'a mut ReplicaSpec {
    let there = world.seen.replicas.iter_mut().find(|one| one.name_any() == replica.as_str());
    &mut there.unwrap().spec
}

#[test]
fn an_engine_that_outlived_all_data_says_so_and_makes_room_for_a_copy_that_is_asked_for() {
    let mut world = World::new(3, 2);
    world.settle();
    let nodes = world.nodes();
    world.attach(NODES.iter().find(|node| !nodes.contains(&(**node).to_owned())).unwrap());
    world.settle();
    world.seen.rebuilds_at_once = 0;
    world.lose(&nodes[1]);
    world.settle();
    world.return_of(&nodes[1]);
    world.settle();
    world.lose(&nodes[0]);
    world.seen.serving.as_mut().unwrap().serving = false;
    assert!(world.seen.running_engine().is_some());
    assert!(matches!(decide(&world.seen).next, Err(Wait::NoCopy(_))), "{:?}", decide(&world.seen).next);
    let older = world.seen.replicas.iter().find(|one| one.spec.instance.node_id == nodes[1].as_str());
    let older = ReplicaName::from(older.unwrap().name_any());
    ask(&mut world, &older);
    assert!(matches!(decide(&world.seen).next, Ok(Action::StopEngine { .. })));
    world.settle();
    assert!(world.seen.in_service().any(|member| member.replica == older), "it serves");
}

#[test]
fn nothing_goes_for_a_copy_that_never_had_all_data_or_does_not_answer() {
    let (mut world, _, older) = bereft();
    ask(&mut world, &older);
    spec_of(&mut world, &older).last_healthy_at = "".into();
    assert!(matches!(decide(&world.seen).next, Err(Wait::NoCopy(_))), "it was never whole");
    ask(&mut world, &older);
    let node = spec_of(&mut world, &older).instance.node_id.to_string();
    world.lose(&node);
    assert!(matches!(decide(&world.seen).next, Err(Wait::NoCopy(_))), "it is away");
}

#[test]
fn an_older_copy_serves_when_somebody_asks_for_it_and_what_had_more_goes() {
    let (mut world, lost, older) = bereft();
    let term = world.record().term;
    ask(&mut world, &older);
    assert_eq!(
        decide(&world.seen).next,
        Ok(Action::DeleteReplica { replica: lost.clone() }),
        "first those that had more"
    );
    world.settle();
    assert_eq!(world.standing().0, VolumeState::Attached);
    assert!(world.record().term > term, "whoever had the volume is fenced out");
    let in_service: Vec<ReplicaName> = world.seen.in_service().map(|member| member.replica.clone()).collect();
    assert!(in_service.contains(&older) && !in_service.contains(&lost), "{in_service:?}");
    // It comes back, and nothing of it is used again.
    let node = world.seen.replicas.iter().find(|replica| replica.name_any() == lost.as_str());
    let node = node.map(|replica| replica.spec.instance.node_id.to_string());
    world.return_of(&node.expect("its data is still to be removed"));
    world.settle();
    assert!(world.seen.replicas.iter().all(|replica| replica.name_any() != lost.as_str()));
}

/// Its instance manager has given up starting it.
#[test]
fn an_older_copy_serves_when_it_is_asked_for_and_the_one_with_all_data_keeps_failing() {
    let (mut world, lost, older) = bereft();
    let node = spec_of(&mut world, &lost).instance.node_id.to_string();
    world.return_of(&node);
    world.run(&format!("im-{node}"), lost.as_str(), &"".into());
    let failed = world.manager(&format!("im-{node}")).instances.iter_mut();
    failed.filter(|one| one.name == lost.as_str()).for_each(|one| one.state = InstanceState::Error);
    let again = decide(&world.seen).next;
    assert!(matches!(&again, Ok(Action::StartReplica { replica, .. }) if *replica == lost), "{again:?}");
    ask(&mut world, &older);
    spec_of(&mut world, &lost).instance.salvage_requested = true;
    assert_eq!(decide(&world.seen).next, again, "whoever asks for both wants what has everything");
    spec_of(&mut world, &lost).instance.salvage_requested = false;
    assert_eq!(decide(&world.seen).next, Ok(Action::DeleteReplica { replica: lost.clone() }));
    world.settle();
    assert_eq!(world.standing().0, VolumeState::Attached);
    assert!(world.seen.in_service().all(|member| member.replica != lost));
}

#[test]
fn what_was_salvaged_is_forgotten_when_it_serves() {
    let (mut world, _, older) = bereft();
    ask(&mut world, &older);
    let mut was_noted = false;
    for _ in 0..MOST_STEPS {
        let Ok(action) = world.look() else { break };
        world.apply(action);
        was_noted |= world.record().salvaged == older;
        world.engine_works();
    }
    assert!(was_noted && world.record().salvaged.is_empty());
}

/// All copies of an attached volume are lost, and back.
fn failed(auto_salvage: bool) -> World {
    let mut world = World::attached();
    world.seen.auto_salvage = auto_salvage;
    let nodes = world.nodes();
    nodes.iter().for_each(|node| world.lose_manager(node));
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Faulted));
    nodes.iter().for_each(|node| world.return_of(node));
    world
}

#[test]
fn a_volume_whose_copies_all_failed_serves_again_by_itself_or_when_it_is_asked_to() {
    let mut world = failed(true);
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));

    let mut world = failed(false);
    assert!(matches!(world.settle(), Some(Wait::NotSalvaged(_))));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Faulted));
    // Neither another node nor time changes that.
    world.attach("n-2");
    assert!(matches!(world.settle(), Some(Wait::NotSalvaged(_))));
    assert_eq!(world.standing().1, Robustness::Faulted);
    let any = world.seen.in_service().next().unwrap().replica.clone();
    spec_of(&mut world, &any).instance.salvage_requested = true;
    let replica = world.seen.replicas.iter().find(|one| one.name_any() == any.as_str()).unwrap();
    assert!(!is_salvage_over(&world.seen, replica), "the wish stays until it is done");
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    let replica = world.seen.replicas.iter().find(|one| one.name_any() == any.as_str()).unwrap();
    assert!(is_salvage_over(&world.seen, replica));
}

#[test]
fn a_volume_that_is_held_is_deleted_all_the_same() {
    let mut world = failed(false);
    world.settle();
    world.seen.volume.metadata.deletion_timestamp = Some(Time(start()));
    assert_eq!(world.settle(), None);
}

#[test]
fn nothing_older_serves_once_a_copy_with_all_data_is_back() {
    let (mut world, lost, older) = bereft();
    ask(&mut world, &older);
    let node = world.seen.replicas.iter().find(|replica| replica.name_any() == lost.as_str()).unwrap();
    let node = node.spec.instance.node_id.to_string();
    world.return_of(&node);
    world.settle();
    assert_eq!(world.standing().0, VolumeState::Attached);
    let in_service: Vec<ReplicaName> = world.seen.in_service().map(|member| member.replica.clone()).collect();
    assert!(in_service.contains(&lost), "{in_service:?}");
}
