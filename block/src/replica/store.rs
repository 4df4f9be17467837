//! The bytes of one copy of a volume, with the notes that every change leaves:
//! where copies may differ after a crash, and what absent copies miss.
//!
//! Invariant: a read returns, for every byte, the last write applied to it; no
//! byte changes before its region is durably noted.

use std::io;

use bytes::{Bytes, BytesMut};

use super::{absent::Absent, disk::Disk, intent::Intent};
use crate::{
    blocks::{BLOCK_BITS, Blocks, REGION_BITS},
    extent::Extent,
};

const HEAD: &str = "head.img";

#[derive(Debug)]
pub struct Store<D: Disk> {
    disk: D,
    head: D::File,
    size: u64,
    intent: Intent<D>,
    pub absent: Absent<D>,
}

impl<D: Disk> Store<D> {
    /// Opens the copy in a folder, making an empty one of `size` bytes if there is none.
    pub fn open(disk: &D, size: u64) -> io::Result<Store<D>> {
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
        let intent = Intent::open(disk, size)?;
        let suspect = intent.regions().refine(REGION_BITS, BLOCK_BITS, size.div_ceil(1 << BLOCK_BITS));
        let absent = Absent::open(disk, size, &suspect)?;
        Ok(Store { disk: disk.clone(), head, size, intent, absent })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many blocks the volume has.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(1 << BLOCK_BITS)
    }

    pub fn read(&self, extent: Extent) -> io::Result<Bytes> {
        let mut buffer = BytesMut::zeroed(extent.length() as usize);
        self.disk.read_at(&self.head, &mut buffer, extent.offset())?;
        Ok(buffer.freeze())
    }

    /// Whether an extent may be changed now. If not, it may be after the sync of
    /// the intent map that `begin_note` begins.
    pub fn admit(&mut self, extent: Extent) -> io::Result<bool> {
        self.intent.admit(extent.offset(), u64::from(extent.length()))
    }

    pub fn begin_note(&mut self) -> Vec<u64> {
        self.intent.begin_sync_map()
    }

    pub fn noted(&mut self, regions: &[u64]) {
        self.intent.synced_map(regions);
    }

    pub fn intent_file(&self) -> D::File {
        self.intent.file()
    }

    /// Regions in which this copy may differ from others after a crash.
    pub fn regions(&self) -> Blocks {
        self.intent.regions()
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.absent.mark(offset, data.len() as u64)?;
        self.disk.write_at(&self.head, data, offset)
    }

    /// Makes an extent read as zeroes.
    pub fn clear(&mut self, extent: Extent) -> io::Result<()> {
        if extent.length() == 0 {
            return Ok(());
        }
        self.absent.mark(extent.offset(), u64::from(extent.length()))?;
        self.disk.punch(&self.head, extent.offset(), u64::from(extent.length()))
    }

    /// The files that hold what was written so far, to be synced elsewhere.
    pub fn written_files(&self) -> Vec<D::File> {
        self.absent.files().chain([self.head.clone()]).collect()
    }

    /// A flush of this number has arrived; what was written before it will be
    /// durable when it is answered.
    pub fn flush_began(&mut self, number: u64) {
        self.intent.flush_began(number);
    }

    /// Every copy has completed the flush of this number.
    pub fn settled(&mut self, number: u64) -> io::Result<()> {
        self.intent.settled(number)
    }
}
