//! What the blocks of a frozen layer must be: a checksum for each, in sectors that
//! carry their own.
//!
//! Invariant: 0 stands for a block of zeroes and for nothing else, so a hole needs
//! no entry.

use std::io;

use super::{
    super::disk::Disk,
    bits::{SECTOR, Sector, damaged, is_whole, seal},
    reading::Patience,
};

const PER_SECTOR: u64 = (SECTOR as u64 - 4) / 4;

#[derive(Debug, Clone)]
pub(super) struct SumFile<D: Disk> {
    disk: D,
    file: D::File,
}

/// The checksum of a block.
pub(super) fn sum(block: &[u8]) -> u32 {
    if block.iter().all(|byte| *byte == 0) { 0 } else { crc32fast::hash(block).max(1) }
}

impl<D: Disk> SumFile<D> {
    /// Opens the sums of a layer, making room for `limit` blocks.
    pub(super) fn open(disk: &D, name: &str, limit: u64) -> io::Result<SumFile<D>> {
        let file = disk.open(name)?;
        let bytes = limit.div_ceil(PER_SECTOR) * SECTOR as u64;
        if disk.size(&file)? < bytes {
            disk.resize(&file, bytes)?;
        }
        Ok(SumFile { disk: disk.clone(), file })
    }

    fn sector(&self, number: u64, patience: Patience) -> io::Result<Sector> {
        let mut sector = [0; SECTOR];
        patience.read(&self.disk, &self.file, &mut sector, number * SECTOR as u64)?;
        match is_whole(number, &sector) {
            true => Ok(sector),
            false => Err(damaged(format!("sector {number} of a layer's checksums is damaged"))),
        }
    }

    /// The sums of neighbouring blocks.
    pub(super) fn get(&self, first: u64, count: usize, patience: Patience) -> io::Result<Vec<u32>> {
        let mut sums = Vec::with_capacity(count);
        let mut sector = (u64::MAX, [0; SECTOR]);
        for block in first..first + count as u64 {
            if sector.0 != block / PER_SECTOR {
                sector = (block / PER_SECTOR, self.sector(block / PER_SECTOR, patience)?);
            }
            let at = (block % PER_SECTOR) as usize * 4;
            sums.push(u32::from_le_bytes(sector.1[at..at + 4].try_into().expect("four bytes")));
        }
        Ok(sums)
    }

    /// Where the sums of blocks from one to before another are: a file, an offset and a length.
    pub(super) fn range(&self, first: u64, end: u64) -> (D::File, u64, u64) {
        let (from, to) = (first / PER_SECTOR, end.div_ceil(PER_SECTOR));
        (self.file.clone(), from * SECTOR as u64, (to - from) * SECTOR as u64)
    }

    pub(super) fn file(&self) -> D::File {
        self.file.clone()
    }

    /// Written, not synced. A sector that was torn in an earlier attempt is begun anew.
    pub(super) fn put(&self, first: u64, sums: &[u32]) -> io::Result<()> {
        let mut at = 0;
        while at < sums.len() {
            let block = first + at as u64;
            let number = block / PER_SECTOR;
            let mut sector = self.sector(number, Patience::Wait).unwrap_or([0; SECTOR]);
            let slot = (block % PER_SECTOR) as usize;
            let count = (PER_SECTOR as usize - slot).min(sums.len() - at);
            for (offset, sum) in sums[at..at + count].iter().enumerate() {
                sector[(slot + offset) * 4..(slot + offset) * 4 + 4].copy_from_slice(&sum.to_le_bytes());
            }
            seal(number, &mut sector);
            self.disk.write_at(&self.file, &sector, number * SECTOR as u64)?;
            at += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::memory::MemoryDisk, *};

    #[test]
    fn sums_cross_sectors_and_a_flipped_bit_is_an_error() {
        let disk = MemoryDisk::default();
        let sums = SumFile::open(&disk, "sum", 1000).unwrap();
        let values: Vec<u32> = (1..=300).collect();
        sums.put(100, &values).unwrap();
        assert_eq!(sums.get(100, 300, Patience::Wait).unwrap(), values);
        assert_eq!(sums.get(98, 3, Patience::Wait).unwrap(), [0, 0, 1]);
        disk.write_at(&disk.open("sum").unwrap(), &[9], 700).unwrap();
        assert!(sums.get(150, 1, Patience::Wait).is_err());
        assert_eq!((sum(&[0; 8]), sum(&[1; 8]) > 0), (0, true));
    }
}
