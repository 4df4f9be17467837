//! The tour, as a visitor would take it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use rustix::process::Signal;
use support::{BINARY, Sandbox, eventually};

fn left_behind(folder: &std::path::Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn every_act_is_shown_and_nothing_is_left() {
    let sandbox = Sandbox::new();
    let temporary = tempfile::Builder::new().prefix("mf-").tempdir_in("/tmp").unwrap();
    let next = support::next();
    let mut tour = sandbox.command(&["tour", "-o", "json", "--next", next.to_str().unwrap()]);
    let output = tour.env("TMPDIR", temporary.path()).output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{told:#}");
    let acts = told["acts"].as_array().unwrap();
    let no_mounts = support::datasets::skipped();
    let is_well =
        |act: &serde_json::Value| act["shown"].is_array() || (no_mounts && act["skipped"].is_string());
    assert!(acts.len() >= 8 && acts.iter().all(is_well), "{told:#}");
    assert_eq!(left_behind(temporary.path()), 0);
}

#[test]
fn an_interrupted_tour_cleans_up() {
    let temporary = tempfile::Builder::new().prefix("mf-").tempdir_in("/tmp").unwrap();
    let mut tour = std::process::Command::new(BINARY)
        .arg("tour")
        .env("TMPDIR", temporary.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let control = || {
        let folder = std::fs::read_dir(temporary.path()).unwrap().flatten().next()?;
        let record = std::fs::read(folder.path().join("cluster/run/control.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
        i32::try_from(record["pid"].as_i64()?).ok()
    };
    eventually("the control plane starts", || control().is_some());
    let pid = control().unwrap();
    support::signal(i32::try_from(tour.id()).unwrap(), Signal::INT);
    assert_eq!(tour.wait().unwrap().code(), Some(1));
    assert!(!support::lives(pid));
    assert_eq!(left_behind(temporary.path()), 0);
}
