//! `midflight migrate baseline`: marks migrations as applied without running them.

use clap::Args;

use super::{
    apply::Told,
    target::{Adopt, Target, explain},
    tell::Teller,
};
use crate::session::Session;

/// Mark migrations as applied without running them, on a database that was made with their result
#[derive(Debug, Args)]
pub(super) struct Baseline {
    /// The last one to mark [default: all that are pending]
    #[arg(long, value_name = "ID")]
    through: Option<String>,
    #[command(flatten)]
    adopt: Adopt,
    #[command(flatten)]
    target: Target,
}

impl Baseline {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.target.open_as(self.adopt.in_settings(self.target.settings())).await?;
        let changed = database.baseline(self.through.as_deref(), &|event| teller.tell(&event)).await;
        session.answer(&Told(changed.map_err(|error| explain(&error))?))
    }
}
