//! What lies under a store and its journal: files, or in tests something that fails on purpose.
//!
//! The one invariant: after `read_from_disk` what is read is what the disk has, not what the kernel would like it to have. Pages
//! that a failed sync did not bring there stay in memory and count as clean: they read well until the power goes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use redb::StorageBackend;
use rustix::fs::{Advice, fadvise};

pub(super) type Medium = Arc<dyn Storage>;

pub(super) trait Storage: StorageBackend {
    /// Brings to the disk what is still on its way, and forgets everything else that memory has of it.
    fn read_from_disk(&self) -> io::Result<()>;
}

/// Whether the disk, or the part of it that we may use, is full.
pub(in crate::store) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A file of our own. It is locked elsewhere, if at all.
#[derive(Debug)]
pub(super) struct OnFile(pub(super) File);

impl StorageBackend for OnFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

impl Storage for OnFile {
    fn read_from_disk(&self) -> io::Result<()> {
        // The kernel keeps what is not synced, whatever it is advised.
        self.0.sync_data()?;
        Ok(fadvise(&self.0, 0, None, Advice::DontNeed)?)
    }
}

#[cfg(test)]
impl Storage for redb::backends::InMemoryBackend {
    fn read_from_disk(&self) -> io::Result<()> {
        Ok(())
    }
}
