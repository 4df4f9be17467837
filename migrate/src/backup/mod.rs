//! A database in one file, to go back to when everything else failed.
//!
//! ```text
//! magic · length, header (JSON) · blocks of rows (lz4) · end · SHA-256 of all that is before it
//! ```
//!
//! The one invariant: a file under its final name was synced, read again and found whole. It holds
//! rows only, never the lock nor the state of a run, and only its owner may read it.

mod format;

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::folders;
use crate::record::Snapshot;

/// Why there is no backup, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{doing} {path}")]
    File { doing: &'static str, path: PathBuf, source: io::Error },

    #[error("{path} exists already; a backup never overwrites one")]
    Exists { path: PathBuf },

    #[error("{path} is not a backup of this tool")]
    NotABackup { path: PathBuf },

    #[error("{path} has format {found}, this tool reads up to {known}; use a newer one")]
    Newer { path: PathBuf, found: u32, known: u32 },

    #[error("{path} is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
}

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    pub version: u32,
    pub created_at: Timestamp,
    /// Where the rows came from; never with a password.
    pub source: String,
    pub tool: String,
    pub rows: u64,
}

impl Header {
    pub fn new(source: &crate::store::Url, tool: &str, created_at: Timestamp) -> Header {
        Header {
            version: format::VERSION,
            created_at,
            source: source.to_string(),
            tool: tool.to_owned(),
            rows: 0,
        }
    }
}

/// A backup that was found whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub header: Header,
    pub bytes: u64,
    /// SHA-256 in hex, as at the end of the file.
    pub digest: String,
}

/// Writes all rows to `path`, which must not exist, and reads them back.
pub fn write(path: &Path, rows: &Snapshot, header: Header) -> Result<Verified, BackupError> {
    let header = Header { rows: rows.len() as u64, ..header };
    if path.exists() {
        return Err(BackupError::Exists { path: path.to_owned() });
    }
    let partial = partial_name(path);
    let failed = |doing| {
        let path = partial.clone();
        move |source| BackupError::File { doing, path, source }
    };
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove the unfinished backup")(error));
        }
        Ok(()) | Err(_) => {}
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .map_err(failed("create"))?;
    let unfinished = Unfinished(&partial);
    let mut out = BufWriter::with_capacity(1 << 20, file);
    format::write(&mut out, &header, rows).map_err(failed("write"))?;
    out.flush().map_err(failed("write"))?;
    out.get_ref().sync_all().map_err(failed("sync"))?;

    let mut comparing = format::Comparing::with(format::in_order(rows));
    let verified = read_as(&partial, path, |entry| {
        comparing.add(&entry);
        Ok(())
    })?;
    if !comparing.are_same() {
        return Err(BackupError::Damaged {
            path: path.to_owned(),
            reason: "it does not read back as it was written".to_owned(),
        });
    }
    take_name(&partial, path).map_err(failed("name"))?;
    drop(unfinished);
    folders::sync_parent(path).map_err(|source| BackupError::File {
        doing: "sync the folder of",
        path: path.to_owned(),
        source,
    })?;
    Ok(verified)
}

/// Reads a whole backup and checks all of it.
pub fn read(path: &Path) -> Result<(Verified, Snapshot), BackupError> {
    let mut gathering = format::Gathering::new();
    let verified = read_as(path, path, |entry| gathering.add(&entry))?;
    Ok((verified, gathering.rows))
}

/// Reads the file at `path` and speaks of it as `name`.
fn read_as(
    path: &Path,
    name: &Path,
    each: impl FnMut(format::Entry<'_>) -> Result<(), format::Wrong>,
) -> Result<Verified, BackupError> {
    let failed = |source| BackupError::File { doing: "open", path: name.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let read = format::read(&mut BufReader::with_capacity(1 << 20, file), bytes, each);
    let (header, digest) = read.map_err(|error| error.of(name))?;
    Ok(Verified { header, bytes, digest })
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Never replaces what somebody else has put there meanwhile. Not every file system knows such a rename; most of those
/// know links.
fn take_name(partial: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => std::fs::hard_link(partial, path),
        renamed => Ok(renamed?),
    }
}

/// Takes the unfinished file away, unless it got its final name.
struct Unfinished<'p>(&'p Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "an unfinished backup stays behind");
        }
    }
}

#[cfg(test)]
mod tests;
