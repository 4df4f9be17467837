//! Where the programs under test are.
//!
//! Tests are told by the environment (`dev/test` sets it) and otherwise look
//! where cargo and `dev/kubernetes` put things. A program that is missing is
//! an error in CI and a loud skip elsewhere, never a silent pass.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ stands in the workspace").to_owned()
}

/// Where cargo builds.
fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => workspace().join(folder),
        None => workspace().join("target"),
    }
}

/// The data plane's next version, which also has the failpoints: `MIDFLIGHT_NEXT`, or one that is built here. After
/// `dev/test` has built it, cargo finds nothing left to do.
pub fn next() -> anyhow::Result<PathBuf> {
    if let Some(given) = env::var_os("MIDFLIGHT_NEXT") {
        return Ok(given.into());
    }
    let folder = target().join("next");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--package", "midflight-block", "--bin", "mfblock"])
        .args(["--features", "next,failpoints", "--target-dir"])
        .arg(&folder)
        .current_dir(workspace())
        .output()?;
    anyhow::ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(folder.join("debug/mfblock"))
}

/// The `midflight` binary: `MIDFLIGHT_BIN`, or what cargo built last in the target folder.
pub fn midflight() -> anyhow::Result<PathBuf> {
    if let Some(given) = env::var_os("MIDFLIGHT_BIN") {
        return Ok(given.into());
    }
    let built = target().join("debug").join("midflight");
    anyhow::ensure!(built.exists(), "no {}: run `cargo build`, or set MIDFLIGHT_BIN", built.display());
    Ok(built)
}

/// A kubectl of the pinned version: `MIDFLIGHT_KUBECTL`, or the one that `dev/kubernetes build` made.
pub fn kubectl() -> Option<PathBuf> {
    if let Some(given) = env::var_os("MIDFLIGHT_KUBECTL") {
        return Some(given.into());
    }
    let printed = Command::new(workspace().join("dev/kubernetes")).arg("bin").output().ok()?;
    let built = Path::new(String::from_utf8(printed.stdout).ok()?.trim()).join("kubectl");
    built.exists().then_some(built)
}

/// The judge of CSI plugins: `MIDFLIGHT_CSI_SANITY`, or the one that `dev/kubernetes build` made.
pub fn csi_sanity() -> Option<PathBuf> {
    if let Some(given) = env::var_os("MIDFLIGHT_CSI_SANITY") {
        return Some(given.into());
    }
    let printed = Command::new(workspace().join("dev/kubernetes")).arg("sanity").output().ok()?;
    let built = PathBuf::from(String::from_utf8(printed.stdout).ok()?.trim());
    built.exists().then_some(built)
}

/// The kubeconfig of the real control plane, when there is one.
pub fn judge() -> Option<PathBuf> {
    env::var_os("MIDFLIGHT_JUDGE_KUBECONFIG").map(PathBuf::from)
}

/// Says that something is not tested here. In CI nothing may be left out.
#[expect(clippy::print_stderr, reason = "whoever runs the tests must read it")]
pub fn skip(what: &str) {
    assert_ne!(env::var("CI").as_deref(), Ok("true"), "{what}");
    eprintln!("SKIPPED: {what}");
}
