//! One container: a process with a view of the files of its own, and a small parent that outlives the agent.
//!
//! ```text
//! agent ── starts ──▶ shim ── starts ──▶ init ── becomes ──▶ the container's program
//!   └── reads and writes files in the room ──┘
//! ```
//!
//! All that the agent and the shim know of each other is in the files of a [`Room`], so either may be replaced by
//! another version while the other lives.
//!
//! The one invariant: a process of a container lives no longer than its shim, and what a shim has seen end is on disk
//! before the shim ends.

mod enter;
mod init;
pub mod log;
mod room;
mod shim;

pub use enter::enter;
pub use init::init;
pub use room::{Blueprint, Exit, Mount, Room, RoomError, State};
pub use shim::shim;

/// How the one binary is told to play a part in this: `midflight container PART ROOM …`.
pub const COMMAND: &str = "container";
/// Names the room of a container in the environment of all its processes.
const MARK: &str = "MIDFLIGHT_CONTAINER";
