//! The wish that this process ends.
//!
//! Invariant: the signal's handler only sets a flag and wakes the loop.
#![allow(unsafe_code)]

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::Signal;

use super::reactor::Waker;

/// Instead of dying of SIGTERM, the process finds the flag raised and is woken.
pub fn on_term(waker: Waker) -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&asked);
    let action = move || {
        raised.store(true, Ordering::Relaxed);
        waker.wake();
    };
    // SAFETY: the action stores to an atomic and writes to an eventfd, both async-signal-safe.
    unsafe { signal_hook_registry::register(Signal::TERM.as_raw(), action)? };
    Ok(asked)
}
