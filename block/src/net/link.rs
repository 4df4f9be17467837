//! One connection: what has arrived and is not parsed, what waits to be sent.
//!
//! Large payloads are referenced, not copied: a write that goes to three
//! replicas is one buffer in three queues, sent by one `writev` per link.
//!
//! Invariant: bytes leave in the order in which they were put.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use bytes::{Buf, Bytes, BytesMut};

use super::receive::receive;
use crate::wire::Frame;

/// Room offered to each read. Two requests of 128 KiB fit with what is before each: whatever is cut off at the end of a chunk is
/// copied to the next one.
const CHUNK: usize = (256 << 10) + (8 << 10);
/// Below this much spare room a new chunk is taken; with more, what is missing of a request may still fit.
const LEAST_ROOM: usize = 4 << 10;
/// Payloads up to this length are copied next to their header.
const COPY_UP_TO: usize = 1024;
const MOST_SLICES: usize = 64;

#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    pub input: BytesMut,
    small: BytesMut,
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Whether epoll has been asked to say when there is room to write.
    pub(super) awaits_room: bool,
    /// Whether epoll has been asked not to say when there is something to read.
    pub(super) deaf: bool,
    pub(super) dirty: bool,
    /// Whether the peer has not answered yet; nothing is sent before.
    pub(super) connecting: bool,
    /// Whether the peer has said that it reads compact frames.
    pub(super) compact: bool,
    /// Frames taken of what arrived last.
    pub(super) taken: u32,
}

/// A connection on its way to another process.
#[derive(Debug)]
pub struct Released {
    pub fd: OwnedFd,
    pub input: BytesMut,
    pub output: BytesMut,
    /// Whether the peer reads compact frames.
    pub compact: bool,
}

impl Link {
    pub(super) fn new(fd: OwnedFd) -> Link {
        Link {
            fd,
            input: BytesMut::new(),
            small: BytesMut::new(),
            queue: VecDeque::new(),
            queued: 0,
            awaits_room: false,
            deaf: false,
            dirty: false,
            connecting: false,
            compact: false,
            taken: 0,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the peer reads compact frames.
    pub fn is_compact(&self) -> bool {
        self.compact
    }

    /// Bytes not yet taken by the kernel.
    pub fn backlog(&self) -> usize {
        self.queued
    }

    /// Takes it apart: the socket, what has arrived, and what the kernel has not taken yet.
    pub(super) fn release(mut self) -> Released {
        let mut output = BytesMut::new();
        self.queue.iter().for_each(|bytes| output.extend_from_slice(bytes));
        output.extend_from_slice(&self.small.split());
        Released { fd: self.fd, input: self.input, output, compact: self.compact }
    }

    pub(super) fn put(&mut self, head: &[u8], payload: Bytes) {
        self.queued += head.len() + payload.len();
        self.small.extend_from_slice(head);
        if payload.len() <= COPY_UP_TO {
            self.small.extend_from_slice(&payload);
            return;
        }
        self.queue.push_back(self.small.split().freeze());
        self.queue.push_back(payload);
    }

    pub(super) fn put_frame(&mut self, frame: Frame) {
        if self.compact
            && frame.payload.is_empty()
            && let Some(head) = frame.header.encode_compact()
        {
            return self.put(&head, frame.payload);
        }
        let head = frame.header.encode(frame.payload.len());
        self.put(&head, frame.payload);
    }

    /// Reads once. `Ok(0)` means that the peer has closed.
    pub(super) fn fill(&mut self, at_least: usize) -> io::Result<usize> {
        if self.input.capacity() - self.input.len() < LEAST_ROOM.max(at_least) {
            self.input.reserve(CHUNK.max(at_least));
        }
        self.taken = 0;
        Ok(receive(self.fd.as_fd(), &mut self.input)?)
    }

    /// Sends until the queue is empty (true) or the kernel has no room (false).
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        if !self.small.is_empty() {
            self.queue.push_back(self.small.split().freeze());
        }
        while self.queued > 0 {
            let mut slices = [IoSlice::new(&[]); MOST_SLICES];
            let mut count = 0;
            for (slot, bytes) in slices.iter_mut().zip(self.queue.iter().filter(|bytes| !bytes.is_empty())) {
                *slot = IoSlice::new(bytes);
                count += 1;
            }
            match rustix::io::writev(&self.fd, &slices[..count]) {
                Ok(sent) => self.forget(sent),
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.queue.clear();
        Ok(true)
    }

    fn forget(&mut self, mut sent: usize) {
        self.queued -= sent;
        while let Some(front) = self.queue.front_mut() {
            if sent < front.len() {
                front.advance(sent);
                return;
            }
            sent -= front.len();
            self.queue.pop_front();
        }
    }
}
