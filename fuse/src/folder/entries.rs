//! Names: finding, making, removing.
//!
//! Invariant: what is made belongs to the caller, or to the folder's group where the
//! folder says so; it is never left behind under another owner, and what others made is
//! never taken for it.

use std::{
    ffi::CStr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, chownat, fstat, linkat, mkdirat, mknodat,
        openat2, readlinkat, symlinkat, unlinkat,
    },
    io::Errno,
    process::{Gid, Uid},
};

use super::{Caching, Folder, nodes::Node};
use crate::wire::{
    call::Caller,
    name::Name,
    reply::{Entry, Reply},
};

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// What is to be made, where, and for whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct New<'a> {
    pub(super) caller: Caller,
    pub(super) parent: &'a Node,
    pub(super) name: Name<'a>,
}

impl Folder {
    pub(super) fn look_up(&self, parent: &Node, name: Name<'_>, reply: &mut Reply) -> Result<(), Errno> {
        match self.find(parent, name) {
            Ok((node, stat)) => {
                self.tell_entry(&node, &stat, reply);
                Ok(())
            }
            Err(Errno::NOENT) if self.caching == Caching::Exclusive => {
                reply.absent(self.caching.valid());
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// The node of a name; the kernel counts on it from now on.
    pub(super) fn find(&self, parent: &Node, name: Name<'_>) -> Result<(Arc<Node>, Stat), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let anchor = openat2(parent.anchor(), name.as_c_str(), flags, Mode::empty(), BENEATH)?;
        let stat = fstat(&anchor)?;
        Ok((self.nodes.remember(anchor, &stat), stat))
    }

    fn tell_entry(&self, node: &Node, stat: &Stat, reply: &mut Reply) {
        reply.entry(&Entry { node: node.id, stat, valid: self.caching.valid() });
    }

    pub(super) fn read_link(node: &Node, reply: &mut Reply) -> Result<(), Errno> {
        let target = readlinkat(node.anchor(), c"", Vec::new())?;
        reply.bytes(target.to_bytes());
        Ok(())
    }

    pub(super) fn make_link(&self, new: New<'_>, target: &CStr, reply: &mut Reply) -> Result<(), Errno> {
        symlinkat(target, new.parent.anchor(), new.name.as_c_str())?;
        self.tell_made(new, AtFlags::empty(), reply)
    }

    pub(super) fn make_folder(&self, new: New<'_>, mode: u32, reply: &mut Reply) -> Result<(), Errno> {
        mkdirat(new.parent.anchor(), new.name.as_c_str(), Mode::from_raw_mode(mode))?;
        self.tell_made(new, AtFlags::REMOVEDIR, reply)
    }

    /// Files, pipes and sockets; devices are not made for others.
    pub(super) fn make_node(&self, new: New<'_>, mode: u32, reply: &mut Reply) -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(mode);
        match kind {
            FileType::RegularFile => {
                let (node, stat) = self.make_file(new, mode)?;
                self.tell_entry(&node, &stat, reply);
                Ok(())
            }
            FileType::Fifo | FileType::Socket => {
                mknodat(new.parent.anchor(), new.name.as_c_str(), kind, Mode::from_raw_mode(mode), 0)?;
                self.tell_made(new, AtFlags::empty(), reply)
            }
            _ => Err(Errno::PERM),
        }
    }

    /// Makes a file and opens it. Where somebody else has made one since the kernel looked, it must look again: it has to see
    /// whether the caller may open that one at all.
    pub(super) fn create(&self, new: New<'_>, mode: u32, flags: u32, reply: &mut Reply) -> Result<(), Errno> {
        let insists = OFlags::from_bits_retain(flags).contains(OFlags::EXCL);
        let (node, stat) = match self.make_file(new, mode) {
            Err(Errno::EXIST) if !insists => return Err(Errno::STALE),
            made => made?,
        };
        self.tell_entry(&node, &stat, reply);
        reply.opened();
        Ok(())
    }

    /// A file that was not there.
    fn make_file(&self, new: New<'_>, mode: u32) -> Result<(Arc<Node>, Stat), Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let file = openat2(new.parent.anchor(), new.name.as_c_str(), flags, mode, BENEATH)?;
        let stat = match own(new, &file) {
            Ok(stat) => stat,
            Err(errno) => {
                unlinkat(new.parent.anchor(), new.name.as_c_str(), AtFlags::empty())?;
                return Err(errno);
            }
        };
        Ok((self.nodes.remember_open(file, &stat), stat))
    }

    /// Gives what was just made to the caller and tells of it, or removes it again.
    fn tell_made(&self, new: New<'_>, removal: AtFlags, reply: &mut Reply) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat2(new.parent.anchor(), new.name.as_c_str(), flags, Mode::empty(), BENEATH)
            .and_then(|anchor| own(new, &anchor).map(|stat| (anchor, stat)));
        match made {
            Ok((anchor, stat)) => {
                let node = self.nodes.remember(anchor, &stat);
                self.tell_entry(&node, &stat, reply);
                Ok(())
            }
            Err(errno) => {
                unlinkat(new.parent.anchor(), new.name.as_c_str(), removal)?;
                Err(errno)
            }
        }
    }

    pub(super) fn remove(parent: &Node, name: Name<'_>, what: AtFlags) -> Result<(), Errno> {
        unlinkat(parent.anchor(), name.as_c_str(), what)
    }

    /// One more name for what has one.
    pub(super) fn add_name(
        &self,
        node: &Node,
        parent: &Node,
        name: Name<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let existing = (node.anchor(), c"");
        linkat(existing.0, existing.1, parent.anchor(), name.as_c_str(), AtFlags::EMPTY_PATH)?;
        let (node, stat) = self.find(parent, name)?;
        self.tell_entry(&node, &stat, reply);
        Ok(())
    }

    /// Opens what a descriptor stands for once more, for something else.
    pub(super) fn reopen(&self, node: &Node, flags: OFlags) -> Result<OwnedFd, Errno> {
        let name = rustix::path::DecInt::from_fd(node.anchor());
        rustix::fs::openat(&self.descriptors, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// A path to what a node stands for, for calls that know no descriptors like ours.
    pub(super) fn path(node: &Node) -> String {
        format!("/proc/self/fd/{}", rustix::path::DecInt::from_fd(node.anchor()).as_str())
    }
}

/// Makes the caller the owner of what was made for it; says what it is like then.
fn own(new: New<'_>, made: &impl AsFd) -> Result<Stat, Errno> {
    let (caller, stat) = (new.caller, fstat(made)?);
    if (stat.st_uid, stat.st_gid) == (caller.uid, caller.gid) {
        return Ok(stat);
    }
    let group_is_inherited = fstat(new.parent.anchor())?.st_mode & Mode::SGID.bits() != 0;
    let group = (!group_is_inherited).then(|| Gid::from_raw(caller.gid));
    chownat(made, c"", Some(Uid::from_raw(caller.uid)), group, AtFlags::EMPTY_PATH)?;
    fstat(made)
}
