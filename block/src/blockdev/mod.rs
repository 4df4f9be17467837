//! A volume as a block device without a kernel module of its own: a file system
//! (FUSE) with one file in it, and a loop device on that file.
//!
//! ```text
//! /dev/loopN ── direct I/O ──▶ MOUNT/volume ── /dev/fuse ──▶ frontend
//! ```
//!
//! `protocol` is FUSE as bytes in, bytes out; `mount` makes and removes file system
//! and loop device; `shield` keeps a process on the way of dirty pages from waiting
//! for dirty pages.

pub(crate) mod mount;
pub(crate) mod protocol;
pub(crate) mod shield;
