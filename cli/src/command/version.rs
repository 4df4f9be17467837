//! `midflight version`: what this binary is. Other processes ask it of an image's binary, too.

use clap::Args;
use midflight_block::{instance, replica::layers::FORMATS, wire::hello::VERSIONS};
use serde::Serialize;

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

/// Versions, from the oldest to the newest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ranges {
    /// Of the instance manager's API.
    api: Range,
    /// Of what engines, replicas and frontends say to each other.
    wire: Range,
    /// Of replica folders.
    disk: Range,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Range {
    oldest: u32,
    newest: u32,
}

impl Answer for About {
    fn to_table(&self, _: Paint) -> String {
        format!("midflight {} ({}, {}/{})\n", self.version, self.profile, self.os, self.architecture)
    }
}

fn range((oldest, newest): (u32, u32)) -> Range {
    Range { oldest, newest }
}

/// What this binary is.
pub(crate) fn about() -> About {
    About {
        version: env!("CARGO_PKG_VERSION"),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        os: std::env::consts::OS,
        architecture: std::env::consts::ARCH,
        engine: Ranges {
            api: range(instance::API),
            wire: range((VERSIONS.oldest.into(), VERSIONS.newest.into())),
            disk: range((*FORMATS.start(), *FORMATS.end())),
        },
    }
}

impl Version {
    pub(crate) fn run(self, session: &Session) -> anyhow::Result<()> {
        session.answer(&about())
    }
}
