//! The few things a replica asks of a file system, so that a test can put a disk
//! that crashes in its place.
//!
//! Invariant: what was written is certain to survive a power loss only after
//! `sync` of that file, and a new name only after `sync_folder`.

use std::{
    fmt::Debug,
    fs::{File, OpenOptions},
    io::{self, IoSliceMut},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, SeekFrom},
    io::{Errno, ReadWriteFlags},
};

use crate::durable;

pub trait Disk: Debug + Clone + Send + 'static {
    type File: Debug + Clone + Send + 'static;

    /// Opens a file, making an empty one if there is none.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    fn size(&self, file: &Self::File) -> io::Result<u64>;
    /// Grows or cuts; what is new reads as zeroes and takes no room.
    fn resize(&self, file: &Self::File, size: u64) -> io::Result<()>;
    /// Fills `buffer`; past the end of the file is an error.
    fn read_at(&self, file: &Self::File, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// The same if the disk need not be waited for; else `WouldBlock`. A disk that cannot
    /// tell is waited for.
    fn read_cached(&self, file: &Self::File, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_at(&self, file: &Self::File, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes a range read as zeroes and gives its room back.
    fn punch(&self, file: &Self::File, offset: u64, length: u64) -> io::Result<()>;
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    fn sync_folder(&self) -> io::Result<()>;
    fn names(&self) -> io::Result<Vec<String>>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The first bytes at or after `from` that are not a hole, and where they end.
    fn next_data(&self, file: &Self::File, from: u64) -> io::Result<Option<(u64, u64)>>;

    fn remove_if_there(&self, name: &str) -> io::Result<()> {
        match self.names()?.iter().any(|there| there == name) {
            true => self.remove(name),
            false => Ok(()),
        }
    }
}

/// A folder that this process alone owns: an exclusive lock is held on it until
/// the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    lock: Arc<File>,
}

/// Why a folder cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeFolder {
    #[error("another process owns {}", .0.display())]
    Owned(PathBuf),
    #[error("open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
}

impl Folder {
    pub fn take(path: &Path) -> Result<Folder, TakeFolder> {
        let open = |source| TakeFolder::Open { path: path.to_owned(), source };
        // Also where it is there: whoever made it may have been killed before it was durable.
        std::fs::create_dir_all(path).and_then(|()| durable::sync_folder(path)).map_err(open)?;
        let lock = File::open(path).map_err(open)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Folder { path: path.to_owned(), lock: Arc::new(lock) }),
            Err(Errno::WOULDBLOCK) => Err(TakeFolder::Owned(path.to_owned())),
            Err(error) => Err(open(error.into())),
        }
    }

    /// A folder that another process owned, with the lock that it gave away.
    pub(super) fn given(path: &Path, lock: OwnedFd) -> Folder {
        Folder { path: path.to_owned(), lock: Arc::new(lock.into()) }
    }

    /// What makes whoever holds it the owner.
    pub(super) fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

/// Longest single write. The kernel keeps what one write brings in one piece of
/// its cache, and a later small write into a large piece walks all of it: 4 KiB
/// into what was written by megabytes cost five times as much.
const PIECE: usize = 32 << 10;

impl Disk for Folder {
    type File = Arc<File>;

    fn open(&self, name: &str) -> io::Result<Arc<File>> {
        let path = self.path.join(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map(Arc::new)
    }

    fn size(&self, file: &Arc<File>) -> io::Result<u64> {
        file.metadata().map(|data| data.len())
    }

    fn resize(&self, file: &Arc<File>, size: u64) -> io::Result<()> {
        file.set_len(size)
    }

    fn read_at(&self, file: &Arc<File>, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(buffer, offset)
    }

    fn read_cached(&self, file: &Arc<File>, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let parts = &mut [IoSliceMut::new(buffer)];
        match rustix::io::preadv2(file, parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) if count == buffer.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            Err(Errno::OPNOTSUPP) => self.read_at(file, buffer, offset),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, file: &Arc<File>, data: &[u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        data.chunks(PIECE).try_for_each(|piece| {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
            Ok(())
        })
    }

    fn punch(&self, file: &Arc<File>, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(file, flags, offset, length)?)
    }

    fn sync(&self, file: &Arc<File>) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.lock.sync_all()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn next_data(&self, file: &Arc<File>, from: u64) -> io::Result<Option<(u64, u64)>> {
        match rustix::fs::seek(file, SeekFrom::Data(from)) {
            Ok(start) => Ok(Some((start, rustix::fs::seek(file, SeekFrom::Hole(start))?))),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::take(dir.path()).unwrap();
        assert!(matches!(Folder::take(dir.path()), Err(TakeFolder::Owned(_))));
        drop(first);
        Folder::take(dir.path()).unwrap();
    }

    #[test]
    fn what_the_kernel_has_forgotten_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Folder::take(dir.path()).unwrap();
        let file = disk.open("a").unwrap();
        disk.write_at(&file, &[7; 1 << 20], 0).unwrap();
        disk.sync(&file).unwrap();
        let mut seen = vec![0; 4096];
        disk.read_cached(&file, &mut seen, 4096).unwrap();
        assert_eq!(seen, [7; 4096]);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let cold = disk.read_cached(&file, &mut seen, 512 << 10).map_err(|error| error.kind());
        assert_eq!(cold, Err(io::ErrorKind::WouldBlock));
        disk.read_at(&file, &mut seen, 512 << 10).unwrap();
        disk.read_cached(&file, &mut seen, 512 << 10).unwrap();
        assert_eq!(seen, [7; 4096]);
    }

    #[test]
    fn a_punched_range_reads_as_zeroes_and_takes_no_room() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let disk = Folder::take(dir.path()).unwrap();
        let file = disk.open("a").unwrap();
        disk.write_at(&file, &[7; 1 << 20], 0).unwrap();
        disk.sync(&file).unwrap();
        let before = file.metadata().unwrap().blocks();
        disk.punch(&file, 0, 1 << 19).unwrap();
        let mut seen = [1; 4096];
        disk.read_at(&file, &mut seen, 4096).unwrap();
        assert_eq!(seen, [0; 4096]);
        assert!(file.metadata().unwrap().blocks() < before);
    }
}
