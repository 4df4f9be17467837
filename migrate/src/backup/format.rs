//! The bytes of a backup file.
//!
//! The one invariant: a file that is cut, or of which a single bit was changed, is refused.

use std::io::{self, Read, Write};
use std::path::Path;

use bytes::{Buf, Bytes};
use sha2::{Digest, Sha256};

use super::{BackupError, Header};
use crate::record::{RowKey, Snapshot, Table};

const MAGIC: &[u8; 8] = b"MIDFLBAK";
pub(super) const VERSION: u32 = 1;
/// Rows are compressed together until they reach this size.
const BLOCK: usize = 1 << 20;
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
    let mut block = Vec::with_capacity(BLOCK + BLOCK / 4);
    for (table, of_table) in rows.tables() {
        for (key, value) in of_table {
            for part in [table.as_str().as_bytes(), key.topic.as_bytes(), key.id.as_bytes(), value] {
                let size = u32::try_from(part.len()).map_err(|_| io::Error::other("a value of 4 GiB"))?;
                block.extend_from_slice(&size.to_be_bytes());
                block.extend_from_slice(part);
            }
            if block.len() >= BLOCK {
                out.put_sized(&lz4_flex::compress_prepend_size(&block))?;
                block.clear();
            }
        }
    }
    if !block.is_empty() {
        out.put_sized(&lz4_flex::compress_prepend_size(&block))?;
    }
    out.put(&0u32.to_be_bytes())?;
    let digest = out.hash.finalize();
    out.stream.write_all(&digest)
}

/// Header, rows and digest of a file of `size` bytes.
pub(super) fn read(from: &mut impl Read, size: u64) -> Result<(Header, Snapshot, String), Wrong> {
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
    let mut rows = Snapshot::default();
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
        read_rows(plain.into(), &mut rows).ok_or_else(|| Wrong::Damaged("a row is cut".to_owned()))?;
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
    if header.rows != rows.len() as u64 {
        return Err(Wrong::Damaged(format!("{} rows instead of {}", rows.len(), header.rows)));
    }
    let digest = stored.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((header, rows, digest))
}

/// Adds the rows of one block. Values are slices of the block, not copies.
fn read_rows(mut block: Bytes, rows: &mut Snapshot) -> Option<()> {
    let mut table = Table::new("");
    let mut topic = std::sync::Arc::<str>::from("");
    while block.has_remaining() {
        let of_table = part(&mut block)?;
        let of_topic = part(&mut block)?;
        let id = part(&mut block)?;
        let value = part(&mut block)?;
        let text = |bytes: &Bytes| std::str::from_utf8(bytes).ok().map(str::to_owned);
        if table.as_str().as_bytes() != of_table {
            table = Table::new(text(&of_table)?);
        }
        if topic.as_bytes() != of_topic {
            topic = text(&of_topic)?.into();
        }
        rows.put(&table, RowKey { topic: topic.clone(), id: text(&id)?.into() }, value);
    }
    Some(())
}

fn part(block: &mut Bytes) -> Option<Bytes> {
    let size = block.try_get_u32().ok()? as usize;
    (size <= block.len()).then(|| block.split_to(size))
}
