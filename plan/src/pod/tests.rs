//! The rules of a pod's life as tables.

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn container(name: &str, process: Process) -> Container {
    Container { name: name.into(), part: Part::Main, image: Image::Present, process }
}

fn init(name: &str, process: Process) -> Container {
    Container { part: Part::Init, ..container(name, process) }
}

fn beside(name: &str, process: Process) -> Container {
    Container { part: Part::Beside, ..container(name, process) }
}

fn runs() -> Process {
    Process::Running { started: true, sick: None, stop: None }
}

fn starts() -> Process {
    Process::Running { started: false, sick: None, stop: None }
}

fn sick(grace: Option<u64>) -> Process {
    let sick = Some(Sick { grace: grace.map(Duration::from_secs) });
    Process::Running { started: true, sick, stop: None }
}

fn ended(well: bool, failures: u32, ran: u64) -> Process {
    Process::Ended { well, at: NOW, ran: Duration::from_secs(ran), failures }
}

fn stopping(by: i64, hook_runs: bool, asked: bool) -> Process {
    Process::Running { started: true, sick: None, stop: Some(Stop { by: at(by), hook_runs, asked }) }
}

fn pod(restart: Restart, containers: Vec<Container>) -> Observed {
    Observed { now: NOW, end_by: None, restart, grace: Duration::from_secs(30), containers }
}

fn one(restart: Restart, process: Process) -> Observed {
    pod(restart, vec![container("a", process)])
}

fn with_image(image: Image) -> Observed {
    pod(Restart::Always, vec![Container { image, ..container("a", Process::None) }])
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
        ("sick",                    one(Always, sick(None)),                             Ok(Step::BeginStop { container: name(), by: at(30) })),
        ("sick, its probe hurries", one(Always, sick(Some(3))),                          Ok(Step::BeginStop { container: name(), by: at(3) })),
        ("sick, at once",           one(Always, sick(Some(0))),                          Ok(Step::BeginStop { container: name(), by: NOW })),
        ("sick, its probe waits",   one(Always, sick(Some(90))),                         Ok(Step::BeginStop { container: name(), by: at(90) })),
        ("sick, and has to go",     ending(9, sick(Some(3))),                            Ok(Step::BeginStop { container: name(), by: at(9) })),
        ("sick, may take for ever", one(Always, sick(Some(i64::MAX as u64))), Ok(Step::BeginStop { container: name(), by: Timestamp::MAX })),
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
    let with_init = |first: Process, second: Process| {
        let all = vec![init("first", first), init("second", second), container("a", Process::None)];
        pod(Restart::Always, all)
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

/// What is done about each container of a pod, in a word.
fn done(seen: &Observed) -> Vec<String> {
    let plan = decide(seen);
    let steps = plan.steps.iter().map(|step| match step {
        Step::Pull { container } => format!("pull {container}"),
        Step::Start { container, .. } => format!("start {container}"),
        Step::BeginStop { container, by } => format!("stop {container} by {}", by.as_second()),
        Step::Terminate { container } => format!("terminate {container}"),
        Step::Kill { container } => format!("kill {container}"),
        Step::Remove => "remove".to_owned(),
    });
    let waits = plan.waits.iter().map(|(container, wait)| match wait {
        Wait::Runs => format!("{container} runs"),
        Wait::Initializing => format!("{container} waits"),
        Wait::Beside { .. } => format!("{container} serves"),
        Wait::Ended => format!("{container} is done"),
        Wait::CrashBackOff { .. } => format!("{container} crashes"),
        Wait::Stops { .. } => format!("{container} stops"),
        Wait::Pulls | Wait::PullBackOff { .. } | Wait::Hook { .. } => panic!("{wait}"),
    });
    let mut all: Vec<String> = steps.chain(waits).collect();
    all.sort();
    all
}

/// A pod of two containers beside the one that it is there for, `s` and `t`, with one that comes first between them.
#[test]
fn what_runs_beside_begins_before_and_ends_after() {
    use Restart::{Always, Never, OnFailure};
    let new = || Process::None;
    let (well, badly) = (|| ended(true, 0, 1), || ended(false, 0, 1));
    let of = |restart, s, i, t, a| {
        pod(restart, vec![beside("s", s), init("i", i), beside("t", t), container("a", a)])
    };
    let ending = |by, s, t, a| Observed { end_by: Some(at(by)), ..of(Always, s, well(), t, a) };
    let stops = || stopping(9, false, true);
    #[rustfmt::skip]
    let cases = [
        ("new",                    of(Always, new(), new(), new(), new()),           "a waits, i waits, start s, t waits"),
        ("the first starts",       of(Always, starts(), new(), new(), new()),        "a waits, i waits, s runs, t waits"),
        ("it has started",         of(Always, runs(), new(), new(), new()),          "a waits, s runs, start i, t waits"),
        ("init runs",              of(Always, runs(), runs(), new(), new()),         "a waits, i runs, s runs, t waits"),
        ("it crashed meanwhile",   of(Always, badly(), runs(), new(), new()),        "a waits, i runs, start s, t waits"),
        ("init is done",           of(Always, runs(), well(), new(), new()),         "a waits, i is done, s runs, start t"),
        ("the second starts",      of(Always, runs(), well(), starts(), new()),      "a waits, i is done, s runs, t runs"),
        ("all have started",       of(Always, runs(), well(), runs(), new()),        "i is done, s runs, start a, t runs"),
        ("one ended well",         of(Never, well(), well(), runs(), runs()),        "a runs, i is done, start s, t runs"),
        ("one crashes",            of(Never, ended(false, 3, 1), well(), runs(), runs()), "a runs, i is done, s crashes, t runs"),
        ("its main crashed, too",  of(Always, starts(), well(), badly(), badly()),   "i is done, s runs, start a, start t"),
        ("one is sick",            of(Always, sick(Some(2)), well(), runs(), runs()), "a runs, i is done, stop s by 2, t runs"),
        ("main tries again",       of(OnFailure, runs(), well(), runs(), badly()),   "i is done, s runs, start a, t runs"),
        ("main is done",           of(OnFailure, runs(), well(), runs(), well()),    "a is done, i is done, s runs, stop t by 30"),
        ("the last is asked",      of(Never, runs(), well(), stops(), badly()),      "a is done, i is done, s runs, t stops"),
        ("the last has ended",     of(Never, runs(), well(), badly(), well()),       "a is done, i is done, stop s by 30, t is done"),
        ("all have ended",         of(Never, badly(), well(), badly(), well()),      "a is done, i is done, s is done, t is done"),
        ("init failed",            of(Never, runs(), badly(), new(), new()),         "a waits, i is done, stop s by 30, t is done"),
        ("has to go",              ending(9, runs(), runs(), runs()),                "i is done, s serves, stop a by 9, t serves"),
        ("its main stops",         ending(9, runs(), runs(), stops()),               "a stops, i is done, s serves, t serves"),
        ("its main is gone",       ending(9, runs(), runs(), badly()),               "a is done, i is done, s serves, stop t by 9"),
        ("only the first is left", ending(9, runs(), well(), badly()),               "a is done, i is done, stop s by 9, t is done"),
        ("one went by itself",     ending(9, badly(), runs(), stops()),              "a stops, i is done, s is done, t serves"),
        ("time is up",             ending(0, runs(), runs(), stopping(0, false, true)), "i is done, kill a, kill s, kill t"),
        ("nothing is left",        ending(9, well(), badly(), badly()),              "remove"),
    ];
    for (case, seen, expected) in cases {
        let mut expected: Vec<&str> = expected.split(", ").collect();
        expected.sort_unstable();
        assert_eq!(done(&seen), expected, "{case}");
    }
}

#[test]
fn who_serves_others_is_looked_at_when_time_is_up() {
    let both = vec![beside("s", runs()), container("a", stopping(9, false, true))];
    let seen = Observed { end_by: Some(at(9)), ..pod(Restart::Always, both) };
    assert_eq!(decide(&seen).look_at, Some(at(9)));
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
    let init = |process, restart| pod(restart, vec![init("i", process), container("a", Process::None)]);
    let with = |restart, side, main| pod(restart, vec![beside("s", side), container("a", main)]);
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
        ("side starts",      with(Always, starts(), Process::None),                 Phase::Pending),
        ("side runs",        with(Always, runs(), Process::None),                   Phase::Pending),
        ("both run",         with(Always, runs(), runs()),                          Phase::Running),
        ("side crashes",     with(Always, ended(false, 3, 1), runs()),              Phase::Running),
        ("side ends",        with(Never, runs(), ended(true, 0, 1)),                Phase::Running),
        ("side ended badly", with(Never, ended(false, 0, 1), ended(true, 0, 1)),    Phase::Succeeded),
        ("side was fine",    with(Never, ended(true, 0, 1), ended(false, 0, 1)),    Phase::Failed),
    ];
    for (case, seen, expected) in cases {
        assert_eq!(phase(&seen), expected, "{case}");
    }
}
