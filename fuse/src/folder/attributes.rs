//! Modes, owners, times, sizes.
//!
//! Invariant: whoever changes contents without the right to keep it ends the right to
//! run a file as its owner, in the same call.

use std::sync::Arc;

use rustix::{
    fs::{
        AtFlags, FileType, Mode, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, chmodat, chownat, fchmod,
        fstat, ftruncate, utimensat,
    },
    io::Errno,
    path::DecInt,
    process::{Gid, Uid},
};

use super::{Folder, data::Need, nodes::Node};
use crate::wire::{
    call::{Changes, Time},
    reply::Reply,
};

const RUN_AS_OWNER: u32 = 0o4000;
const RUN_AS_GROUP: u32 = 0o2000;
const GROUP_RUNS: u32 = 0o0010;
const SOMEBODY_RUNS: u32 = 0o0111;

impl Folder {
    pub(super) fn tell_attributes(&self, node: &Node, reply: &mut Reply) -> Result<(), Errno> {
        reply.attributes(&fstat(node.anchor())?, self.caching.valid());
        Ok(())
    }

    pub(super) fn change_attributes(
        &self,
        node: &Arc<Node>,
        changes: &Changes,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if let Some(size) = changes.size {
            if node.kind == FileType::Directory {
                return Err(Errno::ISDIR);
            }
            ftruncate(self.data(node, Need::Write)?, size)?;
            if changes.drops_privileges {
                self.drop_privileges(node)?;
            }
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            let (uid, gid) = (changes.uid.map(Uid::from_raw), changes.gid.map(Gid::from_raw));
            chownat(node.anchor(), c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = changes.mode {
            self.change_mode(node, mode)?;
        }
        if (changes.accessed, changes.modified) != (Time::Keep, Time::Keep) {
            let times = Timestamps {
                last_access: as_timespec(changes.accessed),
                last_modification: as_timespec(changes.modified),
            };
            utimensat(node.anchor(), c"", &times, AtFlags::EMPTY_PATH)?;
        }
        self.tell_attributes(node, reply)
    }

    fn change_mode(&self, node: &Node, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        // A descriptor to the contents can be asked itself; the one that a node always has cannot.
        if let Some(data) = node.data().as_ref() {
            return fchmod(&data.descriptor, mode);
        }
        chmodat(&self.descriptors, DecInt::from_fd(node.anchor()), mode, AtFlags::empty())
    }

    /// What the kernel does of itself when an ordinary user writes to a file.
    pub(super) fn drop_privileges(&self, node: &Node) -> Result<(), Errno> {
        let Stat { st_mode: mode, .. } = fstat(node.anchor())?;
        if FileType::from_raw_mode(mode) != FileType::RegularFile {
            return Ok(());
        }
        let without = unprivileged(mode);
        if without != mode {
            self.change_mode(node, without)?;
        }
        if mode & SOMEBODY_RUNS != 0 {
            match rustix::fs::removexattr(Folder::path(node), c"security.capability") {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// A mode without the right to run as someone else. Without the group's right to run,
/// its bit means something else and stays.
fn unprivileged(mode: u32) -> u32 {
    let group = if mode & GROUP_RUNS != 0 { RUN_AS_GROUP } else { 0 };
    mode & !(RUN_AS_OWNER | group)
}

fn as_timespec(time: Time) -> Timespec {
    match time {
        Time::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Time::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Time::At(time) => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_to_run_as_someone_else_go() {
        #[rustfmt::skip]
        let cases = [
            (0o100_755, 0o100_755),
            (0o104_755, 0o100_755),
            (0o102_755, 0o100_755),
            (0o106_755, 0o100_755),
            (0o102_744, 0o102_744),
            (0o104_644, 0o100_644),
        ];
        for (mode, expected) in cases {
            assert_eq!(unprivileged(mode), expected, "{mode:o}");
        }
    }
}
