//! Wakes a thread that waits for a call, and hears the wish that this process ends.
//!
//! Invariant: handlers of signals do nothing but what is safe in them: nothing at all, or
//! a store to an atomic and a write to a descriptor.
#![allow(unsafe_code)]

use std::{
    io,
    os::{fd::OwnedFd, unix::thread::JoinHandleExt},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use rustix::process::Signal;

const NUDGE: libc::c_int = libc::SIGUSR1;

extern "C" fn nothing(_: libc::c_int) {}

/// From now on a nudge ends the system call that a thread waits in, and nothing else.
pub(crate) fn prepare() -> io::Result<()> {
    // SAFETY: an all-zero `sigaction` is a valid value of that plain struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as libc::sighandler_t;
    // SAFETY: `action` is initialised and outlives the call; the handler does nothing.
    match unsafe { libc::sigaction(NUDGE, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the system call that a thread waits in. One that is about to wait misses it.
pub(crate) fn nudge<T>(thread: &JoinHandle<T>) {
    // SAFETY: a thread whose handle is there was not joined, so its identity is valid.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), NUDGE) };
}

/// Instead of dying of SIGTERM or SIGINT, the process finds the flag raised and `wake` readable.
pub(crate) fn on_end(wake: &Arc<OwnedFd>) -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [Signal::TERM, Signal::INT] {
        let (raised, wake) = (Arc::clone(&asked), Arc::clone(wake));
        let action = move || {
            raised.store(true, Ordering::Relaxed);
            // Full means that it is readable already.
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        // SAFETY: the action stores to an atomic and writes to an eventfd, both async-signal-safe.
        unsafe { signal_hook_registry::register(signal.as_raw(), action)? };
    }
    Ok(asked)
}
