//! The system calls on processes that Rust cannot check.

#![allow(unsafe_code)]

use std::io;

use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use tokio::process::Command;

/// Lets a program start in a session of its own, and die with the calling
/// thread until it calls `leave_parent`.
pub(crate) fn in_own_session(command: &mut Command) {
    // SAFETY: between fork and exec only two system calls are made, both async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
}

/// Called by a started process once its record is written: from now on it lives by itself.
pub(crate) fn leave_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(None)?)
}
