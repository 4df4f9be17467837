//! What a coordinator can ask of an engine, as JSON in `Control` frames.
//!
//! Invariant: every command is safe to repeat: one whose effect is there already is
//! answered as done.

use serde::{Deserialize, Serialize};

use crate::{epoch::Epoch, wire::layout::Layout};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Command {
    /// Keep the volume as it is now under a name.
    Snapshot { name: String },
    /// Forget a snapshot; what only it holds goes to the one after it.
    RemoveSnapshot { name: String },
    /// Make the volume what it was; later snapshots are forgotten.
    Revert { name: String },
    /// Make the volume larger.
    Expand { size: u64 },
    /// Say how the volume is.
    Status,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Done,
    Status(Status),
    /// Nothing changed, for this reason.
    Refused(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub epoch: Epoch,
    pub serving: bool,
    pub layout: Layout,
    pub in_service: usize,
    pub members: usize,
}
