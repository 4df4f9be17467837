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
/// That services say that they run (the tables service and publisher) does not count as writing.
#[derive(Debug, Args)]
pub(super) struct Rollback {
    #[command(flatten)]
    place: Place,
    /// Roll back though rows were written since, and give up what was written; the rows are named first. In the dragonflow
    /// layout only rows that the run had changed are put back; others stay as they were written
    #[arg(long)]
    discard_writes: bool,
}

impl Rollback {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.place.open_as(|settings| settings.discard_writes = self.discard_writes).await?;
        let changed = database.rollback(&|event| teller.tell(&event)).await;
        session.answer(&Told(changed.map_err(|error| explain(&error))?))
    }
}
