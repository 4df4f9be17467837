//! The fence on disk: the highest epoch this replica has ever been asked to
//! prepare or promise, and when it was last in service.
//!
//! Two slots of one page each are written one after the other, so a torn write leaves
//! one of them whole, and damage to one of them loses nothing. A slot has a version, a
//! serial number and a checksum.
//!
//! Invariant: `load` gives an epoch at least as high as every one that `store`
//! returned for, whatever happens to a write that did not return; after `mirror`,
//! whatever happens to one slot.

use std::io;

use super::disk::Disk;
use crate::epoch::Epoch;

const FILE: &str = "promise";
const SLOT: usize = 4096;
const MAGIC: &[u8; 8] = b"mfpromis";
const VERSION: u32 = 1;

#[derive(Debug, Clone)]
pub struct PromiseFile<D: Disk> {
    disk: D,
    file: D::File,
    serial: u64,
    standing: Standing,
}

/// What a replica must not forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Standing {
    /// The highest epoch it was asked to prepare or promise.
    pub epoch: Epoch,
    /// Member version at which it was last in service.
    pub version: u64,
    /// Run of the machine in which it was last in service.
    pub boot: u64,
}

/// Why the promise cannot be read. Serving without it could let two engines write.
#[derive(Debug, thiserror::Error)]
pub enum BadPromise {
    #[error("read the promise")]
    Io(#[from] io::Error),
    #[error("both copies of the promise are damaged")]
    Damaged,
    #[error("the promise has format {theirs}, this build reads {VERSION}")]
    Version { theirs: u32 },
}

impl<D: Disk> PromiseFile<D> {
    /// Opens the promise of a folder; a new folder has promised nothing.
    pub fn open(disk: D) -> Result<PromiseFile<D>, BadPromise> {
        let file = disk.open(FILE)?;
        if disk.size(&file)? < (2 * SLOT) as u64 {
            disk.resize(&file, (2 * SLOT) as u64)?;
            disk.sync(&file)?;
            disk.sync_folder()?;
        }
        let mut raw = vec![0; 2 * SLOT];
        disk.read_at(&file, &mut raw, 0)?;
        let slots = [decode(&raw[..SLOT])?, decode(&raw[SLOT..])?];
        let untouched = raw.iter().all(|byte| *byte == 0);
        match slots.into_iter().flatten().max() {
            Some((serial, standing)) => {
                let mut promise = PromiseFile { disk, file, serial, standing };
                if slots[0] != slots[1] {
                    promise.repair()?;
                }
                Ok(promise)
            }
            None if untouched => Ok(PromiseFile { disk, file, serial: 0, standing: Standing::default() }),
            None => {
                // The very first write may have been torn: then the other slot is still blank.
                let other_blank = raw[..SLOT].iter().all(|byte| *byte == 0);
                if other_blank {
                    return Ok(PromiseFile { disk, file, serial: 0, standing: Standing::default() });
                }
                Err(BadPromise::Damaged)
            }
        }
    }

    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Durable, in one of the slots, when it returns. `mirror` is to follow.
    pub fn store(&mut self, standing: Standing) -> io::Result<()> {
        let serial = self.serial + 1;
        self.put(serial % 2, serial, standing)?;
        self.serial = serial;
        self.standing = standing;
        Ok(())
    }

    /// Brings the other slot to the same state.
    pub fn mirror(&mut self) -> io::Result<()> {
        self.put((self.serial + 1) % 2, self.serial, self.standing)
    }

    /// Brings both slots to the same state, whichever of them was damaged.
    fn repair(&mut self) -> io::Result<()> {
        let slots = [self.serial + 1, self.serial].map(|serial| serial % 2);
        slots.into_iter().try_for_each(|slot| self.put(slot, self.serial, self.standing))
    }

    fn put(&self, slot: u64, serial: u64, standing: Standing) -> io::Result<()> {
        self.disk.write_at(&self.file, &encode(serial, standing), slot * SLOT as u64)?;
        self.disk.sync(&self.file)
    }
}

fn encode(serial: u64, standing: Standing) -> [u8; SLOT] {
    let mut raw = [0; SLOT];
    raw[..8].copy_from_slice(MAGIC);
    raw[8..12].copy_from_slice(&VERSION.to_le_bytes());
    raw[16..24].copy_from_slice(&serial.to_le_bytes());
    raw[24..32].copy_from_slice(&standing.epoch.bits().to_le_bytes());
    raw[32..40].copy_from_slice(&standing.version.to_le_bytes());
    raw[40..48].copy_from_slice(&standing.boot.to_le_bytes());
    let check = crc32fast::hash(&raw[..SLOT - 4]);
    raw[SLOT - 4..].copy_from_slice(&check.to_le_bytes());
    raw
}

fn decode(raw: &[u8]) -> Result<Option<(u64, Standing)>, BadPromise> {
    let word = |at: usize| u64::from_le_bytes(raw[at..at + 8].try_into().expect("eight bytes"));
    let (body, check) = raw.split_at(SLOT - 4);
    if crc32fast::hash(body).to_le_bytes() != check || &raw[..8] != MAGIC {
        return Ok(None);
    }
    let version = u32::from_le_bytes(raw[8..12].try_into().expect("four bytes"));
    if version != VERSION {
        return Err(BadPromise::Version { theirs: version });
    }
    Ok(Some((word(16), Standing { epoch: Epoch::from_bits(word(24)), version: word(32), boot: word(40) })))
}

#[cfg(test)]
mod tests {
    use super::{super::disk::Folder, *};

    fn standing(term: u64) -> Standing {
        Standing { epoch: Epoch::of_term(term), version: term * 10, boot: 7 }
    }

    #[test]
    fn damage_to_one_slot_loses_nothing_and_to_both_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Folder::take(dir.path()).unwrap();
        let mut promise = PromiseFile::open(disk.clone()).unwrap();
        assert_eq!(promise.standing(), Standing::default());
        for term in 1..=3 {
            promise.store(standing(term)).unwrap();
            promise.mirror().unwrap();
        }
        let file = disk.open(FILE).unwrap();
        for slot in [0, 1] {
            let mut whole = [0; SLOT];
            disk.read_at(&file, &mut whole, slot * SLOT as u64).unwrap();
            disk.write_at(&file, &[0xff; 100], slot * SLOT as u64 + 2000).unwrap();
            assert_eq!(PromiseFile::open(disk.clone()).unwrap().standing(), standing(3));
            let mut mended = [0; SLOT];
            disk.read_at(&file, &mut mended, slot * SLOT as u64).unwrap();
            assert!(mended == whole, "slot {slot} is as before, so that damage to the other loses nothing");
        }
        disk.write_at(&file, &[0xff; 100], 2000).unwrap();
        disk.write_at(&file, &[0xff; 100], SLOT as u64 + 2000).unwrap();
        assert!(matches!(PromiseFile::open(disk), Err(BadPromise::Damaged)));
    }

    #[test]
    fn a_torn_write_leaves_the_promise_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Folder::take(dir.path()).unwrap();
        let mut promise = PromiseFile::open(disk.clone()).unwrap();
        (1..=2).for_each(|term| promise.store(standing(term)).and_then(|()| promise.mirror()).unwrap());
        let file = disk.open(FILE).unwrap();
        disk.write_at(&file, &encode(3, standing(3))[..1000], SLOT as u64).unwrap();
        assert_eq!(PromiseFile::open(disk).unwrap().standing(), standing(2));
    }

    #[test]
    fn a_torn_first_write_is_no_promise() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Folder::take(dir.path()).unwrap();
        PromiseFile::open(disk.clone()).unwrap();
        let file = disk.open(FILE).unwrap();
        disk.write_at(&file, &encode(1, standing(1))[..1000], SLOT as u64).unwrap();
        assert_eq!(PromiseFile::open(disk).unwrap().standing(), Standing::default());
    }
}
