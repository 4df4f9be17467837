//! The next version of this program, for acts that upgrade to it.
//!
//! The one invariant: it can do something that this program cannot. The same program under another name would prove
//! nothing, and is refused.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::{process::Command, sync::OnceCell};

use crate::{command::version, failure::Failure, session::Session};

/// The same sources, built with the feature `next`.
const PROGRAM: &str = "midflight-next";

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Absent(&'static str);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; `midflight tour --next PATH` takes one that was built with `--features next`", self.0)
    }
}

/// Found once, for all acts.
pub(super) struct Next {
    given: Option<PathBuf>,
    found: OnceCell<Result<PathBuf, Absent>>,
}

impl Next {
    pub(super) fn new(given: Option<PathBuf>) -> Next {
        Next { given, found: OnceCell::new() }
    }

    pub(super) async fn find(&self, session: &Session) -> anyhow::Result<Result<&Path, &Absent>> {
        let found = self.found.get_or_try_init(|| self.look(session)).await?;
        Ok(found.as_deref())
    }

    async fn look(&self, session: &Session) -> anyhow::Result<Result<PathBuf, Absent>> {
        let here = std::env::current_dir().context("find the current folder")?;
        let program = match (&self.given, source(&here)) {
            (Some(given), _) => given.clone(),
            (None, None) => return Ok(Err(Absent("its source is not here to build the next version from"))),
            (None, Some(source)) => {
                session.say("building the next version with cargo; the first time takes a while");
                match build(source).await? {
                    Ok(built) => built,
                    Err(absent) => return Ok(Err(absent)),
                }
            }
        };
        let path = program.canonicalize().with_context(|| format!("find {}", program.display()))?;
        refuse_our_like(&path).await?;
        Ok(Ok(path))
    }
}

/// The workspace that a folder is in, if it is ours.
fn source(folder: &Path) -> Option<&Path> {
    folder
        .ancestors()
        .find(|folder| folder.join("Cargo.toml").exists() && folder.join("cli/src/next.rs").exists())
}

async fn build(source: &Path) -> anyhow::Result<Result<PathBuf, Absent>> {
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "build",
            "--package",
            "midflight",
            "--bin",
            PROGRAM,
            "--features",
            "next",
            "--message-format=json",
        ])
        .args((!cfg!(debug_assertions)).then_some("--release"))
        .current_dir(source)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let started = match cargo.spawn() {
        Ok(started) => started,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err(Absent("there is no cargo to build the next version with")));
        }
        Err(error) => return Err(error).context("start cargo"),
    };
    let group = Group(started.id().and_then(|pid| Pid::from_raw(pid.cast_signed())));
    let output = started.wait_with_output().await.context("wait for cargo")?;
    group.has_ended();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!(
            "cargo could not build the next version: {}",
            said.trim_end().lines().last().unwrap_or_default()
        );
    }
    let built = executable(&String::from_utf8_lossy(&output.stdout));
    Ok(Ok(built.context("cargo does not say where it put the next version")?))
}

/// Processes that end when nobody waits for them any more.
struct Group(Option<Pid>);

impl Group {
    fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0.take() {
            // Fails only if all of them have ended already.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Where cargo put the program, as one of its messages says.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut places = messages.filter(|message| message["target"]["name"] == PROGRAM);
    places.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Asks the program what it is.
async fn refuse_our_like(program: &Path) -> anyhow::Result<()> {
    let theirs = version::ask(program).await?;
    let ours = serde_json::to_value(version::about()).context("say what we are")?;
    if theirs["engine"] == ours["engine"] {
        return Err(Failure::usage(
            format!(
                "{} can do nothing that this program cannot, so there is nothing to upgrade",
                program.display()
            ),
            "give one that was built with `cargo build --features next --bin midflight-next`",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_found_from_within_and_nowhere_else() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(source(&here.join("src")), here.parent());
        assert_eq!(source(Path::new("/")), None);
    }

    #[test]
    fn cargo_says_where_the_program_is() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"midflight_block\"},\"executable\":null}\n",
            "not a message\n",
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"midflight-next\"},\"executable\":\"/t/midflight-next\"}\n",
        );
        assert_eq!(executable(messages), Some("/t/midflight-next".into()));
        assert_eq!(executable("{}"), None);
    }
}
