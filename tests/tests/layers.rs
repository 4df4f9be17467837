//! Dependencies among our crates point one way, towards `api`.
//!
//! The table holds the allowed edges; any other one fails, so that a new edge
//! is a decision and not an accident. Dev-dependencies are apart: a test may
//! look at more than the code does.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Who may depend on whom. A crate that is not named here is new: give it its row.
#[rustfmt::skip]
const ALLOWED: &[(&str, &[&str])] = &[
    ("api",       &[]),
    ("apiserver", &[]),
    ("plan",      &["api"]),
    ("handover",  &["api"]),
    ("operator",  &["plan", "api"]),
    ("agent",     &["plan", "handover", "api"]),
    ("block",     &["handover", "api"]),
    ("fuse",      &["handover", "api"]),
    ("migrate",   &["api"]),
    ("web",       &["api"]),
    ("cli",       &["agent", "api", "apiserver", "block", "fuse", "handover", "migrate", "operator", "plan", "web"]),
    ("bench",     &["agent", "api", "apiserver", "block", "fuse", "handover", "migrate", "operator", "plan", "web", "tests"]),
    ("tests",     &["agent", "api", "apiserver", "block", "fuse", "handover", "migrate", "operator", "plan", "web"]),
];

#[test]
fn dependencies_point_towards_api() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata = serde_json::from_slice::<Value>(&metadata.stdout).unwrap();

    let edges = edges(&metadata);
    for package in metadata["packages"].as_array().expect("there are packages") {
        let folder = folder(package["manifest_path"].as_str().unwrap_or(""));
        assert!(ALLOWED.iter().any(|(row, _)| *row == folder), "{folder} has no row");
    }
    let allowed =
        |from: &str, to: &str| ALLOWED.iter().any(|(row, targets)| *row == from && targets.contains(&to));
    let strays = edges.iter().filter(|(from, to)| !allowed(from, to)).collect::<Vec<_>>();
    assert!(strays.is_empty(), "edges that the table does not allow: {strays:?}");
}

#[test]
fn no_row_closes_a_circle() {
    for (from, targets) in ALLOWED {
        for target in *targets {
            let row = ALLOWED.iter().find(|(name, _)| name == target).expect("the target has a row");
            assert!(!row.1.contains(from), "{from} and {target} would depend on each other");
        }
    }
}

/// The folder that a manifest stands in.
fn folder(manifest: &str) -> String {
    manifest.trim_end_matches("/Cargo.toml").rsplit('/').next().unwrap_or("").to_owned()
}

/// Edges among members of the workspace, named by their folders.
fn edges(metadata: &Value) -> BTreeSet<(String, String)> {
    let packages = metadata["packages"].as_array().expect("there are packages");
    let own = packages.iter().flat_map(|package| {
        let from = folder(package["manifest_path"].as_str().unwrap_or(""));
        let dependencies = package["dependencies"].as_array().cloned().unwrap_or_default();
        dependencies.into_iter().filter(|dependency| dependency["kind"] != "dev").filter_map(
            move |dependency| {
                let path = dependency["path"].as_str()?;
                Some((from.clone(), path.rsplit('/').next()?.to_owned()))
            },
        )
    });
    own.collect()
}
