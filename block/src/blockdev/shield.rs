//! Precautions of a process that carries other people's data, a kernel's dirty pages
//! among them.
//!
//! Invariant: nothing here is needed to serve; without the right to it a process
//! serves all the same, to clients that are not the kernel, and slower on a busy machine.

use rustix::{
    mm::{MlockAllFlags, mlockall},
    process::{configure_io_flusher_behavior, setpriority_process},
};

/// Everyone on the node waits for these processes: they go before those that compute.
const NICE: i32 = -10;

/// Memory that this process takes is never made free by writing to a volume that
/// it serves itself, and what it holds is never swapped out. Threads begun later
/// inherit it.
pub(crate) fn raise() {
    if let Err(error) = configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "not shielded from its own dirty pages");
    }
    if let Err(error) = setpriority_process(None, NICE) {
        tracing::debug!(%error, "goes before nobody");
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(flags) {
        tracing::debug!(%error, "memory is not locked");
    }
}
