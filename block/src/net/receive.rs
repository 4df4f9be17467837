//! Reads from a descriptor straight into the spare room of a buffer.
//!
//! Invariant: the buffer grows by exactly the bytes that the kernel wrote.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use bytes::{BufMut, BytesMut};

/// Appends what one `read` gives; 0 means the peer closed.
pub(super) fn receive(fd: BorrowedFd<'_>, buffer: &mut BytesMut) -> rustix::io::Result<usize> {
    // SAFETY: the slice covers the buffer's own spare room; `read` only writes to it.
    let room = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
    let (filled, _) = rustix::io::read(fd, room)?;
    let count = filled.len();
    // SAFETY: the kernel has written `count` bytes at the start of the spare room.
    unsafe { buffer.advance_mut(count) };
    Ok(count)
}
