//! Which volumes are candidates, and why the others are not.

use jiff::Timestamp;
use midflight_api::longhorn::{
    self, DataEngine, DataLocality, EngineImageStatus, Robustness, VolumeSpec, VolumeState, VolumeStatus,
};
use midflight_api::{Attempt, ENGINE_UPGRADE, FINALIZED, Initiator, NodeName, Outcome, Size, Way};

use super::super::facts::{Policy, TakeOver, Volume, World};
use super::super::judge::{Standing, judge};
use super::super::reason::{Hold, Incompatible, Reason, Span};
use super::{NEW, NODES, OLD, at, attached, attempt, detached, image, world};

use Standing::{Candidate, LeftOut, There, UnderWay};

fn now() -> Timestamp {
    at(1000)
}

fn live(change: impl FnOnce(&mut Volume)) -> Volume {
    let mut volume = attached("v", "node-1");
    change(&mut volume);
    volume
}

fn offline(change: impl FnOnce(&mut Volume)) -> Volume {
    let mut volume = detached("v", "node-1");
    change(&mut volume);
    volume
}

#[test]
fn every_rule_has_its_row() {
    let failed = |ended: i64| {
        Some(Attempt { ended_at: Some(at(ended)), ..attempt(Initiator::Automatic, Outcome::Failed) })
    };
    let taken_back = |ended: i64| {
        Some(Attempt { ended_at: Some(at(ended)), failures: 0, ..attempt(Initiator::User, Outcome::Failed) })
    };
    #[rustfmt::skip]
    let cases = [
        ("detached",                     offline(|_| {}),                                             Candidate(Way::Detached)),
        ("attached and healthy",         live(|_| {}),                                                Candidate(Way::Live)),
        ("there",                        live(|v| { v.wanted = NEW.into(); v.current = NEW.into() }), There),
        ("on its way",                   live(|v| v.wanted = NEW.into()),                             UnderWay),
        ("on its way elsewhere",         live(|v| v.wanted = "other".into()),                         UnderWay),
        ("asks for nothing",             offline(|v| v.wanted = "".into()),                           Candidate(Way::Detached)),
        ("deleting",                     offline(|v| v.deleting = true),                              LeftOut(Reason::Deleting)),
        ("v2 detached",                  offline(|v| v.engine = DataEngine::V2),                      LeftOut(Reason::DataEngineV2)),
        ("v2 that seems upgrading",      live(|v| { v.engine = DataEngine::V2; v.wanted = NEW.into() }), LeftOut(Reason::DataEngineV2)),
        ("opted out",                    offline(|v| v.opted_out = true),                             LeftOut(Reason::OptedOut)),
        ("DR attached",                  live(|v| v.standby = true),                                  LeftOut(Reason::Standby)),
        ("DR detached",                  offline(|v| v.standby = true),                               LeftOut(Reason::Standby)),
        ("expanding attached",           live(|v| v.expanding = true),                                LeftOut(Reason::Expanding)),
        ("expanding detached",           offline(|v| v.expanding = true),                             LeftOut(Reason::Expanding)),
        ("restoring",                    offline(|v| v.restoring = true),                             LeftOut(Reason::Restoring)),
        ("migrating",                    live(|v| v.migrating = true),                                LeftOut(Reason::Migrating)),
        ("no image yet",                 offline(|v| v.current = "".into()),                          LeftOut(Reason::NoImageYet)),
        ("attaching",                    live(|v| v.state = VolumeState::Attaching),                  LeftOut(Reason::Unsettled(VolumeState::Attaching))),
        ("detaching",                    live(|v| v.state = VolumeState::Detaching),                  LeftOut(Reason::Unsettled(VolumeState::Detaching))),
        ("a state of a newer version",   live(|v| v.state = VolumeState::Unrecognised),               LeftOut(Reason::Unsettled(VolumeState::Unrecognised))),
        ("degraded",                     live(|v| v.robustness = Robustness::Degraded),               LeftOut(Reason::Degraded)),
        ("faulted attached",             live(|v| v.robustness = Robustness::Faulted),                LeftOut(Reason::Faulted)),
        ("faulted detached",             offline(|v| v.robustness = Robustness::Faulted),             LeftOut(Reason::Faulted)),
        ("attached, not looked at",      live(|v| v.robustness = Robustness::Undefined),              LeftOut(Reason::RobustnessUnknown)),
        ("strict-local attached",        live(|v| v.locality = DataLocality::StrictLocal),            LeftOut(Reason::StrictLocal)),
        ("strict-local detached",        offline(|v| v.locality = DataLocality::StrictLocal),         Candidate(Way::Detached)),
        ("unknown image attached",       live(|v| { v.wanted = "lost".into(); v.current = "lost".into() }), LeftOut(Reason::CurrentUnknown("lost".into()))),
        ("unknown image detached",       offline(|v| { v.wanted = "lost".into(); v.current = "lost".into() }), Candidate(Way::Detached)),
        ("without replicas",             offline(|v| v.replicas.clear()),                             LeftOut(Reason::NotPlaced)),
        ("a replica where it is not",    offline(|v| { v.replicas.insert("node-9".into()); }),        LeftOut(Reason::NotOnNodes { nodes: vec!["node-9".into()] })),
        ("attached where it is not",     live(|v| v.node = "node-8".into()),                          LeftOut(Reason::NotOnNodes { nodes: vec!["node-8".into()] })),
        ("failed just now",              live(|v| v.attempt = failed(990)),                           LeftOut(Reason::BackingOff { failures: 1, until: at(1050) })),
        ("taken back just now",          live(|v| v.attempt = taken_back(990)),                       LeftOut(Reason::TakenBack { until: at(1050) })),
        ("taken back long ago",          live(|v| v.attempt = taken_back(900)),                       Candidate(Way::Live)),
        ("failed long ago",              live(|v| v.attempt = failed(900)),                           Candidate(Way::Live)),
        ("failed for another image",     live(|v| v.attempt = failed(990).map(|a| Attempt { to: "other".into(), ..a })), Candidate(Way::Live)),
    ];
    for (case, volume, expected) in cases {
        assert_eq!(judge(&volume, &world(1), now()), expected, "{case}");
    }
}

#[test]
fn images_decide_whether_a_live_change_is_possible() {
    let api = |version, min| EngineImageStatus {
        controller_api_version: version,
        controller_api_min_version: min,
        ..image("two")
    };
    let versions = |oldest, newest| {
        let (runs, takes) = (Span { oldest: 3, newest: 5 }, Span { oldest, newest });
        LeftOut(Reason::ApiVersions { runs, takes })
    };
    let same = || LeftOut(Reason::SameCommit { commit: "one".into() });
    #[rustfmt::skip]
    let cases = [
        // what,                  the new image, attached,             attached, and the engines are Longhorn's
        ("the same versions",     api(5, 3),     Candidate(Way::Live), Candidate(Way::Live)),
        ("the oldest it takes",   api(9, 5),     Candidate(Way::Live), Candidate(Way::Live)),
        ("too old for it",        api(9, 6),     versions(6, 9),       versions(6, 9)),
        ("newer than it",         api(4, 3),     Candidate(Way::Live), versions(3, 4)),
        ("too new for it",        api(2, 1),     versions(1, 2),       versions(1, 2)),
        ("built from one commit", image("one"),  same(),               same()),
        ("commits not known",     image(""),     Candidate(Way::Live), Candidate(Way::Live)),
    ];
    for (case, new, attached_is, longhorns_is) in cases {
        let mut world = world(1);
        world.images.insert(NEW.into(), new);
        let longhorns = World { take_over: TakeOver::OfOlder, ..world.clone() };
        assert_eq!(judge(&attached("v", "node-1"), &world, now()), attached_is, "{case}, attached");
        assert_eq!(judge(&attached("v", "node-1"), &longhorns, now()), longhorns_is, "{case}, Longhorn's");
        let offline = judge(&detached("v", "node-1"), &world, now());
        assert_eq!(offline, Candidate(Way::Detached), "{case}, detached");
    }
    let mut same = world(1);
    same.images.insert(NEW.into(), image("one"));
    same.policy.same_commit = true;
    assert_eq!(judge(&attached("v", "node-1"), &same, now()), Candidate(Way::Live));
}

#[test]
fn a_partly_deployed_image_serves_the_volumes_whose_nodes_have_it() {
    let mut world = world(1);
    world.images.get_mut(NEW).unwrap().node_deployment_map.insert("node-3".into(), false);
    let mut volume = detached("v", "node-1");
    assert_eq!(judge(&volume, &world, now()), LeftOut(Reason::NotOnNodes { nodes: vec!["node-3".into()] }));
    volume.replicas.remove("node-3");
    assert_eq!(judge(&volume, &world, now()), Candidate(Way::Detached));
}

/// It has no versions either, which say nothing.
#[test]
fn an_image_that_is_nowhere_is_not_judged_by_its_versions() {
    let nowhere = EngineImageStatus::default;
    let unheard = || EngineImageStatus { node_deployment_map: image("").node_deployment_map, ..nowhere() };
    let lacking = || LeftOut(Reason::NotOnNodes { nodes: NODES.map(NodeName::from).into() });
    #[rustfmt::skip]
    let cases = [
        ("no EngineImage",           None,            lacking()),
        ("on no node",               Some(nowhere()), lacking()),
        ("its binary was not heard", Some(unheard()), LeftOut(Reason::VersionsUnknown)),
    ];
    for (case, image, expected) in cases {
        let mut world = world(1);
        world.images.remove(NEW);
        world.images.extend(image.map(|image| (NEW.into(), image)));
        assert_eq!(judge(&attached("v", "node-1"), &world, now()), expected, "{case}");
        assert_eq!(judge(&detached("v", "node-1"), &world, now()), expected, "{case}, detached");
    }
}

#[test]
fn a_finalized_volume_never_goes_to_an_image_that_cannot_read_it() {
    let mut world = world(1);
    let newer = EngineImageStatus { data_format_version: 2, ..image("three") };
    world.images.insert("engine:v3".into(), newer);
    let finalized = |image: &str| Volume { finalized: image.into(), ..detached("v", "node-1") };
    let too_new = LeftOut(Reason::Finalized { image: "engine:v3".into() });
    assert_eq!(judge(&finalized("engine:v3"), &world, now()), too_new);
    assert_eq!(judge(&finalized(OLD), &world, now()), Candidate(Way::Detached));
}

#[test]
fn what_holds_all_upgrades_back_is_named() {
    let with = |change: &dyn Fn(&mut World)| {
        let mut world = world(1);
        change(&mut world);
        world.hold()
    };
    let image = || NEW.into();
    let misfit = || {
        let its = Span { oldest: 0, newest: 0 };
        Incompatible { image: NEW.into(), its, ours: Some(Span { oldest: 1, newest: 1 }) }
    };
    #[rustfmt::skip]
    let cases = [
        ("nothing",      with(&|_| {}),                                                              None),
        ("no default",   with(&|w| w.target = "".into()),                                            Some(Hold::NoTarget)),
        ("unknown",      with(&|w| { w.images.remove(NEW); }),                                       Some(Hold::Unknown { image: image() })),
        ("incompatible", with(&|w| w.images.get_mut(NEW).unwrap().incompatible = true),              Some(Hold::Incompatible(misfit()))),
        ("nowhere",      with(&|w| w.images.get_mut(NEW).unwrap().node_deployment_map.clear()),      Some(Hold::Nowhere { image: image() })),
        ("off",          with(&|w| w.policy.per_node = 0),                                           Some(Hold::Off)),
        ("paused",       with(&|w| w.policy.paused = true),                                          Some(Hold::Paused)),
    ];
    for (case, hold, expected) in cases {
        assert_eq!(hold, expected, "{case}");
    }
}

#[test]
fn settings_are_read_with_their_defaults_and_nonsense_turns_nothing_on() {
    let limit = midflight_api::settings::ENGINE_UPGRADE_LIMIT;
    #[rustfmt::skip]
    let cases = [(Some("3"), 3), (Some("0"), 0), (Some("-1"), 0), (Some("three"), 0), (Some(""), 0), (None, 0)];
    for (value, expected) in cases {
        let policy = Policy::of(|name| value.filter(|_| name == limit));
        assert_eq!(policy, Policy { per_node: expected, ..Policy::default() }, "{value:?}");
    }
    let policy = Policy::default();
    assert_eq!((policy.deadline.as_secs(), policy.failures, policy.cluster), (600, 3, 0));
}

/// Both sides are named, so that nobody has to look for them.
#[test]
fn an_image_that_does_not_fit_is_told_with_both_ranges() {
    let mut world = world(1);
    let new = world.images.get_mut(NEW).unwrap();
    (new.incompatible, new.cli_api_min_version, new.cli_api_version) = (true, 2, 4);
    for volume in [detached("v", "node-1"), attached("v", "node-1")] {
        let LeftOut(reason) = judge(&volume, &world, now()) else { panic!("it cannot move") };
        assert_eq!(reason.word(), "ImageIncompatible");
        assert_eq!(
            reason.to_string(),
            "engine:v2 is not compatible with this cluster: it has versions 2 to 4 of the instance managers' API, \
             and the controllers here have version 1"
        );
    }
    assert_eq!(world.hold().map(|hold| hold.word()), Some("ImageIncompatible"));
}

fn replica(node: &str, size: u64) -> longhorn::Replica {
    let mut replica = longhorn::Replica::new("r", Default::default());
    let instance = &mut replica.spec.instance;
    (instance.node_id, instance.volume_size) = (node.into(), Size::from_bytes(size));
    replica
}

/// Between the moment somebody asks for a larger volume and the moment its status says so.
#[test]
fn a_volume_grows_from_the_moment_it_is_asked_to() {
    let grows = |says: bool, sizes: &[u64]| {
        let mut object = longhorn::Volume::new("v", VolumeSpec::default());
        object.spec.size = Size::from_bytes(8192);
        object.status = Some(VolumeStatus { expansion_required: says, ..VolumeStatus::default() });
        let replicas: Vec<_> = sizes.iter().map(|size| replica("node-1", *size)).collect();
        Volume::of(&object, replicas.iter().collect()).expanding
    };
    #[rustfmt::skip]
    let cases = [
        ("at rest",                      false, vec![8192, 8192], false),
        ("asked for, and not seen yet",  false, vec![4096, 4096], true),
        ("seen, and said",               true,  vec![4096, 4096], true),
        ("some replicas are asked",      true,  vec![8192, 4096], true),
        ("all replicas are asked",       true,  vec![8192, 8192], true),
        ("replicas that do not say",     false, vec![0, 0],       false),
        ("no replicas",                  false, vec![],           false),
    ];
    for (case, says, sizes, expected) in cases {
        assert_eq!(grows(says, &sizes), expected, "{case}");
    }
}

/// An object as the API gives it, with annotations.
#[test]
fn an_object_is_read_with_what_matters() {
    let mut object = longhorn::Volume::new("v", VolumeSpec::default());
    object.metadata.resource_version = Some("17".into());
    let annotations = [(ENGINE_UPGRADE, "never"), (FINALIZED, OLD)];
    object.metadata.annotations = Some(annotations.map(|(k, v)| (k.into(), v.into())).into());
    object.spec.size = Size::from_bytes(4096);
    object.spec.migration_node_id = "node-2".into();
    object.status = Some(VolumeStatus {
        current_image: OLD.into(),
        is_standby: true,
        expansion_required: true,
        owner_id: "node-3".into(),
        ..VolumeStatus::default()
    });
    let volume = Volume::of(&object, [&replica("node-1", 4096)].into_iter().collect());
    assert!(volume.opted_out && volume.standby && volume.expanding && volume.migrating && !volume.deleting);
    let mut misspelt = object.clone();
    misspelt.metadata.annotations = Some([(ENGINE_UPGRADE.into(), "Nevr".into())].into());
    assert!(Volume::of(&misspelt, Default::default()).opted_out, "it was not meant as a yes");
    assert_eq!((volume.finalized.as_str(), volume.version.to_string()), (OLD, "17".into()));
    assert_eq!(volume.seat(), Some(&"node-3".into()));
    assert_eq!(Volume { owner: "".into(), ..volume }.seat(), Some(&"node-1".into()));
}
