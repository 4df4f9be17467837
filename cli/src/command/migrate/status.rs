//! `midflight migrate status`: where a database stands.

use clap::Args;
use midflight_migrate::run;

use super::{
    target::{Target, explain},
    tell::{Teller, count, moment, size},
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
        let (store, server) = (&status.store, &status.server.server);
        let mut text = match (status.rows, status.bytes) {
            (Some(rows), Some(bytes)) => format!(
                "{store} ({server}): {rows} rows, {}\n{} applied, {}\n",
                size(bytes),
                count(status.applied, "migration"),
                match status.order_problem {
                    Some(_) => "and what is pending cannot be told".to_owned(),
                    None => format!("{} pending", status.pending.len()),
                }
            ),
            _ => format!("{store} ({server}): rows are being written\n"),
        };
        if let Some(owner) = &status.locked_by {
            text += &format!(
                "{} locked by {owner}: a run is under way, or has died and is finished by the next command once its \
                 lock is free (--lock-for, usually 30 s)\n",
                paint.bad("!")
            );
        }
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
                    moment(migration.proposed_at),
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
