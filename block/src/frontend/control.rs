//! What a coordinator can ask of a frontend, as JSON in `Control` frames.
//!
//! Invariant: every command is safe to repeat; the answer to a repeated one says
//! what is, not what was done.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{epoch::Epoch, record::Attachment};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Command {
    /// Offer a volume to clients on a Unix socket of its own, served by an engine.
    Attach { volume: String, size: u64, socket: PathBuf, engine: String },
    /// The same, where the volume's record names the attachment: engines listen to nobody else.
    AttachAs { attachment: Attachment, volume: String, size: u64, socket: PathBuf, engine: String },
    /// Move a volume to another engine, which the record already names.
    Switch {
        volume: String,
        engine: String,
        /// How long the old engine may take to answer what it has.
        drain_within_ms: u64,
    },
    /// Make an attached volume a block device, by way of a file system at `mount`.
    Expose { volume: String, mount: PathBuf },
    /// Take the block device away.
    Withdraw { volume: String },
    /// Stop offering a volume.
    Detach { volume: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Attached,
    /// It is offered for another attachment than the one that was named, and stays so until it is detached.
    AttachedAsAnother,
    Switched(Switched),
    /// The volume is a block device at this path.
    Exposed(PathBuf),
    Withdrawn,
    Detached,
    /// Nothing changed, for this reason.
    Refused(String),
}

/// A switch-over that came to its end, as the clients saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Switched {
    pub epoch: Epoch,
    /// From the moment no request went out until requests went out again.
    pub pause_us: u64,
    /// Longest time any request that met the pause took to be answered.
    pub longest_wait_us: u64,
    /// Requests sent a second time because the old engine had not answered them.
    pub replayed: usize,
    /// Whether the old engine answered all it had within its time.
    pub drained: bool,
}

impl Switched {
    /// The engine had the volume before it was asked for.
    pub fn already(epoch: Epoch) -> Switched {
        Switched { epoch, pause_us: 0, longest_wait_us: 0, replayed: 0, drained: true }
    }
}
