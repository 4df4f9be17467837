//! Precautions of a process that carries a kernel's dirty pages away.
//!
//! Invariant: nothing here is needed to serve; without the right to it a process
//! serves all the same, to clients that are not the kernel.

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{configure_io_flusher_behavior, is_io_flusher},
};

/// What to say where this process may not be shielded.
pub(crate) const BARE: &str = "without the capability SYS_RESOURCE it may wait for its own dirty pages: \
     give the users of the device another memory cgroup than this process";

/// Memory that this process takes is never made free by writing to a volume that
/// it serves itself, and what it holds is never swapped out. Threads begun later
/// inherit it.
pub(crate) fn raise() {
    if let Err(error) = configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "not shielded from its own dirty pages");
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(flags) {
        tracing::debug!(%error, "memory is not locked");
    }
}

/// Whether the kernel counts this thread among those that carry dirty pages away.
pub(crate) fn is_raised() -> bool {
    is_io_flusher().unwrap_or(false)
}
