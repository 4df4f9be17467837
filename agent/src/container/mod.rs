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
//! The one invariant: what a shim has seen end is on disk before the shim ends; and a process of a container, also one that was run
//! beside it, lives no longer than its shim, or than the next look where the shim was killed. Two kinds may: those that the kernel does
//! not let end, and those that were run beside it and have shed their mark.

mod end;
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
pub(crate) const MARK: &str = "MIDFLIGHT_CONTAINER";
