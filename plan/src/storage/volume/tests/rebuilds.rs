//! Copies are rebuilt when it is their turn, and not at all where rebuilds are turned off.

use jiff::SignedDuration;
use kube::ResourceExt;
use midflight_api::MemberMode;
use midflight_api::longhorn::{Robustness, VolumeState};

use super::super::*;
use super::world::{World, start};
use crate::storage::rebuilds::{self, Candidate, REBUILD, asks};

impl World {
    /// Copies that ask to be rebuilt get their turns, unless their nodes are busy with others.
    pub(super) fn take_turns(&mut self) {
        let now = self.seen.now.to_string();
        let wanted: Vec<Option<Rebuild>> =
            self.seen.replicas.iter().map(|replica| rebuild_wanted(&self.seen, replica)).collect();
        for (replica, wanted) in self.seen.replicas.iter_mut().zip(wanted) {
            let node = replica.spec.instance.node_id.clone();
            let conditions = &mut replica.status.get_or_insert_default().instance.conditions;
            match wanted {
                None => conditions.clear(REBUILD),
                Some(Rebuild::UnderWay) => conditions.set(asks(true, &now)),
                Some(Rebuild::Asks) if conditions.holds(REBUILD) => {}
                Some(Rebuild::Asks) => {
                    conditions.set(asks(false, &now));
                    let (is_permitted, is_under_way) = (true, true);
                    let busy =
                        Candidate { replica: "other".into(), is_permitted, is_under_way, since: start() };
                    let others = if self.is_busy { self.seen.rebuilds_at_once } else { 0 };
                    let mut replicas = vec![busy; others];
                    replicas.extend(Candidate::of(replica));
                    let limit = self.seen.rebuilds_at_once;
                    let seen = rebuilds::Observed { node, now: self.seen.now, limit, replicas };
                    for (_, verdict) in rebuilds::decide(&seen) {
                        let status = replica.status.get_or_insert_default();
                        status.instance.conditions.set(verdict.condition(&now));
                    }
                }
            }
        }
    }
}

/// A volume whose copy on this node is lost, and back.
fn with_one_back() -> (World, String) {
    let mut world = World::attached();
    assert_eq!(world.settle(), Some(Wait::Content));
    let lost = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    world.lose(&lost);
    world.settle();
    (world, lost)
}

#[test]
fn a_copy_that_is_back_is_rebuilt_when_its_node_has_room() {
    let (mut world, lost) = with_one_back();
    world.is_busy = true;
    world.return_of(&lost);
    let wait = world.settle().unwrap();
    assert!(matches!(wait, Wait::Turn { .. }), "{wait}");
    assert!(wait.to_string().contains("concurrent-replica-rebuild-per-node-limit"), "{wait}");
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
    world.is_busy = false;
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    let permitted = world.seen.serving.as_ref().and_then(|serving| serving.permitted.clone());
    assert_eq!(permitted, Some(BTreeSet::new()), "its turn is over");
}

/// It cannot be told whom to rebuild, so it is not told where a copy is that has to wait.
#[test]
fn an_engine_of_an_older_build_does_not_hear_of_a_copy_before_its_turn() {
    let (mut world, lost) = with_one_back();
    world.is_busy = true;
    world.seen.serving.as_mut().unwrap().permitted = None;
    // Another address is news to the engine.
    world.status().current_replica_address_map.clear();
    world.return_of(&lost);
    while let Ok(action) = world.look() {
        if let Action::AddReplica { replica, .. } = &action {
            let member = world.seen.member(replica.as_str()).unwrap();
            assert_eq!(member.mode, MemberMode::ReadWrite, "{replica}");
        }
        world.apply(action);
    }
    assert!(matches!(world.look(), Err(Wait::Turn { .. })), "{:?}", world.look());
}

#[test]
fn nothing_is_rebuilt_or_given_up_where_rebuilds_are_off() {
    let (mut world, lost) = with_one_back();
    world.seen.rebuilds_at_once = 0;
    world.seen.now = start() + SignedDuration::from_secs(601);
    assert_eq!(
        world.settle(),
        Some(Wait::RebuildsOff),
        "what is lost may come back, and another would be empty"
    );
    assert!(world.nodes().contains(&lost));
    world.return_of(&lost);
    assert_eq!(world.settle(), Some(Wait::RebuildsOff));
    world.seen.volume.spec.number_of_replicas = 4;
    assert_eq!(world.settle(), Some(Wait::RebuildsOff));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
    world.seen.rebuilds_at_once = 1;
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.standing().1, world.nodes().len()), (Robustness::Healthy, 4));
}

#[test]
fn a_detached_volume_is_not_brought_up_to_rebuild_nothing() {
    let (mut world, lost) = with_one_back();
    world.attach("");
    world.settle();
    world.return_of(&lost);
    (world.seen.rebuilds_detached, world.seen.rebuilds_at_once) = (true, 0);
    world.settle();
    assert_eq!((world.standing().0, world.record().term.number()), (VolumeState::Detached, 1));
    world.seen.rebuilds_at_once = 1;
    world.settle();
    assert_eq!((world.standing().0, world.seen.in_service().count()), (VolumeState::Detached, 3));
}

/// Who rebuilds is known from the record, also where nobody was asked.
#[test]
fn a_rebuild_that_has_begun_counts() {
    let (mut world, lost) = with_one_back();
    let replica = |world: &World| {
        let there =
            |replica: &&midflight_api::longhorn::Replica| replica.spec.instance.node_id == lost.as_str();
        world.seen.replicas.iter().find(there).unwrap().clone()
    };
    assert_eq!(rebuild_wanted(&world.seen, &replica(&world)), None, "it is away");
    let name = replica(&world).name_any();
    world.change_members(|members| {
        members
            .iter_mut()
            .filter(|one| one.replica == name.as_str())
            .for_each(|one| one.mode = MemberMode::WriteOnly);
    });
    assert_eq!(rebuild_wanted(&world.seen, &replica(&world)), Some(Rebuild::UnderWay));
}
