//! An answer, written to bytes.
//!
//! Invariant: an answer that tells an error tells nothing else; every other has the
//! length that the kernel expects of its call.

use std::time::Duration;

use midflight_handover::kernel::{HEAD_OUT, answer_head};
use rustix::{
    fs::{FileType, Stat, StatVfs},
    io::Errno,
};

use super::{MOST_DATA, call::NodeId};

/// What is said of a node that was looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) node: NodeId,
    pub(crate) stat: &'a Stat,
    /// How long name and attributes stay true.
    pub(crate) valid: Duration,
}

/// One line of a listing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) inode: u64,
    pub(crate) kind: FileType,
    pub(crate) name: &'a [u8],
    /// Where the listing goes on behind it.
    pub(crate) next: u64,
}

/// Length of what is said of a node that was looked up.
const ENTRY: usize = 128;

/// The answer to one call after another, in one piece of memory.
#[derive(Debug)]
pub(crate) struct Reply {
    /// As long as the longest answer.
    raw: Box<[u8]>,
    /// Where the present answer ends.
    end: usize,
}

impl Reply {
    pub(crate) fn new() -> Reply {
        Reply { raw: vec![0; HEAD_OUT + MOST_DATA].into(), end: HEAD_OUT }
    }

    /// Forgets the answer before.
    pub(crate) fn begin(&mut self) {
        self.end = HEAD_OUT;
    }

    /// The bytes to write to the session.
    pub(crate) fn finish(&mut self, unique: u64, result: Result<(), Errno>) -> &[u8] {
        let error = match result {
            Ok(()) => 0,
            Err(errno) => {
                self.end = HEAD_OUT;
                -errno.raw_os_error()
            }
        };
        let head = answer_head(unique, error, self.length());
        self.raw[..HEAD_OUT].copy_from_slice(&head);
        &self.raw[..self.end]
    }

    /// Bytes behind the head so far.
    pub(crate) fn length(&self) -> usize {
        self.end - HEAD_OUT
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let end = self.end + bytes.len();
        self.raw[self.end..end].copy_from_slice(bytes);
        self.end = end;
    }

    /// Adds what a reader puts into the room it is given; gives how much that was.
    pub(crate) fn read(
        &mut self,
        room: usize,
        reader: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let count = reader(&mut self.raw[self.end..self.end + room])?;
        self.end += count;
        Ok(count)
    }

    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_ne_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_ne_bytes());
    }

    pub(crate) fn entry(&mut self, entry: &Entry<'_>) {
        self.u64(entry.node.0);
        self.u64(0);
        self.u64(entry.valid.as_secs());
        self.u64(entry.valid.as_secs());
        self.u32(entry.valid.subsec_nanos());
        self.u32(entry.valid.subsec_nanos());
        self.stat(entry.stat);
    }

    /// There is nothing of that name, and that stays true for a while.
    pub(crate) fn absent(&mut self, valid: Duration) {
        let mut raw = [0; ENTRY];
        raw[16..24].copy_from_slice(&valid.as_secs().to_ne_bytes());
        self.bytes(&raw);
    }

    pub(crate) fn attributes(&mut self, stat: &Stat, valid: Duration) {
        self.u64(valid.as_secs());
        self.u32(valid.subsec_nanos());
        self.u32(0);
        self.stat(stat);
    }

    fn stat(&mut self, stat: &Stat) {
        let words = [stat.st_ino, stat.st_size as u64, stat.st_blocks as u64];
        words.into_iter().for_each(|word| self.u64(word));
        let times = [stat.st_atime, stat.st_mtime, stat.st_ctime];
        times.into_iter().for_each(|seconds| self.u64(seconds as u64));
        let parts = [stat.st_atime_nsec, stat.st_mtime_nsec, stat.st_ctime_nsec];
        parts.into_iter().for_each(|nanoseconds| self.u32(nanoseconds as u32));
        self.u32(stat.st_mode);
        self.u32(u32::try_from(stat.st_nlink).unwrap_or(u32::MAX));
        self.u32(stat.st_uid);
        self.u32(stat.st_gid);
        self.u32(encoded_device(stat.st_rdev));
        self.u32(stat.st_blksize as u32);
        self.u32(0);
    }

    /// A file or folder is open; there is no state to remember of it.
    pub(crate) fn opened(&mut self) {
        self.bytes(&[0; 16]);
    }

    pub(crate) fn written(&mut self, count: usize) {
        self.u32(count as u32);
        self.u32(0);
    }

    pub(crate) fn position(&mut self, offset: u64) {
        self.u64(offset);
    }

    /// How much room a value needs, to someone who asked only that.
    pub(crate) fn needed(&mut self, length: usize) {
        self.u32(length as u32);
        self.u32(0);
    }

    pub(crate) fn statistics(&mut self, seen: &StatVfs) {
        for count in [seen.f_blocks, seen.f_bfree, seen.f_bavail, seen.f_files, seen.f_ffree] {
            self.u64(count);
        }
        for size in [seen.f_bsize, seen.f_namemax, seen.f_frsize] {
            self.u32(size as u32);
        }
        self.bytes(&[0; 28]);
    }

    /// Bytes that a line of a listing takes.
    pub(crate) fn line_length(name: &[u8], with_entry: bool) -> usize {
        let line = (24 + name.len()).next_multiple_of(8);
        if with_entry { ENTRY + line } else { line }
    }

    /// The part of a detailed line that says nothing: nobody looked that name up.
    pub(crate) fn no_entry(&mut self) {
        self.bytes(&[0; ENTRY]);
    }

    pub(crate) fn line(&mut self, line: &Line<'_>) {
        const KIND_SHIFT: u32 = 12;
        self.u64(line.inode);
        self.u64(line.next);
        self.u32(line.name.len() as u32);
        self.u32(line.kind.as_raw_mode() >> KIND_SHIFT);
        self.bytes(line.name);
        let padding = self.end.next_multiple_of(8) - self.end;
        self.bytes(&[0; 8][..padding]);
    }
}

/// Number of a device as the kernel writes it in 32 bits.
fn encoded_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}
