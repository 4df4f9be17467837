//! Remembers, beside the store, which version was last acknowledged.
//!
//! After a crash redb goes back one commit if the newest does not verify: right
//! when the crash tore it, wrong when it was acknowledged and damaged later.
//! The mark tells these apart. It is written after each commit and not synced:
//! one that is behind only notices less.
//!
//! The one invariant: the mark is never ahead of what was durable.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::place;
use crate::store::key::Version;

const LENGTH: usize = 28;

#[derive(Debug)]
pub(super) struct Mark {
    path: PathBuf,
    file: File,
    cluster: Uuid,
}

impl Mark {
    /// Where the mark of a store lies.
    pub(super) fn path(store: &Path) -> PathBuf {
        place::beside(store, ".mark")
    }

    pub(super) fn open(store: &Path, cluster: Uuid) -> io::Result<Mark> {
        let path = Mark::path(store);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path)?;
        Ok(Mark { path, file, cluster })
    }

    /// The version that was acknowledged at least. Without a mark of this very
    /// store nothing is known.
    pub(super) fn read(&self) -> io::Result<Option<Version>> {
        let mut bytes = [0; LENGTH];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let number = u64::from_le_bytes(bytes[16..24].try_into().expect("the slice has eight bytes"));
        let version = Version::new(number);
        Ok((bytes == encode(self.cluster, version)).then_some(version))
    }

    pub(super) fn write(&self, version: Version) -> io::Result<()> {
        self.file.write_all_at(&encode(self.cluster, version), 0)
    }

    pub(super) fn location(&self) -> &Path {
        &self.path
    }
}

fn encode(cluster: Uuid, version: Version) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..16].copy_from_slice(cluster.as_bytes());
    bytes[16..24].copy_from_slice(&version.get().to_le_bytes());
    let crc = crc32fast::hash(&bytes[..24]);
    bytes[24..].copy_from_slice(&crc.to_le_bytes());
    bytes
}
