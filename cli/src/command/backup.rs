//! `midflight backup`: volumes in a folder, and back.

use std::io;

use midflight_block::backup::{
    command::{self, BackupArgs},
    progress,
};

use crate::{args::Format, output::InRows, session::Session};

pub(crate) fn run(args: &BackupArgs, session: &Session) -> anyhow::Result<()> {
    let told =
        command::run(args, &mut progress::to_writer(io::stderr(), session.global.output == Format::Json))?;
    session.answer(&InRows { told: &told, rows: told.rows() })?;
    told.damage().map_or(Ok(()), |damage| Err(damage.into()))
}
