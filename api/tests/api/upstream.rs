//! Upstream's definitions, which stand beside the repository and are no part of it. The API server's tests
//! read them by this file too.
//!
//! The invariant: without them, what compares with them is left out with a word; in CI nothing may be left out.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Where they are.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures")
}

/// Whether they are there; if not, that is said.
#[expect(clippy::print_stderr, reason = "whoever runs the tests must read it")]
pub(crate) fn fixtures_are_there() -> bool {
    let there = folder().is_dir();
    if !there {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no ../shared/fixtures beside the repository");
        eprintln!("SKIPPED: the comparison with upstream's definitions: no ../shared/fixtures");
    }
    there
}

/// The names of all files.
#[allow(dead_code, reason = "not every crate wants all of them")]
pub(crate) fn fixtures() -> Vec<String> {
    let entries =
        std::fs::read_dir(folder()).unwrap_or_else(|error| panic!("{}: {error}", folder().display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The definitions in a file; its templated lines of labels are left empty.
pub(crate) fn definitions(fixture: &str) -> Vec<Value> {
    let path = folder().join(fixture);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let plain: Vec<&str> = text
        .lines()
        .map(|line| if line.trim_start().starts_with("labels: {{") { "  labels:" } else { line })
        .collect();
    let all: Vec<Value> = serde_saphyr::from_multiple(&plain.join("\n"))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    all.into_iter().filter(|document| !document.is_null()).collect()
}
