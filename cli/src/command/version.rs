//! `midflight version`: what this binary is. Other processes ask it of an image's binary, too.

use clap::Args;
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
struct About {
    version: &'static str,
    profile: &'static str,
    os: &'static str,
    architecture: &'static str,
}

impl Answer for About {
    fn to_table(&self, _: Paint) -> String {
        format!("midflight {} ({}, {}/{})\n", self.version, self.profile, self.os, self.architecture)
    }
}

impl Version {
    pub(crate) fn run(self, session: &Session) -> anyhow::Result<()> {
        session.answer(&About {
            version: env!("CARGO_PKG_VERSION"),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            os: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
        })
    }
}
