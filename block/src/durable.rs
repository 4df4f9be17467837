//! Small files that survive a crash whole.
//!
//! Invariant: a reader sees what was there before a replacement or after it, never a
//! part of either; what has returned survives a loss of power.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Puts a file in the place of another, or where none was.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    sync_folder(path)
}

/// Makes the names in the folder of a file durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    body: T,
    /// CRC-32 of the body as it is written here.
    check: u32,
}

/// Writes a value with a checksum.
pub(crate) fn write<T: Serialize>(path: &Path, body: &T) -> io::Result<()> {
    let check = crc32fast::hash(&serde_json::to_vec(body)?);
    replace(path, &serde_json::to_vec_pretty(&Sealed { body, check })?)
}

/// Reads what `write` wrote; `None` if nobody did.
pub(crate) fn read<T: Serialize + DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let raw = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        raw => raw?,
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()));
    let sealed: Sealed<T> = serde_json::from_slice(&raw).map_err(|_| damaged())?;
    let check = crc32fast::hash(&serde_json::to_vec(&sealed.body)?);
    if check == sealed.check { Ok(Some(sealed.body)) } else { Err(damaged()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_noticed_and_a_missing_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        assert_eq!(read::<Vec<u64>>(&path).unwrap(), None);
        write(&path, &vec![1u64, 22]).unwrap();
        assert_eq!(read::<Vec<u64>>(&path).unwrap(), Some(vec![1, 22]));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("22", "23", 1)).unwrap();
        assert!(read::<Vec<u64>>(&path).is_err());
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(read::<Vec<u64>>(&path).is_err());
    }
}
