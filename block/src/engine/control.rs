//! What a coordinator can ask of an engine, as JSON in `Control` frames.
//!
//! Invariant: every command is safe to repeat: one whose effect is there already is
//! answered as done.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::{
    caller::{ControlError, EngineControl},
    epoch::Epoch,
    net::address::Address,
    wire::layout::Layout,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, clap::Subcommand)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Command {
    /// Keep the volume as it is now under a name.
    Snapshot { name: String },
    /// Forget a snapshot; what only it holds goes to the one after it.
    RemoveSnapshot { name: String },
    /// Make the volume what it was; later snapshots are forgotten.
    Revert {
        name: String,
        /// A number drawn for this revert; given again with it, nothing more is thrown away.
        #[arg(long)]
        #[serde(default)]
        head: Option<u64>,
    },
    /// Make the volume larger.
    Expand { size: u64 },
    /// Let a replica go that is to come back: it is put out of service, the others note what it misses, and it is not
    /// asked to return.
    Release { replica: String },
    /// Say where a replica of the record can be reached that was let go, or of which the engine was not told: it
    /// is asked to return.
    Introduce { replica: String, address: Address },
    /// Let rebuilds go no faster than this; without a number, as fast as they can.
    Throttle {
        #[arg(long)]
        bytes_per_second: Option<u64>,
    },
    /// Let a replica be silent for this long before it is taken out of service.
    Patience {
        #[arg(long)]
        seconds: u32,
    },
    /// Rebuild these replicas and no others when they return; a rebuild that has begun goes on.
    Permit {
        #[arg(long)]
        replicas: Vec<String>,
    },
    /// The upgrade is final: use what the newest on-disk format has. There is no way back
    /// to a build that does not know it.
    Finalize,
    /// Let requests wait until the engine is told to resume.
    Suspend,
    /// Go on with what waits.
    Resume,
    /// Say how the volume is.
    Status,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Done,
    Status(Box<Status>),
    /// Nothing changed, for this reason.
    Refused(String),
    /// Nothing changed, for this reason; it may pass.
    Busy(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub epoch: Epoch,
    pub serving: bool,
    /// Whether a frontend is connected.
    #[serde(default)]
    pub attached: bool,
    pub layout: Layout,
    pub in_service: usize,
    pub members: usize,
    /// Bytes that this engine has copied to members that came back.
    #[serde(default)]
    pub copied_bytes: u64,
    /// Whether requests wait until the engine is told to resume.
    #[serde(default)]
    pub suspended: bool,
    /// Copies that the engine waits for before it serves: no other is known to have everything. If one is
    /// gone for good, only its removal from the volume ends that, with whatever nobody else has.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// What the only copy in service could not do last: its client was told of an error.
    #[serde(default)]
    pub trouble: Option<Box<Trouble>>,
    /// What was found damaged in copies since this engine has the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<Flaw>,
    /// Bytes per second that rebuilds may copy, 0 for as many as they can; not told by engines of older builds.
    #[serde(default)]
    pub rebuild_limit: Option<u64>,
    /// Seconds that a replica may be silent before it is taken out of service; not told by engines of older builds.
    #[serde(default)]
    pub patience: Option<u32>,
    /// Which replicas are rebuilt when they return; not told by engines of older builds.
    #[serde(default)]
    pub may_rebuild: Option<Vec<String>>,
}

/// What was found damaged in a copy. While others have what it lost it is out of service, until that was copied anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flaw {
    pub replica: String,
    /// In words.
    pub what: String,
    pub repaired: bool,
}

/// Why the only copy in service refused a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Trouble {
    /// There is no room on its disk.
    Full { replica: String },
    /// It could not read or write there: its disk fails, or what is stored is damaged.
    Failed { replica: String, offset: u64 },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Full { replica } => {
                write!(f, "the disk of {replica}, the only copy in service, is full")
            }
            Trouble::Failed { replica, offset } => {
                write!(f, "{replica}, the only copy in service, has failed at byte {offset}")
            }
        }
    }
}

/// Ask something of the engine of a volume.
#[derive(Debug, Clone, clap::Args)]
pub struct VolumeArgs {
    /// Where the engine listens: unix:PATH or IP:PORT.
    #[arg(long)]
    pub engine: Address,
    #[command(subcommand)]
    pub command: Command,
}

/// Gives the command and prints the answer.
pub fn run(args: &VolumeArgs, out: &mut impl io::Write) -> Result<(), ControlError> {
    let answer = EngineControl::connect(&args.engine)?.call(&args.command)?;
    serde_json::to_writer_pretty(&mut *out, &answer)?;
    writeln!(out)?;
    Ok(())
}
