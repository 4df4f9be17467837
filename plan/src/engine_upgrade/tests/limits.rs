//! The limits hold at every moment, and the same world leads to the same order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use midflight_api::longhorn::{DataEngine, VolumeState};
use midflight_api::{Attempt, Initiator, NodeName, Outcome, Size, VolumeName};
use proptest::prelude::*;

use super::super::attempt::{Change, Why};
use super::super::facts::{Policy, Volume, World};
use super::super::fleet::Fleet;
use super::super::reason::Hold;
use super::{NEW, NODES, OLD, at, attached, attempt, detached, world};

/// What the API makes of a change.
fn apply(volume: &Volume, change: &Change) -> Volume {
    let wanted = change.image.clone().unwrap_or(volume.wanted.clone());
    let attempt = Some(change.attempt.clone());
    Volume { wanted, attempt, version: volume.version.next(), ..volume.clone() }
}

fn arrived(volume: &Volume) -> Volume {
    Volume { current: volume.wanted.clone(), version: volume.version.next(), ..volume.clone() }
}

fn fleet(world: World, volumes: &[Volume]) -> Fleet {
    let mut fleet = Fleet::new(world);
    for volume in volumes {
        fleet.observe(volume.clone(), at(0));
    }
    fleet
}

fn begun(fleet: &mut Fleet, seconds: i64) -> Vec<String> {
    std::iter::from_fn(|| fleet.next(at(seconds))).map(|change| change.volume.to_string()).collect()
}

#[test]
fn a_change_counts_before_the_api_has_shown_it() {
    let mut fleet = fleet(world(1), &[detached("a", "node-1"), detached("b", "node-1")]);
    let first = fleet.next(at(0)).unwrap();
    assert_eq!((first.volume.as_str(), first.why), ("a", Why::Begins));
    assert_eq!(fleet.next(at(0)), None, "the place is taken before the API has answered");

    let shown = apply(fleet.volume(&"a".into()).unwrap(), &first);
    fleet.observe(detached("a", "node-1"), at(1));
    assert_eq!(fleet.next(at(1)), None, "an old state does not give the place back");
    fleet.observe(shown.clone(), at(1));
    assert_eq!(fleet.next(at(1)), None);
    fleet.observe(arrived(&shown), at(2));
    let done = fleet.next(at(2)).unwrap();
    assert_eq!((done.volume.as_str(), done.why, done.image.clone()), ("a", Why::Arrived, None));
    assert_eq!(fleet.next(at(2)).unwrap().volume, "b");
}

#[test]
fn a_refused_change_gives_its_place_to_the_next() {
    let mut fleet = fleet(world(1), &[detached("a", "node-1"), detached("b", "node-1")]);
    assert_eq!(begun(&mut fleet, 0), ["a"]);
    fleet.refused(&"a".into(), "not today", at(5));
    assert_eq!(begun(&mut fleet, 5), ["b"]);
    fleet.forget(&"b".into(), at(6));
    assert_eq!((begun(&mut fleet, 6), fleet.wake_at()), (vec![], Some(at(7))));
    assert_eq!(begun(&mut fleet, 7), ["a"]);
    fleet.refused(&"a".into(), "not today either", at(7));
    assert_eq!(fleet.wake_at(), Some(at(11)), "the rest doubles");
    let left_out: Vec<String> = fleet.left_out(at(8)).map(|(_, reason)| reason.to_string()).collect();
    let (until, said) = (at(11), "not today either");
    assert_eq!(
        left_out,
        [format!("the API refused 2 times to change it, and is asked again at {until}; it said: {said}")]
    );
}

#[test]
fn a_refusal_is_over_when_the_volume_or_the_target_is_another() {
    let refused = || {
        let mut fleet = fleet(world(1), &[detached("a", "node-1")]);
        fleet.next(at(0)).unwrap();
        fleet.refused(&"a".into(), "no", at(0));
        fleet
    };
    let seen =
        |attempt| Volume { version: detached("a", "").version.next(), attempt, ..detached("a", "node-1") };
    let mut as_before = refused();
    as_before.observe(seen(None), at(1));
    assert_eq!(
        begun(&mut as_before, 1),
        [""; 0],
        "a status that changes all the time is no reason to ask again"
    );
    let mut cleared = refused();
    cleared.observe(seen(Some(Attempt { to: OLD.into(), ..attempt(Initiator::User, Outcome::Done) })), at(1));
    assert_eq!(begun(&mut cleared, 1), ["a"]);
    let mut other = refused();
    let mut images = world(1).images;
    images.insert("engine:v3".into(), images[NEW].clone());
    other.change_world(World { target: "engine:v3".into(), images, ..world(1) }, at(1));
    assert_eq!(begun(&mut other, 1), ["a"]);
}

/// The deadline counts from the first refusal, since the volume may not even tell since when it is on its way.
#[test]
fn a_volume_whose_way_back_is_refused_holds_its_place_for_one_deadline_more() {
    let late = Volume {
        wanted: NEW.into(),
        attempt: Some(attempt(Initiator::Automatic, Outcome::Running)),
        ..attached("late", "node-1")
    };
    let unseen = Volume { wanted: NEW.into(), ..attached("unseen", "node-1") };
    for (volume, first) in [(late, 600), (unseen, 0)] {
        let name = volume.name.clone();
        let mut fleet = fleet(world(1), &[volume, detached("next", "node-1")]);
        let mut begun = Vec::new();
        let (mut now, mut asked) = (at(0), 0);
        while now <= at(first + 600) {
            while let Some(change) = fleet.next(now) {
                match change.volume == name {
                    true => {
                        asked += 1;
                        fleet.refused(&name, "no", now);
                    }
                    false => begun.push((change.volume.to_string(), now)),
                }
            }
            now = fleet.wake_at().filter(|_| begun.is_empty()).unwrap_or(at(9999));
        }
        assert_eq!(begun, [("next".to_owned(), at(first + 600))], "{name}");
        assert!((8..11).contains(&asked), "{name} was asked {asked} times");
    }
}

#[test]
fn a_volume_that_is_gone_gives_its_place_back() {
    let mut fleet = fleet(world(1), &[detached("a", "node-1"), detached("b", "node-1")]);
    assert_eq!(begun(&mut fleet, 0), ["a"]);
    fleet.forget(&"a".into(), at(1));
    assert_eq!(begun(&mut fleet, 1), ["b"]);
}

#[test]
fn a_change_of_the_settings_acts_at_once_and_keeps_what_was_issued() {
    let volumes: Vec<Volume> = ["a", "b", "c", "d"].map(|name| detached(name, "node-1")).into();
    let mut fleet = fleet(world(0), &volumes);
    assert_eq!(begun(&mut fleet, 0), [""; 0]);
    assert_eq!(fleet.hold(), Some(Hold::Off));
    fleet.change_world(world(1), at(1));
    assert_eq!(begun(&mut fleet, 1), ["a"]);
    fleet.change_world(world(3), at(2));
    assert_eq!(begun(&mut fleet, 2), ["b", "c"]);
    fleet.change_world(world(1), at(3));
    assert_eq!(begun(&mut fleet, 3), [""; 0]);
}

#[test]
fn paused_begins_nothing_but_still_goes_back() {
    let late = Volume {
        wanted: NEW.into(),
        attempt: Some(attempt(Initiator::Automatic, Outcome::Running)),
        ..attached("late", "node-1")
    };
    let paused = World { policy: Policy { paused: true, ..world(3).policy }, ..world(3) };
    let mut fleet = fleet(paused, &[late, detached("a", "node-1")]);
    assert_eq!(fleet.wake_at(), Some(at(600)));
    assert_eq!(begun(&mut fleet, 599), [""; 0]);
    let back = fleet.next(at(600)).unwrap();
    assert_eq!((back.volume.as_str(), back.why, back.image), ("late", Why::GoesBack, Some(OLD.into())));
    assert_eq!(begun(&mut fleet, 600), [""; 0]);
}

#[test]
fn enough_failures_halt_the_rest_until_somebody_acts() {
    let failed = |name| Volume {
        attempt: Some(attempt(Initiator::Automatic, Outcome::Failed)),
        ..detached(name, "node-1")
    };
    let volumes = [failed("a"), failed("b"), detached("c", "node-1")];
    let taken_back = Attempt { failures: 0, ..attempt(Initiator::Automatic, Outcome::Failed) };
    let taken_back = Volume { attempt: Some(taken_back), ..detached("d", "node-1") };
    let threshold = |failures| World { policy: Policy { failures, ..world(9).policy }, ..world(9) };
    let mut halted = fleet(threshold(2), &volumes);
    assert_eq!(begun(&mut halted, 21), [""; 0]);
    assert_eq!(halted.hold(), Some(Hold::Halted { failed: 2, threshold: 2 }));
    let goes_on = fleet(threshold(2), &[failed("a"), taken_back]);
    assert_eq!(goes_on.hold(), None, "what somebody took back did not fail");

    let mut cleared = halted.clone();
    let version = volumes[0].version.next();
    cleared.observe(Volume { version, attempt: None, ..volumes[0].clone() }, at(21));
    assert_eq!(begun(&mut cleared, 21), ["a", "c"]);
    halted.change_world(threshold(3), at(21));
    assert_eq!(begun(&mut halted, 21), ["c"]);
    assert_eq!(halted.wake_at(), Some(at(80)), "the back-off of those that failed");
    assert_eq!(begun(&mut halted, 80), ["a", "b"]);

    let mut other = fleet(threshold(2), &volumes);
    other.change_world(World { target: "engine:v3".into(), ..threshold(2) }, at(21));
    assert_ne!(other.hold(), Some(Hold::Halted { failed: 2, threshold: 2 }));
}

#[test]
fn a_stuck_upgrade_of_a_user_frees_its_place_and_is_not_touched() {
    let stuck = Attempt { to: "mine".into(), ..attempt(Initiator::User, Outcome::Running) };
    let stuck = Volume { wanted: "mine".into(), attempt: Some(stuck), ..attached("stuck", "node-1") };
    let mut fleet = fleet(world(1), &[stuck, detached("a", "node-1")]);
    assert_eq!(begun(&mut fleet, 599), [""; 0]);
    assert_eq!(begun(&mut fleet, 600), ["a"]);
}

#[test]
fn v2_volumes_take_no_place() {
    let v2 = |name| Volume { engine: DataEngine::V2, wanted: NEW.into(), ..detached(name, "node-1") };
    let mut fleet = fleet(world(1), &[v2("a"), v2("b"), detached("c", "node-1")]);
    assert_eq!(begun(&mut fleet, 0), ["c"]);
}

#[test]
fn a_node_rests_after_an_upgrade_has_ended() {
    let done = Volume {
        wanted: NEW.into(),
        current: NEW.into(),
        attempt: Some(attempt(Initiator::Automatic, Outcome::Done)),
        ..attached("done", "node-1")
    };
    let settle = World { policy: Policy { settle: Duration::from_secs(30), ..world(2).policy }, ..world(2) };
    let mut fleet = fleet(settle, &[done, detached("a", "node-1"), detached("b", "node-2")]);
    assert_eq!(begun(&mut fleet, 21), ["b"]);
    assert_eq!(fleet.wake_at(), Some(at(50)));
    assert_eq!(begun(&mut fleet, 50), ["a"]);
}

#[test]
fn a_node_rests_before_the_api_has_shown_the_end() {
    let settle = World { policy: Policy { settle: Duration::from_secs(30), ..world(1).policy }, ..world(1) };
    let mut fleet = fleet(settle, &[detached("a", "node-1"), detached("b", "node-1")]);
    let first = fleet.next(at(0)).unwrap();
    let shown = apply(fleet.volume(&"a".into()).unwrap(), &first);
    fleet.observe(arrived(&shown), at(5));
    assert_eq!(fleet.next(at(5)).unwrap().why, Why::Arrived);
    assert_eq!(begun(&mut fleet, 34), [""; 0]);
    assert_eq!(begun(&mut fleet, 35), ["b"]);
}

/// One thing that happens to a cluster.
#[derive(Debug, Clone)]
enum Happening {
    /// The controller asks for changes, and the API takes so many of them.
    Step(usize),
    /// The API tells the controller the state of a volume.
    Show(usize),
    /// A volume arrives at the image it wants.
    Arrive(usize),
    /// A volume is attached to a node or detached.
    Move(usize, Option<usize>),
    /// A user asks for an image.
    Ask(usize, bool),
    Wait(i64),
    Limit(usize),
    /// The API refuses what the controller asks for next.
    Refuse,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (1..4usize).prop_map(Happening::Step),
        3 => (0..8usize).prop_map(Happening::Show),
        2 => (0..8usize).prop_map(Happening::Arrive),
        1 => (0..8usize, proptest::option::of(0..3usize)).prop_map(|(volume, node)| Happening::Move(volume, node)),
        1 => (0..8usize, any::<bool>()).prop_map(|(volume, new)| Happening::Ask(volume, new)),
        1 => (0..700i64).prop_map(Happening::Wait),
        1 => (0..4usize).prop_map(Happening::Limit),
        1 => Just(Happening::Refuse),
    ]
}

/// How many volumes of each node are on their way.
fn upgrading<'a>(volumes: impl Iterator<Item = &'a Volume>) -> BTreeMap<NodeName, usize> {
    let mut nodes = BTreeMap::new();
    for volume in volumes.filter(|volume| volume.is_upgrading()) {
        *nodes.entry(volume.seat().cloned().unwrap_or_default()).or_insert(0) += 1;
    }
    nodes
}

/// Whether the API has refused to change a volume for longer than an attempt may take: then it holds no place.
fn rests(controller: &Fleet, volume: &VolumeName, now: Timestamp) -> bool {
    let refused = controller.volume(volume).and_then(|volume| volume.refused.as_ref());
    refused.is_some_and(|refused| refused.since + world(0).policy.deadline <= now)
}

proptest! {
    #[test]
    fn the_limits_are_never_exceeded_by_a_begin(happenings in proptest::collection::vec(happening(), 0..80), cluster in 0..4usize) {
        let mut truth: Vec<Volume> = (0..8)
            .map(|number| {
                let size = Size::from_bytes(number as u64 % 3);
                Volume { size, ..detached(&format!("v{number}"), NODES[number % 3]) }
            })
            .collect();
        let (mut now, mut limit) = (0, 2);
        // What users ask for comes on top of the limits.
        let mut asked = BTreeSet::new();
        let settings = |limit| World { policy: Policy { cluster, failures: 0, ..world(limit).policy }, ..world(limit) };
        let mut controller = fleet(settings(limit), &truth);
        for happening in happenings {
            match happening {
                Happening::Step(most) => for _ in 0..most {
                    let Some(change) = controller.next(at(now)) else { break };
                    let volume = truth.iter_mut().find(|volume| volume.name == change.volume).unwrap();
                    if volume.version != change.version {
                        continue; // Refused: the volume has changed since it was seen.
                    }
                    *volume = apply(volume, &change);
                    let node = volume.seat().cloned().unwrap_or_default();
                    if change.why == Why::Begins {
                        let counts = |volume: &&Volume| !asked.contains(&volume.name) && !rests(&controller, &volume.name, at(now));
                        let nodes = upgrading(truth.iter().filter(counts));
                        prop_assert!(nodes.get(&node).is_none_or(|count| *count <= limit), "{nodes:?} with limit {limit}");
                        let all: usize = nodes.values().sum();
                        prop_assert!(cluster == 0 || all <= cluster, "{nodes:?} with {cluster} in all");
                    }
                },
                Happening::Show(number) => controller.observe(truth[number].clone(), at(now)),
                Happening::Arrive(number) => truth[number] = arrived(&truth[number]),
                Happening::Move(number, node) => {
                    let volume = &truth[number];
                    let version = volume.version.next();
                    // Volumes on their way stay: else a node may come to have more than its limit.
                    if !volume.is_upgrading() {
                        truth[number] = match node {
                            Some(node) => {
                                let (wanted, current) = (volume.wanted.clone(), volume.current.clone());
                                let at_node = attached(volume.name.as_str(), NODES[node]);
                                Volume { version, wanted, current, attempt: volume.attempt.clone(), ..at_node }
                            }
                            None => Volume { version, node: "".into(), state: VolumeState::Detached, ..volume.clone() },
                        };
                    }
                }
                Happening::Ask(number, new) => {
                    let wanted = if new { NEW } else { OLD };
                    let volume = &truth[number];
                    asked.insert(volume.name.clone());
                    truth[number] = Volume { wanted: wanted.into(), version: volume.version.next(), ..volume.clone() };
                }
                Happening::Wait(seconds) => now += seconds,
                Happening::Refuse => if let Some(change) = controller.next(at(now)) {
                    controller.refused(&change.volume, "no", at(now));
                },
                Happening::Limit(to) => {
                    limit = to;
                    let mut anew = controller.clone();
                    anew.begin_anew(settings(limit), at(now));
                    controller.change_world(settings(limit), at(now));
                    let mut changed = controller.clone();
                    prop_assert_eq!(begun(&mut anew, now), begun(&mut changed, now));
                    prop_assert_eq!((anew.under_way(), anew.waiting()), (changed.under_way(), changed.waiting()));
                }
            }
        }
    }

    /// However many the API refuses for ever, all others come to the new image.
    #[test]
    fn what_is_refused_keeps_no_other_from_its_turn(refused in any::<[bool; 8]>(), limit in 1..4usize) {
        let volumes: Vec<Volume> = (0..8).map(|number| detached(&format!("v{number}"), NODES[number % 2])).collect();
        let is_refused = |name: &str| volumes.iter().zip(refused).any(|(volume, refused)| volume.name == name && refused);
        let mut controller = fleet(world(limit), &volumes);
        let mut now = at(0);
        for _ in 0..20 {
            while let Some(change) = controller.next(now) {
                if is_refused(change.volume.as_str()) {
                    controller.refused(&change.volume, "no", now);
                    continue;
                }
                let volume = apply(controller.volume(&change.volume).unwrap(), &change);
                controller.observe(volume.clone(), now);
                if volume.is_upgrading() {
                    controller.observe(arrived(&volume), now);
                }
            }
            now = controller.wake_at().unwrap_or(now);
        }
        for volume in controller.volumes() {
            let is_there = volume.current == NEW;
            prop_assert_eq!(is_there, !is_refused(volume.name.as_str()), "{}", volume.name.clone());
        }
    }

    /// What was learnt bit by bit is what is learnt at once.
    #[test]
    fn the_order_depends_on_the_world_alone(order in Just((0..8usize).collect::<Vec<_>>()).prop_shuffle(), limit in 1..4usize) {
        let volumes: Vec<Volume> = (0..8)
            .map(|number| {
                let name = format!("v{number}");
                let volume = if number % 2 == 0 { detached(&name, NODES[number % 3]) } else { attached(&name, NODES[number % 3]) };
                Volume { size: Size::from_bytes(number as u64 % 3), ..volume }
            })
            .collect();
        let mut straight = fleet(world(limit), &volumes);
        let shuffled: Vec<Volume> = order.iter().map(|number| volumes[*number].clone()).collect();
        let mut other = fleet(world(limit), &shuffled);
        prop_assert_eq!(begun(&mut straight, 0), begun(&mut other, 0));
    }
}
