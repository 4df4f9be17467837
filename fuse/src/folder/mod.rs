//! The folder that is served: answers calls by doing to it what they ask.
//!
//! | room | what it holds |
//! | --- | --- |
//! | `nodes` | what the kernel knows, and the descriptor of each |
//! | `entries` | names: finding, making, removing, moving |
//! | `attributes` | modes, owners, times, sizes |
//! | `data` | contents |
//! | `listing` | what is in a folder |
//! | `xattrs` | attributes that have names |
//!
//! There is no state but the nodes: files that are open are not known here, so nothing
//! beside the nodes has to be handed to a successor.
//!
//! Invariant: whatever is asked, nothing outside the folder is reached: every name is
//! looked up in a folder that was reached before, and no link is followed.

mod attributes;
mod data;
mod entries;
mod listing;
mod nodes;
#[cfg(test)]
mod tests;
mod xattrs;

use std::{os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use midflight_handover::kernel::{Head, u64_at};
use rustix::{
    fs::{Mode, OFlags, fstat, fstatvfs, open},
    io::Errno,
};

use self::entries::New;
pub(crate) use self::nodes::Crowd;
use self::nodes::{Node, Nodes};
use crate::wire::{
    call::{Caller, NodeId, Op},
    reply::Reply,
};

/// What the kernel may remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Everything: nobody else changes the folder while it is served.
    Exclusive,
    /// Nothing without asking: others may change the folder at any time.
    Shared,
}

impl Caching {
    /// How long what was said of a name and a node stays true.
    fn valid(self) -> Duration {
        const FOR_EVER: Duration = Duration::from_secs(1 << 30);
        match self {
            Caching::Exclusive => FOR_EVER,
            Caching::Shared => Duration::ZERO,
        }
    }
}

/// Whether a call has an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ready,
    /// Nobody waits for one.
    Unwanted,
}

#[derive(Debug)]
pub(crate) struct Folder {
    nodes: Nodes,
    caching: Caching,
    /// `/proc/self/fd`, through which a descriptor is opened again for something else.
    descriptors: OwnedFd,
}

impl Folder {
    pub(crate) fn open(path: &Path, caching: Caching, crowd: Arc<Crowd>) -> Result<Folder, Errno> {
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, folder, Mode::empty())?;
        let stat = fstat(&root)?;
        let descriptors = open("/proc/self/fd", folder, Mode::empty())?;
        Ok(Folder { nodes: Nodes::new(root, &stat, crowd), caching, descriptors })
    }

    fn node(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        self.nodes.get(id).ok_or(Errno::STALE)
    }

    /// Does what a call asks and writes what is to be said about it.
    pub(crate) fn answer(&self, head: &Head, op: Op<'_>, reply: &mut Reply) -> Result<Answer, Errno> {
        let id = NodeId(head.node);
        match op {
            Op::Forget(count) => {
                self.nodes.forget(id, count);
                return Ok(Answer::Unwanted);
            }
            Op::BatchForget(pairs) => {
                for pair in pairs.chunks_exact(16) {
                    self.nodes.forget(NodeId(u64_at(pair, 0)), u64_at(pair, 8));
                }
                return Ok(Answer::Unwanted);
            }
            // These speak of no node.
            Op::Destroy => {}
            Op::Unserved => return Err(Errno::NOSYS),
            op => self.carry_out(Caller { uid: head.uid, gid: head.gid }, &self.node(id)?, op, reply)?,
        }
        Ok(Answer::Ready)
    }

    fn carry_out(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        op: Op<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let new = |name| New { caller, parent: node, name };
        match op {
            Op::Lookup(name) => self.look_up(node, name, reply),
            Op::Getattr => self.tell_attributes(node, reply),
            Op::Setattr(changes) => self.change_attributes(node, &changes, reply),
            Op::Readlink => Self::read_link(node, reply),
            Op::Symlink { name, target } => self.make_link(new(name), target, reply),
            Op::Mknod { name, mode } => self.make_node(new(name), mode, reply),
            Op::Mkdir { name, mode } => self.make_folder(new(name), mode, reply),
            Op::Create { name, mode, flags } => match self.caching {
                // The kernel makes files by MKNOD from now on, and opens them without asking: nobody has
                // to be told when they are closed.
                Caching::Exclusive => Err(Errno::NOSYS),
                Caching::Shared => self.create(new(name), mode, flags, reply),
            },
            Op::Unlink(name) => Self::remove(node, name, rustix::fs::AtFlags::empty()),
            Op::Rmdir(name) => Self::remove(node, name, rustix::fs::AtFlags::REMOVEDIR),
            Op::Rename { name, to, new_name, flags } => {
                let to = self.node(to)?;
                let (from, to) = ((node.anchor(), name.as_c_str()), (to.anchor(), new_name.as_c_str()));
                rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags)
            }
            Op::Link { node: existing, name } => self.add_name(&*self.node(existing)?, node, name, reply),
            Op::Open | Op::Opendir => match self.caching {
                // The kernel opens without asking from now on: there is nothing to prepare.
                Caching::Exclusive => Err(Errno::NOSYS),
                // At every opening the kernel lets go of what it remembers of the contents.
                Caching::Shared => {
                    reply.opened();
                    Ok(())
                }
            },
            Op::Release | Op::Destroy | Op::Forget(_) | Op::BatchForget(_) => Ok(()),
            Op::Read(range) => self.read(node, range, reply),
            Op::Write(writing) => self.write(node, &writing, reply),
            Op::Fsync(how) => self.sync(node, how),
            Op::Fallocate { range, flags } => self.allocate(caller, node, range, flags),
            Op::Lseek { offset, whence } => self.seek(node, offset, whence, reply),
            Op::CopyFileRange(copying) => self.copy(caller, node, copying, reply),
            Op::Statfs => {
                reply.statistics(&fstatvfs(node.anchor())?);
                Ok(())
            }
            Op::Setxattr { name, value, flags } => self.set_xattr(node, name, value, flags),
            Op::Getxattr { name, room } => self.get_xattr(node, name, room, reply),
            Op::Listxattr { room } => self.list_xattrs(node, room, reply),
            Op::Removexattr(name) => self.remove_xattr(node, name),
            Op::Readdir { offset, room, detail } => self.list(node, offset, (room as usize, detail), reply),
            Op::Unserved => Err(Errno::NOSYS),
        }
    }
}
