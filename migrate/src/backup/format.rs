//! The bytes of a backup file.
//!
//! The one invariant: a file that is cut, or of which a single bit was changed, is refused.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use sha2::{Digest, Sha256};

use super::{BackupError, Header};
use crate::hex::hex;
use crate::record::{RowKey, Snapshot, Table};

const MAGIC: &[u8; 8] = b"MIDFLBAK";
pub(super) const VERSION: u32 = 1;
/// Rows are compressed together until they reach this size.
const BLOCK: usize = 1 << 20;
/// Bytes before a compressed block that say how long it is without.
const PREFIX: usize = 4;
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

    /// Compresses a block into `packed`, behind its length, and writes that.
    fn put_packed(&mut self, block: &[u8], packed: &mut Vec<u8>) -> io::Result<()> {
        let size = u32::try_from(block.len()).map_err(|_| io::Error::other("a block of 4 GiB or more"))?;
        packed.resize(PREFIX + get_maximum_output_size(block.len()), 0);
        packed[..PREFIX].copy_from_slice(&size.to_le_bytes());
        let length = compress_into(block, &mut packed[PREFIX..]).map_err(io::Error::other)?;
        self.put_sized(&packed[..PREFIX + length])
    }
}

impl<R: Read> Hashing<&mut R> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        self.hash.update(bytes);
        Ok(bytes)
    }

    /// Reads a block with its length before it. A length of zero is the end.
    fn take_sized(&mut self, left: u64, into: &mut Vec<u8>) -> Result<(), Wrong> {
        let size = u32::from_be_bytes(self.take()?);
        if size > LARGEST || u64::from(size) > left {
            return Err(Wrong::Damaged(format!("a block of {size} bytes")));
        }
        into.resize(size as usize, 0);
        self.stream.read_exact(into)?;
        self.hash.update(into);
        Ok(())
    }
}

pub(super) fn write(out: &mut impl Write, header: &Header, rows: &Snapshot) -> io::Result<()> {
    let mut out = Hashing { stream: out, hash: Sha256::new() };
    out.put(MAGIC)?;
    out.put(&VERSION.to_be_bytes())?;
    out.put_sized(&serde_json::to_vec(header)?)?;
    let (mut block, mut packed) = (Vec::with_capacity(BLOCK + BLOCK / 4), vec![]);
    for (table, key, value) in in_order(rows) {
        for part in [table.as_str().as_bytes(), key.topic.as_bytes(), key.id.as_bytes(), value] {
            let size = u32::try_from(part.len()).map_err(|_| io::Error::other("a value of 4 GiB"))?;
            block.extend_from_slice(&size.to_be_bytes());
            block.extend_from_slice(part);
        }
        if block.len() >= BLOCK {
            out.put_packed(&block, &mut packed)?;
            block.clear();
        }
    }
    if !block.is_empty() {
        out.put_packed(&block, &mut packed)?;
    }
    out.put(&0u32.to_be_bytes())?;
    let digest = out.hash.finalize();
    out.stream.write_all(&digest)
}

/// One row, as it lies in a block.
pub(super) struct Entry<'b> {
    block: &'b Bytes,
    table: &'b [u8],
    topic: &'b [u8],
    id: &'b [u8],
    value: &'b [u8],
}

/// Header and digest of a file of `size` bytes. Its rows go to `each`, before it is known whether the
/// file is whole.
pub(super) fn read(
    from: &mut impl Read,
    size: u64,
    mut each: impl FnMut(Entry<'_>) -> Result<(), Wrong>,
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
    let mut packed = vec![];
    from.take_sized(size, &mut packed)?;
    let header: Header =
        serde_json::from_slice(&packed).map_err(|error| Wrong::Damaged(format!("its header: {error}")))?;
    let mut rows = 0;
    let mut plain = BytesMut::new();
    loop {
        from.take_sized(size, &mut packed)?;
        if packed.is_empty() {
            break;
        }
        unpack(&packed, &mut plain)?;
        let block = plain.freeze();
        let mut rest: &[u8] = &block;
        while !rest.is_empty() {
            let entry = entry(&block, &mut rest).ok_or_else(|| Wrong::Damaged("a row is cut".to_owned()))?;
            rows += 1;
            each(entry)?;
        }
        // The same memory again, unless somebody has kept a part of it.
        plain = block.try_into_mut().unwrap_or_default();
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
    Ok((header, hex(&stored)))
}

fn unpack(packed: &[u8], plain: &mut BytesMut) -> Result<(), Wrong> {
    let (stated, packed) =
        packed.split_first_chunk::<PREFIX>().ok_or_else(|| Wrong::Damaged("a block is cut".to_owned()))?;
    let stated = u32::from_le_bytes(*stated);
    if stated > LARGEST {
        return Err(Wrong::Damaged(format!("rows of {stated} bytes in one block")));
    }
    plain.resize(stated as usize, 0);
    let length = decompress_into(packed, plain).map_err(|error| Wrong::Damaged(error.to_string()))?;
    if length == stated as usize { Ok(()) } else { Err(Wrong::Damaged("a block is too short".to_owned())) }
}

fn entry<'b>(block: &'b Bytes, rest: &mut &'b [u8]) -> Option<Entry<'b>> {
    let [table, topic, id, value] = [part(rest)?, part(rest)?, part(rest)?, part(rest)?];
    Some(Entry { block, table, topic, id, value })
}

fn part<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (size, behind) = rest.split_first_chunk::<4>()?;
    let (part, behind) = behind.split_at_checked(u32::from_be_bytes(*size) as usize)?;
    *rest = behind;
    Some(part)
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

    /// The value is no copy: it keeps its block.
    pub(super) fn add(&mut self, entry: &Entry<'_>) -> Result<(), Wrong> {
        if self.table.as_str().as_bytes() != entry.table {
            self.table = Table::new(text(entry.table)?);
        }
        if self.topic.as_bytes() != entry.topic {
            self.topic = Arc::from(text(entry.topic)?);
        }
        let key = RowKey { topic: self.topic.clone(), id: text(entry.id)?.into() };
        self.rows.put(&self.table, key, entry.block.slice_ref(entry.value));
        Ok(())
    }
}

fn text(bytes: &[u8]) -> Result<&str, Wrong> {
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

    pub(super) fn add(&mut self, entry: &Entry<'_>) {
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
