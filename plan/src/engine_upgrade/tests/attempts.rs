//! What becomes of attempts: each ends, and the volume knows where to go back to.

use std::time::Duration;

use midflight_api::{Attempt, Initiator, Outcome, Way};

use super::super::attempt::{Change, Why, back_off, begin, upkeep};
use super::super::facts::Volume;
use super::{NEW, OLD, at, attached, attempt, world};

use Initiator::{Automatic, User};
use Outcome::{Done, Failed, Running};

/// What to do: why, which image, what the annotation then says.
type Due = Option<(Why, Option<&'static str>, Outcome, u32)>;

/// What a volume wants and has, its attempt and the second; what is then due, and whether it counts.
type Row = (&'static str, &'static str, &'static str, Option<Attempt>, i64, Due, bool);

fn due(change: Option<Change>) -> Due {
    change.map(|change| {
        let image = change.image.map(|image| if image == OLD { OLD } else { NEW });
        (change.why, image, change.attempt.outcome, change.attempt.failures)
    })
}

#[test]
fn every_attempt_ends() {
    let auto = |outcome| Some(attempt(Automatic, outcome));
    let user = |outcome| Some(attempt(User, outcome));
    let elsewhere = Some(Attempt { to: "other".into(), ..attempt(Automatic, Running) });
    #[rustfmt::skip]
    let cases: [Row; 16] = [
        ("nothing was asked",           OLD, OLD, None,           10,  None,                                         false),
        ("somebody asks",               NEW, OLD, None,           10,  Some((Why::Noticed, None, Running, 0)),       true),
        ("somebody asks for another",   NEW, OLD, elsewhere,      10,  Some((Why::Noticed, None, Running, 0)),       true),
        ("somebody asks after success", NEW, OLD, auto(Done),     30,  Some((Why::Noticed, None, Running, 0)),       true),
        ("it runs",                     NEW, OLD, auto(Running),  599, None,                                         true),
        ("it is late",                  NEW, OLD, auto(Running),  600, Some((Why::GoesBack, Some(OLD), Failed, 1)),  true),
        ("it has arrived",              NEW, NEW, auto(Running),  10,  Some((Why::Arrived, None, Done, 0)),          false),
        ("it has arrived late",         NEW, NEW, auto(Running),  900, Some((Why::Arrived, None, Done, 0)),          false),
        ("it was taken back",           OLD, OLD, auto(Running),  10,  Some((Why::TakenBack, None, Failed, 0)),      false),
        ("done is done",                NEW, NEW, auto(Done),     900, None,                                         false),
        ("failed rests",                OLD, OLD, auto(Failed),   30,  None,                                         false),
        ("a user's runs",               NEW, OLD, user(Running),  599, None,                                         true),
        ("a user's is stuck",           NEW, OLD, user(Running),  600, None,                                         false),
        ("a user's has arrived",        NEW, NEW, user(Running),  10,  Some((Why::Arrived, None, Done, 0)),          false),
        ("arrived as it went back",     OLD, NEW, auto(Failed),   30,  None,                                         true),
        ("and the way back is stuck",   OLD, NEW, auto(Failed),   620, None,                                         false),
    ];
    for (case, wanted, current, attempt, seconds, expected, counts) in cases {
        let volume =
            Volume { wanted: wanted.into(), current: current.into(), attempt, ..attached("v", "node-1") };
        let upkeep = upkeep(&volume, &world(1).policy, at(seconds));
        assert_eq!((due(upkeep.change), upkeep.counts), (expected, counts), "{case}");
    }
}

#[test]
fn an_image_that_does_not_serve_is_left_before_the_deadline() {
    for (by, expected) in [(Automatic, Some((Why::GoesBack, Some(OLD), Failed, 1))), (User, None)] {
        let attempt = Some(attempt(by, Running));
        let volume = Volume { wanted: NEW.into(), failed: true, attempt, ..attached("v", "node-1") };
        assert_eq!(due(upkeep(&volume, &world(1).policy, at(5)).change), expected, "{by:?}");
    }
}

#[test]
fn nobody_takes_the_time_while_upgrades_are_off() {
    let volume = Volume { wanted: NEW.into(), ..attached("v", "node-1") };
    assert_eq!(upkeep(&volume, &world(0).policy, at(0)).change, None);
}

#[test]
fn a_volume_that_goes_away_is_left_alone() {
    let late = Volume {
        wanted: NEW.into(),
        deleting: true,
        attempt: Some(attempt(Automatic, Running)),
        ..attached("v", "node-1")
    };
    assert_eq!(upkeep(&late, &world(1).policy, at(9999)).change, None);
}

#[test]
fn the_rest_doubles_up_to_six_hours() {
    #[rustfmt::skip]
    let cases = [(0, 60), (1, 60), (2, 120), (3, 240), (9, 15_360), (10, 21_600), (1_000_000, 21_600)];
    for (failures, seconds) in cases {
        assert_eq!(back_off(failures), Duration::from_secs(seconds), "{failures}");
    }
}

#[test]
fn a_new_attempt_remembers_how_often_it_failed_to_reach_the_same_image() {
    let failed = Attempt { failures: 2, ..attempt(Automatic, Failed) };
    let volume = Volume { attempt: Some(failed), ..attached("v", "node-1") };
    let again = begin(&volume, Way::Live, &NEW.into(), at(500));
    assert_eq!((again.attempt.failures, again.attempt.issued_at), (2, at(500)));
    assert_eq!((again.image, again.version), (Some(NEW.into()), volume.version));
    let other = begin(&volume, Way::Live, &"engine:v3".into(), at(500));
    assert_eq!(other.attempt.failures, 0);
}
