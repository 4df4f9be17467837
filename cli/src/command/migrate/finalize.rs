//! `midflight migrate finalize`: gives up the way back.

use clap::Args;

use super::{
    apply::Told,
    target::{Place, explain},
    tell::Teller,
};
use crate::session::Session;

/// Give up the way back, and delete the old data
///
/// When the services run well on the new data.
#[derive(Debug, Args)]
pub(super) struct Finalize {
    #[command(flatten)]
    place: Place,
}

impl Finalize {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.place.open().await?;
        let changed = database.finalize(&|event| teller.tell(&event)).await;
        session.answer(&Told(changed.map_err(|error| explain(&error))?))
    }
}
