//! What people may ask for.

use midflight_api::longhorn::{DataEngineUpgradeManagerSpec, UpgradeState};

use super::super::{Stand, attach, create, is_rival, resume};
use super::*;

#[test]
fn a_volume_is_not_attached_to_a_node_that_is_upgraded() {
    let mut upgraded = nodes(3);
    upgraded.get_mut("node-1").unwrap().requested = true;
    #[rustfmt::skip]
    let cases = [
        ("there",              detached("a", 1, &[1, 2]), 1, Some("the data engine of node node-1 is being upgraded")),
        ("elsewhere",          detached("a", 1, &[1, 2]), 2, None),
        ("only copy is there", detached("a", 1, &[1]),    2, Some("all copies of the volume")),
        ("nothing yet",        detached("a", 1, &[]),     2, None),
    ];
    for (case, volume, to, expected) in cases {
        let told = attach(&volume, &name(to), &upgraded).err().map(|refusal| refusal.to_string());
        match expected {
            Some(start) => {
                assert!(told.as_ref().is_some_and(|told| told.starts_with(start)), "{case}: {told:?}");
            }
            None => assert_eq!(told, None, "{case}"),
        }
    }
}

#[test]
fn a_volume_is_attached_to_a_node_that_there_is() {
    let told = |to: &str, nodes: &Nodes| {
        let refused = attach(&detached("a", 1, &[1]), &to.into(), nodes).err();
        refused.map(|refusal| refusal.to_string())
    };
    let mut away = nodes(3);
    away.get_mut("node-2").unwrap().ready = false;
    assert_eq!(told("node-2", &away), None, "one that is away is a node");
    let refused = told("node-9", &nodes(3)).unwrap();
    assert_eq!(
        refused,
        "spec.nodeID is node-9, which is no node of the cluster; it has node-1, node-2, node-3"
    );
    assert!(told("node-x", &nodes(30)).unwrap().ends_with(", and 22 more"));
    assert!(told("node-1", &nodes(0)).unwrap().ends_with("it has none"));
}

#[test]
fn an_upgrade_is_refused_by_name() {
    let spec = |nodes: &[usize]| DataEngineUpgradeManagerSpec {
        nodes: nodes.iter().map(|node| name(*node)).collect(),
        ..DataEngineUpgradeManagerSpec::default()
    };
    let three = [name(1), name(2), name(3)];
    let told = |nodes: &[usize], all: &[NodeName], active| {
        create(&spec(nodes), all, active).err().map(|refusal| refusal.to_string()).unwrap_or_default()
    };
    assert_eq!(told(&[], &three, None), "");
    assert_eq!(told(&[1, 3], &three, None), "");
    assert!(told(&[1, 7, 9], &three, None).contains("not in the cluster: node-7, node-9"));
    assert!(told(&[], &three[..1], None).starts_with("a cluster of one node"));
    assert!(told(&[], &three, Some("first")).starts_with("DataEngineUpgradeManager first is not done"));
}

#[test]
fn one_upgrade_is_active_at_a_time_also_when_an_older_one_goes_on() {
    use UpgradeState::*;
    let stand = |name: &str, age, state| Stand { age: (Some(at(age)), name.to_owned()), state };
    #[rustfmt::skip]
    let cases = [
        // the one that would begin,      another,                       waits for it
        (stand("a", 1, Undefined), stand("b", 2, Undefined),    false),
        (stand("b", 2, Undefined), stand("a", 1, Undefined),    true),
        (stand("a", 1, Undefined), stand("b", 2, Initializing), true),
        (stand("a", 1, Undefined), stand("b", 2, Upgrading),    true),
        (stand("b", 2, Undefined), stand("a", 1, Error),        false),
        (stand("b", 2, Undefined), stand("a", 1, Completed),    false),
        (stand("a", 1, Undefined), stand("a", 1, Undefined),    false),
    ];
    for (own, other, expected) in cases {
        assert_eq!(is_rival(&own, &other), expected, "{own:?} beside {other:?}");
    }

    let spec = |paused| DataEngineUpgradeManagerSpec { paused, ..DataEngineUpgradeManagerSpec::default() };
    let goes_on = |state, paused, active| resume(&spec(paused), &stand("a", 1, state), active).is_ok();
    assert!(!goes_on(Error, false, Some("b")));
    assert!(goes_on(Error, true, Some("b")), "while it is paused it does not go on");
    assert!(goes_on(Error, false, None));
    assert!(goes_on(Upgrading, false, Some("b")), "what is under way stays so");
}
