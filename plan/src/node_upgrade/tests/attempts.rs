//! Attempts: what counts as a failure, when a node is tried again, and when no more.

use midflight_api::longhorn::{NodeUpgradeState, UpgradeState};

use super::super::run::Observed;
use super::super::{Child, Order, decide_run};
use super::runs::{change, child, entry, seen};
use super::*;
use UpgradeState::*;

/// The upgrade of a node that has failed, and whose node does not come back.
fn stuck(node: usize, deleting: bool) -> Child {
    let message = "why; goes back: home".into();
    Child { message, deleting, waits: true, ..child(node, NodeUpgradeState::Error) }
}

/// An upgrade that goes through its nodes, with one that failed so often and may be tried again now.
fn retries(failures: i32, children: Vec<Child>) -> Observed {
    change(seen(Upgrading), |s| {
        s.now = at(100);
        s.policy.retries = 5;
        let first = s.status.upgrade_nodes.get_mut("node-1").unwrap();
        (first.failures, first.retry_at) = (failures, at(100).to_string().into());
        s.children = children;
        entry(s, 2, NodeUpgradeState::Completed);
        entry(s, 3, NodeUpgradeState::Completed);
    })
}

#[test]
fn a_node_that_fails_comes_again_after_the_others_and_not_for_ever() {
    let mut one = change(seen(Upgrading), |s| entry(s, 1, NodeUpgradeState::SwitchingOver));
    one.children = vec![child(1, NodeUpgradeState::Error)];
    let status = decide_run(&one).status;
    let failed = &status.upgrade_nodes[&name(1)];
    assert_eq!((failed.state, failed.failures), (NodeUpgradeState::Undefined, 1));
    assert_eq!(failed.retry_at.as_str(), at(70).to_string());
    assert_eq!(status.upgrade_nodes[&name(2)].state, NodeUpgradeState::Initializing, "the next one begins");

    let again = change(one.clone(), |s| {
        s.status = status.clone();
        s.now = at(70);
        entry(s, 2, NodeUpgradeState::Completed);
        entry(s, 3, NodeUpgradeState::Completed);
    });
    assert_eq!(decide_run(&again).orders, [Order::Remove { child: "run-node-1".into() }]);
    let gone = change(again, |s| s.children.clear());
    assert_eq!(decide_run(&gone).status.upgrade_nodes[&name(1)].state, NodeUpgradeState::Initializing);

    let last = change(gone, |s| {
        entry(s, 1, NodeUpgradeState::SwitchingOver);
        s.children = vec![child(1, NodeUpgradeState::Error)];
    });
    let over = decide_run(&last).status;
    assert_eq!(over.state, Error);
    assert_eq!(over.message.as_str(), "node-1: failed 2 times, last: went back from switching-over: why");
}

/// An attempt whose node does not come back counts each time that the node was to be tried again, and is let go on with that.
#[test]
fn a_node_that_cannot_be_brought_back_fails_until_it_is_tried_no_more() {
    let remove = || vec![Order::Remove { child: "run-node-1".into() }];
    let gone = |child: Child| Child { message: "why".into(), waits: false, ..child };
    let early = |seen| change(seen, |s: &mut Observed| s.now = at(99));
    let late = |seen| change(seen, |s: &mut Observed| s.now = at(160));
    let paused = |seen| change(seen, |s: &mut Observed| s.spec.paused = true);
    let resumed = |seen| {
        change(seen, |s: &mut Observed| {
            s.status.since = at(100).to_string().into();
            s.status.upgrade_nodes.get_mut("node-1").unwrap().retry_at = "".into();
        })
    };
    #[rustfmt::skip]
    let cases = [
        // what,                          what is seen,                                     failures, orders,   status.message
        ("it rests",                      early(retries(1, vec![stuck(1, false)])),         1,        vec![],   ""),
        ("it does not come back",         retries(1, vec![stuck(1, false)]),                2,        remove(), "node-1: failed, and is tried again after 120 s: went back from switching-over: why; goes back: home"),
        ("nor the next time",             retries(2, vec![stuck(1, true)]),                 3,        vec![],   "node-1: failed, and is tried again after 240 s: went back from switching-over: why; goes back: home"),
        ("it is back, and goes",          retries(1, vec![gone(stuck(1, false))]),          1,        remove(), "node-1: why"),
        ("it is going",                   retries(1, vec![gone(stuck(1, true))]),           1,        vec![],   "node-1: why"),
        ("and does not",                  late(retries(1, vec![gone(stuck(1, true))])),     2,        vec![],   "node-1: failed, and is tried again after 120 s: went back from switching-over: why"),
        ("paused",                        paused(retries(1, vec![stuck(1, false)])),        1,        remove(), "paused: no node is under way, and none begins; `midflight upgrade nodes --name run --resume` goes on"),
        ("paused for long",               paused(late(retries(1, vec![gone(stuck(1, true))]))), 1,    vec![],   "paused: no node is under way, and none begins; `midflight upgrade nodes --name run --resume` goes on"),
        ("resumed a moment ago",          resumed(retries(0, vec![stuck(1, false)])),       0,        remove(), "node-1: why; goes back: home"),
        ("and a while ago",               late(resumed(retries(0, vec![stuck(1, true)]))),  1,        vec![],   "node-1: failed, and is tried again after 60 s: went back from switching-over: why; goes back: home"),
        ("the last time",                 retries(5, vec![stuck(1, true)]),                 6,        vec![],   "node-1: failed 6 times, last: went back from switching-over: why; goes back: home"),
    ];
    for (case, seen, failures, orders, message) in cases {
        let decision = decide_run(&seen);
        let status = decision.status;
        assert_eq!(status.upgrade_nodes["node-1"].failures, failures, "{case}");
        assert_eq!(decision.orders, orders, "{case}");
        assert_eq!(status.message.as_str(), message, "{case}");
        assert_eq!(status.state, if failures > 5 { Error } else { Upgrading }, "{case}");
        let is_due = decision.until.is_some() || seen.spec.paused;
        assert_eq!(is_due, failures <= 5, "{case}: it is looked at again");
    }
    let told = change(retries(6, vec![stuck(1, true)]), |s| {
        entry(s, 1, NodeUpgradeState::Error);
        entry(s, 2, NodeUpgradeState::SwitchingOver);
        s.status.upgrade_nodes.get_mut("node-1").unwrap().message = "failed 6 times".into();
        s.children.push(child(2, NodeUpgradeState::SwitchingOver));
    });
    let status = decide_run(&told).status;
    assert_eq!(status.upgrade_nodes["node-1"].message, "failed 6 times", "that stays, whatever it is at");
    let deleted = change(seen(Upgrading), |s| {
        entry(s, 1, NodeUpgradeState::SwitchingOver);
        s.children = vec![stuck(1, true)];
    });
    assert_eq!(
        decide_run(&deleted).status.upgrade_nodes["node-1"].failures,
        1,
        "also one that somebody deleted"
    );
}

#[test]
fn nodes_that_rest_say_so_while_nothing_moves() {
    let rests = |s: &mut Observed| {
        let first = s.status.upgrade_nodes.get_mut("node-1").unwrap();
        (first.failures, first.retry_at, first.message) = (1, at(70).to_string().into(), "failed".into());
    };
    let alone = change(seen(Upgrading), |s| {
        rests(s);
        entry(s, 2, NodeUpgradeState::Completed);
        entry(s, 3, NodeUpgradeState::Completed);
    });
    let decision = decide_run(&alone);
    assert_eq!((decision.status.message.as_str(), decision.until), ("node-1: failed", Some(at(70))));
    let beside = change(seen(Upgrading), |s| {
        rests(s);
        entry(s, 2, NodeUpgradeState::SwitchingOver);
        s.children = vec![child(2, NodeUpgradeState::SwitchingOver)];
    });
    assert_eq!(decide_run(&beside).status.message, "", "another one moves");
}

#[test]
fn an_upgrade_of_a_node_that_is_not_made_is_a_failure_after_a_while() {
    let begun = |now: i64, message: &str| {
        change(seen(Upgrading), |s| {
            s.now = at(now);
            let first = s.status.upgrade_nodes.get_mut("node-1").unwrap();
            (first.state, first.started_at) = (NodeUpgradeState::Initializing, at(0).to_string().into());
            first.message = message.into();
        })
    };
    let begin = || vec![Order::Begin { node: name(1), image: NEW.into() }];
    let again =
        "failed, and is tried again after 60 s: its NodeDataEngineUpgrade was not made within 600 s: refused";
    #[rustfmt::skip]
    let cases = [
        ("it is being made",  begun(10, ""),         begin(), 0, String::new()),
        ("it is refused",     begun(10, "refused"),  begin(), 0, "refused".to_owned()),
        ("for too long",      begun(600, "refused"), vec![],  1, again.to_owned()),
        ("nobody has tried",  begun(600, ""),        begin(), 0, String::new()),
    ];
    for (case, seen, orders, failures, message) in cases {
        let decision = decide_run(&seen);
        assert_eq!(decision.orders, orders, "{case}");
        let entry = &decision.status.upgrade_nodes["node-1"];
        assert_eq!((entry.failures, entry.message.as_str()), (failures, message.as_str()), "{case}");
        if failures == 0 && !message.is_empty() {
            assert_eq!(decision.status.message.as_str(), format!("node-1: {message}"), "{case}");
        }
    }
}

#[test]
fn a_child_that_vanishes_is_a_failure_and_never_a_success() {
    let one = change(seen(Upgrading), |s| entry(s, 1, NodeUpgradeState::RebuildingReplica));
    let entry = decide_run(&one).status.upgrade_nodes[&name(1)].clone();
    assert_eq!((entry.state, entry.failures), (NodeUpgradeState::Undefined, 1));
}

/// The API had made it, and its answer was lost.
#[test]
fn an_upgrade_of_a_node_that_was_given_up_and_is_made_after_all_is_followed() {
    let given_up = |one: Child, failures| {
        change(seen(Upgrading), |s| {
            let first = s.status.upgrade_nodes.get_mut("node-1").unwrap();
            (first.failures, first.retry_at) = (failures, at(70).to_string().into());
            s.children = vec![one];
        })
    };
    let going = |one: Child| Child { deleting: true, ..one };
    use NodeUpgradeState::{Error as Failed, SwitchingOver, Undefined as Waits};
    #[rustfmt::skip]
    let cases = [
        // what,                  what is seen,                                 its state,     what is put off
        ("it is under way",       given_up(child(1, SwitchingOver), 1),         SwitchingOver, false),
        ("it is going",           given_up(going(child(1, SwitchingOver)), 1),  Waits,         true),
        ("it is what has failed", given_up(child(1, Failed), 1),                Waits,         true),
    ];
    for (case, seen, state, put_off) in cases {
        let decision = decide_run(&seen);
        let first = &decision.status.upgrade_nodes["node-1"];
        assert_eq!((first.state, first.failures, !first.retry_at.is_empty()), (state, 1, put_off), "{case}");
        assert!(decision.orders.is_empty(), "{case}: {:?}", decision.orders);
    }
}
