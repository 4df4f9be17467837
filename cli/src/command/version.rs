//! `midflight version`: what this binary is. Other processes ask it of an image's binary, too.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::Context;
use clap::Args;
use midflight_block::about::{self, Ranges};
use midflight_plan::storage::engine_image;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{
    output::{Answer, Paint},
    session::Session,
};

/// Show what this binary is
#[derive(Debug, Args)]
pub(crate) struct Version {}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct About {
    version: &'static str,
    profile: &'static str,
    os: &'static str,
    architecture: &'static str,
    /// What the engines of this binary can do: a range that does not overlap is refused.
    engine: Ranges,
}

impl Answer for About {
    fn to_table(&self, _: Paint) -> String {
        format!("midflight {} ({}, {}/{})\n", self.version, self.profile, self.os, self.architecture)
    }
}

/// What this binary is.
pub(crate) fn about() -> About {
    About {
        version: env!("CARGO_PKG_VERSION"),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        os: std::env::consts::OS,
        architecture: std::env::consts::ARCH,
        engine: about::about().engine,
    }
}

/// The longest that a program takes to say what it is; one that reads from somebody would never end.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Asks another program what it is.
pub(crate) async fn ask(program: &Path) -> anyhow::Result<Value> {
    let mut question = Command::new(program);
    question.args(["version", "-o", "json"]).stdin(Stdio::null()).kill_on_drop(true);
    let asking = || format!("ask {} what it is", program.display());
    let answer = timeout(ANSWERS_WITHIN, question.output()).await.context("it does not answer");
    let answer = answer.with_context(asking)?.with_context(asking)?;
    serde_json::from_slice(&answer.stdout).context("it does not answer in JSON").with_context(asking)
}

/// What engines of this very binary speak, as its images are labelled.
pub(crate) fn own_engine() -> engine_image::Ranges {
    let range = |about::Range { oldest, newest }| engine_image::Range { oldest, newest };
    let Ranges { api, wire, disk } = about::about().engine;
    engine_image::Ranges { api: range(api), wire: range(wire), disk: range(disk) }
}

/// What engines of another program speak, if it has any.
pub(crate) async fn engine_of(program: &Path) -> anyhow::Result<engine_image::Ranges> {
    let answer = ask(program).await?;
    let about = engine_image::About::deserialize(&answer);
    Ok(about.context("it does not say which versions of the engine's interfaces it has")?.engine)
}

impl Version {
    pub(crate) fn run(self, session: &Session) -> anyhow::Result<()> {
        session.answer(&about())
    }
}
