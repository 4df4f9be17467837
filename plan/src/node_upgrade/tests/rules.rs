//! What stands in the way, where engines go, and which nodes run together.

use std::collections::BTreeMap;

use midflight_api::longhorn::{NodeDataEngineUpgrade, NodeUpgradeState, VolumeState};

use super::super::facts::Copy;
use super::super::place::{are_disjoint, choose};
use super::super::preflight::{marked, preflight};
use super::super::versions::caveat;
use super::super::{Child, Image, Nodes, nodes_of_run};
use super::*;

/// What the preflight of all nodes says, by word, of three nodes with this volume.
fn found(volume: &Volume, nodes: &Nodes) -> Vec<String> {
    let run = nodes_of_run(&[], nodes);
    preflight(&run, &NEW.into(), nodes, [volume]).iter().map(|one| one.word().to_owned()).collect()
}

#[test]
fn each_obstacle_of_a_volume_is_found() {
    let well = || attached("vol-1", 1, &[1, 2, 3]);
    let copy = |at: usize, copy| move |volume: &mut Volume| volume.replicas[at].copy = copy;
    #[rustfmt::skip]
    let cases = [
        ("well",              well(),                                                         vec![]),
        ("seed, fails 1",     attached("vol-1", 1, &[1]),                                     vec!["SingleReplica"]),
        ("seed, fails 2",     attached("vol-1", 1, &[2]),                                     vec!["SingleReplica"]),
        ("seed, succeeds 2",  attached("vol-1", 1, &[2, 3]),                                  vec![]),
        ("two replicas",      attached("vol-1", 1, &[1, 2]),                                  vec![]),
        ("detached",          detached("vol-1", 1, &[1]),                                     vec![]),
        ("attaching",         with(well(), |v| v.state = VolumeState::Attaching),             vec!["Unsettled"]),
        ("faulted",           with(well(), |v| v.replicas.iter_mut().for_each(|r| r.copy = Copy::Out)), vec!["Faulted"]),
        ("degraded",          with(well(), copy(2, Copy::Out)),                               vec!["Degraded"]),
        ("not seen to run",   with(well(), |v| v.replicas[0].runs = false),                   vec!["Degraded"]),
        ("rebuilding",        with(well(), copy(1, Copy::Rebuilding)),                        vec!["Rebuilding"]),
        ("one too few",       with(well(), |v| v.wanted_replicas = 4),                        vec!["Degraded"]),
        ("expanding",         with(well(), |v| v.expanding = true),                           vec!["Expanding"]),
        ("restoring",         with(well(), |v| v.restoring = true),                           vec!["Restoring"]),
        ("moving",            with(well(), |v| v.migrating = true),                           vec!["Migrating"]),
        ("going",             with(attached("vol-1", 1, &[1]), |v| v.deleting = true),        vec![]),
    ];
    for (case, volume, expected) in cases {
        let mut all = found(&volume, &nodes(3));
        all.truncate(1);
        assert_eq!(all, expected, "{case}");
    }
}

/// There is no room for engines, or no copy would be left, where none of the others serves or all of them are upgraded.
#[test]
fn a_volume_needs_a_node_with_a_copy_that_serves_it_meanwhile() {
    let without = |managers: &[usize], marked: &[usize]| {
        let mut all = nodes(3);
        managers.iter().for_each(|node| all.get_mut(&name(*node)).unwrap().managers.clear());
        marked.iter().for_each(|node| all.get_mut(&name(*node)).unwrap().requested = true);
        all
    };
    #[rustfmt::skip]
    let cases = [
        ("all serve",                   attached("vol-1", 1, &[1, 2, 3]), without(&[], &[]),      None),
        ("one is enough",               attached("vol-1", 1, &[1, 2, 3]), without(&[2], &[]),     None),
        ("no engine could be there",    attached("vol-1", 1, &[1, 2, 3]), without(&[2, 3], &[]),  Some("NoTargetNode")),
        ("they are upgraded",           attached("vol-1", 1, &[1, 2, 3]), without(&[2], &[3]),    Some("NoTargetNode")),
        ("served elsewhere, no copy",   attached("vol-1", 2, &[1, 3]),    without(&[3], &[]),     Some("NoCopyElsewhere")),
    ];
    for (case, volume, nodes, expected) in cases {
        let found = preflight(&[name(1)].into(), &NEW.into(), &nodes, [&volume]);
        assert_eq!(found.first().map(|one| one.word()), expected, "{case}");
        assert!(found.iter().all(|one| one.passes() && one.advice().contains("vol-1")), "{case}: {found:?}");
    }
}

#[test]
fn a_reason_is_told_in_the_words_of_the_seed() {
    let (volume, run) = (attached("vol-1", 1, &[2]), nodes_of_run(&[], &nodes(3)));
    let found = preflight(&run, &NEW.into(), &nodes(3), [&volume]);
    assert_eq!(found.len(), 1);
    assert!(found[0].advice().starts_with("single replica of vol-1; "), "{}", found[0].advice());
}

#[test]
fn each_obstacle_of_the_cluster_is_found() {
    let change = |change: fn(&mut Nodes)| {
        let mut all = nodes(3);
        change(&mut all);
        all
    };
    let two = "node-2";
    #[rustfmt::skip]
    let cases = [
        ("well",          nodes(3),                                                                          vec![]),
        ("one node",      nodes(1),                                                                          vec!["SingleNode"]),
        ("no image",      change(|all| all.get_mut("node-2").unwrap().image = Image::Missing),               vec!["ImageMissing"]),
        ("it runs it",    change(|all| { let node = all.get_mut("node-2").unwrap();
                                         node.image = Image::Missing;
                                         node.managers = vec![manager("node-2", NEW, 0)]; }),                vec![]),
        ("not ready",     change(|all| all.get_mut("node-2").unwrap().ready = false),                        vec!["NodeNotReady"]),
    ];
    for (case, nodes, expected) in cases {
        let volume = detached("vol-1", 1, &[1, 2, 3]);
        assert_eq!(found(&volume, &nodes), expected, "{case}: {two}");
    }
    let unknown = preflight(&[name(7)].into(), &NEW.into(), &nodes(3), []);
    assert_eq!(unknown[0].to_string(), "node-7 is not in the cluster");
    assert_eq!(preflight(&[name(1)].into(), &"".into(), &nodes(3), [])[0].word(), "NoDefaultImage");
}

/// A mark without an upgrade is nobody's, and takes the place of a node that could begin.
#[test]
fn a_mark_that_no_upgrade_owns_is_in_the_way_until_somebody_takes_it_away() {
    let upgrade = |node: usize, state| {
        let mut upgrade = NodeDataEngineUpgrade::new("one", Default::default());
        upgrade.spec.node_id = name(node);
        upgrade.status.get_or_insert_default().state = state;
        Child::of(&upgrade)
    };
    use NodeUpgradeState::{Completed, Error, SwitchingOver};
    #[rustfmt::skip]
    let cases = [
        ("none is marked",     None,    vec![],                                            false),
        ("nobody's",           Some(2), vec![],                                            true),
        ("another's",          Some(2), vec![upgrade(1, SwitchingOver)],                   true),
        ("under upgrade",      Some(2), vec![upgrade(2, SwitchingOver)],                   false),
        ("on its way back",    Some(2), vec![upgrade(2, Error)],                           false),
        ("it is done",         Some(2), vec![upgrade(2, Completed)],                       true),
    ];
    for (case, node, upgrades, expected) in cases {
        let mut all = nodes(3);
        node.into_iter().for_each(|node| all.get_mut(&name(node)).unwrap().requested = true);
        let found = marked(&all, &upgrades);
        assert_eq!(!found.is_empty(), expected, "{case}");
        for one in found {
            assert_eq!((one.word(), one.passes()), ("NodeMarked", true), "{case}");
            let way_out = "`kubectl patch lhn node-2 -n longhorn-system --type merge -p '{\"spec\":{\"dataEngineUpgradeRequested\":false}}'`";
            assert!(
                one.advice().contains("node-2 is marked") && one.advice().ends_with(way_out),
                "{}",
                one.advice()
            );
        }
    }
}

#[test]
fn an_image_is_in_the_way_for_what_was_said_of_it_only() {
    let unheard = Ranges::default();
    let far = |change: fn(&mut Ranges, Range)| {
        let mut one = speaks(1, 2);
        change(&mut one, Range { oldest: 8, newest: 9 });
        one
    };
    #[rustfmt::skip]
    let cases = [
        // what,                            the old ones,   the new one,                       what is in the way,                                       said
        ("they overlap",                      speaks(1, 2),   speaks(2, 3),                      None,                                                     false),
        ("an older one, which overlaps",      speaks(2, 3),   speaks(1, 2),                      None,                                                     false),
        ("nothing is known of the new one",   speaks(1, 2),   unheard,                           None,                                                     true),
        ("nothing is known of the old ones",  unheard,        speaks(8, 9),                      None,                                                     false),
        ("nothing is known of any",           unheard,        unheard,                           None,                                                     true),
        ("other messages",                    speaks(1, 2),   far(|one, all| one.wire = all),    Some("knows versions 8 to 9 of the interface between engines and replicas, and the instance manager on node-1 knows 1 to 2"), false),
        ("other folders",                     speaks(1, 2),   far(|one, all| one.disk = all),    Some("knows versions 8 to 9 of the folders of replicas, and the instance manager on node-1 knows 1 to 2"), false),
        ("other orders",                      speaks(1, 2),   far(|one, all| one.api = all),     Some("take orders of versions 8 to 9, and these controllers give 1"), false),
        ("other orders, whatever runs",       unheard,        far(|one, all| one.api = all),     Some("take orders of versions 8 to 9"),                  false),
    ];
    for (case, old, new, expected, said) in cases {
        let mut all = nodes(3);
        for manager in all.values_mut().flat_map(|node| &mut node.managers) {
            manager.versions = if manager.image == NEW { new } else { old };
        }
        let found = preflight(&nodes_of_run(&[], &all), &NEW.into(), &all, []);
        let told: Vec<String> = found.iter().map(|one| format!("{}: {one}", one.word())).collect();
        match expected {
            None => assert!(told.is_empty(), "{case}: {told:?}"),
            Some(words) => {
                assert_eq!(told.len(), 1, "{case}: {told:?}");
                assert!(
                    told[0].starts_with("IncompatibleVersions: ") && told[0].contains(words),
                    "{case}: {told:?}"
                );
                assert!(!found[0].passes(), "{case}");
            }
        }
        assert_eq!(caveat(&NEW.into(), &all).is_some(), said, "{case}");
    }
}

#[test]
fn what_an_instance_manager_answers_goes_before_the_label_of_its_image() {
    let mut all = nodes(3);
    // Of those that do not run it is said that they fit; the one that runs says that it does not.
    let answers = Manager { versions: speaks(8, 9), ..manager("node-3", NEW, 0) };
    all.get_mut("node-3").unwrap().managers = vec![answers];
    let found = preflight(&[name(1)].into(), &NEW.into(), &all, []);
    assert_eq!(found.iter().map(|one| one.word()).collect::<Vec<_>>(), ["IncompatibleVersions"; 2]);
    // Nodes that stay as they are speak with those that are upgraded.
    let mut stays = nodes(2);
    stays.get_mut("node-2").unwrap().managers[0].versions = speaks(8, 9);
    assert_eq!(preflight(&[name(1)].into(), &NEW.into(), &stays, []).len(), 2);
    // One that does not run speaks with nobody.
    stays.get_mut("node-2").unwrap().managers[0].state = InstanceManagerState::Stopped;
    assert!(preflight(&[name(1)].into(), &NEW.into(), &stays, []).is_empty());
}

#[test]
fn only_volumes_of_the_nodes_that_are_upgraded_count() {
    let single = attached("vol-1", 1, &[2]);
    assert!(preflight(&[name(3)].into(), &NEW.into(), &nodes(3), [&single]).is_empty());
    assert_eq!(preflight(&[name(2)].into(), &NEW.into(), &nodes(3), [&single]).len(), 1);
}

#[test]
fn volumes_of_a_node_that_is_upgraded_already_are_in_nobodys_way() {
    let upgraded = |change: fn(&mut Nodes)| {
        let mut all = nodes(2);
        all.get_mut("node-1").unwrap().managers = vec![manager("node-1", NEW, 0)];
        all.get_mut("node-2").unwrap().managers = vec![manager("node-2", NEW, 0)];
        change(&mut all);
        all
    };
    let single = || attached("vol-1", 1, &[1]);
    #[rustfmt::skip]
    let cases = [
        ("all are there",      upgraded(|_| {}),                                                   single(), vec![]),
        ("one is to do",       upgraded(|all| { all.insert(name(1), node(1)); }),                  single(), vec!["SingleReplica"]),
        ("another is to do",   upgraded(|all| { all.insert(name(2), node(2)); }),                  single(), vec![]),
        ("marked",             upgraded(|all| all.get_mut("node-1").unwrap().requested = true),    single(), vec!["SingleReplica"]),
        ("its engine is away", upgraded(|_| {}), with(single(), |volume| volume.asked = name(2)),            vec!["SingleReplica"]),
        ("its copy left",      upgraded(|_| {}), with(single(), |volume| volume.replicas[0].told_to_stop = true), vec!["SingleReplica"]),
        ("a copy is missed",   upgraded(|_| {}), with(attached("vol-1", 1, &[1, 2]), |volume| volume.replicas[1].copy = Copy::Out),        vec!["Degraded"]),
        ("and is on its way",  upgraded(|_| {}), with(attached("vol-1", 1, &[1, 2]), |volume| volume.replicas[1].copy = Copy::Rebuilding), vec!["Rebuilding"]),
        ("and nobody's",       upgraded(|_| {}), with(attached("vol-1", 1, &[1, 2]), |volume| { volume.deleting = true; volume.replicas[1].copy = Copy::Out; }), vec![]),
    ];
    for (case, nodes, volume, expected) in cases {
        assert_eq!(found(&volume, &nodes), expected, "{case}");
    }
}

#[test]
fn engines_go_where_a_healthy_copy_is_and_spread() {
    let volumes: Vec<Volume> =
        ["a", "b", "c", "d"].iter().map(|name| attached(name, 1, &[1, 2, 3])).collect();
    let all: Vec<&Volume> = volumes.iter().collect();
    let places = |nodes: &Nodes, volumes: &[&Volume], load: &[(usize, usize)]| {
        let load = load.iter().map(|(node, count)| (name(*node), *count)).collect();
        let chosen = choose(volumes, &name(1), nodes, &load);
        chosen.into_values().map(|node| node.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(places(&nodes(3), &all, &[]), ["node-2", "node-3", "node-2", "node-3"]);
    assert_eq!(places(&nodes(3), &all, &[(2, 2)]), ["node-3", "node-3", "node-2", "node-3"]);
    let mut lost = nodes(3);
    lost.get_mut("node-2").unwrap().ready = false;
    assert_eq!(places(&lost, &all, &[]), ["node-3"; 4]);
    let sick = with(attached("a", 1, &[1, 2, 3]), |volume| volume.replicas[1].copy = Copy::Rebuilding);
    assert_eq!(places(&nodes(3), &[&sick], &[]), ["node-3"]);
    let away = with(attached("a", 1, &[1, 2, 3]), |volume| {
        (volume.serves_on, volume.seat) = (name(3), name(3));
    });
    assert_eq!(places(&nodes(3), &[&away], &[(3, 9)]), ["node-3"], "it stays where it is");
    let mut upgraded = nodes(3);
    upgraded.get_mut("node-3").unwrap().requested = true;
    assert_eq!(places(&upgraded, &all, &[]), ["node-2"; 4]);
}

#[test]
fn nodes_run_together_only_if_no_volume_has_anything_on_both() {
    #[rustfmt::skip]
    let cases = [
        ("apart",                   attached("a", 1, &[1, 2]),                                                true),
        ("replicas on both",        attached("a", 1, &[1, 4]),                                                false),
        ("attached there",          attached("a", 4, &[1, 2]),                                                false),
        ("detached, on both",       detached("a", 9, &[1, 4]),                                                false),
        ("serves there meanwhile",  with(attached("a", 1, &[1, 2]), |volume| volume.asked = name(4)),         false),
    ];
    for (case, volume, expected) in cases {
        assert_eq!(are_disjoint(&name(1), &name(4), [&volume]), expected, "{case}");
    }
    assert!(choose(&[], &name(1), &nodes(3), &BTreeMap::new()).is_empty());
}
