//! A first start that is killed anywhere can be repeated.

mod support;

use std::time::{Duration, Instant};

use support::{Sandbox, eventually, lives};

const KILLS: u32 = 10;

#[test]
fn survives_being_killed_at_any_time() {
    let clean = Sandbox::new();
    let began = Instant::now();
    clean.ok(&["up", "--detach"]);
    let whole = began.elapsed();
    drop(clean);

    for step in 0..KILLS {
        let sandbox = Sandbox::new();
        let mut up = sandbox.spawn(&["up", "--detach"]);
        // Not a wait for something: the moment of the kill is what varies.
        std::thread::sleep(whole * step / KILLS);
        // The control process, where it already is, and then the one that waits for it.
        let control = sandbox.pid("control");
        if let Some(pid) = control.filter(|pid| lives(*pid)) {
            support::signal(pid, rustix::process::Signal::KILL);
        }
        let _ = up.kill();
        up.wait().unwrap();
        if let Some(pid) = control {
            eventually("the killed control process ends", || !lives(pid));
        }
        // An agent may have been started, and one that has no record dies with its parent.
        sandbox.ok(&["down"]);
        sandbox.ok(&["up", "--detach"]);
        sandbox.ok(&["status"]);
        assert!(whole < Duration::from_secs(60));
    }
}

#[test]
fn an_interrupted_start_leaves_nothing_running() {
    let sandbox = Sandbox::new();
    let mut up = sandbox.spawn(&["up", "--detach"]);
    eventually("the control process starts", || sandbox.pid("control").is_some());
    let control = sandbox.running("control");
    support::signal(i32::try_from(up.id()).unwrap(), rustix::process::Signal::INT);
    let status = up.wait().unwrap();
    if status.success() {
        // It was ready before the signal came.
        sandbox.ok(&["down"]);
    }
    eventually("the control process ends", || !lives(control));
}
