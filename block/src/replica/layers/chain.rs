//! The layers of a copy on disk: which there are, in which order, and how far each
//! has come.
//!
//! Every state is written to two slots, one after the other: a torn write leaves
//! the state before it in the other one, and a flipped byte the same state. A slot
//! has a format, a serial number and a checksum.
//!
//! Invariant: a change of the layers is this file's next serial number and nothing
//! else; files it does not name are rubbish.

use std::{fs, io, ops::RangeInclusive, path::Path};

use serde::{Deserialize, Serialize};

use super::{super::disk::Disk, bits::damaged};
use crate::wire::layout::{Layout, Snapshot};

pub(super) const FILE: &str = "layers";
const SLOT: usize = 128 << 10;
const HEADER: usize = 28;
const MAGIC: &[u8; 8] = b"mfchain\0";
const FIRST_FORMAT: u32 = 1;
/// The list says of which volume this is a copy; see `Chain::volume`.
pub(super) const NAMED_FORMAT: u32 = 2;
/// Formats of a replica's folder that this build reads. It writes the oldest that can
/// say what it has to, and what only a newer one can say only once the upgrade is final.
pub const FORMATS: RangeInclusive<u32> =
    FIRST_FORMAT..=if cfg!(feature = "next") { NAMED_FORMAT } else { FIRST_FORMAT };

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Chain {
    pub(super) size: u64,
    /// Oldest first.
    pub(super) frozen: Vec<Link>,
    pub(super) head: u64,
    /// Whether something that the head needs is damaged.
    pub(super) broken: bool,
    /// Whether the layers of another copy are being taken over: the head holds nothing.
    pub(super) adopting: bool,
    /// Whether the head is being copied whole: it does not have all its blocks. A build that does not know of it takes
    /// the head for whole, as all did once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) filling: bool,
    /// The volume this is a copy of: a folder is not opened for another. From format 2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) volume: Option<String>,
}

/// A frozen layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) name: String,
    /// Where the volume ended when it was frozen.
    pub(super) size: u64,
    pub(super) state: State,
    /// Whether what it has is on its way to the layer above.
    pub(super) removing: bool,
    /// Whether it was sealed when it was found damaged: what is not damaged can still be told from what is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) checked: bool,
}

impl Link {
    pub(super) fn new(id: u64, name: String, size: u64, state: State) -> Link {
        Link { id, name, size, state, removing: false, checked: false }
    }

    /// A block of it was found not to be what it must be.
    pub(super) fn damage(&mut self) {
        self.checked = match self.state {
            State::Sealed => true,
            State::Damaged => self.checked,
            State::Filling | State::Frozen => false,
        };
        self.state = State::Damaged;
    }

    /// Whether every block of it has a checksum.
    pub(super) fn has_sums(&self) -> bool {
        match self.state {
            State::Sealed => true,
            State::Damaged => self.checked,
            State::Filling | State::Frozen => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum State {
    /// It is being copied from another replica.
    Filling,
    /// It has all its blocks, not all their checksums.
    Frozen,
    /// Every block of it is checked when it is read.
    Sealed,
    /// A block was found not to be what it must be.
    Damaged,
}

impl Chain {
    /// The oldest format that can say all this.
    fn format(&self) -> u32 {
        match self.volume {
            None => FIRST_FORMAT,
            Some(_) => NAMED_FORMAT,
        }
    }

    /// Places of the layers that count as snapshots.
    pub(super) fn kept(&self) -> Vec<usize> {
        (0..self.frozen.len()).filter(|at| !self.frozen[*at].removing).collect()
    }

    pub(super) fn layout(&self) -> Layout {
        let snapshot = |at: usize| Snapshot { id: self.frozen[at].id, name: self.frozen[at].name.clone() };
        Layout {
            size: self.size,
            snapshots: self.kept().into_iter().map(snapshot).collect(),
            head: self.head,
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        let whole = |link: &Link| matches!(link.state, State::Frozen | State::Sealed);
        !self.broken && !self.adopting && !self.filling && self.frozen.iter().all(whole)
    }
}

#[derive(Debug, Clone)]
pub(super) struct ChainFile<D: Disk> {
    disk: D,
    file: D::File,
    serial: u64,
    now: Chain,
}

impl<D: Disk> ChainFile<D> {
    /// Opens the chain of a folder; a folder without one gets one of `size` bytes.
    pub(super) fn open(disk: &D, size: u64) -> io::Result<ChainFile<D>> {
        let file = disk.open(FILE)?;
        if disk.size(&file)? < 2 * SLOT as u64 {
            disk.resize(&file, 2 * SLOT as u64)?;
        }
        let slots = [read(disk, &file, 0)?, read(disk, &file, 1)?];
        let alike = slots[0] == slots[1];
        match slots.into_iter().flatten().max_by_key(|(serial, _)| *serial) {
            Some((serial, now)) => {
                let mut chain = ChainFile { disk: disk.clone(), file, serial, now };
                if !alike {
                    chain.store(chain.now.clone())?;
                }
                Ok(chain)
            }
            // The first slot may be torn by the very first write.
            None if is_blank(disk, &file)? => {
                let now = Chain {
                    size,
                    frozen: Vec::new(),
                    head: 0,
                    broken: false,
                    adopting: false,
                    filling: false,
                    volume: None,
                };
                Ok(ChainFile { disk: disk.clone(), file, serial: 0, now })
            }
            None => Err(damaged("both copies of the list of layers are damaged".into())),
        }
    }

    /// Whether this folder never had a chain.
    pub(super) fn is_new(&self) -> bool {
        self.serial == 0
    }

    pub(super) fn now(&self) -> &Chain {
        &self.now
    }

    /// Durable when it returns.
    pub(super) fn store(&mut self, chain: Chain) -> io::Result<()> {
        let draft = self.draft(chain)?;
        draft.write(&self.disk)?;
        self.settle(draft);
        Ok(())
    }

    /// The next state, for someone to write. There is no other until it is settled.
    pub(super) fn draft(&self, chain: Chain) -> io::Result<Draft<D>> {
        let serial = self.serial + 1;
        let body = serde_json::to_vec(&chain)?;
        if body.len() + HEADER > SLOT {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many layers"));
        }
        let mut raw = Vec::with_capacity(HEADER + body.len());
        raw.extend(MAGIC);
        raw.extend(chain.format().to_le_bytes());
        raw.extend((body.len() as u32).to_le_bytes());
        raw.extend(serial.to_le_bytes());
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&raw);
        hasher.update(&body);
        raw.extend(hasher.finalize().to_le_bytes());
        raw.extend(body);
        Ok(Draft { file: self.file.clone(), serial, chain, raw })
    }

    /// It was written, or put.
    pub(super) fn settle(&mut self, draft: Draft<D>) {
        self.serial = draft.serial;
        self.now = draft.chain;
    }
}

/// A state of the chain on its way to the disk.
#[derive(Debug, Clone)]
pub(super) struct Draft<D: Disk> {
    file: D::File,
    serial: u64,
    chain: Chain,
    raw: Vec<u8>,
}

impl<D: Disk> Draft<D> {
    /// Durable when it returns.
    pub(super) fn write(&self, disk: &D) -> io::Result<()> {
        self.put(disk)?;
        self.finish(disk)
    }

    /// Counts from now on while the machine runs; a process that is killed is followed by one that reads it. Nobody
    /// syncs, and the other slot has the state before.
    pub(super) fn put(&self, disk: &D) -> io::Result<()> {
        disk.write_at(&self.file, &self.raw, 0)
    }

    /// What was put is durable when it returns, in both slots.
    pub(super) fn finish(&self, disk: &D) -> io::Result<()> {
        disk.sync(&self.file)?;
        disk.write_at(&self.file, &self.raw, SLOT as u64)?;
        disk.sync(&self.file)
    }
}

/// The chain of a folder that another process may own, as it is or was a moment ago.
pub(super) fn peek(folder: &Path) -> io::Result<Chain> {
    let raw = fs::read(folder.join(FILE))?;
    let slots: Vec<(u64, Chain)> =
        raw.chunks(SLOT).filter_map(|slot| decode(slot).transpose()).collect::<io::Result<_>>()?;
    let newest = slots.into_iter().max_by_key(|(serial, _)| *serial);
    newest.map(|(_, chain)| chain).ok_or_else(|| damaged("there is no list of layers".into()))
}

fn read<D: Disk>(disk: &D, file: &D::File, slot: u64) -> io::Result<Option<(u64, Chain)>> {
    let mut raw = vec![0; SLOT];
    disk.read_at(file, &mut raw, slot * SLOT as u64)?;
    decode(&raw)
}

/// What a slot holds, unless it was torn or never written.
fn decode(raw: &[u8]) -> io::Result<Option<(u64, Chain)>> {
    if raw.len() < SLOT {
        return Ok(None);
    }
    let four = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().expect("four bytes"));
    let length = four(12) as usize;
    if &raw[..8] != MAGIC || length > SLOT - HEADER {
        return Ok(None);
    }
    let body = &raw[HEADER..HEADER + length];
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&raw[..HEADER - 4]);
    hasher.update(body);
    if hasher.finalize() != four(HEADER - 4) {
        return Ok(None);
    }
    if !FORMATS.contains(&four(8)) {
        let text = format!(
            "the folder has format {}, this build reads {} to {}",
            four(8),
            FORMATS.start(),
            FORMATS.end()
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let serial = u64::from_le_bytes(raw[16..24].try_into().expect("eight bytes"));
    Ok(Some((serial, serde_json::from_slice(body)?)))
}

/// Whether the second slot was never written.
fn is_blank<D: Disk>(disk: &D, file: &D::File) -> io::Result<bool> {
    let mut raw = vec![0; SLOT];
    disk.read_at(file, &mut raw, SLOT as u64)?;
    Ok(raw.iter().all(|byte| *byte == 0))
}
