//! The next step of one node, state by state.

use midflight_api::longhorn::{
    self, NodeDataEngineUpgradeStatus, NodeUpgradeState, TargetMove, TargetMoveReason, TargetMoveState,
    VolumeUpgradeStatus,
};

use super::super::{Action, MoveFailure, Moved, Observed, Taken, decide};
use super::*;
use InstanceManagerState::{Running, Starting};
use NodeUpgradeState::*;

/// What an upgrade of node-1 sees in a state, with one volume that it has named, snapshotted, and sent to node-2.
fn seen(state: NodeUpgradeState, volume: Volume) -> Observed {
    let to = if matches!(state, SwitchingOver | UpgradingInstanceManager | SwitchingBack) {
        name(2)
    } else {
        "".into()
    };
    let entry = VolumeUpgradeStatus { state, temporary_node_id: to, ..Default::default() };
    let is_marked = !matches!(state, Undefined | Finalizing | Completed | Error);
    let mut nodes = nodes(3);
    nodes.get_mut("node-1").unwrap().requested = is_marked;
    let taken = Taken { ready: true, ..Taken::default() };
    let has_snapshot = !matches!(state, Undefined | Completed | Error);
    Observed {
        now: at(10),
        began: at(0),
        node: name(1),
        image: NEW.into(),
        default_image: NEW.into(),
        policy: policy(),
        deleting: false,
        status: NodeDataEngineUpgradeStatus {
            state,
            since: at(0).to_string().into(),
            volumes: if state == Undefined {
                Default::default()
            } else {
                [(volume.name.clone(), entry)].into()
            },
            ..Default::default()
        },
        nodes,
        snapshots: if has_snapshot { [(volume.name.clone(), taken)].into() } else { Default::default() },
        volumes: by_name(vec![volume]),
        load: Default::default(),
        copied: Default::default(),
    }
}

/// What comes next, in short: a state, an action, or a wait.
fn next(seen: &Observed) -> String {
    let decision = decide(seen);
    match (decision.status.state == seen.status.state, decision.actions.as_slice()) {
        (false, []) if decision.status.failure.is_empty() => decision.status.state.to_string(),
        (false, []) => format!("{}, since {}", decision.status.state, decision.status.failure),
        (true, [])
            if decision.status.volumes != seen.status.volumes && decision.status.message.is_empty() =>
        {
            "notes".into()
        }
        (true, []) => decision.status.message.to_string(),
        (true, [first, ..]) => format!("{first:?}").split([' ', '(']).next().unwrap_or_default().to_owned(),
        (false, _) => panic!("says and does at once: {decision:?}"),
    }
}

fn out(volume: Volume) -> Volume {
    with(volume, |volume| {
        let replica = &mut volume.replicas[0];
        (replica.told_to_stop, replica.runs, replica.copy) = (true, false, Copy::Out);
    })
}

fn away(volume: Volume) -> Volume {
    with(volume, |volume| (volume.asked, volume.serves_on, volume.seat) = (name(2), name(2), name(2)))
}

/// The engine was asked for on a node, and did not serve there.
fn failed(node: usize, is_lost: bool, volume: Volume) -> Volume {
    with(volume, |volume| {
        volume.asked = name(node);
        volume.moved.failure = Some(MoveFailure { node: name(node), is_lost, why: "it was so".into() });
    })
}

fn change(mut seen: Observed, change: impl FnOnce(&mut Observed)) -> Observed {
    change(&mut seen);
    seen
}

fn new_manager(seen: &mut Observed) {
    seen.nodes.get_mut("node-1").unwrap().managers = vec![manager("node-1", NEW, 0)];
}

/// Both would ask for it, one after the other, for ever.
#[test]
fn what_an_attempt_left_on_its_way_is_let_alone_while_another_node_is_upgraded() {
    let moves = |seen: &Observed| {
        decide(seen).actions.iter().filter(|action| matches!(action, Action::Move { .. })).count()
    };
    let left = |seen: &mut Observed| {
        seen.volumes.values_mut().for_each(|volume| *volume = away(volume.clone()));
        new_manager(seen);
    };
    let mut seen = change(crowd(Error), left);
    assert_eq!(moves(&seen), 10, "all come home");
    seen.nodes.get_mut("node-2").unwrap().requested = true;
    assert_eq!(moves(&seen), 0, "the upgrade of node-2 brings them home");
}

/// Ten volumes on the node, in a state in which snapshots are taken or removed.
fn crowd(state: NodeUpgradeState) -> Observed {
    let names: Vec<String> = (0..10).map(|number| format!("vol-{number}")).collect();
    let entry = VolumeUpgradeStatus { state, ..Default::default() };
    change(seen(state, attached("vol-0", 1, &[1, 2, 3])), |seen| {
        seen.volumes = by_name(names.iter().map(|name| attached(name, 1, &[1, 2, 3])).collect());
        seen.status.volumes = names.iter().map(|name| (name.as_str().into(), entry.clone())).collect();
    })
}

/// A replica leaves after a flush of every copy: not all leave at the same time, and none is forgotten.
#[test]
fn replicas_leave_a_few_at_a_time() {
    let mut seen = crowd(FailingReplicas);
    while next(&seen) != "switching-over" {
        for action in decide(&seen).actions {
            let Action::Stop { volume, .. } = action else { panic!("{action:?}") };
            let replica = &mut seen.volumes.get_mut(&volume).unwrap().replicas[0];
            assert!(!std::mem::replace(&mut replica.told_to_stop, true), "once");
        }
        let mut leaving: Vec<&mut Replica> =
            seen.volumes.values_mut().map(|one| &mut one.replicas[0]).collect();
        leaving.retain(|replica| replica.told_to_stop && replica.runs);
        assert!((1..=2).contains(&leaving.len()), "{} at once", leaving.len());
        (leaving[0].runs, leaving[0].copy) = (false, Copy::Out);
    }
    assert!(seen.volumes.values().all(|volume| volume.replicas[0].copy == Copy::Out));
}

/// Each is opened, copied to and flushed: not all come back at the same time, and those that do not come keep no other away for long.
#[test]
fn replicas_come_back_a_few_at_a_time_and_wait_for_none_for_ever() {
    let left = |seen: &mut Observed| {
        seen.volumes.values_mut().for_each(|volume| *volume = out(volume.clone()));
        new_manager(seen);
        seen.nodes.get_mut("node-1").unwrap().requested = false;
    };
    for comes in [true, false] {
        let mut seen = change(crowd(RebuildingReplica), left);
        seen.now = at(0);
        let mut began = 0;
        while next(&seen) != "finalizing" {
            let decision = decide(&seen);
            for action in decision.actions {
                let Action::Start { volume, .. } = action else { panic!("{action:?}") };
                let replica = &mut seen.volumes.get_mut(&volume).unwrap().replicas[0];
                assert!(std::mem::replace(&mut replica.told_to_stop, false), "once");
                began += 1;
            }
            let all = seen.volumes.values_mut().map(|one| &mut one.replicas[0]);
            let mut coming: Vec<&mut Replica> =
                all.filter(|one| !one.told_to_stop && !one.is_healthy()).collect();
            if comes {
                assert!((1..=2).contains(&coming.len()), "{} at once", coming.len());
                (coming[0].runs, coming[0].copy) = (true, Copy::InService);
            } else if began < 10 {
                assert!(decision.until.is_some_and(|until| until <= seen.now + Duration::from_secs(5)));
                seen.now += Duration::from_secs(5);
            } else {
                break;
            }
        }
        assert_eq!(began, 10, "every replica was asked to come back");
        assert!(seen.now <= at(5 * 8), "{}", seen.now);
    }
}

/// Every snapshot is a flush of every copy: not all volumes take theirs, or lose it, at the same time.
#[test]
fn snapshots_come_and_go_a_few_at_a_time() {
    let mut seen = crowd(Initializing);
    seen.snapshots.clear();
    while next(&seen) != "failing-replicas" {
        for action in decide(&seen).actions {
            let Action::TakeSnapshot { volume } = action else { panic!("{action:?}") };
            assert_eq!(seen.snapshots.insert(volume, Taken::default()), None, "once");
        }
        let taking = || seen.snapshots.values().filter(|taken| !taken.ready).count();
        assert!((1..=2).contains(&taking()), "{} at once", taking());
        seen.snapshots.values_mut().find(|taken| !taken.ready).expect("one is taken").ready = true;
    }
    assert_eq!(seen.snapshots.len(), 10);

    let mut seen = change(crowd(Finalizing), |all| all.snapshots = seen.snapshots);
    while !seen.snapshots.is_empty() {
        for action in decide(&seen).actions {
            let Action::RemoveSnapshot { volume } = action else { panic!("{action:?}") };
            seen.snapshots.get_mut(&volume).expect("it is there").deleting = true;
        }
        let going = seen.snapshots.iter().filter(|(_, taken)| taken.deleting);
        assert!((1..=2).contains(&going.clone().count()), "{} at once", going.count());
        let (gone, _) = seen.snapshots.iter().find(|(_, taken)| taken.deleting).expect("one goes");
        let gone = gone.clone();
        seen.snapshots.remove(&gone);
    }
    assert_eq!(next(&seen), "completed");
}

#[test]
fn each_state_does_what_the_seed_lists_one_step_at_a_time() {
    let well = || attached("vol-1", 1, &[1, 2, 3]);
    let standby = |state, more: fn(&mut Observed)| {
        let alone = with(well(), |volume| volume.node = "".into());
        let volume = if state == Initializing { alone } else { out(alone) };
        change(seen(state, volume), more)
    };
    let told = |volume| with(volume, |volume: &mut Volume| volume.replicas[0].told_to_stop = true);
    #[rustfmt::skip]
    let cases = [
        ("begins",                 seen(Undefined, well()),                                                        "initializing"),
        ("runs it already",        change(seen(Undefined, well()), new_manager),                                   "finalizing"),
        ("a replica is not back",  change(seen(Undefined, with(well(), |v| v.replicas[0].copy = Copy::Rebuilding)), new_manager), "notes"),
        ("it is waited for",       change(seen(Undefined, with(well(), |v| v.replicas[0].copy = Copy::Out)), |s| { new_manager(s); s.status.volumes.insert("vol-1".into(), VolumeUpgradeStatus::default()); }), "rebuilding-replica"),
        ("nor runs",               change(seen(Undefined, with(well(), |v| v.replicas[0].runs = false)), |s| { new_manager(s); s.status.volumes.insert("vol-1".into(), VolumeUpgradeStatus::default()); }), "rebuilding-replica"),
        ("another node's is not",  change(seen(Undefined, with(well(), |v| v.replicas[1].copy = Copy::Out)), new_manager), "finalizing"),
        ("it goes anyway",         change(seen(Undefined, with(well(), |v| { v.replicas[0].copy = Copy::Out; v.deleting = true; })), new_manager), "finalizing"),
        ("detached, nobody's",     change(seen(Undefined, detached("vol-1", 1, &[1, 2])), new_manager),            "finalizing"),
        ("marks the node",         change(seen(Initializing, well()), |s| s.nodes.get_mut("node-1").unwrap().requested = false), "Request"),
        ("names volumes",          change(seen(Initializing, well()), |s| s.status.volumes.clear()),               "notes"),
        ("takes snapshots",        change(seen(Initializing, well()), |s| s.snapshots.clear()),                    "TakeSnapshot"),
        ("waits for them",         change(seen(Initializing, well()), |s| s.snapshots.get_mut("vol-1").unwrap().ready = false), "a snapshot of vol-1 is being taken"),
        ("all are there",          seen(Initializing, well()),                                                     "failing-replicas"),
        ("degraded waits",         seen(Initializing, with(well(), |v| v.replicas[1].copy = Copy::Out)),           "vol-1 is degraded: its replica on node-2 is not in service; wait for the rebuild; if none runs, make room for the replica or lower numberOfReplicas"),
        ("nothing would return",   change(seen(Initializing, well()), |s| s.policy.rebuilds = false),               "no replica that leaves a node would be rebuilt: the setting concurrent-replica-rebuild-per-node-limit is 0; set it to at least 1"),
        ("replicas leave",         seen(FailingReplicas, well()),                                                  "Stop"),
        ("no other copy",          seen(FailingReplicas, with(well(), |v| { v.replicas[1].copy = Copy::Out; v.replicas[2].runs = false; })), "vol-1 has no healthy replica outside of node-1; bring back a node that has a replica of it"),
        ("waits for them",         seen(FailingReplicas, told(well())),                                            "replica vol-1-r-1 of vol-1 leaves its engine"),
        ("all are out",            seen(FailingReplicas, out(well())),                                             "switching-over"),
        ("none is here",           seen(FailingReplicas, attached("vol-1", 1, &[2, 3])),                           "switching-over"),
        ("chooses a node",         change(seen(SwitchingOver, out(well())), |s| s.status.volumes.get_mut("vol-1").unwrap().temporary_node_id = "".into()), "notes"),
        ("moves the engine",       seen(SwitchingOver, out(well())),                                               "Move"),
        ("waits for it",           seen(SwitchingOver, with(out(well()), |v| v.asked = name(2))),                  "the engine of vol-1 moves to node-2"),
        ("it is away",             seen(SwitchingOver, away(out(well()))),                                         "upgrading-instance-manager"),
        ("engine is elsewhere",    seen(SwitchingOver, out(with(attached("vol-1", 2, &[1, 2, 3]), |_| {}))),       "upgrading-instance-manager"),
        ("its node dies",          change(seen(SwitchingOver, away(out(well()))), |s| s.nodes.get_mut("node-2").unwrap().ready = false), "notes"),
        ("the old one is used",    change(seen(UpgradingInstanceManager, away(out(well()))), |s| s.nodes.get_mut("node-1").unwrap().managers[0].instances = 2), "instance manager im:v1-node-1 still holds 2 engines and replicas"),
        ("the old one goes",       seen(UpgradingInstanceManager, away(out(well()))),                              "DeleteManager"),
        ("a standby is no user",   standby(UpgradingInstanceManager, |s| s.nodes.get_mut("node-1").unwrap().managers[0].instances = 1), "DeleteManager"),
        ("while it is at rest",    standby(UpgradingInstanceManager, |s| s.volumes.get_mut("vol-1").unwrap().restoring = true), "vol-1 is being restored; wait until it is restored"),
        ("it is not moved",        standby(SwitchingOver, |_| {}),                                                 "upgrading-instance-manager"),
        ("nor kept as it is",      standby(Initializing, |s| s.snapshots.clear()),                                 "failing-replicas"),
        ("gets the image",         standby(Finalizing, |s| s.snapshots.clear()),                                   "SetImage"),
        ("it is going",            change(seen(UpgradingInstanceManager, away(out(well()))), |s| s.nodes.get_mut("node-1").unwrap().managers[0].deleting = true), "instance manager im:v1-node-1 is going"),
        ("its own node dies",      change(seen(UpgradingInstanceManager, away(out(well()))), |s| { let node = s.nodes.get_mut("node-1").unwrap(); node.ready = false; node.managers.remove(0); }), "the instance manager of im:v2 cannot start: node node-1 is not ready; bring the node back"),
        ("nobody can be moved",    change(seen(UpgradingInstanceManager, with(away(out(well())), |v| v.serves_on = "".into())), |s| { s.nodes.get_mut("node-2").unwrap().ready = false; s.nodes.get_mut("node-1").unwrap().managers.remove(0); }), "the instance manager of im:v2 on node-1 does not run yet"),
        ("the new one starts",     change(seen(UpgradingInstanceManager, away(out(well()))), |s| drop(s.nodes.get_mut("node-1").unwrap().managers.remove(0))), "the instance manager of im:v2 on node-1 does not run yet"),
        ("it runs",                change(seen(UpgradingInstanceManager, away(out(well()))), new_manager),         "switching-back"),
        ("comes home",             change(seen(SwitchingBack, away(out(well()))), new_manager),                    "Move"),
        ("waits for it",           change(seen(SwitchingBack, with(away(out(well())), |v| v.asked = name(1))), new_manager), "the engine of vol-1 moves to node-1"),
        ("is home",                change(seen(SwitchingBack, out(well())), new_manager),                          "rebuilding-replica"),
        ("opens the node",         change(seen(RebuildingReplica, out(well())), new_manager),                      "Request"),
        ("replicas come back",     change(seen(RebuildingReplica, out(well())), |s| s.nodes.get_mut("node-1").unwrap().requested = false), "Start"),
        ("waits for them",         change(seen(RebuildingReplica, with(well(), |v| v.replicas[0].copy = Copy::Rebuilding)), |s| s.nodes.get_mut("node-1").unwrap().requested = false), "replica vol-1-r-1 of vol-1 is rebuilt"),
        ("turned off meanwhile",   change(seen(RebuildingReplica, with(well(), |v| v.replicas[0].copy = Copy::Out)), |s| { s.nodes.get_mut("node-1").unwrap().requested = false; s.policy.rebuilds = false; }), "replica vol-1-r-1 of vol-1 is not rebuilt: the setting concurrent-replica-rebuild-per-node-limit is 0; set it to at least 1"),
        ("all are whole",          change(seen(RebuildingReplica, well()), |s| s.nodes.get_mut("node-1").unwrap().requested = false), "finalizing"),
        ("snapshots go",           seen(Finalizing, well()),                                                       "RemoveSnapshot"),
        ("detached volumes",       change(seen(Finalizing, detached("vol-1", 1, &[1])), |s| s.snapshots.clear()),  "SetImage"),
        ("of other nodes",         change(seen(Finalizing, detached("vol-1", 2, &[2])), |s| s.snapshots.clear()),  "completed"),
        ("served there since",     change(seen(Finalizing, well()), |s| { s.snapshots.clear(); new_manager(s); }), "SetImage"),
        ("served elsewhere",       change(seen(Finalizing, attached("vol-1", 2, &[1, 2, 3])), |s| { s.snapshots.clear(); new_manager(s); }), "completed"),
        ("not there yet",          change(seen(Finalizing, with(well(), |v| v.serves_on = "".into())), |s| { s.snapshots.clear(); new_manager(s); }), "completed"),
        ("is completed",           change(seen(Finalizing, well()), |s| s.snapshots.clear()),                      "completed"),
        ("rests",                  seen(Completed, well()),                                                        ""),
        ("goes",                   change(seen(Completed, well()), |s| s.deleting = true),                         "Release"),
    ];
    for (case, seen, expected) in cases {
        assert_eq!(next(&seen), expected, "{} {case}", seen.status.state);
    }
}

#[test]
fn every_state_has_a_way_back() {
    let well = || attached("vol-1", 1, &[1, 2, 3]);
    let back = |seen: Observed| change(seen, |seen| seen.status.failure = "why".into());
    let ended = |state, volume| change(back(seen(state, volume)), |seen| seen.snapshots.clear());
    // The old instance manager of the node has an object again, and neither it nor the new one runs.
    let replaced = |state| {
        change(back(seen(state, away(out(well())))), |seen| {
            seen.status.previous_image = OLD.into();
            for manager in &mut seen.nodes.get_mut("node-1").unwrap().managers {
                manager.state = InstanceManagerState::Stopped;
            }
        })
    };
    // The new instance manager runs, and the engine that was sent home does not serve there.
    let unserving = |more: fn(&mut Observed)| {
        change(back(seen(SwitchingBack, failed(1, false, away(out(well()))))), |seen| {
            new_manager(seen);
            seen.status.previous_image = OLD.into();
            seen.volumes.get_mut("vol-1").unwrap().image = NEW.into();
            more(seen);
        })
    };
    fn new_one(seen: &mut Observed) -> &mut Manager {
        let here = seen.nodes.get_mut("node-1").unwrap();
        here.managers.iter_mut().find(|one| one.image == NEW).unwrap()
    }
    fn old_object(seen: &mut Observed) {
        let state = InstanceManagerState::Undefined;
        let old = Manager { state, ..manager("node-1", OLD, 0) };
        seen.nodes.get_mut("node-1").unwrap().managers.push(old);
    }
    let unmarked =
        |seen| change(seen, |seen: &mut Observed| seen.nodes.get_mut("node-1").unwrap().requested = false);
    #[rustfmt::skip]
    let cases = [
        ("deleted at once",        change(seen(Undefined, well()), |s| s.deleting = true),                         "error, since aborted: the upgrade was deleted"),
        ("deleted",                change(seen(Initializing, well()), |s| s.deleting = true),                      "switching-back, since aborted: the upgrade was deleted"),
        ("another image",          change(seen(SwitchingOver, out(well())), |s| s.default_image = "im:v3".into()), "switching-back, since default-instance-manager-image became im:v3 meanwhile"),
        ("another image, too late", change(seen(Finalizing, well()), |s| s.default_image = "im:v3".into()),         "RemoveSnapshot"),
        ("too late",               change(seen(SwitchingOver, with(out(well()), |v| v.asked = name(2))), |s| s.now = at(600)), "switching-back, since switching-over was not over within 600 s: the engine of vol-1 moves to node-2"),
        ("single by now",          seen(Initializing, attached("vol-1", 1, &[2])),                                 "switching-back, since single replica of vol-1; raise its numberOfReplicas to 2 and wait until it is healthy, or detach it"),
        ("comes home",             back(seen(SwitchingBack, away(out(well())))),                                   "Move"),
        ("nobody is home",         change(back(seen(SwitchingBack, away(out(well())))), |s| s.nodes.get_mut("node-1").unwrap().ready = false), "why; goes back: vol-1 cannot come home: node node-1 is not ready; bring the node back, or detach the volume"),
        ("nobody rebuilds",        change(unmarked(back(seen(RebuildingReplica, with(out(well()), |v| v.replicas[0].told_to_stop = false)))), |s| s.nodes.get_mut("node-1").unwrap().ready = false), "why; goes back: a replica of vol-1 cannot be rebuilt: node node-1 is not ready; bring the node back"),
        ("gives up for now",       change(back(seen(SwitchingBack, away(out(well())))), |s| { s.nodes.get_mut("node-1").unwrap().ready = false; s.now = at(600); }), "error, since why"),
        ("and still tries",        ended(Error, away(out(well()))),                                                "Move"),
        ("does not run there",     seen(SwitchingOver, failed(2, false, out(well()))),                             "switching-back, since the engine of vol-1 does not serve on node-2: it was so"),
        ("its node was lost",      seen(SwitchingOver, failed(2, true, out(well()))),                              "notes"),
        ("and there is no other",  seen(SwitchingOver, failed(2, true, out(attached("vol-1", 1, &[1, 2])))),       "switching-back, since the engine of vol-1 does not serve on node-2: it was so"),
        ("does not come home",     change(seen(SwitchingBack, failed(1, false, away(out(well())))), new_manager),  "the engine of vol-1 does not serve on node-1, where it belongs: it was so; it is tried again"),
        ("the old one comes back", change(replaced(SwitchingBack), |s| s.nodes.get_mut("node-1").unwrap().managers.clear()), "ReinstateManager"),
        ("the new one is in its way", change(replaced(SwitchingBack), |s| s.nodes.get_mut("node-1").unwrap().managers[1].state = Starting), "DeleteManager"),
        ("it has gone",            replaced(SwitchingBack),                                                        "why; goes back: the instance manager of im:v1 on node-1 does not run yet; and 1 more"),
        ("the old one still goes", change(replaced(SwitchingBack), |s| s.nodes.get_mut("node-1").unwrap().managers[0].deleting = true), "why; goes back: instance manager im:v1-node-1 is going; and 1 more"),
        ("the new one came up",    change(replaced(SwitchingBack), |s| s.nodes.get_mut("node-1").unwrap().managers[1].state = Running), "DeleteManager"),
        ("it serves nothing",      unserving(|_| {}),                                                              "ReinstateManager"),
        ("and goes",               unserving(old_object),                                                          "DeleteManager"),
        ("the old one starts",     unserving(|s| { old_object(s); new_one(s).deleting = true; }),                   "why; goes back: the instance manager of im:v1 on node-1 does not run yet; and 1 more"),
        ("the old one serves",     unserving(|s| { old_object(s); s.nodes.get_mut("node-1").unwrap().managers.retain(|one| one.image == OLD); s.nodes.get_mut("node-1").unwrap().managers[0].state = Running; }), "Move"),
        ("and is asked for it",    unserving(|s| { s.nodes.get_mut("node-1").unwrap().managers = vec![manager("node-1", OLD, 0)]; s.volumes.get_mut("vol-1").unwrap().image = OLD.into(); }), "why; goes back: the engine of vol-1 does not serve on node-1, where it belongs: it was so; it is tried again"),
        ("the node is lost",       unserving(|s| s.volumes.get_mut("vol-1").unwrap().moved.failure.as_mut().unwrap().is_lost = true), "why; goes back: the engine of vol-1 does not serve on node-1, where it belongs: it was so; it is tried again"),
        ("it serves another",      unserving(|s| drop(s.volumes.insert("vol-2".into(), attached("vol-2", 1, &[2, 3])))), "why; goes back: the engine of vol-1 does not serve on node-1, where it belongs: it was so; it is tried again"),
        ("a replica is there",     unserving(|s| s.volumes.get_mut("vol-1").unwrap().replicas[0].runs = true),      "why; goes back: the engine of vol-1 does not serve on node-1, where it belongs: it was so; it is tried again"),
        ("also when given up",     change(replaced(Error), |s| s.nodes.get_mut("node-1").unwrap().managers.clear()), "ReinstateManager"),
        ("nobody was replaced",    change(replaced(SwitchingBack), |s| { s.status.previous_image = "".into(); s.nodes.get_mut("node-1").unwrap().managers.clear(); }), "why; goes back: vol-1 cannot come home: no instance manager of the v2 data engine runs on node-1; set default-instance-manager-image to an image that starts there"),
        ("is home",                back(seen(SwitchingBack, well())),                                              "rebuilding-replica, since why"),
        ("replicas come back",     unmarked(back(seen(RebuildingReplica, out(well())))),                           "Start"),
        ("others are not missed",  unmarked(back(seen(RebuildingReplica, with(well(), |v| v.replicas[2].runs = false)))), "finalizing, since why"),
        ("snapshots go",           back(seen(Finalizing, well())),                                                 "RemoveSnapshot"),
        ("images stay",            ended(Finalizing, detached("vol-1", 1, &[1])),                                  "error, since why"),
        ("is back",                ended(Error, well()),                                                           "why"),
        ("goes",                   change(ended(Error, well()), |s| s.deleting = true),                            "Release"),
        ("does not go before",     change(ended(Error, out(well())), |s| s.deleting = true),                       "Start"),
    ];
    for (case, seen, expected) in cases {
        assert_eq!(next(&seen), expected, "{} {case}", seen.status.state);
    }
}

/// A volume lacks copies on this node and on another that comes first in its list: this one's is told, and waited for on the way back too.
#[test]
fn a_copy_of_the_node_itself_is_missed_before_those_of_others() {
    let (here, elsewhere) = (1, 0);
    let lacks = |copies: &[usize]| {
        with(attached("vol-1", 1, &[2, 1, 3]), |volume| {
            copies.iter().for_each(|copy| volume.replicas[*copy].copy = Copy::Rebuilding);
        })
    };
    let own = "replica vol-1-r-1 of vol-1 is rebuilt";
    #[rustfmt::skip]
    let cases = [
        // what is missed,          on the way,  what is waited for
        (&[here, elsewhere][..],    "",          own.to_owned()),
        (&[here],                   "",          own.to_owned()),
        (&[elsewhere],              "",          "vol-1 is not healthy: its replica on node-2 is not in service".to_owned()),
        (&[],                       "",          "finalizing".to_owned()),
        (&[here, elsewhere],        "why",       format!("why; goes back: {own}")),
        (&[here],                   "why",       format!("why; goes back: {own}")),
        (&[elsewhere],              "why",       "finalizing, since why".to_owned()),
    ];
    for (missed, failure, expected) in cases {
        let seen = change(seen(RebuildingReplica, lacks(missed)), |seen| {
            seen.status.failure = failure.into();
            seen.nodes.get_mut("node-1").unwrap().requested = false;
        });
        assert_eq!(next(&seen), expected, "{missed:?} {failure:?}");
    }
}

/// A volume that somebody attaches elsewhere meanwhile is let go of, too, before the instance manager goes.
#[test]
fn a_volume_that_comes_later_is_not_forgotten() {
    let later = attached("later", 2, &[1, 2, 3]);
    let mut seen = seen(UpgradingInstanceManager, away(out(attached("vol-1", 1, &[1, 2, 3]))));
    seen.volumes.insert("later".into(), later);
    assert_eq!(next(&seen), "notes");
    seen.status.volumes.insert("later".into(), VolumeUpgradeStatus::default());
    assert_eq!(decide(&seen).actions, [Action::Stop { volume: "later".into(), replica: "later-r-1".into() }]);
}

/// What a move cost its clients is told, unless it was a move of an upgrade before.
#[test]
fn the_pause_of_a_volume_is_the_longest_of_its_moves() {
    let moved = |second, pause_us| Moved {
        at: Some(at(second)),
        pause_us,
        longest_wait_us: 2 * pause_us,
        failure: None,
    };
    #[rustfmt::skip]
    let cases = [
        ("not moved yet",       SwitchingOver,    Moved::default(), 5, 5),
        ("moved before",        SwitchingOver,    moved(-1, 9),     5, 5),
        ("moved",               SwitchingOver,    moved(1, 9),      5, 9),
        ("the longest counts",  SwitchingBack,    moved(1, 2),      5, 5),
        ("told a little later", RebuildingReplica, moved(1, 9),     5, 9),
        ("over",                Finalizing,       moved(1, 9),      5, 5),
    ];
    for (case, state, moved, known, expected) in cases {
        let volume = with(attached("vol-1", 1, &[1, 2, 3]), |volume| volume.moved = moved);
        let seen = change(seen(state, volume), |seen| {
            let entry = seen.status.volumes.get_mut("vol-1").unwrap();
            (entry.pause_us, entry.longest_wait_us) = (known, known);
            entry.temporary_node_id = name(2);
        });
        let status = decide(&seen).status;
        let entry = &status.volumes["vol-1"];
        assert_eq!(entry.pause_us, expected, "{case}");
        assert_eq!(entry.longest_wait_us, if expected == 9 { 18 } else { expected }, "{case}");
    }
}

/// The objects say it in `status.targetMove`.
#[test]
fn a_move_is_read_from_the_volume() {
    let object = |state, reason| {
        let mut object = longhorn::Volume::new("vol-1", Default::default());
        (object.spec.node_id, object.spec.target_node_id) = (name(1), name(2));
        let status = object.status.get_or_insert_default();
        status.engine_change.pause_us = 99;
        status.target_move = TargetMove {
            state,
            reason,
            from: name(1),
            to: name(2),
            at: at(7).to_string().into(),
            pause_us: 12,
            longest_wait_us: 34,
            message: "it was so".into(),
            ..TargetMove::default()
        };
        object
    };
    let failure = |is_lost| Some(MoveFailure { node: name(2), is_lost, why: "it was so".into() });
    #[rustfmt::skip]
    let cases = [
        (TargetMoveState::Moving, TargetMoveReason::None,         None),
        (TargetMoveState::Done,   TargetMoveReason::None,         None),
        (TargetMoveState::Failed, TargetMoveReason::NodeLost,     failure(true)),
        (TargetMoveState::Failed, TargetMoveReason::EngineFailed, failure(false)),
    ];
    for (state, reason, failure) in cases {
        let volume = Volume::of(&object(state, reason), None, []);
        let expected = Moved { at: Some(at(7)), pause_us: 12, longest_wait_us: 34, failure };
        assert_eq!(volume.moved, expected, "{state} {reason}");
        let is_told = volume.failure_on(&name(2)).is_some();
        assert_eq!(is_told, state == TargetMoveState::Failed, "{state}");
        assert_eq!(volume.failure_on(&name(3)), None);
    }
}
