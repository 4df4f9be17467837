//! A first start that is killed anywhere can be repeated.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{Sandbox, eventually, lives};

const KILLS: u32 = 10;

#[test]
fn survives_being_killed_at_any_time() {
    let whole = whole_start();
    for step in 0..KILLS {
        let sandbox = killed_after(whole * step / KILLS);
        // An agent may have been started, and one that has no record dies with its parent.
        sandbox.ok(&["down"]);
        sandbox.ok(&["up", "--detach"]);
        sandbox.ok(&["status"]);
        sandbox.ok(&["down", "--purge"]);
        assert!(!sandbox.dir().exists(), "all of it is removed");
    }
}

#[test]
fn leaves_nothing_that_a_purge_does_not_take() {
    let whole = whole_start();
    for step in 0..KILLS {
        let sandbox = killed_after(whole * step / KILLS);
        sandbox.ok(&["down", "--purge"]);
        assert!(!sandbox.dir().exists(), "all of it is removed");
    }
}

/// How long a first start takes here.
fn whole_start() -> Duration {
    let sandbox = Sandbox::new();
    let began = Instant::now();
    sandbox.ok(&["up", "--detach"]);
    began.elapsed()
}

/// A first start that was killed after that time.
fn killed_after(time: Duration) -> Sandbox {
    let sandbox = Sandbox::new();
    let mut up = sandbox.spawn(&["up", "--detach"]);
    // Not a wait for something: the moment of the kill is what varies.
    std::thread::sleep(time);
    // The control process, where it already is, and then the one that waits for it.
    let control = sandbox.pid("control");
    if let Some(pid) = control.filter(|pid| lives(*pid)) {
        support::signal(pid, Signal::KILL);
    }
    let _ = up.kill();
    up.wait().unwrap();
    if let Some(pid) = control {
        eventually("the killed control process ends", || !lives(pid));
    }
    sandbox
}

#[test]
fn an_interrupted_start_leaves_nothing_running() {
    let sandbox = Sandbox::new();
    let mut up = sandbox.spawn(&["up", "--detach"]);
    eventually("the control process starts", || sandbox.pid("control").is_some());
    let control = sandbox.running("control");
    support::signal(i32::try_from(up.id()).unwrap(), Signal::INT);
    let status = up.wait().unwrap();
    if status.success() {
        // It was ready before the signal came.
        sandbox.ok(&["down"]);
    }
    eventually("the control process ends", || !lives(control));
}

#[test]
fn a_start_whose_up_was_killed_is_waited_for_and_taken_up() {
    let starts = std::iter::repeat_with(halted_start).take(10);
    let (sandbox, control) = starts.flatten().next().expect("one is halted before it is ready");
    let again = sandbox.spawn(&["up", "--detach", "-o", "json"]);
    eventually("the second `up` works", || sandbox.pid("up") == i32::try_from(again.id()).ok());
    // Not a wait for something: one that does not wait for control would start the node now.
    std::thread::sleep(Duration::from_millis(500));
    assert!(sandbox.pid("node-1").is_none(), "nodes wait until control is ready");

    support::signal(control, Signal::CONT);
    let answer = again.wait_with_output().unwrap();
    assert!(answer.status.success(), "{}{}", support::text(&answer.stderr), sandbox.logs());
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert!(answer["api"].as_str().unwrap().starts_with("https://127.0.0.1:"), "{answer}");
    assert_eq!(sandbox.running("control"), control, "it was taken up");
    let crds = sandbox.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").unwrap();
    assert!(crds.contains("volumes.longhorn.io") && crds.contains("datasets.data.fluid.io"));
    sandbox.ok(&["status"]);
}

/// A first start whose control process is halted before it is ready and whose `up` is killed; `None` if
/// it was ready too soon.
fn halted_start() -> Option<(Sandbox, i32)> {
    let sandbox = Sandbox::new();
    let mut up = sandbox.spawn(&["up", "--detach"]);
    // From then on control lives without its parent.
    eventually("the store is made", || sandbox.dir().join("store.redb").exists());
    let control = sandbox.running("control");
    support::signal(control, Signal::STOP);
    up.kill().unwrap();
    up.wait().unwrap();
    let record = std::fs::read(sandbox.dir().join("run/control.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    if record["ready"] == true {
        support::signal(control, Signal::CONT);
        return None;
    }
    Some((sandbox, control))
}
