//! `midflight migrate check`: may a run begin now?

use clap::Args;
use midflight_migrate::run::{Checked, Settings};

use super::{
    target::{Target, explain},
    tell::{Teller, count},
};
use crate::{
    failure::{Exit, Failure},
    output::{Answer, Paint},
    session::Session,
};

/// Look whether the services are stopped or fenced out
///
/// Watches for writers, and for services that say in the database that they run. Exits with 3 if something stands
/// against a run.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// How long to watch for writers
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    watch: u64,
    #[command(flatten)]
    target: Target,
}

impl Check {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let settings = Settings { watch_seconds: self.watch, ..self.target.settings() };
        let database = self.target.open_as(settings).await?;
        let checked = database.check(&|event| teller.tell(&event)).await.map_err(|error| explain(&error))?;
        session.answer(&checked)?;
        if checked.blocked_by.is_empty() {
            return Ok(());
        }
        Err(Failure::with(
            Exit::Blocked,
            format!("a run may not begin: {} named above", count(checked.blocked_by.len(), "reason")),
            "stop the services on all nodes, then check again",
        ))
    }
}

impl Answer for Checked {
    fn to_table(&self, paint: Paint) -> String {
        let verdict = if self.blocked_by.is_empty() {
            format!("{} nobody wrote for {} s; a run may begin", paint.good("✓"), self.watched_seconds)
        } else {
            self.blocked_by
                .iter()
                .map(|why| format!("{} {why}", paint.bad("✗")))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let caveats: String =
            self.caveats.iter().map(|caveat| format!("{} {caveat}\n", paint.bold("!"))).collect();
        format!("{} ({}), {} rows\n{caveats}{verdict}\n", self.store, self.server.server, self.rows)
    }
}
