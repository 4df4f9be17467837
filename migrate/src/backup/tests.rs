//! Backups that are whole, cut, changed, too new and in the way.

use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::record::{RowKey, Table};

fn header() -> Header {
    Header::new(&"redis://u:hunter2@h:1/0".parse().unwrap(), "test", Timestamp::UNIX_EPOCH)
}

fn rows(count: usize) -> Snapshot {
    let mut rows = Snapshot::default();
    for number in 0..count {
        let key = RowKey::new(["", "t1"][number % 2], &format!("id-{number}"));
        let value = format!("{{\"id\":\"id-{number}\",\"filling\":\"{}\"}}", "x".repeat(number % 90));
        rows.put(&Table::new(["lport", "unique_key"][number % 2]), key, Bytes::from(value));
    }
    rows
}

#[test]
fn holds_what_was_written_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nb.backup");
    let rows = rows(30_000);
    let written = write(&path, &rows, header()).unwrap();
    assert_eq!(written.header.rows, 30_000);
    assert_eq!(read(&path).unwrap(), (written, rows));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
    let text = std::fs::read(&path).unwrap();
    assert!(!text.windows(7).any(|window| window == b"hunter2"));
}

#[test]
fn never_overwrites() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nb.backup");
    std::fs::write(&path, "mine").unwrap();
    assert!(matches!(write(&path, &rows(1), header()), Err(BackupError::Exists { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn an_unfinished_one_of_a_dead_process_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nb.backup");
    std::fs::write(partial_name(&path), "half").unwrap();
    assert!(write(&path, &rows(1), header()).is_ok());
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nb.backup");
    write(&path, &rows(7), header()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(read(&path).is_err(), "cut at {cut}");
    }
    for place in 0..whole.len() {
        let mut changed = whole.clone();
        changed[place] ^= 0x20;
        std::fs::write(&path, &changed).unwrap();
        assert!(read(&path).is_err(), "changed at {place}");
    }
    std::fs::write(&path, [whole.as_slice(), b"x"].concat()).unwrap();
    assert!(read(&path).is_err(), "longer");
}

#[test]
fn says_what_kind_of_file_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nb.backup");
    std::fs::write(&path, "something else").unwrap();
    assert!(matches!(read(&path), Err(BackupError::NotABackup { .. })));
    let mut newer = Vec::new();
    newer.extend_from_slice(b"MIDFLBAK");
    newer.extend_from_slice(&(format::VERSION + 1).to_be_bytes());
    std::fs::write(&path, &newer).unwrap();
    assert!(matches!(read(&path), Err(BackupError::Newer { found: 2, known: 1, .. })));
}

proptest! {
    #[test]
    fn any_bytes_come_back(table in "[^\0]{0,9}", topic in ".{0,9}", id in ".{0,30}", value in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut rows = Snapshot::default();
        rows.put(&Table::new(table), RowKey::new(&topic, &id), Bytes::from(value));
        let mut file = Vec::new();
        let header = Header { rows: 1, ..header() };
        format::write(&mut file, &header, &rows).unwrap();
        let mut gathering = format::Gathering::new();
        format::read(&mut file.as_slice(), file.len() as u64, |entry| gathering.add(&entry)).ok().unwrap();
        let found = gathering.rows;
        prop_assert_eq!(found, rows);
    }
}
