//! `midflight backup`: volumes in a folder, and back.

use std::io;

use midflight_block::backup::{
    command::{self, BackupArgs, Told},
    progress,
};
use serde::{Serialize, Serializer};

use crate::{
    args::Format,
    output::{Answer, Paint, columns},
    session::Session,
};

struct Shown<'a>(&'a Told);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Answer for Shown<'_> {
    fn to_table(&self, _: Paint) -> String {
        columns(&self.0.rows())
    }
}

pub(crate) fn run(args: &BackupArgs, session: &Session) -> anyhow::Result<()> {
    let told =
        command::run(args, &mut progress::to_writer(io::stderr(), session.global.output == Format::Json))?;
    session.answer(&Shown(&told))?;
    told.damage().map_or(Ok(()), |damage| Err(damage.into()))
}
