//! What is in a folder.
//!
//! Invariant: a listing that goes on from where one ended misses nothing that was there
//! all the time and names nothing twice. Positions are those of the folder itself, so
//! they hold over any number of calls, and over a change of servers.

use std::{ffi::CStr, mem::MaybeUninit, sync::Arc};

use rustix::{
    fs::{RawDir, SeekFrom},
    io::Errno,
};

use super::{Folder, data::Need, nodes::Node};
use crate::wire::{
    call::Detail,
    name::Name,
    reply::{Entry, Line, Reply},
};

/// Names are read from the folder so many bytes at a time.
const PIECE: usize = 16 << 10;

impl Folder {
    pub(super) fn list(
        &self,
        folder: &Arc<Node>,
        offset: u64,
        (room, detail): (usize, Detail),
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let opened = self.data(folder, Need::Read)?;
        let _position = folder.listing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        rustix::fs::seek(&opened, SeekFrom::Start(offset))?;
        let mut piece = [MaybeUninit::uninit(); PIECE];
        let mut lines = RawDir::new(&opened, &mut piece);
        while let Some(line) = lines.next() {
            let line = line?;
            let name = line.file_name();
            let told = Line {
                inode: line.ino(),
                kind: line.file_type(),
                name: name.to_bytes(),
                next: line.next_entry_cookie(),
            };
            if reply.length() + Reply::line_length(told.name, detail == Detail::Lookups) > room {
                break;
            }
            match detail {
                Detail::Names => reply.line(&told),
                Detail::Lookups => self.tell_line(folder, name, &told, reply),
            }
        }
        Ok(())
    }

    /// A line with what LOOKUP would say of it. The kernel counts on that node then.
    fn tell_line(&self, folder: &Node, name: &CStr, line: &Line<'_>, reply: &mut Reply) {
        match Name::new(name).and_then(|name| self.find(folder, name)) {
            Ok((node, stat)) => {
                reply.entry(&Entry { node: node.id, stat: &stat, valid: self.caching.valid() });
            }
            // The folder itself and the one above; or gone since: looking it up will tell.
            Err(_) => reply.no_entry(),
        }
        reply.line(line);
    }
}
