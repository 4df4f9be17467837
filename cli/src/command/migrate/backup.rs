//! `midflight migrate backup`: all rows in one verified file.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{
    target::{Place, explain},
    tell::{Teller, size},
};
use crate::{
    output::{Answer, Paint},
    session::Session,
};

/// Write all rows to a new file (mode 0600), read it back and verify it
#[derive(Debug, Args)]
pub(super) struct Backup {
    /// The file to make
    file: PathBuf,
    #[command(flatten)]
    place: Place,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    file: PathBuf,
    rows: u64,
    bytes: u64,
    sha256: String,
}

impl Backup {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let database = self.place.open().await?;
        let made = database
            .backup(&self.file, &|event| teller.tell(&event))
            .await
            .map_err(|error| explain(&error))?;
        session.answer(&Made {
            file: self.file,
            rows: made.header.rows,
            bytes: made.bytes,
            sha256: made.digest,
        })
    }
}

impl Answer for Made {
    fn to_table(&self, _: Paint) -> String {
        format!(
            "{}: {} rows, {}, sha256 of the file {}\n",
            self.file.display(),
            self.rows,
            size(self.bytes),
            self.sha256
        )
    }
}
