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

/// Writes a value as JSON, after a line with the checksum of that text: a reader that knows more fields, or fewer,
/// sees just as well that it is whole.
pub(crate) fn write<T: Serialize>(path: &Path, body: &T) -> io::Result<()> {
    let text = serde_json::to_string_pretty(body)?;
    replace(path, format!("{:08x}\n{text}", crc32fast::hash(text.as_bytes())).as_bytes())
}

/// Reads what `write` wrote; `None` if nobody did.
pub(crate) fn read<T: Serialize + DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()));
    match text.split_once('\n') {
        Some((check, body)) if u32::from_str_radix(check, 16) == Ok(crc32fast::hash(body.as_bytes())) => {
            serde_json::from_str(body).map(Some).map_err(|_| damaged())
        }
        _ => unseal(&text).map(Some).ok_or_else(damaged),
    }
}

/// As builds before have written it: the checksum is of the fields that they knew.
#[derive(Deserialize)]
struct Sealed<T> {
    body: T,
    check: u32,
}

fn unseal<T: Serialize + DeserializeOwned>(text: &str) -> Option<T> {
    let Sealed { body, check } = serde_json::from_str::<Sealed<T>>(text).ok()?;
    (crc32fast::hash(&serde_json::to_vec(&body).ok()?) == check).then_some(body)
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

    #[test]
    fn readers_of_another_build_understand_what_they_know() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Less {
            one: u64,
        }
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct More {
            one: u64,
            #[serde(default)]
            two: u64,
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        write(&path, &Less { one: 1 }).unwrap();
        assert_eq!(read(&path).unwrap(), Some(More { one: 1, two: 0 }));
        write(&path, &More { one: 1, two: 2 }).unwrap();
        assert_eq!(read(&path).unwrap(), Some(Less { one: 1 }));
    }

    #[test]
    fn what_builds_before_have_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        let check = crc32fast::hash(b"[1,22]");
        std::fs::write(&path, format!("{{\n  \"body\": [1, 22],\n  \"check\": {check}\n}}")).unwrap();
        assert_eq!(read::<Vec<u64>>(&path).unwrap(), Some(vec![1, 22]));
        std::fs::write(&path, format!("{{\n  \"body\": [1, 23],\n  \"check\": {check}\n}}")).unwrap();
        assert!(read::<Vec<u64>>(&path).is_err());
    }
}
