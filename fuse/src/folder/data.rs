//! Contents of files.
//!
//! Invariant: an answer says no more was written than was, and a read that is shorter
//! than asked for ends where the file ends.

use std::{io::IoSlice, os::fd::OwnedFd, sync::Arc};

use rustix::{
    fs::{FallocateFlags, FileType, OFlags, SeekFrom, fallocate, fdatasync, fsync},
    io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2},
};

use super::{
    Caching, Folder,
    nodes::{Data, Node},
};
use crate::wire::{
    MOST_DATA,
    call::{Caller, Copying, Range, Sync, Writing},
    reply::Reply,
};

/// What contents are wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Read,
    Write,
}

impl Folder {
    /// A descriptor to the contents; the same one for all who ask. Whoever only reads opens nothing for writing: that would keep
    /// programs of the folder from being run past the mount, and copy files of lower layers up.
    pub(super) fn data(&self, node: &Arc<Node>, need: Need) -> Result<Arc<OwnedFd>, Errno> {
        let mut held = node.data();
        if let Some(data) = held.as_ref().filter(|data| data.writable || need == Need::Read) {
            return Ok(Arc::clone(&data.descriptor));
        }
        let data = match (node.kind, need) {
            (FileType::RegularFile, Need::Write) => self.opened(node, OFlags::RDWR)?,
            (FileType::RegularFile, Need::Read) => self.opened(node, OFlags::RDONLY)?,
            (FileType::Directory, Need::Read) => self.opened(node, OFlags::RDONLY | OFlags::DIRECTORY)?,
            (FileType::Directory, Need::Write) => return Err(Errno::ISDIR),
            // The kernel serves pipes, sockets and devices itself.
            _ => return Err(Errno::INVAL),
        };
        let descriptor = Arc::clone(&data.descriptor);
        *held = Some(data);
        drop(held);
        self.nodes.opened(node);
        Ok(descriptor)
    }

    fn opened(&self, node: &Node, flags: OFlags) -> Result<Data, Errno> {
        let descriptor = Arc::new(self.reopen(node, flags)?);
        Ok(Data { descriptor, writable: flags.contains(OFlags::RDWR) })
    }

    pub(super) fn read(&self, node: &Arc<Node>, range: Range, reply: &mut Reply) -> Result<(), Errno> {
        let file = self.data(node, Need::Read)?;
        let wanted = range.length as usize;
        while reply.length() < wanted {
            let done = reply.length();
            let more = |room: &mut [u8]| pread(&file, room, range.offset + done as u64);
            if reply.read(wanted - done, more)? == 0 {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn write(
        &self,
        node: &Arc<Node>,
        writing: &Writing<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let file = self.data(node, Need::Write)?;
        let mut done = 0;
        while done < writing.data.len() {
            let rest = &writing.data[done..];
            let written = if writing.appends && self.caching == Caching::Shared {
                // Others may have moved the end since the kernel last looked.
                pwritev2(&file, &[IoSlice::new(rest)], 0, ReadWriteFlags::APPEND)
            } else {
                pwrite(&file, rest, writing.offset + done as u64)
            };
            match written {
                Ok(count) => done += count,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        if writing.drops_privileges {
            self.drop_privileges(node)?;
        }
        reply.written(done);
        Ok(())
    }

    pub(super) fn sync(&self, node: &Arc<Node>, how: Sync) -> Result<(), Errno> {
        let file = self.data(node, Need::Read)?;
        match how {
            Sync::Data => fdatasync(file),
            Sync::All => fsync(file),
        }
    }

    pub(super) fn allocate(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        range: Range,
        flags: FallocateFlags,
    ) -> Result<(), Errno> {
        fallocate(self.data(node, Need::Write)?, flags, range.offset, range.length)?;
        self.drop_privileges_of(caller, node)
    }

    pub(super) fn seek(
        &self,
        node: &Arc<Node>,
        offset: u64,
        whence: u32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        const DATA: u32 = 3;
        const HOLE: u32 = 4;
        let to = match whence {
            DATA => SeekFrom::Data(offset),
            HOLE => SeekFrom::Hole(offset),
            // The kernel knows the rest itself.
            _ => return Err(Errno::INVAL),
        };
        reply.position(rustix::fs::seek(self.data(node, Need::Read)?, to)?);
        Ok(())
    }

    pub(super) fn copy(
        &self,
        caller: Caller,
        node: &Arc<Node>,
        copying: Copying,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let target = self.node(copying.to_node)?;
        let (source, sink) = (self.data(node, Need::Read)?, self.data(&target, Need::Write)?);
        let (mut from, mut to) = (copying.from, copying.to);
        // So much that a copy is worth a call, so little that nobody waits long for its end.
        let length = copying.length.min(64 * MOST_DATA as u64) as usize;
        let count = rustix::fs::copy_file_range(source, Some(&mut from), sink, Some(&mut to), length)?;
        self.drop_privileges_of(caller, &target)?;
        reply.written(count);
        Ok(())
    }

    /// The kernel does not say in every call whether the caller may keep them.
    fn drop_privileges_of(&self, caller: Caller, node: &Node) -> Result<(), Errno> {
        if caller.uid == 0 { Ok(()) } else { self.drop_privileges(node) }
    }
}
