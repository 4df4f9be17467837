//! A call of the kernel, read from bytes.
//!
//! Invariant: whatever the bytes are, reading them gives a call or an errno; names in
//! a call are names, and data is as long as the call says.

use std::ffi::CStr;

use midflight_handover::kernel::code;
use rustix::{
    fs::{FallocateFlags, RenameFlags, Timespec, XattrFlags},
    io::Errno,
};

use super::{MOST_DATA, fields::Fields, name::Name};

/// A node of the kernel's: a file, folder or link that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u64);

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// How a listing is answered: with names alone, or with what LOOKUP would say of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    Names,
    Lookups,
}

/// How much of a file `fsync` is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sync {
    Data,
    All,
}

/// A point in time, as `setattr` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    Keep,
    Now,
    At(Timespec),
}

/// What `setattr` changes; what is absent stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    /// Whether the right to run as the owner goes with it.
    pub(crate) drops_privileges: bool,
}

/// What is written, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writing<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// To the end of the file, wherever that is.
    pub(crate) appends: bool,
    pub(crate) drops_privileges: bool,
}

/// What is copied within the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copying {
    pub(crate) from: u64,
    pub(crate) to_node: NodeId,
    pub(crate) to: u64,
    pub(crate) length: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op<'a> {
    Lookup(Name<'a>),
    Forget(u64),
    /// Pairs of node and count.
    BatchForget(&'a [u8]),
    Getattr,
    Setattr(Changes),
    Readlink,
    Symlink {
        name: Name<'a>,
        target: &'a CStr,
    },
    Mknod {
        name: Name<'a>,
        mode: u32,
    },
    Mkdir {
        name: Name<'a>,
        mode: u32,
    },
    Unlink(Name<'a>),
    Rmdir(Name<'a>),
    Rename {
        name: Name<'a>,
        to: NodeId,
        new_name: Name<'a>,
        flags: RenameFlags,
    },
    Link {
        node: NodeId,
        name: Name<'a>,
    },
    Open,
    Opendir,
    Create {
        name: Name<'a>,
        mode: u32,
        flags: u32,
    },
    /// The kernel lets go of a file or folder.
    Release,
    Read(Range),
    Write(Writing<'a>),
    Statfs,
    Fsync(Sync),
    Setxattr {
        name: &'a CStr,
        value: &'a [u8],
        flags: XattrFlags,
    },
    Getxattr {
        name: &'a CStr,
        room: u32,
    },
    Listxattr {
        room: u32,
    },
    Removexattr(&'a CStr),
    Readdir {
        offset: u64,
        room: u32,
        detail: Detail,
    },
    Fallocate {
        range: Range,
        flags: FallocateFlags,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    CopyFileRange(Copying),
    Destroy,
    /// Nothing that is served, or that has to be.
    Unserved,
}

impl Op<'_> {
    /// Reads what follows the head of a call.
    pub(crate) fn parse(opcode: u32, raw: &[u8]) -> Result<Op<'_>, Errno> {
        let mut raw = Fields::new(raw);
        Ok(match opcode {
            code::LOOKUP => Op::Lookup(raw.name()?),
            code::FORGET => Op::Forget(raw.u64()?),
            code::BATCH_FORGET => {
                let count = raw.u32()? as usize;
                raw.skip(4)?;
                Op::BatchForget(raw.bytes(count.saturating_mul(16))?)
            }
            code::GETATTR => Op::Getattr,
            code::SETATTR => Op::Setattr(changes(&mut raw)?),
            code::READLINK => Op::Readlink,
            code::SYMLINK => Op::Symlink { name: raw.name()?, target: raw.text()? },
            code::MKNOD => {
                let mode = raw.u32()?;
                raw.skip(12)?;
                Op::Mknod { name: raw.name()?, mode }
            }
            code::MKDIR => {
                let mode = raw.u32()?;
                raw.skip(4)?;
                Op::Mkdir { name: raw.name()?, mode }
            }
            code::UNLINK => Op::Unlink(raw.name()?),
            code::RMDIR => Op::Rmdir(raw.name()?),
            code::RENAME => {
                let to = NodeId(raw.u64()?);
                rename(&mut raw, to, 0)?
            }
            code::RENAME2 => {
                let (to, flags) = (NodeId(raw.u64()?), raw.u32()?);
                raw.skip(4)?;
                rename(&mut raw, to, flags)?
            }
            code::LINK => Op::Link { node: NodeId(raw.u64()?), name: raw.name()? },
            code::OPEN => Op::Open,
            code::OPENDIR => Op::Opendir,
            code::CREATE => {
                let (flags, mode) = (raw.u32()?, raw.u32()?);
                raw.skip(8)?;
                Op::Create { name: raw.name()?, mode, flags }
            }
            code::RELEASE | code::RELEASEDIR => Op::Release,
            code::READ => {
                raw.skip(8)?;
                let (offset, length) = (raw.u64()?, raw.u32()?.min(MOST_DATA as u32));
                Op::Read(Range { offset, length: u64::from(length) })
            }
            code::WRITE => Op::Write(writing(&mut raw)?),
            code::STATFS => Op::Statfs,
            code::FSYNC | code::FSYNCDIR => {
                raw.skip(8)?;
                Op::Fsync(if raw.u32()? & 1 == 0 { Sync::All } else { Sync::Data })
            }
            code::SETXATTR => {
                let (length, flags) = (raw.u32()? as usize, raw.u32()?);
                let name = raw.text()?;
                Op::Setxattr { name, value: raw.bytes(length)?, flags: XattrFlags::from_bits_retain(flags) }
            }
            code::GETXATTR => {
                let room = raw.u32()?;
                raw.skip(4)?;
                Op::Getxattr { name: raw.text()?, room }
            }
            code::LISTXATTR => Op::Listxattr { room: raw.u32()? },
            code::REMOVEXATTR => Op::Removexattr(raw.text()?),
            code::READDIR => listing(&mut raw, Detail::Names)?,
            code::READDIRPLUS => listing(&mut raw, Detail::Lookups)?,
            code::FALLOCATE => {
                raw.skip(8)?;
                let range = Range { offset: raw.u64()?, length: raw.u64()? };
                Op::Fallocate { range, flags: FallocateFlags::from_bits_retain(raw.u32()?) }
            }
            code::LSEEK => {
                raw.skip(8)?;
                Op::Lseek { offset: raw.u64()?, whence: raw.u32()? }
            }
            code::COPY_FILE_RANGE => {
                raw.skip(8)?;
                let (from, to_node) = (raw.u64()?, NodeId(raw.u64()?));
                raw.skip(8)?;
                Op::CopyFileRange(Copying { from, to_node, to: raw.u64()?, length: raw.u64()? })
            }
            code::DESTROY => Op::Destroy,
            _ => Op::Unserved,
        })
    }
}

fn rename<'a>(raw: &mut Fields<'a>, to: NodeId, flags: u32) -> Result<Op<'a>, Errno> {
    let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
    if !(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE).contains(flags) {
        return Err(Errno::INVAL);
    }
    Ok(Op::Rename { name: raw.name()?, to, new_name: raw.name()?, flags })
}

fn listing<'a>(raw: &mut Fields<'a>, detail: Detail) -> Result<Op<'a>, Errno> {
    raw.skip(8)?;
    let (offset, room) = (raw.u64()?, raw.u32()?.min(MOST_DATA as u32));
    Ok(Op::Readdir { offset, room, detail })
}

fn writing<'a>(raw: &mut Fields<'a>) -> Result<Writing<'a>, Errno> {
    const KILL_PRIVILEGES: u32 = 1 << 2;
    raw.skip(8)?;
    let (offset, length, how) = (raw.u64()?, raw.u32()?, raw.u32()?);
    raw.skip(8)?;
    let opened = raw.u32()?;
    raw.skip(4)?;
    Ok(Writing {
        offset,
        data: raw.bytes(length as usize)?,
        appends: opened & rustix::fs::OFlags::APPEND.bits() != 0,
        drops_privileges: how & KILL_PRIVILEGES != 0,
    })
}

fn changes(raw: &mut Fields<'_>) -> Result<Changes, Errno> {
    const MODE: u32 = 1;
    const UID: u32 = 1 << 1;
    const GID: u32 = 1 << 2;
    const SIZE: u32 = 1 << 3;
    const ATIME: u32 = 1 << 4;
    const MTIME: u32 = 1 << 5;
    const ATIME_NOW: u32 = 1 << 7;
    const MTIME_NOW: u32 = 1 << 8;
    const KILL_PRIVILEGES: u32 = 1 << 11;
    let valid = raw.u32()?;
    raw.skip(12)?;
    let size = raw.u64()?;
    raw.skip(8)?;
    let (accessed, modified) = (raw.u64()? as i64, raw.u64()? as i64);
    raw.skip(8)?;
    let (accessed_nanoseconds, modified_nanoseconds) = (raw.u32()?, raw.u32()?);
    raw.skip(4)?;
    let mode = raw.u32()?;
    raw.skip(4)?;
    let (uid, gid) = (raw.u32()?, raw.u32()?);
    let is = |flag: u32| valid & flag != 0;
    let time = |set: u32, now: u32, seconds: i64, nanoseconds: u32| match (is(set), is(now)) {
        (_, true) => Time::Now,
        (true, false) => Time::At(Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) }),
        (false, false) => Time::Keep,
    };
    Ok(Changes {
        mode: is(MODE).then_some(mode),
        uid: is(UID).then_some(uid),
        gid: is(GID).then_some(gid),
        size: is(SIZE).then_some(size),
        accessed: time(ATIME, ATIME_NOW, accessed, accessed_nanoseconds),
        modified: time(MTIME, MTIME_NOW, modified, modified_nanoseconds),
        drops_privileges: is(KILL_PRIVILEGES),
    })
}
