//! The worlds that are looked at, and the wrong ones in which the check must fail.

#![allow(clippy::print_stdout, reason = "a run says how large its world was")]

use std::{collections::BTreeSet, time::Instant};

use stateright::{Checker, HasDiscoveries, Model};

use super::{
    properties,
    state::{Begin, Disks, Left, Op, Scope},
    step::Plane,
    wrong::Wrong,
};

const NOTHING: Left =
    Left { switches: 0, engine_kills: 0, replica_kills: 0, power_losses: 0, cuts: 0, releases: 0 };
const ONE_SWITCH: Left = Left { switches: 1, ..NOTHING };
const ONCE: &[Op] = &[Op::Write { block: 0 }];
const TWICE: &[Op] = &[Op::Write { block: 0 }, Op::Write { block: 0 }];
const WRITE_AND_READ: &[Op] = &[Op::Write { block: 0 }, Op::Read { block: 0 }];

fn two_copies(ops: &'static [Op], left: Left) -> Scope {
    Scope { replicas: 2, blocks: 1, ops, begin: Begin::AtRest, disks: Disks::Slow, left }
}

/// As above, with a switch-over that has come to its pause.
fn prepared(ops: &'static [Op], left: Left) -> Scope {
    Scope { begin: Begin::Prepared, ..two_copies(ops, left) }
}

/// Looks at every state; `witnesses` are what must be possible in it.
fn check(name: &str, scope: Scope, witnesses: &[&'static str]) {
    let began = Instant::now();
    let checker = Plane { scope, wrong: None }.checker().threads(2).spawn_dfs().join();
    println!(
        "{name}: {} states, {} steps, depth {}, {:?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    for (name, path) in checker.discoveries() {
        let possible = [properties::SWITCHED, properties::DROPPED, properties::REBUILT].contains(&name);
        assert!(possible, "not so: {name}\n{:#?}", path.into_actions());
    }
    for name in witnesses {
        checker.assert_any_discovery(name);
    }
}

#[test]
fn a_planned_switch_in_every_order() {
    check("switch", prepared(ONCE, NOTHING), &[properties::SWITCHED]);
}

#[test]
fn a_replica_that_dies_in_every_state() {
    let left = Left { replica_kills: 1, ..NOTHING };
    check("replica killed", two_copies(ONCE, left), &[properties::DROPPED, properties::REBUILT]);
}

#[test]
fn a_replica_that_is_let_go_in_every_order() {
    let left = Left { releases: 1, ..NOTHING };
    check("replica let go", two_copies(ONCE, left), &[properties::DROPPED]);
}

/// Scopes for which there is time in the soak. `MIDFLIGHT_SCOPE` chooses by name.
#[test]
#[ignore = "takes long: dev/soak.d/model"]
fn larger_worlds() {
    let kill_engine = Left { engine_kills: 1, ..NOTHING };
    let kill_replica = Left { replica_kills: 1, ..NOTHING };
    let cut = Left { cuts: 1, ..NOTHING };
    let lose_power = Left { power_losses: 1, ..NOTHING };
    // With disks that may take any time, two misfortunes have more orders than there is time for.
    let quick = |scope| Scope { disks: Disks::Quick, ..scope };
    #[rustfmt::skip]
    let scopes = [
        ("one copy, engine killed",       Scope { replicas: 1, ..prepared(ONCE, kill_engine) }),
        ("connection cut",                two_copies(ONCE, cut)),
        ("power lost",                    two_copies(WRITE_AND_READ, lose_power)),
        ("power lost, replica killed",    quick(two_copies(ONCE, Left { replica_kills: 1, ..lose_power }))),
        ("engine killed, two writes",     two_copies(TWICE, kill_engine)),
        ("switch, two writes",            prepared(TWICE, NOTHING)),
        ("switch, engine killed",         prepared(ONCE, kill_engine)),
        ("switch, connection cut",        prepared(ONCE, cut)),
        ("switch, replica killed",        quick(prepared(ONCE, kill_replica))),
        ("switch from rest",              two_copies(ONCE, ONE_SWITCH)),
        ("three copies, one killed",      Scope { replicas: 3, ..two_copies(ONCE, kill_replica) }),
    ];
    let only = std::env::var("MIDFLIGHT_SCOPE").ok();
    for (name, scope) in scopes {
        if only.as_ref().is_none_or(|only| name == only) {
            check(name, scope, &[]);
        }
    }
}

/// The shortest way in which a broken rule shows.
fn finds(wrong: Wrong, scope: Scope, property: &'static str) {
    let began = Instant::now();
    let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker =
        Plane { scope, wrong: Some(wrong) }.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    let path = checker.assert_any_discovery(property).into_actions();
    println!(
        "{wrong:?}: {} states, {} steps to it, {:?}",
        checker.unique_state_count(),
        path.len(),
        began.elapsed()
    );
}

#[test]
fn a_replica_that_accepts_a_lower_epoch_is_found() {
    finds(Wrong::AcceptsLowerEpoch, prepared(ONCE, NOTHING), properties::EPOCHS_APART);
}

#[test]
fn a_replica_that_forgets_its_promise_is_found() {
    let left = Left { replica_kills: 1, engine_kills: 1, ..NOTHING };
    let scope = Scope { replicas: 1, ..two_copies(ONCE, left) };
    finds(Wrong::ForgetsPromise, scope, properties::ONLY_GROWS);
}

#[test]
fn an_engine_that_drops_before_the_record_is_found() {
    let left = Left { replica_kills: 1, ..NOTHING };
    finds(Wrong::DropsFirst, two_copies(ONCE, left), properties::RECORD_FIRST);
    finds(Wrong::DropsFirst, two_copies(ONCE, left), properties::COUNTED);
}

#[test]
fn an_engine_that_takes_one_answer_for_all_is_found() {
    finds(Wrong::CountsOneForAll, two_copies(ONCE, NOTHING), properties::COUNTED);
    finds(Wrong::CountsOneForAll, two_copies(ONCE, NOTHING), properties::KEPT);
}

#[test]
fn a_frontend_that_does_not_replay_is_found() {
    let left = Left { engine_kills: 1, ..NOTHING };
    finds(Wrong::DoesNotReplay, two_copies(ONCE, left), properties::GOES_ON);
}
