//! Fingerprints of all rows as a run left them, by which a later roll-back notices every write.
//!
//! Eight bytes for each row, sorted. A row whose fingerprint is not among them was written since;
//! a fingerprint without a row belongs to one that is gone.
//!
//! Rows by which services say that they run are left out: the first service that is started writes one, and going
//! back loses nothing with it.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::Changed;
use crate::record::{RowKey, Rows, Snapshot, Table};
use crate::{announced, lanes};

/// Fingerprints in one row of the seal: 64 KiB.
const PER_ROW: usize = 8192;
/// The row that says that announcements are left out. Versions that sealed them too did not write it, and take it for
/// no fingerprint, as it is shorter than one.
const MARK: (&str, &[u8]) = ("without-announcements", b"yes");

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seal {
    sorted: Vec<u64>,
    /// Whether announcements of services are sealed as well, as they once were.
    announcements: bool,
}

impl Seal {
    pub(super) fn of(rows: &Snapshot) -> Seal {
        let prints = |(table, rows): (&Table, &Rows)| {
            rows.iter().map(|(key, value)| fingerprint(table, key, value)).collect::<Vec<_>>()
        };
        let sealed = rows.tables().filter(|(table, _)| !announced::is_one(table.as_str()));
        let mut sorted: Vec<u64> = sealed.flat_map(prints).collect();
        sorted.sort_unstable();
        Seal { sorted, announcements: false }
    }

    /// As [`Seal::of`], on a thread of its own, so that rows can be written meanwhile.
    pub(super) async fn beside<T>(rows: &Snapshot, write: impl Future<Output = T>) -> (Seal, T) {
        let rows = rows.clone();
        tokio::join!(lanes::aside(move || Seal::of(&rows)), write)
    }

    /// How many rows the seal of so many rows takes, at most.
    pub(super) fn rows_for(rows: usize) -> usize {
        rows.div_ceil(PER_ROW) + 1
    }

    /// As rows, to be stored.
    pub(super) fn to_rows(&self) -> Snapshot {
        let table = Table::new("seal");
        let mut rows = Snapshot::default();
        for (number, part) in self.sorted.chunks(PER_ROW).enumerate() {
            let value: Bytes = part.iter().flat_map(|print| print.to_be_bytes()).collect();
            rows.put(&table, RowKey::untopical(&format!("{number:08}")), value);
        }
        let (mark, yes) = MARK;
        rows.put(&table, RowKey::untopical(mark), Bytes::from_static(yes));
        rows
    }

    pub(super) fn from_rows(rows: &Snapshot) -> Seal {
        let table = Table::new("seal");
        let values = rows.rows(&table).flat_map(|(_, value)| value.chunks_exact(8));
        let sorted = values.map(|print| u64::from_be_bytes(print.try_into().expect("eight bytes"))).collect();
        let announcements = rows.get(&table, &RowKey::untopical(MARK.0)).is_none();
        Seal { sorted, announcements }
    }

    fn covers(&self, table: &Table) -> bool {
        self.announcements || !announced::is_one(table.as_str())
    }

    /// What is not as it was sealed. `older` may know the names of rows that are gone.
    pub(super) fn compare(&self, now: &Snapshot, older: &Snapshot) -> Changed {
        let mut changed = Changed::default();
        let mut seen = vec![false; self.sorted.len()];
        for (table, of_table) in now.tables().filter(|(table, _)| self.covers(table)) {
            for (key, value) in of_table {
                match self.find(fingerprint(table, key, value)) {
                    Some(place) => seen[place] = true,
                    None => changed.add(|| format!("{table} {key}")),
                }
            }
        }
        let written = changed.rows.len() as u64 + changed.more;
        let mut gone = seen.iter().filter(|&&seen| !seen).count() as u64;
        for (table, of_table) in older.tables().filter(|(table, _)| self.covers(table)) {
            for (key, value) in of_table {
                if gone > 0 && now.get(table, key).is_none() {
                    let place = self.find(fingerprint(table, key, value));
                    if place.is_some_and(|place| !std::mem::replace(&mut seen[place], true)) {
                        gone -= 1;
                        changed.add(|| format!("{table} {key}"));
                    }
                }
            }
        }
        // A row that was changed leaves a fingerprint behind as well as bringing a new one.
        changed.gone = gone.saturating_sub(written);
        changed
    }

    fn find(&self, print: u64) -> Option<usize> {
        self.sorted.binary_search(&print).ok()
    }
}

fn fingerprint(table: &Table, key: &RowKey, value: &Bytes) -> u64 {
    let mut hash = Sha256::new();
    for part in [table.as_str().as_bytes(), key.topic.as_bytes(), key.id.as_bytes()] {
        hash.update((part.len() as u32).to_be_bytes());
        hash.update(part);
    }
    hash.update(value);
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("eight of thirty-two bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[(&str, &str)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (id, value) in rows {
            snapshot.put(&Table::new("t"), RowKey::untopical(id), Bytes::copy_from_slice(value.as_bytes()));
        }
        snapshot
    }

    #[test]
    fn notices_every_kind_of_write() {
        let sealed = rows(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let seal = Seal::from_rows(&Seal::of(&sealed).to_rows());
        assert_eq!(seal, Seal::of(&sealed));
        assert_eq!(seal.to_rows().len(), Seal::rows_for(sealed.len()));
        #[rustfmt::skip]
        let cases = [
            ("untouched",        rows(&[("a", "1"), ("b", "2"), ("c", "3")]),             vec![],           0),
            ("changed",          rows(&[("a", "1"), ("b", "x"), ("c", "3")]),             vec!["t b"],      0),
            ("added",            rows(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]), vec!["t d"],      0),
            ("removed, known",   rows(&[("b", "2"), ("c", "3")]),                         vec!["t a"],      0),
            ("removed, unknown", rows(&[("a", "1"), ("b", "2")]),                         vec![],           1),
            ("swapped values",   rows(&[("a", "2"), ("b", "1"), ("c", "3")]),             vec!["t a", "t b"], 0),
        ];
        let older = rows(&[("a", "1"), ("b", "0")]);
        for (name, now, named, gone) in cases {
            let changed = seal.compare(&now, &older);
            assert_eq!(
                (changed.rows.iter().map(String::as_str).collect(), changed.gone),
                (named, gone),
                "{name}"
            );
        }
    }

    #[test]
    fn announcements_of_services_are_left_out_unless_they_were_sealed() {
        let service = |value: &'static str| {
            let mut with_service = rows(&[("a", "1")]);
            with_service.put(
                &Table::new("service"),
                RowKey::untopical("s"),
                Bytes::from_static(value.as_bytes()),
            );
            with_service
        };
        let seal = Seal::of(&service("1"));
        for now in [service("1"), service("2"), rows(&[("a", "1")])] {
            assert!(Seal::from_rows(&seal.to_rows()).compare(&now, &Snapshot::default()).is_empty());
        }
        let mut once = Seal::of(&rows(&[("a", "1")]));
        once.sorted.push(fingerprint(&Table::new("service"), &RowKey::untopical("s"), &Bytes::from("1")));
        once.sorted.sort_unstable();
        let mut stored = once.to_rows();
        stored.remove(&Table::new("seal"), &RowKey::untopical(MARK.0));
        let once = Seal::from_rows(&stored);
        assert!(once.compare(&service("1"), &Snapshot::default()).is_empty());
        assert_eq!(once.compare(&service("2"), &Snapshot::default()).rows, ["service s"]);
    }
}
