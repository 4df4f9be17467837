//! The plan that people see is what the planner does.

use midflight_api::longhorn::{DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, UpgradeNodeStatus};

use super::super::run::Observed;
use super::super::{Pace, forecast};
use super::*;

fn seen(nodes: Nodes, volumes: Vec<Volume>, parallel: i32) -> Observed {
    Observed {
        now: at(0),
        name: "plan".into(),
        generation: 1,
        deleting: false,
        protected: false,
        spec: DataEngineUpgradeManagerSpec { max_parallel_nodes: parallel, ..Default::default() },
        status: Default::default(),
        default_image: NEW.into(),
        policy: policy(),
        nodes,
        volumes,
        children: Vec::new(),
        rival: None,
    }
}

#[test]
fn nodes_come_by_name_together_where_they_share_nothing() {
    let volumes = || vec![attached("a", 1, &[1, 2, 3]), attached("b", 4, &[4, 5, 6])];
    let stages = |parallel| {
        let plan = forecast(&seen(nodes(6), volumes(), parallel), Pace::ASSUMED);
        let names =
            |stage: &super::super::Stage| stage.nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
        (plan.stages.iter().map(names).collect::<Vec<_>>(), plan.duration.as_secs())
    };
    let (one, alone) = stages(1);
    assert_eq!(one.len(), 6);
    assert_eq!(alone, 360);
    let (two, together) = stages(2);
    assert_eq!(two, [["node-1", "node-4"], ["node-2", "node-5"], ["node-3", "node-6"]]);
    assert_eq!(together, 180);
}

#[test]
fn the_pace_is_that_of_nodes_that_had_something_to_do() {
    let upgrade = |took_ms: &[i64]| {
        let mut upgrade = DataEngineUpgradeManager::new("upgrade", Default::default());
        let entry = |ms: &i64| {
            let ended = at(0).checked_add(jiff::SignedDuration::from_millis(*ms)).unwrap();
            let mut entry = UpgradeNodeStatus::default();
            (entry.started_at, entry.completed_at) = (at(0).to_string().into(), ended.to_string().into());
            entry
        };
        let nodes = took_ms.iter().enumerate().map(|(number, ms)| (name(number), entry(ms)));
        upgrade.status.get_or_insert_default().upgrade_nodes = nodes.collect();
        upgrade
    };
    let learn = |took_ms: &[i64]| Pace::learn([&upgrade(took_ms)]);
    let seconds = |count, learnt_from| Pace { node: Duration::from_secs(count), learnt_from };
    assert_eq!(learn(&[]), Pace::ASSUMED);
    assert_eq!(learn(&[9_000, 3_000, 5_000]), seconds(5, 3));
    assert_eq!(
        learn(&[20, 30, 10, 40, 4_000]),
        seconds(4, 1),
        "those that ran the image already do not count"
    );
    assert_eq!(learn(&[20, 30]), Pace::ASSUMED);
}

#[test]
fn a_plan_tells_where_engines_go_and_what_is_in_the_way() {
    let mut some = nodes(3);
    some.get_mut("node-3").unwrap().managers = vec![manager("node-3", NEW, 0)];
    let volumes = vec![attached("a", 1, &[1, 2, 3]), attached("b", 2, &[1]), detached("c", 1, &[1])];
    let plan = forecast(&seen(some, volumes, 1), Pace::ASSUMED);
    assert_eq!(plan.there, [name(3)]);
    assert_eq!(plan.obstacles.len(), 1, "{:?}", plan.obstacles);
    let first = &plan.stages[0].volumes;
    let told: Vec<_> =
        first.iter().map(|one| (one.volume.as_str(), one.moves_to.clone(), one.replica_leaves)).collect();
    assert_eq!(told, [("a", Some(name(3)), true), ("b", None, true)], "b serves elsewhere");
}

/// A mark that nobody owns holds the controller up; the plan says so, and what comes when it is gone.
#[test]
fn a_plan_tells_of_a_mark_that_nobody_owns() {
    let mut all = nodes(3);
    all.get_mut("node-2").unwrap().requested = true;
    let plan = forecast(&seen(all, vec![attached("a", 1, &[1, 2, 3])], 1), Pace::ASSUMED);
    let found: Vec<&str> = plan.obstacles.iter().map(|one| one.word()).collect();
    assert_eq!((found, plan.stages.len()), (vec!["NodeMarked"], 3));
}

#[test]
fn a_plan_tells_of_versions_that_do_not_fit_and_of_those_that_nobody_knows() {
    let plan = |versions: Ranges| {
        let mut all = nodes(3);
        let managers = all.values_mut().flat_map(|node| &mut node.managers);
        managers.filter(|one| one.image == NEW).for_each(|one| one.versions = versions);
        forecast(&seen(all, vec![attached("a", 1, &[1, 2, 3])], 1), Pace::ASSUMED)
    };
    #[rustfmt::skip]
    let cases = [
        // what,      what it speaks,     in the way, not known
        ("fits",      speaks(2, 3),       0,          false),
        ("does not",  speaks(8, 9),       2,          false),
        ("unknown",   Ranges::default(),  0,          true),
    ];
    for (case, versions, obstacles, is_unknown) in cases {
        let plan = plan(versions);
        assert_eq!((plan.obstacles.len(), plan.caveat.is_some()), (obstacles, is_unknown), "{case}");
        assert_eq!(plan.stages.len(), 3, "{case}: all stages are shown, whatever is in the way");
    }
}

/// An image that is published says what it speaks by its labels, before any node has it.
#[test]
fn versions_of_an_image_that_no_node_has_are_those_of_its_labels() {
    let plan = |labels: Ranges| {
        let mut all = nodes(3);
        for node in all.values_mut() {
            (node.image, node.labels) = (Image::Missing, labels);
            node.managers.retain(|one| one.image == OLD);
        }
        let mut plan = forecast(&seen(all, vec![attached("a", 1, &[1, 2, 3])], 1), Pace::ASSUMED);
        plan.judge_image(Some(true), false);
        plan
    };
    #[rustfmt::skip]
    let cases = [
        // what it speaks,   in the way,                                              not known
        (speaks(2, 3),       &[][..],                                                 None),
        (speaks(8, 9),       &["IncompatibleVersions", "IncompatibleVersions"],       None),
        (Ranges::default(),  &[],                                                     Some("known when the first node has it")),
    ];
    for (labels, expected, unknown) in cases {
        let plan = plan(labels);
        let found: Vec<&str> = plan.obstacles.iter().map(|one| one.word()).collect();
        assert_eq!(found, expected, "{labels:?}");
        assert_eq!(plan.caveat.is_some(), unknown.is_some(), "{:?}", plan.caveat);
        assert!(plan.caveat.unwrap_or_default().contains(unknown.unwrap_or_default()), "{labels:?}");
        assert_eq!(plan.stages.len(), 3, "all stages are shown, whatever is in the way");
    }
}

/// Who can look into the registry knows whether nodes that lack the image will ever get it.
#[test]
fn an_image_that_nodes_lack_is_judged_by_what_is_published() {
    #[rustfmt::skip]
    let cases = [
        // published,   the default,  in the way,           who gets it first
        (Some(false),   true,         &["ImageUnpublished"][..], 0),
        (Some(false),   false,        &["ImageUnpublished"],     0),
        (Some(true),    true,         &["ImageMissing"],         0),
        (Some(true),    false,        &[],                       2),
        (None,          true,         &["ImageMissing"],         0),
        (None,          false,        &[],                       2),
    ];
    for (is_published, is_default, expected, lacking) in cases {
        let mut some = nodes(3);
        for node in ["node-2", "node-3"] {
            some.get_mut(node).unwrap().image = Image::Missing;
        }
        let mut plan = forecast(&seen(some, vec![attached("a", 1, &[1, 2, 3])], 1), Pace::ASSUMED);
        plan.judge_image(is_published, is_default);
        let found: Vec<&str> = plan.obstacles.iter().map(|one| one.word()).collect();
        assert_eq!(
            (found.as_slice(), plan.lacking.len()),
            (expected, lacking),
            "{is_published:?} {is_default}"
        );
        assert!(is_published != Some(false) || plan.caveat.is_none(), "what nobody has says nothing");
        if let Some(first) = plan.obstacles.first() {
            assert!(first.to_string().ends_with("not on node-2, node-3"), "{first}");
        }
        let mut there = forecast(&seen(nodes(3), Vec::new(), 1), Pace::ASSUMED);
        there.judge_image(is_published, is_default);
        assert!(there.obstacles.is_empty() && there.lacking.is_empty(), "no node lacks it");
    }
}
