//! Precautions of a process that carries a kernel's dirty pages away.
//!
//! Invariant: nothing here is needed to serve; without the right to it a process
//! serves all the same, to clients that are not the kernel.

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::configure_io_flusher_behavior,
};

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
