//! `midflight migrate restore`: puts a backup in place of the rows.

use std::path::PathBuf;

use clap::Args;
use midflight_migrate::run::{Accept, Settings};

use super::{
    apply::Told,
    target::{Backups, Target, explain},
    tell::Teller,
};
use crate::session::Session;

/// Put a backup in place of the rows, in one step
///
/// The backup is verified before anything is touched, and what it replaces is backed up first. The log of applied
/// migrations comes back with it. Can itself be rolled back.
#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The backup
    file: PathBuf,
    /// Remove rows of tables that neither the backup nor any migration or model names
    #[arg(long)]
    allow_removal: bool,
    #[command(flatten)]
    backups: Backups,
    #[command(flatten)]
    target: Target,
}

impl Restore {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let settings = self.backups.in_settings(self.target.settings());
        let accept = Accept { removal: self.allow_removal, ..settings.accept };
        let settings = Settings { create: true, accept, ..settings };
        let database = self.target.open_as(settings).await?;
        let changed = database.restore(&self.file, &|event| teller.tell(&event)).await;
        session.answer(&Told(changed.map_err(|error| explain(&error))?))
    }
}
