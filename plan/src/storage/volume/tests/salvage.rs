//! A volume that has lost all that had its data serves what is left, when somebody asks for that.

use kube::ResourceExt;
use midflight_api::ReplicaName;
use midflight_api::longhorn::{ReplicaSpec, VolumeState};

use super::super::*;
use super::world::{NODES, World};

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
