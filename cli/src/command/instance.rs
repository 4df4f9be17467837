//! `midflight instance`: orders to an instance manager, given by hand.

use std::io;

use midflight_block::instance::client::{self, InstanceArgs, Told};
use serde::{Serialize, Serializer};

use crate::{
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

pub(crate) fn run(args: InstanceArgs, session: &Session) -> anyhow::Result<()> {
    let mut tell = |told: &Told| session.answer(&Shown(told)).map_err(io::Error::other);
    Ok(client::run(args, &mut tell)?)
}
