//! The upgrade of all nodes: which is next, what fails, what ends it.

use midflight_api::longhorn::{
    DataEngineUpgradeManagerSpec, DataEngineUpgradeManagerStatus, NodeUpgradeState, UpgradeNodeStatus,
    UpgradeState,
};

use super::super::run::Observed;
use super::super::{Child, Image, Order, decide_run};
use super::world::World;
use super::*;
use UpgradeState::*;

pub(super) fn seen(state: UpgradeState) -> Observed {
    let entries = (1..=3).map(|node| (name(node), UpgradeNodeStatus::default()));
    Observed {
        now: at(10),
        name: "run".into(),
        generation: 1,
        deleting: false,
        protected: true,
        spec: DataEngineUpgradeManagerSpec { max_parallel_nodes: 1, ..Default::default() },
        status: DataEngineUpgradeManagerStatus {
            state,
            since: at(0).to_string().into(),
            instance_manager_image: if state == Undefined { "".into() } else { NEW.into() },
            observed_generation: 1,
            upgrade_nodes: if state == Upgrading { entries.collect() } else { Default::default() },
            ..Default::default()
        },
        default_image: NEW.into(),
        policy: policy(),
        nodes: nodes(3),
        volumes: vec![attached("a", 1, &[1, 2, 3])],
        children: Vec::new(),
        rival: None,
    }
}

pub(super) fn change(mut seen: Observed, change: impl FnOnce(&mut Observed)) -> Observed {
    change(&mut seen);
    seen
}

pub(super) fn child(node: usize, state: NodeUpgradeState) -> Child {
    Child {
        name: format!("run-{}", name(node)),
        node: name(node),
        manager: "run".into(),
        state,
        message: "child".into(),
        failure: if state == NodeUpgradeState::Error { "why".into() } else { String::new() },
        returned_from: NodeUpgradeState::SwitchingOver,
        deleting: false,
        waits: false,
        longest_pause_us: 7,
    }
}

fn mark(seen: &mut Observed, node: usize) {
    seen.nodes.get_mut(&name(node)).unwrap().requested = true;
}

pub(super) fn entry(seen: &mut Observed, node: usize, state: NodeUpgradeState) {
    seen.status.upgrade_nodes.get_mut(&name(node)).unwrap().state = state;
}

/// Nothing is known of what the new image speaks.
fn unheard(seen: &mut Observed) {
    let managers = seen.nodes.values_mut().flat_map(|node| &mut node.managers);
    managers.filter(|one| one.image == NEW).for_each(|one| one.versions = Ranges::default());
}

#[test]
fn an_upgrade_goes_from_state_to_state() {
    #[rustfmt::skip]
    let cases = [
        ("takes the image",     seen(Undefined),                                                                      Initializing, ""),
        ("image is missing",    change(seen(Undefined), |s| s.nodes.get_mut("node-2").unwrap().image = Image::Missing), Error, "im:v2 is not on node-2; wait"),
        ("waits for another",   change(seen(Undefined), |s| s.rival = Some("first".into())),                          Undefined,    "waits for the upgrade first to end"),
        ("all is well",         seen(Initializing),                                                                   Upgrading,    ""),
        ("versions are unknown", change(seen(Initializing), unheard),                                                 Upgrading,    "nobody has said which versions im:v2 speaks"),
        ("and still are",       change(seen(Upgrading), unheard),                                                     Upgrading,    "nobody has said which versions im:v2 speaks"),
        ("single replica",      change(seen(Initializing), |s| s.volumes.push(attached("vol-1", 1, &[2]))),           Error,        "single replica of vol-1; "),
        ("one node",            change(seen(Initializing), |s| s.nodes.retain(|node, _| *node == name(1))),           Error,        "a cluster of one node"),
        ("degraded waits",      change(seen(Initializing), |s| s.volumes[0].replicas[1].runs = false),                Initializing, "waits: a is degraded"),
        ("but not for ever",    change(seen(Initializing), |s| { s.volumes[0].replicas[1].runs = false; s.now = at(600); }), Error, "a is degraded"),
        ("no rebuilds",         change(seen(Initializing), |s| s.policy.rebuilds = false),                            Initializing, "waits: no replica that leaves a node would be rebuilt: the setting concurrent-replica-rebuild-per-node-limit is 0"),
        ("for no volume",       change(seen(Initializing), |s| { s.policy.rebuilds = false; s.volumes.clear(); }),    Upgrading,    ""),
        ("turned off later",    change(seen(Upgrading), |s| s.policy.rebuilds = false),                               Upgrading,    "no replica that leaves a node would be rebuilt"),
        ("nobody's mark",       change(seen(Initializing), |s| mark(s, 3)),                                           Initializing, "waits: node node-3 is marked as one whose data engine is being upgraded, and no upgrade of it is there; take the mark away: `kubectl patch lhn node-3 -n"),
        ("and comes later",     change(seen(Upgrading), |s| mark(s, 3)),                                              Upgrading,    "node node-3 is marked"),
        ("paused",              change(seen(Initializing), |s| s.spec.paused = true),                                 Initializing, "paused"),
        ("nothing happens",     change(seen(Error), |s| s.status.message = "why".into()),                             Error,        "why"),
        ("is resumed",          change(seen(Error), |s| s.generation = 2),                                            Undefined,    ""),
        ("is not, while paused", change(seen(Error), |s| { s.generation = 2; s.spec.paused = true; }),                Error,        ""),
        ("is over",             seen(Completed),                                                                      Completed,    ""),
        ("another image",       change(seen(Upgrading), |s| s.default_image = "im:v3".into()),                        Undefined,    ""),
    ];
    for (case, seen, state, message) in cases {
        let decision = decide_run(&seen);
        assert_eq!(decision.status.state, state, "{case}: {}", decision.status.message);
        assert!(decision.status.message.as_str().starts_with(message), "{case}: {}", decision.status.message);
        assert!(decision.orders.is_empty(), "{case}");
    }
}

#[test]
fn nodes_are_those_that_are_named_or_all() {
    let nodes = |seen: Observed| decide_run(&seen).status.upgrade_nodes.into_keys().collect::<Vec<_>>();
    assert_eq!(nodes(seen(Initializing)), [name(1), name(2), name(3)]);
    assert_eq!(
        nodes(change(seen(Initializing), |s| s.spec.nodes = vec![name(3), name(1)])),
        [name(1), name(3)]
    );
}

#[test]
fn a_node_is_written_down_before_its_upgrade_is_made() {
    let first = decide_run(&seen(Upgrading));
    assert_eq!(first.status.upgrading_node, name(1));
    assert_eq!(first.status.owner_id, name(1), "the first by name");
    assert_eq!(first.status.upgrade_nodes[&name(1)].state, NodeUpgradeState::Initializing);
    assert!(first.orders.is_empty());
    let then = decide_run(&change(seen(Upgrading), |s| s.status = first.status.clone()));
    assert_eq!(then.orders, [Order::Begin { node: name(1), image: NEW.into() }]);
    let made = change(seen(Upgrading), |s| {
        s.status = then.status.clone();
        s.children = vec![child(1, NodeUpgradeState::SwitchingOver)];
    });
    let after = decide_run(&made).status;
    assert_eq!(after.upgrade_nodes[&name(1)].state, NodeUpgradeState::SwitchingOver);
    assert_eq!(after.upgrade_nodes[&name(2)].state, NodeUpgradeState::Undefined, "one at a time");
}

/// What is completed was completed with the image of its time.
#[test]
fn who_resumes_begins_anew_where_another_image_is_the_default_by_now() {
    let left = |default: &str, state| {
        let failed = change(seen(Upgrading), |s| {
            (s.status.state, s.generation, s.default_image) = (state, 2, default.into());
            entry(s, 1, NodeUpgradeState::Completed);
            entry(s, 2, NodeUpgradeState::Error);
        });
        let status = decide_run(&failed).status;
        let kept = status.upgrade_nodes.iter().map(|(node, entry)| (node.to_string(), entry.state));
        (status.state, kept.collect::<Vec<_>>())
    };
    let known = |states: [NodeUpgradeState; 3]| {
        (1..).zip(states).map(|(node, state)| (name(node).to_string(), state)).collect::<Vec<_>>()
    };
    use NodeUpgradeState::{Completed as Done, Error as Failed, Undefined as Waits};
    #[rustfmt::skip]
    let cases = [
        ("the same image",  NEW,     Error,     (Undefined, known([Done, Waits, Waits]))),
        ("another image",   "im:v3", Error,     (Undefined, vec![])),
        ("it is over",      "im:v3", Completed, (Completed, known([Done, Failed, Waits]))),
    ];
    for (case, default, state, expected) in cases {
        assert_eq!(left(default, state), expected, "{case}");
    }
}

#[test]
fn the_longest_pause_of_any_node_is_that_of_the_upgrade() {
    let mut one = change(seen(Upgrading), |s| entry(s, 2, NodeUpgradeState::SwitchingOver));
    one.status.upgrade_nodes.get_mut("node-1").unwrap().longest_pause_us = 5;
    assert_eq!(decide_run(&one).status.longest_pause_us, 5);
    one.children = vec![child(2, NodeUpgradeState::SwitchingOver)];
    assert_eq!(decide_run(&one).status.longest_pause_us, 7);
}

#[test]
fn the_message_of_many_nodes_fits_into_a_status() {
    let many = change(seen(Upgrading), |s| {
        s.status.upgrade_nodes = (1..=500)
            .map(|node| {
                let message = format!("failed: {}", "for a reason ".repeat(300));
                let entry = UpgradeNodeStatus {
                    state: NodeUpgradeState::Error,
                    message: message.into(),
                    ..Default::default()
                };
                (name(node), entry)
            })
            .collect();
    });
    let status = decide_run(&many).status;
    assert_eq!(status.state, Error);
    assert!(status.message.as_str().starts_with("node-1: failed"), "{}", status.message);
    assert!(status.message.as_str().len() <= midflight_api::Message::MAX_LENGTH);
    let short = change(many, |s| {
        s.status.upgrade_nodes.values_mut().for_each(|entry| entry.message = "why".into());
    });
    assert!(decide_run(&short).status.message.as_str().ends_with(" | and 492 more"));
}

#[test]
fn who_aborts_hears_what_becomes_of_each_node_and_what_to_do_next() {
    let told = |seen: &Observed| decide_run(seen).status.message.to_string();
    let hint = "; default-instance-manager-image is still im:v2, which instance managers that are started anew get: \
                `midflight upgrade nodes --to im:v1` brings it and every node back, `midflight upgrade nodes` begins again";
    let mut one = change(seen(Upgrading), |s| s.deleting = true);
    one.children = vec![child(1, NodeUpgradeState::SwitchingOver)];
    let home = "its engines come home, its replicas are rebuilt, and then this upgrade is gone";
    assert_eq!(told(&one), format!("aborted: node-1 (keeps im:v1) goes back into service: {home}{hint}"));

    let none = change(one.clone(), |s| s.nodes.get_mut("node-1").unwrap().managers.clear());
    let back = "node-1 (gets the instance manager of before back) goes back into service";
    assert!(told(&none).starts_with(&format!("aborted: {back}: {home}; default")), "{}", told(&none));

    let upgraded = change(one.clone(), |s| {
        s.nodes.get_mut("node-2").unwrap().managers = vec![manager("node-2", NEW, 0)];
        s.children.push(child(2, NodeUpgradeState::Completed));
        s.children.push(child(3, NodeUpgradeState::Error));
    });
    let both = "node-1 (keeps im:v1), node-3 (keeps im:v1) go back into service: their engines come home";
    assert!(told(&upgraded).starts_with(&format!("aborted: {both}")), "{}", told(&upgraded));
    assert!(
        told(&upgraded).ends_with(&format!("; node-2 runs im:v2 and stays so{hint}")),
        "{}",
        told(&upgraded)
    );

    let lost = change(one.clone(), |s| {
        s.nodes.get_mut("node-1").unwrap().ready = false;
        s.children.push(child(3, NodeUpgradeState::SwitchingOver));
    });
    let both = format!(
        "aborted: node-3 (keeps im:v1) goes back into service: {home}; node-1 is not ready: bring it back, or detach what is attached \
         there; this upgrade waits for that{hint}"
    );
    assert_eq!(told(&lost), both, "nothing of a lost node goes back by itself");
    let alone = change(lost, |s| s.children.retain(|child| child.node == name(1)));
    assert!(told(&alone).starts_with("aborted: node-1 is not ready: bring it back, or"), "{}", told(&alone));

    one.children.clear();
    assert_eq!(told(&one), format!("aborted: every node is in service{hint}"));
    let beside = change(one.clone(), |s| s.nodes.get_mut("node-3").unwrap().ready = false);
    let nothing = "aborted: nothing is left to go back; node-3 is not ready: bring it back";
    assert_eq!(told(&beside), format!("{nothing}{hint}"));
    one.default_image = OLD.into();
    assert_eq!(told(&one), "aborted: every node is in service", "it was set back");
    one.status.state = Completed;
    assert_eq!(told(&one), "", "nothing is aborted");
}

#[test]
fn paused_means_that_no_further_node_begins_and_says_what_goes_on() {
    let under_way = |nodes: &[usize]| {
        change(seen(Upgrading), |s| {
            s.spec.paused = true;
            for node in nodes {
                s.children.push(child(*node, NodeUpgradeState::SwitchingOver));
                entry(s, *node, NodeUpgradeState::SwitchingOver);
            }
        })
    };
    let on = "`midflight upgrade nodes --name run --resume` goes on";
    #[rustfmt::skip]
    let cases = [
        (&[][..],     "",       "no node is under way, and none begins"),
        (&[1],        "node-1", "node-1 goes on to its end; no further node begins"),
        (&[1, 2, 3],  "node-1", "node-1, node-2, node-3 go on to their end; no further node begins"),
    ];
    for (nodes, first, words) in cases {
        let status = decide_run(&under_way(nodes)).status;
        assert_eq!(status.upgrading_node, first, "what has begun goes on");
        assert_eq!(status.message.as_str(), format!("paused: {words}; {on}"));
        let begun = status.upgrade_nodes.values().filter(|entry| entry.state != NodeUpgradeState::Undefined);
        assert_eq!(begun.count(), nodes.len(), "no other begins");
    }
    let lost = |nodes: &[usize]| {
        let lost = change(under_way(nodes), |s| s.nodes.get_mut("node-1").unwrap().ready = false);
        decide_run(&lost).status.message.to_string()
    };
    let waits =
        "node-1 is not ready: bring it back, else what began there goes back when its step is out of time";
    assert_eq!(lost(&[1]), format!("paused: {waits}; no further node begins; {on}"));
    assert_eq!(
        lost(&[1, 2]),
        format!("paused: node-2 goes on to its end; {waits}; no further node begins; {on}")
    );
    let usual = change(under_way(&[]), |s| s.name = "upgrade".into());
    assert!(
        decide_run(&usual).status.message.as_str().ends_with("; `midflight upgrade nodes --resume` goes on")
    );
}

#[test]
fn another_image_is_begun_with_when_every_node_is_back_and_who_waits_for_a_lost_one_is_told() {
    let mut one = change(seen(Upgrading), |s| s.default_image = "im:v3".into());
    one.children = vec![child(1, NodeUpgradeState::SwitchingBack)];
    let told = |seen: &Observed| decide_run(seen).status.message.to_string();
    let back = "the default image became im:v3; nodes that are under way go back";
    assert_eq!(told(&one), back);
    let lost = change(one.clone(), |s| s.nodes.get_mut("node-1").unwrap().ready = false);
    assert_eq!(told(&lost), format!("{back}; node-1 is not ready: bring it back"));
    one.children.clear();
    assert_eq!(decide_run(&one).status.state, Undefined);
}

#[test]
fn a_deleted_upgrade_goes_when_every_node_is_back() {
    let mut one = change(seen(Upgrading), |s| s.deleting = true);
    one.children = vec![child(1, NodeUpgradeState::SwitchingOver)];
    assert_eq!(decide_run(&one).orders, [Order::Remove { child: "run-node-1".into() }]);
    one.children[0].deleting = true;
    assert!(decide_run(&one).orders.is_empty());
    one.children.clear();
    assert_eq!(decide_run(&one).orders, [Order::Release]);
}

#[test]
fn upgrades_of_others_count_and_marks_of_nobody_are_told() {
    let mut one = seen(Upgrading);
    one.children = vec![Child { manager: "other".into(), ..child(3, NodeUpgradeState::SwitchingOver) }];
    assert_eq!(decide_run(&one).status.upgrading_node, "");
    // Its mark is its own, also when it has failed and is on its way back.
    mark(&mut one, 3);
    one.children[0].state = NodeUpgradeState::Error;
    let status = decide_run(&one).status;
    assert_eq!((status.upgrading_node.as_str(), status.message.as_str()), ("", ""));
    one.children.clear();
    let status = decide_run(&one).status;
    assert_eq!(status.upgrading_node, "");
    assert!(status.message.as_str().starts_with("node node-3 is marked"), "{}", status.message);
    one.spec.max_parallel_nodes = 2;
    one.volumes.clear();
    assert_eq!(decide_run(&one).status.upgrading_node, name(1), "it takes one place");
}

/// One that never comes back, at every step of the upgrade of the first: it ends, and says so.
#[test]
fn a_node_that_is_lost_for_good_does_not_hold_up_the_upgrade_for_ever() {
    for steps in (0..80).step_by(8) {
        for lost in 1..=3 {
            let volumes = by_name(vec![attached("a", 1, &[1, 2, 3]), attached("b", 2, &[1, 2])]);
            let mut world = World::new(nodes(3), volumes, 1);
            (0..steps).for_each(|_| _ = world.goes_one_step());
            world.lose(&name(lost));
            let what = format!("node-{lost} after {steps} steps");
            assert!(world.goes_on(4000), "{what}: {world:#?}");
            assert_eq!(world.whole.state, Error, "{what}");
            assert!(world.broken.is_none(), "{what}");
            world.bring_back(&name(lost));
            assert!(world.goes_on(4000) && world.is_whole(), "{what}: {world:#?}");
        }
    }
}

#[test]
fn three_nodes_are_upgraded_and_all_is_as_before() {
    let volumes = by_name(vec![
        attached("a", 1, &[1, 2, 3]),
        attached("b", 2, &[1, 2]),
        attached("c", 1, &[2, 3]),
        detached("d", 3, &[3]),
    ]);
    let mut world = World::new(nodes(3), volumes, 1);
    assert!(world.goes_on(1000));
    assert_eq!(world.whole.state, Completed, "{world:#?}");
    assert!(world.is_whole() && world.runs_everywhere(NEW));
    assert!(world.volumes.values().all(|volume| volume.image == NEW && volume.asked.is_empty()));
}
