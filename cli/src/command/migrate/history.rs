//! `midflight migrate history`: what was applied, and when.

use clap::Args;
use midflight_migrate::migration::log::Entry;
use serde::Serialize;

use super::{
    target::{Place, explain},
    tell::{Teller, moment},
};
use crate::{
    output::{Answer, Paint, table},
    session::Session,
};

/// Show the log of applied migrations (SchemaMigrationLog), first to last
#[derive(Debug, Args)]
pub(super) struct History {
    #[command(flatten)]
    place: Place,
}

impl History {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.place.open().await?;
        let entries =
            database.history(&|event| teller.tell(&event)).await.map_err(|error| explain(&error))?;
        session.answer(&Log(entries))
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Log(Vec<Entry>);

impl Answer for Log {
    fn to_table(&self, _: Paint) -> String {
        if self.0.is_empty() {
            return "No migration was ever applied.\n".to_owned();
        }
        let rows = self.0.iter().map(|entry| {
            [
                entry.id.clone(),
                entry.release.clone(),
                moment(entry.proposed_at),
                moment(entry.applied_at),
                how(entry),
                entry.tool_version.clone().unwrap_or_default(),
                entry.description.clone(),
            ]
        });
        table(["ID", "RELEASE", "PROPOSED", "APPLIED", "HOW", "TOOL", "DESCRIPTION"], rows)
    }
}

/// Whether it ran here, and whether it still is what ran.
fn how(entry: &Entry) -> String {
    let how = if entry.marked { "marked" } else { "ran" };
    if entry.edit_accepted_at.is_some() { format!("{how}, edited since") } else { how.to_owned() }
}
