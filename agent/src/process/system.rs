//! The system calls on processes that Rust cannot check.

#![allow(unsafe_code)]

use std::{io, os::fd::OwnedFd};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use tokio::io::{Interest, unix::AsyncFd};

/// Waits until a descriptor can be read, which for a pidfd means that its process has ended.
pub(crate) async fn readable(descriptor: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open and owned by the AsyncFd, which nobody can reach to exchange it.
    let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE)? };
    descriptor.readable().await.map(drop)
}

/// Gives the calling process mounts of its own, and where it is not root a user namespace in which it may make some.
pub(crate) fn own_namespaces(is_root: bool) -> io::Result<()> {
    let flags = if is_root { UnshareFlags::NEWNS } else { UnshareFlags::NEWNS | UnshareFlags::NEWUSER };
    // SAFETY: descriptors stay shared; only mounts and identities become the process's own, which no memory depends on.
    unsafe { unshare_unsafe(flags) }.map_err(io::Error::from)
}
