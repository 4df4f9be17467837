//! Copies are rebuilt when it is their turn, and not at all where rebuilds are turned off.

use jiff::SignedDuration;
use kube::ResourceExt;
use midflight_api::MemberMode;
use midflight_api::longhorn::{Replica, Robustness, VolumeState};

use super::super::*;
use super::world::{World, start};
use crate::storage::rebuilds::{self, Candidate, REBUILD, Turn};

impl World {
    /// Copies that ask to be rebuilt get their turns, unless their nodes are busy with others.
    pub(super) fn take_turns(&mut self) {
        let now = self.seen.now.to_string();
        let wanted: Vec<Option<Rebuild>> =
            self.seen.replicas.iter().map(|replica| rebuild_wanted(&self.seen, replica)).collect();
        for (replica, wanted) in self.seen.replicas.iter_mut().zip(wanted) {
            let node = replica.spec.instance.node_id.clone();
            note_rebuild(wanted, &mut replica.status.get_or_insert_default().instance.conditions, &now);
            let busy = Candidate { replica: "other".into(), turn: Turn::UnderWay, since: start() };
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
        self.assert_that_turns_last();
    }

    /// Whatever the engine may rebuild counts as rebuilt.
    fn assert_that_turns_last(&self) {
        let permitted = self.seen.serving.iter().flat_map(|serving| serving.permitted.iter().flatten());
        let is_engine_up = self.seen.running_engine().is_some();
        for name in permitted.filter(|name| is_engine_up && self.seen.member(name.as_str()).is_some()) {
            let replica = self.seen.replicas.iter().find(|replica| replica.name_any() == name.as_str());
            let turn = replica.and_then(Candidate::of).map(|one| one.turn);
            assert!(!matches!(turn, None | Some(Turn::Asks)), "{name} may be rebuilt: {turn:?}");
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
fn a_turn_lasts_until_the_engine_may_not_rebuild_the_copy() {
    use MemberMode::{Error, ReadWrite, WriteOnly};
    let (may, not) = (Some(true), Some(false));
    #[rustfmt::skip]
    let cases = [
        // what the record says of it, whether it is up, whether the engine says that it may rebuild it, its turn; what is wanted for it
        ("whole",                        ReadWrite, true,  not,  None,                 None),
        ("whole by now",                 ReadWrite, true,  may,  Some(Turn::UnderWay), Some(Rebuild::Ends)),
        ("whole, and that was heard",    ReadWrite, true,  not,  Some(Turn::Ends),     None),
        ("back",                         Error,     true,  not,  None,                 Some(Rebuild::Asks)),
        ("its turn",                     Error,     true,  not,  Some(Turn::Given),    Some(Rebuild::Asks)),
        ("its turn, and that was heard", Error,     true,  may,  Some(Turn::Given),    Some(Rebuild::Asks)),
        ("under way",                    WriteOnly, true,  may,  Some(Turn::Given),    Some(Rebuild::UnderWay)),
        ("lost on the way",              WriteOnly, false, may,  Some(Turn::UnderWay), Some(Rebuild::UnderWay)),
        ("lost before it began",         Error,     false, may,  Some(Turn::Given),    Some(Rebuild::Ends)),
        ("lost, and that was heard",     Error,     false, not,  Some(Turn::Ends),     None),
        ("its turn was taken",           Error,     true,  may,  Some(Turn::Ends),     Some(Rebuild::Ends)),
        ("taken, and that was heard",    Error,     true,  not,  Some(Turn::Ends),     Some(Rebuild::Asks)),
        ("lost, and nothing is heard",   Error,     false, None, Some(Turn::Given),    Some(Rebuild::Ends)),
        ("back, and nothing is heard",   Error,     true,  None, Some(Turn::Given),    Some(Rebuild::Asks)),
        ("lost while it waited",         Error,     false, None, Some(Turn::Asks),     None),
    ];
    for (name, mode, is_up, engine_may, turn, expected) in cases {
        let mut world = World::attached();
        assert_eq!(world.settle(), Some(Wait::Content));
        let node = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
        if !is_up {
            world.lose(&node);
        }
        let is_meant = |replica: &&mut Replica| replica.spec.instance.node_id == node.as_str();
        let replica = world.seen.replicas.iter_mut().find(is_meant).unwrap();
        let conditions = &mut replica.status.get_or_insert_default().instance.conditions;
        conditions.clear(REBUILD);
        turn.into_iter().for_each(|turn| conditions.set(turn.condition(&start().to_string())));
        let replica = replica.clone();
        let own = ReplicaName::from(replica.name_any());
        world.change_members(|members| {
            members.iter_mut().filter(|member| member.replica == own).for_each(|member| member.mode = mode);
        });
        world.seen.serving = world.seen.serving.take().zip(engine_may).map(|(serving, may)| Serving {
            permitted: Some(may.then(|| own.clone()).into_iter().collect()),
            ..serving
        });
        assert_eq!(rebuild_wanted(&world.seen, &replica), expected, "{name}");
    }
}

/// It lives on without its instance manager, as a process of its own; inside it is gone with it.
#[test]
fn the_turn_of_a_copy_outlives_the_instance_manager_of_an_engine_that_does() {
    for (mut world, expected) in [(World::attached_v1(), Some(Rebuild::Ends)), (World::attached(), None)] {
        world.settle();
        let replica = world.seen.replicas.iter_mut().find(|one| one.spec.instance.node_id != "n-1").unwrap();
        let conditions = &mut replica.status.get_or_insert_default().instance.conditions;
        conditions.set(Turn::UnderWay.condition(&start().to_string()));
        let replica = replica.clone();
        world.lose_manager("n-1");
        assert_eq!(rebuild_wanted(&world.seen, &replica), expected);
    }
}

/// The place of one that is lost before its rebuild begins is not given to another while its engine may still begin.
#[test]
fn the_engine_is_told_that_a_turn_is_over_before_another_has_it() {
    let (mut world, lost) = with_one_back();
    world.return_of(&lost);
    let own = loop {
        match world.look() {
            Ok(Action::Permit { replicas, manager }) if !replicas.is_empty() => {
                let own = replicas.first().unwrap().clone();
                world.apply(Action::Permit { replicas, manager });
                break own;
            }
            Ok(action) => world.apply(action),
            Err(wait) => panic!("{wait}"),
        }
    };
    let turn = |world: &World| {
        let replica = world.seen.replicas.iter().find(|replica| replica.name_any() == own.as_str());
        replica.and_then(Candidate::of).map(|one| one.turn)
    };
    assert_eq!(turn(&world), Some(Turn::Given));
    for manager in world.seen.managers.iter_mut().filter(|manager| manager.node == lost.as_str()) {
        manager.running = false;
    }
    let told = world.look().unwrap();
    assert!(matches!(&told, Action::Permit { replicas, .. } if replicas.is_empty()), "{told:?}");
    assert_eq!(turn(&world), Some(Turn::Ends), "it counts until that is done");
    world.apply(told);
    let _ = world.look();
    assert_eq!(turn(&world), None);
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
        let there = |replica: &&Replica| replica.spec.instance.node_id == lost.as_str();
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
