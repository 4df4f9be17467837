//! `midflight migrate status`: where a database stands.

use clap::Args;
use midflight_migrate::run;

use super::{
    target::{Target, explain},
    tell::{Teller, size},
};
use crate::{
    output::{Answer, Paint, table},
    session::Session,
};

/// Show where the database stands: what is applied, what is pending, whether there is a way back
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    target: Target,
}

impl Status {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.target.open().await?;
        let status = database.status(&|event| teller.tell(&event)).await.map_err(|error| explain(&error))?;
        session.answer(&Shown(&status))
    }
}

#[derive(serde::Serialize)]
#[serde(transparent)]
struct Shown<'a>(&'a run::Status);

impl Answer for Shown<'_> {
    fn to_table(&self, paint: Paint) -> String {
        let status = self.0;
        let mut text = format!(
            "{} ({}): {} rows, {}\n{} migrations applied, {} pending\n",
            status.store,
            status.server.server,
            status.rows,
            size(status.bytes),
            status.applied,
            status.pending.len()
        );
        if let Some(last) = &status.last_run {
            let back =
                if last.can_roll_back { "; it can be rolled back while nobody has written" } else { "" };
            text += &format!("last run: {}, {}{back}\n", last.run, last.phase);
        }
        if !status.pending.is_empty() {
            let rows = status.pending.iter().map(|migration| {
                [
                    migration.id.clone(),
                    migration.release.clone(),
                    migration.proposed_at.to_string(),
                    migration.description.clone(),
                ]
            });
            text += &format!("\n{}", table(["PENDING", "RELEASE", "PROPOSED", "DESCRIPTION"], rows));
        }
        for problem in status.order_problem.iter().chain(&status.drift) {
            text += &format!("\n{} {problem}\n", paint.bad("!"));
        }
        text
    }
}
