//! What is told of damage.

use kube::ResourceExt;
use midflight_api::longhorn::{Condition, ConditionStatus};

use super::super::integrity::{INTACT, Integrity, of_replica, of_volume};
use super::super::seen::Flaw;
use super::world::World;

fn flaw(replica: &str, repaired: bool) -> Flaw {
    Flaw { replica: replica.into(), what: "what it keeps of snapshot a is damaged".into(), repaired }
}

fn condition(integrity: &Integrity) -> Condition {
    Condition {
        kind: INTACT.into(),
        status: if integrity.holds() { ConditionStatus::True } else { ConditionStatus::False },
        message: integrity.message().into(),
        ..Condition::default()
    }
}

#[test]
fn damage_is_told_until_another_copy_has_made_it_good() {
    let mut world = World::attached();
    let replica = world.seen.replicas[0].clone();
    let name = replica.name_any();
    let told = |world: &World| (of_replica(&world.seen, &replica), of_volume(&world.seen));
    assert_eq!(told(&world), (None, None), "of what was never damaged nothing is said");

    world.seen.serving.as_mut().unwrap().flaws = vec![flaw(&name, false)];
    let what = "what it keeps of snapshot a is damaged".to_owned();
    let of_all = format!("replica {name}: {what}");
    let damaged = (Some(Integrity::Damaged(what.clone())), Some(Integrity::Damaged(of_all.clone())));
    assert_eq!(told(&world), damaged);
    world.seen.serving.as_mut().unwrap().flaws = vec![flaw(&name, true)];
    let repaired = (Some(Integrity::Repaired(what)), Some(Integrity::Repaired(of_all.clone())));
    assert_eq!(told(&world), repaired);

    // An engine that never saw the damage finds the copy whole.
    world.seen.serving.as_mut().unwrap().flaws.clear();
    let mut marked = replica.clone();
    let status = marked.status.get_or_insert_default();
    status.instance.conditions.set(condition(damaged.0.as_ref().unwrap()));
    world.seen.volume.status.get_or_insert_default().conditions.set(condition(damaged.1.as_ref().unwrap()));
    assert_eq!((of_replica(&world.seen, &marked), of_volume(&world.seen)), repaired);
    world.seen.serving = None;
    assert_eq!(told(&world), (None, None), "without an engine nothing new is known");
}

#[test]
fn what_the_last_copy_cannot_do_is_not_called_repaired() {
    let mut world = World::attached();
    let replica = world.seen.replicas[0].clone();
    let members = &mut world.seen.record.as_mut().unwrap().members;
    members.retain(|member| member.replica == replica.name_any().as_str());
    world.seen.serving.as_mut().unwrap().flaws = vec![flaw(&replica.name_any(), false)];
    assert!(matches!(of_replica(&world.seen, &replica), Some(Integrity::Failed(_))));
    assert!(matches!(of_volume(&world.seen), Some(Integrity::Failed(_))));
    world.seen.serving.as_mut().unwrap().trouble = Some("the disk is full".into());
    let Some(Integrity::Failed(what)) = of_volume(&world.seen) else { panic!("it is told") };
    assert_eq!(what, "the disk is full");
}
