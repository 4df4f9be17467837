//! `midflight instance`: orders to an instance manager, given by hand.

use std::io;

use midflight_block::instance::{
    client::{self, InstanceArgs},
    told::Told,
};

use crate::{output::InRows, session::Session};

pub(crate) fn run(args: InstanceArgs, session: &Session) -> anyhow::Result<()> {
    let mut tell =
        |told: &Told| session.answer(&InRows { told, rows: told.rows() }).map_err(io::Error::other);
    Ok(client::run(args, &mut tell)?)
}
