//! `midflight migrate rollback`: gives the old data back.

use clap::Args;

use super::{
    apply::Told,
    target::{Place, explain},
    tell::Teller,
};
use crate::session::Session;

/// Make the old data live again, byte for byte
///
/// Possible until the run is final, as long as nobody has written since; otherwise it is refused, and says which rows.
#[derive(Debug, Args)]
pub(super) struct Rollback {
    #[command(flatten)]
    place: Place,
}

impl Rollback {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.place.open().await?;
        let changed = database.rollback(&|event| teller.tell(&event)).await;
        session.answer(&Told(changed.map_err(|error| explain(&error))?))
    }
}
