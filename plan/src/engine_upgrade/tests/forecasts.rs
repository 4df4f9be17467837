//! The plan says what the controller then does.

use std::time::Duration;

use midflight_api::{Attempt, Initiator, Outcome, Size, Way};

use super::super::facts::{Policy, Volume, World};
use super::super::forecast::{Forecast, Pace, forecast};
use super::super::reason::{Hold, Reason};
use super::{NEW, at, attached, attempt, detached, world};

/// `SECONDS: VOLUME VOLUME` for each wave.
fn waves(forecast: &Forecast) -> Vec<String> {
    let wave = |wave: &super::super::forecast::Wave| {
        let names: Vec<&str> = wave.moves.iter().map(|one| one.volume.as_str()).collect();
        format!("{}: {}", wave.after.as_secs(), names.join(" "))
    };
    forecast.waves.iter().map(wave).collect()
}

fn sized(bytes: u64, volume: Volume) -> Volume {
    Volume { size: Size::from_bytes(bytes), ..volume }
}

#[test]
fn detached_volumes_come_first_then_the_smallest() {
    let volumes = vec![
        sized(9, attached("a", "node-1")),
        sized(2, attached("b", "node-1")),
        sized(9, detached("c", "node-1")),
        sized(2, detached("d", "node-1")),
        sized(5, attached("e", "node-2")),
    ];
    let plan = forecast(&world(1), &volumes, at(0));
    assert_eq!(waves(&plan), ["0: d e", "10: c", "20: b", "50: a"]);
    assert_eq!((plan.duration, plan.moves(), &plan.hold), (Duration::from_secs(80), 5, &None));
}

#[test]
fn limits_settle_time_and_those_under_way_shape_the_waves() {
    let three = || vec![detached("a", "node-1"), detached("b", "node-1"), detached("c", "node-2")];
    let with = |policy: Policy, volumes: Vec<Volume>| {
        let world = World { policy, ..world(1) };
        waves(&forecast(&world, &volumes, at(0)))
    };
    let policy = world(1).policy;
    assert_eq!(with(policy.clone(), three()), ["0: a c", "10: b"]);
    assert_eq!(with(Policy { per_node: 2, ..policy.clone() }, three()), ["0: a b c"]);
    assert_eq!(with(Policy { cluster: 1, ..policy.clone() }, three()), ["0: a", "10: b", "20: c"]);
    assert_eq!(
        with(Policy { settle: Duration::from_secs(7), ..policy.clone() }, three()),
        ["0: a c", "17: b"]
    );
    let mut busy = three();
    busy[0].wanted = NEW.into();
    assert_eq!(with(policy, busy), ["0: c", "10: b"]);
}

#[test]
fn a_hold_is_told_and_the_rest_shown_as_if_it_were_lifted() {
    let off = forecast(&world(0), &[detached("a", "node-1"), detached("b", "node-1")], at(0));
    assert_eq!((off.hold.clone(), off.policy.per_node), (Some(Hold::Off), 1));
    assert_eq!(waves(&off), ["0: a", "10: b"]);
    let mut nowhere = world(1);
    nowhere.images.remove(NEW);
    let plan = forecast(&nowhere, &[detached("a", "node-1")], at(0));
    assert_eq!((plan.hold.clone(), plan.moves()), (Some(Hold::Unknown { image: NEW.into() }), 0));
}

#[test]
fn every_volume_is_accounted_for() {
    let there = Volume { wanted: NEW.into(), current: NEW.into(), ..attached("there", "node-1") };
    let going = Volume { wanted: NEW.into(), ..attached("going", "node-2") };
    let dr = Volume { standby: true, ..attached("dr", "node-3") };
    let plan = forecast(&world(1), &[there, going, dr, attached("goes", "node-1")], at(0));
    assert_eq!(plan.there, 1);
    assert_eq!(plan.under_way.iter().map(|one| one.volume.as_str()).collect::<Vec<_>>(), ["going"]);
    assert_eq!(plan.left_out.iter().map(|one| &one.reason).collect::<Vec<_>>(), [&Reason::Standby]);
    assert_eq!(waves(&plan), ["0: goes"]);
}

#[test]
fn the_pace_is_learnt_from_upgrades_that_were_done() {
    let took = |seconds, way| {
        let done =
            Attempt { ended_at: Some(at(seconds)), way, ..attempt(Initiator::Automatic, Outcome::Done) };
        Volume { attempt: Some(done), ..attached("v", "node-1") }
    };
    assert_eq!(Pace::learn([attached("v", "node-1")].iter()), Pace::ASSUMED);
    let volumes = [took(3, Way::Live), took(90, Way::Live), took(5, Way::Live), took(2, Way::Detached)];
    let pace = Pace::learn(volumes.iter());
    assert_eq!((pace.live.as_secs(), pace.detached.as_secs(), pace.learnt_from), (5, 2, 4));
}
