//! The kernel as a client: a FUSE session is a descriptor from which it sends calls
//! and to which answers are written, so a successor can take it over like any other.
//!
//! Invariant: the head of every message is as the kernel defines it; what follows the
//! head is the business of whoever serves the session.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
};

use rustix::{
    fs::OFlags,
    mount::{MountFlags, UnmountFlags},
};

/// Length of the head of a call.
pub const HEAD_IN: usize = 40;
/// Length of the head of an answer.
pub const HEAD_OUT: usize = 16;
/// Node of a session's topmost folder.
pub const ROOT: u64 = 1;

/// What a call asks for.
pub mod code {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
}

/// The head of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub opcode: u32,
    /// Names the call; its answer repeats it.
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel sent a call of {0} bytes, shorter than its own head")]
pub struct TooShort(usize);

impl Head {
    /// Takes the head off a call.
    pub fn parse(raw: &[u8]) -> Result<Head, TooShort> {
        if raw.len() < HEAD_IN {
            return Err(TooShort(raw.len()));
        }
        Ok(Head {
            opcode: u32_at(raw, 4),
            unique: u64_at(raw, 8),
            node: u64_at(raw, 16),
            uid: u32_at(raw, 24),
            gid: u32_at(raw, 28),
        })
    }
}

/// A number in a call; what is not there is 0.
pub fn u32_at(raw: &[u8], at: usize) -> u32 {
    raw.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// A number in a call; what is not there is 0.
pub fn u64_at(raw: &[u8], at: usize) -> u64 {
    raw.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// The head of an answer with `length` bytes behind it; `error` is 0 or a negative errno.
pub fn answer_head(unique: u64, error: i32, length: usize) -> [u8; HEAD_OUT] {
    let mut raw = [0; HEAD_OUT];
    raw[..4].copy_from_slice(&((HEAD_OUT + length) as u32).to_ne_bytes());
    raw[4..8].copy_from_slice(&error.to_ne_bytes());
    raw[8..].copy_from_slice(&unique.to_ne_bytes());
    raw
}

/// Asks the kernel to send again every call that has no answer.
pub fn resend() -> [u8; HEAD_OUT] {
    const RESEND: i32 = 7;
    answer_head(0, RESEND, 0)
}

/// Whether reading a call waits for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    Blocks,
    FailsWithAgain,
}

/// Mounts an empty session at a folder; calls come from the descriptor. Needs root.
///
/// `kind` is what mount tables show, `options` what the kernel is told beside the necessary.
pub fn mount(
    at: &Path,
    kind: &str,
    flags: MountFlags,
    options: &str,
    waiting: Waiting,
) -> io::Result<OwnedFd> {
    let open_flags = match waiting {
        Waiting::Blocks => OFlags::empty(),
        Waiting::FailsWithAgain => OFlags::NONBLOCK,
    };
    let mut device = File::options();
    let device = device.read(true).write(true).custom_flags(open_flags.bits() as i32).open("/dev/fuse")?;
    let descriptor = device.as_raw_fd();
    let options = format!("fd={descriptor},rootmode=40000,user_id=0,group_id=0{options}");
    let options = CString::new(options).map_err(io::Error::other)?;
    rustix::mount::mount("midflight", at, kind, flags, Some(options.as_c_str()))?;
    Ok(device.into())
}

/// Removes every file system at a folder; nothing there is no failure. Each ends when nobody
/// uses it any more.
pub fn unmount(at: &Path) {
    while rustix::mount::unmount(at, UnmountFlags::DETACH).is_ok() {}
}
