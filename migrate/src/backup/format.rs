//! The bytes of a backup file.
//!
//! The one invariant: a file that is cut, or of which a single bit was changed, is refused.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use sha2::{Digest, Sha256};

use super::{BackupError, Header};
use crate::lanes;
use crate::record::{RowKey, Snapshot, Table};

const MAGIC: &[u8; 8] = b"MIDFLBAK";
pub(super) const VERSION: u32 = 1;
/// Rows are compressed together until they reach this size.
const BLOCK: usize = 1 << 20;
/// Blocks that are compressed at the same time.
const TOGETHER: usize = 16;
/// A length beyond this is damage, not data.
const LARGEST: u32 = 1 << 30;

/// What is wrong with a file, before its name is known.
#[derive(Debug)]
pub(super) enum Wrong {
    Read(io::Error),
    NotABackup,
    Newer(u32),
    Damaged(String),
}

impl Wrong {
    pub(super) fn of(self, path: &Path) -> BackupError {
        let path = path.to_owned();
        match self {
            Wrong::Read(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                BackupError::Damaged { path, reason: "it ends too early".to_owned() }
            }
            Wrong::Read(source) => BackupError::File { doing: "read", path, source },
            Wrong::NotABackup => BackupError::NotABackup { path },
            Wrong::Newer(found) => BackupError::Newer { path, found, known: VERSION },
            Wrong::Damaged(reason) => BackupError::Damaged { path, reason },
        }
    }
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Wrong {
        Wrong::Read(error)
    }
}

/// Passes bytes on and keeps their digest.
struct Hashing<S> {
    stream: S,
    hash: Sha256,
}

impl<W: Write> Hashing<&mut W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.stream.write_all(bytes)
    }

    fn put_sized(&mut self, bytes: &[u8]) -> io::Result<()> {
        let size = u32::try_from(bytes.len()).map_err(|_| io::Error::other("a block of 4 GiB or more"))?;
        self.put(&size.to_be_bytes())?;
        self.put(bytes)
    }

    /// Compresses blocks on all cores, and writes them in their order.
    fn put_blocks(&mut self, blocks: Vec<Vec<u8>>) -> io::Result<()> {
        let packed = lanes::each(blocks.into_iter(), |block| lz4_flex::compress_prepend_size(&block));
        packed.iter().try_for_each(|block| self.put_sized(block))
    }
}

impl<R: Read> Hashing<&mut R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        self.hash.update(bytes);
        Ok(bytes)
    }

    /// A block with its length before it. A length of zero is the end.
    fn take_sized(&mut self, left: u64) -> Result<Vec<u8>, Wrong> {
        let size = u32::from_be_bytes(self.take()?);
        if size > LARGEST || u64::from(size) > left {
            return Err(Wrong::Damaged(format!("a block of {size} bytes")));
        }
        let mut bytes = vec![0; size as usize];
        self.stream.read_exact(&mut bytes)?;
        self.hash.update(&bytes);
        Ok(bytes)
    }
}

pub(super) fn write(out: &mut impl Write, header: &Header, rows: &Snapshot) -> io::Result<()> {
    let mut out = Hashing { stream: out, hash: Sha256::new() };
    out.put(MAGIC)?;
    out.put(&VERSION.to_be_bytes())?;
    out.put_sized(&serde_json::to_vec(header)?)?;
    let mut blocks = vec![];
    let mut block = Vec::with_capacity(BLOCK + BLOCK / 4);
    for (table, key, value) in in_order(rows) {
        for part in [table.as_str().as_bytes(), key.topic.as_bytes(), key.id.as_bytes(), value] {
            let size = u32::try_from(part.len()).map_err(|_| io::Error::other("a value of 4 GiB"))?;
            block.extend_from_slice(&size.to_be_bytes());
            block.extend_from_slice(part);
        }
        if block.len() >= BLOCK {
            blocks.push(std::mem::replace(&mut block, Vec::with_capacity(BLOCK + BLOCK / 4)));
            if blocks.len() == TOGETHER {
                out.put_blocks(std::mem::take(&mut blocks))?;
            }
        }
    }
    blocks.extend(Some(block).filter(|block| !block.is_empty()));
    out.put_blocks(blocks)?;
    out.put(&0u32.to_be_bytes())?;
    let digest = out.hash.finalize();
    out.stream.write_all(&digest)
}

/// One row, as it lies in a block. Its parts are slices of the block, not copies.
pub(super) struct Entry {
    pub(super) table: Bytes,
    pub(super) topic: Bytes,
    pub(super) id: Bytes,
    pub(super) value: Bytes,
}

/// Header and digest of a file of `size` bytes. Its rows go to `each`, before it is known whether the
/// file is whole.
pub(super) fn read(
    from: &mut impl Read,
    size: u64,
    mut each: impl FnMut(Entry) -> Result<(), Wrong>,
) -> Result<(Header, String), Wrong> {
    let mut from = Hashing { stream: from, hash: Sha256::new() };
    let magic: [u8; 8] = from.take().map_err(|_| Wrong::NotABackup)?;
    if magic != *MAGIC {
        return Err(Wrong::NotABackup);
    }
    let version = u32::from_be_bytes(from.take()?);
    if version > VERSION {
        return Err(Wrong::Newer(version));
    }
    let header: Header = serde_json::from_slice(&from.take_sized(size)?)
        .map_err(|error| Wrong::Damaged(format!("its header: {error}")))?;
    let mut rows = 0;
    loop {
        let block = from.take_sized(size)?;
        if block.is_empty() {
            break;
        }
        let stated = block.first_chunk::<4>().map_or(0, |size| u32::from_le_bytes(*size));
        if stated > LARGEST {
            return Err(Wrong::Damaged(format!("rows of {stated} bytes in one block")));
        }
        let plain =
            lz4_flex::decompress_size_prepended(&block).map_err(|error| Wrong::Damaged(error.to_string()))?;
        let mut plain = Bytes::from(plain);
        while plain.has_remaining() {
            let entry = entry(&mut plain).ok_or_else(|| Wrong::Damaged("a row is cut".to_owned()))?;
            rows += 1;
            each(entry)?;
        }
    }
    let computed = from.hash.finalize();
    let mut stored = [0; 32];
    from.stream.read_exact(&mut stored)?;
    if computed.as_slice() != stored {
        return Err(Wrong::Damaged("its digest does not match".to_owned()));
    }
    if from.stream.read(&mut [0])? != 0 {
        return Err(Wrong::Damaged("something was added behind its end".to_owned()));
    }
    if header.rows != rows {
        return Err(Wrong::Damaged(format!("{rows} rows instead of {}", header.rows)));
    }
    let digest = stored.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((header, digest))
}

fn entry(block: &mut Bytes) -> Option<Entry> {
    Some(Entry { table: part(block)?, topic: part(block)?, id: part(block)?, value: part(block)? })
}

fn part(block: &mut Bytes) -> Option<Bytes> {
    let size = block.try_get_u32().ok()? as usize;
    (size <= block.len()).then(|| block.split_to(size))
}

/// Puts rows together to a database.
pub(super) struct Gathering {
    pub(super) rows: Snapshot,
    /// Of the row before: rows that lie together share them.
    table: Table,
    topic: Arc<str>,
}

impl Gathering {
    pub(super) fn new() -> Gathering {
        Gathering { rows: Snapshot::default(), table: Table::new(""), topic: Arc::from("") }
    }

    pub(super) fn add(&mut self, entry: Entry) -> Result<(), Wrong> {
        if self.table.as_str().as_bytes() != entry.table {
            self.table = Table::new(text(&entry.table)?);
        }
        if self.topic.as_bytes() != entry.topic {
            self.topic = Arc::from(text(&entry.topic)?);
        }
        let key = RowKey { topic: self.topic.clone(), id: text(&entry.id)?.into() };
        self.rows.put(&self.table, key, entry.value);
        Ok(())
    }
}

fn text(bytes: &Bytes) -> Result<&str, Wrong> {
    std::str::from_utf8(bytes).map_err(|_| Wrong::Damaged("a name is not text".to_owned()))
}

/// Compares rows with those that were written, in the order in which they were.
pub(super) struct Comparing<I> {
    written: I,
    differ: bool,
}

impl<'r, I: Iterator<Item = (&'r Table, &'r RowKey, &'r Bytes)>> Comparing<I> {
    pub(super) fn with(written: I) -> Comparing<I> {
        Comparing { written, differ: false }
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        let same = self.written.next().is_some_and(|(table, key, value)| {
            entry.table == table.as_str().as_bytes()
                && entry.topic == key.topic.as_bytes()
                && entry.id == key.id.as_bytes()
                && entry.value == value
        });
        self.differ |= !same;
    }

    pub(super) fn are_same(mut self) -> bool {
        !self.differ && self.written.next().is_none()
    }
}

/// All rows, in the order in which they are written.
pub(super) fn in_order(rows: &Snapshot) -> impl Iterator<Item = (&Table, &RowKey, &Bytes)> {
    rows.tables().flat_map(|(table, rows)| rows.iter().map(move |(key, value)| (table, key, value)))
}
