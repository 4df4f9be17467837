//! What the engines of this build can do.
//!
//! Invariant: whoever asks a binary for its versions gets those that its processes heed.

use serde::Serialize;

use crate::{instance, replica::layers::FORMATS, wire::hello::VERSIONS};

/// What a binary with engines says of itself.
#[derive(Debug, Serialize)]
pub struct About {
    pub version: &'static str,
    pub engine: Ranges,
}

/// Versions of each interface; a range that does not overlap is refused.
#[derive(Debug, Serialize)]
pub struct Ranges {
    /// Of the instance manager's API.
    pub api: Range,
    /// Of what engines, replicas and frontends say to each other.
    pub wire: Range,
    /// Of replica folders.
    pub disk: Range,
}

/// Versions, from the oldest to the newest.
#[derive(Debug, Serialize)]
pub struct Range {
    pub oldest: u32,
    pub newest: u32,
}

/// What this binary is.
pub fn about() -> About {
    let range = |(oldest, newest): (u32, u32)| Range { oldest, newest };
    let engine = Ranges {
        api: range(instance::API),
        wire: range((VERSIONS.oldest.into(), VERSIONS.newest.into())),
        disk: range((*FORMATS.start(), *FORMATS.end())),
    };
    About { version: env!("CARGO_PKG_VERSION"), engine }
}
