//! `midflight crds`: the definitions of all kinds, for clusters of your own.

use anyhow::Context;
use clap::Args;

use crate::{args::Format, session::Session};

/// Print the definitions of all kinds, for `kubectl apply -f -`
#[derive(Debug, Args)]
pub(crate) struct Crds {}

impl Crds {
    pub(crate) fn run(self, session: &Session) -> anyhow::Result<()> {
        let crds = midflight_api::crds();
        match session.global.output {
            Format::Table | Format::Yaml => session.print(&midflight_api::render(&crds)),
            Format::Json => {
                let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": crds });
                let text = serde_json::to_string_pretty(&list).context("encode the definitions")?;
                session.print(&format!("{text}\n"))
            }
        }
    }
}
