//! The rules of a pod's life as tables.

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn container(name: &str, process: Process) -> Container {
    Container { name: name.into(), image: Image::Present, process }
}

fn runs() -> Process {
    Process::Running { sick: false, stop: None }
}

fn ended(well: bool, failures: u32, ran: u64) -> Process {
    Process::Ended { well, at: NOW, ran: Duration::from_secs(ran), failures }
}

fn stopping(by: i64, hook_runs: bool, asked: bool) -> Process {
    Process::Running { sick: false, stop: Some(Stop { by: at(by), hook_runs, asked }) }
}

fn pod(restart: Restart, containers: Vec<Container>) -> Observed {
    Observed { now: NOW, end_by: None, restart, grace: Duration::from_secs(30), init: Vec::new(), containers }
}

fn one(restart: Restart, process: Process) -> Observed {
    pod(restart, vec![container("a", process)])
}

fn with_image(image: Image) -> Observed {
    pod(Restart::Always, vec![Container { name: "a".into(), image, process: Process::None }])
}

fn ending(by: i64, process: Process) -> Observed {
    Observed { end_by: Some(at(by)), ..one(Restart::Always, process) }
}

fn start(failures: u32) -> Result<Step, Wait> {
    Ok(Step::Start { container: "a".into(), failures })
}

/// What is decided for a pod of one container.
fn only(seen: &Observed) -> Result<Step, Wait> {
    let mut plan = decide(seen);
    match plan.steps.pop() {
        Some(step) => Ok(step),
        None => Err(plan.waits.pop().expect("a step or a reason").1),
    }
}

#[test]
fn one_container_from_its_image_to_its_end() {
    use Restart::{Always, Never, OnFailure};
    let name = || "a".to_owned();
    #[rustfmt::skip]
    let cases = [
        ("no image yet",            with_image(Image::NotLookedFor),                     Ok(Step::Pull { container: name() })),
        ("image on its way",        with_image(Image::Pulling),                          Err(Wait::Pulls)),
        ("image refused",           with_image(Image::Refused { again_at: at(5) }),      Err(Wait::PullBackOff { again_at: at(5) })),
        ("image refused long ago",  with_image(Image::Refused { again_at: NOW }),        Ok(Step::Pull { container: name() })),
        ("new",                     one(Always, Process::None),                          start(0)),
        ("runs",                    one(Always, runs()),                                 Err(Wait::Runs)),
        ("first crash",             one(Always, ended(false, 0, 1)),                     start(1)),
        ("second crash",            one(Always, ended(false, 1, 1)),                     Err(Wait::CrashBackOff { again_at: at(1) })),
        ("crash after long",        one(Always, ended(false, 9, 600)),                   start(1)),
        ("success, always",         one(Always, ended(true, 0, 1)),                      start(1)),
        ("success, on failure",     one(OnFailure, ended(true, 0, 1)),                   Err(Wait::Ended)),
        ("failure, on failure",     one(OnFailure, ended(false, 0, 1)),                  start(1)),
        ("failure, never",          one(Never, ended(false, 0, 1)),                      Err(Wait::Ended)),
        ("sick",                    one(Always, Process::Running { sick: true, stop: None }), Ok(Step::BeginStop { container: name(), by: at(30) })),
        ("sick, may take for ever", Observed { grace: Duration::from_secs(i64::MAX as u64), ..one(Always, Process::Running { sick: true, stop: None }) }, Ok(Step::BeginStop { container: name(), by: Timestamp::MAX })),
        ("has to go",               ending(9, runs()),                                   Ok(Step::BeginStop { container: name(), by: at(9) })),
        ("hook",                    ending(9, stopping(9, true, false)),                 Err(Wait::Hook { by: at(9) })),
        ("hook too long",           ending(0, stopping(0, true, false)),                 Ok(Step::Kill { container: name() })),
        ("after the hook",          ending(9, stopping(9, false, false)),                Ok(Step::Terminate { container: name() })),
        ("asked",                   ending(9, stopping(9, false, true)),                 Err(Wait::Stops { by: at(9) })),
        ("does not listen",         ending(0, stopping(0, false, true)),                 Ok(Step::Kill { container: name() })),
        ("in a hurry",              ending(0, stopping(30, false, true)),                Ok(Step::Kill { container: name() })),
        ("gone",                    ending(9, ended(false, 0, 1)),                       Ok(Step::Remove)),
        ("never was",               ending(9, Process::None),                            Ok(Step::Remove)),
    ];
    for (case, seen, expected) in cases {
        assert_eq!(only(&seen), expected, "{case}");
    }
}

#[test]
fn what_comes_first_finishes_first() {
    let with_init = |first: Process, second: Process| Observed {
        init: vec![container("first", first), container("second", second)],
        ..one(Restart::Always, Process::None)
    };
    let started = |seen: &Observed| match &decide(seen).steps[..] {
        [Step::Start { container, .. }] => container.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(started(&with_init(Process::None, Process::None)), "first");
    assert_eq!(started(&with_init(ended(true, 0, 1), Process::None)), "second");
    assert_eq!(started(&with_init(ended(true, 0, 1), ended(true, 0, 1))), "a");
    assert_eq!(started(&with_init(ended(false, 0, 1), Process::None)), "first");
    assert!(decide(&with_init(runs(), Process::None)).steps.is_empty());
}

#[test]
fn looks_again_at_the_first_time_that_matters() {
    let seen = pod(
        Restart::Always,
        vec![container("a", ended(false, 3, 1)), container("b", ended(false, 2, 1)), container("c", runs())],
    );
    assert_eq!(decide(&seen).look_at, Some(at(2)));
}

#[test]
fn phases_are_those_of_kubernetes() {
    use Restart::{Always, Never, OnFailure};
    let two = |restart, a, b| pod(restart, vec![container("a", a), container("b", b)]);
    let init =
        |process, restart| Observed { init: vec![container("i", process)], ..one(restart, Process::None) };
    #[rustfmt::skip]
    let cases = [
        ("new",              one(Always, Process::None),                            Phase::Pending),
        ("half started",     two(Always, runs(), Process::None),                    Phase::Pending),
        ("runs",             two(Always, runs(), runs()),                           Phase::Running),
        ("crashing",         one(Always, ended(false, 3, 1)),                       Phase::Running),
        ("one done",         two(Never, runs(), ended(true, 0, 1)),                 Phase::Running),
        ("all done",         two(Never, ended(true, 0, 1), ended(true, 0, 1)),      Phase::Succeeded),
        ("one failed",       two(Never, ended(true, 0, 1), ended(false, 0, 1)),     Phase::Failed),
        ("tries again",      one(OnFailure, ended(false, 0, 1)),                    Phase::Running),
        ("init runs",        init(runs(), Always),                                  Phase::Pending),
        ("init failed",      init(ended(false, 0, 1), Never),                       Phase::Failed),
    ];
    for (case, seen, expected) in cases {
        assert_eq!(phase(&seen), expected, "{case}");
    }
}
