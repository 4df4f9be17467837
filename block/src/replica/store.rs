//! The bytes of one copy of a volume.
//!
//! Invariant: a read returns, for every byte, the last write applied to it.

use std::io;

use bytes::{Bytes, BytesMut};

use super::disk::Disk;
use crate::extent::Extent;

const HEAD: &str = "head.img";

#[derive(Debug)]
pub struct Store<D: Disk> {
    disk: D,
    head: D::File,
    size: u64,
}

impl<D: Disk> Store<D> {
    /// Opens the copy in a folder, making an empty one of `size` bytes if there is none.
    pub fn open(disk: D, size: u64) -> io::Result<Store<D>> {
        let head = disk.open(HEAD)?;
        let found = disk.size(&head)?;
        if found == 0 {
            disk.resize(&head, size)?;
            disk.sync(&head)?;
            disk.sync_folder()?;
        } else if found != size {
            let text = format!("the folder holds a volume of {found} bytes, not {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Store { disk, head, size })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn read(&self, extent: Extent) -> io::Result<Bytes> {
        let mut buffer = BytesMut::zeroed(extent.length() as usize);
        self.disk.read_at(&self.head, &mut buffer, extent.offset())?;
        Ok(buffer.freeze())
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write_at(&self.head, data, offset)
    }

    /// Makes an extent read as zeroes.
    pub fn clear(&mut self, extent: Extent) -> io::Result<()> {
        if extent.length() == 0 {
            return Ok(());
        }
        self.disk.punch(&self.head, extent.offset(), u64::from(extent.length()))
    }

    /// The files that hold what was written so far, to be synced elsewhere.
    pub fn written_files(&self) -> Vec<D::File> {
        vec![self.head.clone()]
    }
}
