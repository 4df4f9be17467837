//! Keys of etcd: Dragonflow's rows as they are, and everything of ours under one root.
//!
//! ```text
//! /TABLE/ID                                   a row of Dragonflow's
//! /ROOT/meta/{pointer,run,lock}               notes
//! /ROOT/{g,journal,undo,seal}/N/TABLE/ROW     rows of a space
//! ```

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::super::{Note, Place, Row, Space, names, roots::Trace};
use crate::record::{RowKey, Table};

/// Makes and reads the keys of one database.
#[derive(Debug)]
pub(super) struct Keys {
    root: String,
}

impl Keys {
    pub(super) fn new(root: &str) -> Keys {
        Keys { root: format!("/{root}/") }
    }

    pub(super) fn lock(&self) -> Bytes {
        format!("{}meta/lock", self.root).into()
    }

    pub(super) fn note(&self, note: Note) -> Bytes {
        format!("{}meta/{}", self.root, note.name()).into()
    }

    pub(super) fn place(&self, place: Place<'_>) -> Bytes {
        match place {
            Place::Note(note) => self.note(note),
            Place::Row { space, table, key } => match names::space(space) {
                None => format!("/{table}/{}", key.id).into(),
                Some(space) => {
                    let mut name = format!("{}{space}/{}/", self.root, names::escape(table.as_str()));
                    names::append_row(&mut name, key);
                    name.into()
                }
            },
        }
    }

    /// Why Dragonflow's keys have no place for a row, if they have none.
    pub(super) fn refuses(&self, table: &Table, key: &RowKey) -> Option<&'static str> {
        if !key.topic.is_empty() {
            return Some("it has a topic, and Dragonflow's keys in etcd (/TABLE/ID) have no place for one");
        }
        if table.as_str().is_empty() || table.as_str().contains('/') || key.id.is_empty() {
            return Some("its table or id is empty, or a / is in the name of its table");
        }
        let place = Place::Row { space: Space::Plain, table, key };
        let near = self.root[1..].starts_with(table.as_str());
        if near && self.place(place).starts_with(self.root.as_bytes()) {
            return Some("its key would lie among this tool's own");
        }
        None
    }

    /// The ranges of keys that hold the rows of a space, and nothing of ours besides.
    pub(super) fn ranges(&self, space: Space) -> Vec<Range<Vec<u8>>> {
        match names::space(space) {
            Some(space) => {
                let prefix = format!("{}{space}/", self.root).into_bytes();
                vec![prefix.clone()..after_prefix(prefix)]
            }
            None => {
                let ours = self.root.clone().into_bytes();
                vec![b"/".to_vec()..ours.clone(), after_prefix(ours)..after_prefix(b"/".to_vec())]
            }
        }
    }

    /// The ranges under our root that are of no use to us: another root may lie there.
    pub(super) fn unused(&self) -> Vec<Range<Vec<u8>>> {
        let mut from = self.root.clone().into_bytes();
        let mut unused = Vec::new();
        for used in ["g/", "journal/", "meta/", "seal/", "undo/"] {
            let used = format!("{}{used}", self.root).into_bytes();
            unused.push(std::mem::replace(&mut from, after_prefix(used.clone()))..used);
        }
        unused.push(from..after_prefix(self.root.clone().into_bytes()));
        unused
    }

    /// The row behind a key of a space. Keys of another shape are not rows.
    pub(super) fn row(&self, space: Space, key: &[u8], value: Bytes, last: &mut Last) -> Option<Row> {
        let key = std::str::from_utf8(key).ok()?;
        match names::space(space) {
            None => {
                let (table, id) = key.strip_prefix('/')?.split_once('/')?;
                (!table.is_empty() && !id.is_empty()).then(|| last.row(table, "", id, value))
            }
            Some(name) => {
                let rest = key.strip_prefix(self.root.as_str())?.strip_prefix(name.as_str())?;
                let (table, row) = rest.strip_prefix('/')?.split_once('/')?;
                let (topic, id) = names::split_row(row);
                Some(last.row(&names::table(table), &topic, &id, value))
            }
        }
    }
}

/// The root whose note a key looks like, without its first slash.
pub(super) fn trace(key: &str) -> Option<(&str, Trace)> {
    let (root, name) = key.rsplit_once("/meta/")?;
    Some((root, Trace::named(name)?))
}

/// Table and topic of the row before: rows that lie together share them.
#[derive(Debug)]
pub(super) struct Last {
    table: Table,
    topic: Arc<str>,
}

impl Default for Last {
    fn default() -> Last {
        Last { table: Table::new(""), topic: Arc::from("") }
    }
}

impl Last {
    fn row(&mut self, table: &str, topic: &str, id: &str, value: Bytes) -> Row {
        if self.table.as_str() != table {
            self.table = Table::new(table);
        }
        if *self.topic != *topic {
            self.topic = Arc::from(topic);
        }
        Row { table: self.table.clone(), key: RowKey { topic: self.topic.clone(), id: id.into() }, value }
    }
}

/// The first key that no longer begins with `prefix`, which does not end in the highest byte.
fn after_prefix(mut prefix: Vec<u8>) -> Vec<u8> {
    if let Some(last) = prefix.last_mut() {
        *last += 1;
    }
    prefix
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::{Generation, RunNumber};

    #[test]
    fn keys_lie_where_they_are_said_to_and_read_back() {
        let keys = Keys::new("cloud/nb");
        let generation = Space::Generation(Generation::of(RunNumber::FIRST));
        #[rustfmt::skip]
        let cases = [
            (Space::Plain, "lport",   RowKey::untopical("5a/0f"),    "/lport/5a/0f"),
            (generation,   "lport",   RowKey::new("t1", "5a0f"),     "/cloud/nb/g/1/lport/t1/5a0f"),
            (generation,   "a/b",     RowKey::untopical("c/d%"),     "/cloud/nb/g/1/a%2Fb/c%2Fd%25"),
            (Space::Undo(RunNumber::FIRST), "+lport", RowKey::untopical("x"), "/cloud/nb/undo/1/+lport/x"),
        ];
        for (space, table, key, expected) in cases {
            let table = Table::new(table);
            let made = keys.place(Place::Row { space, table: &table, key: &key });
            assert_eq!(made, expected);
            assert!(keys.ranges(space).iter().any(|range| range.contains(&made.to_vec())), "{expected}");
            let row = keys.row(space, &made, Bytes::new(), &mut Last::default()).unwrap();
            assert_eq!((row.table, row.key), (table, key));
        }
    }

    proptest! {
        #[test]
        fn a_row_that_is_not_refused_reads_back_as_itself(table in "[am/]{0,2}", topic in "[t]{0,1}", id in "[a/%]{0,3}") {
            let keys = Keys::new("m/a");
            let (table, key) = (Table::new(table), RowKey::new(&topic, &id));
            let made = keys.place(Place::Row { space: Space::Plain, table: &table, key: &key });
            let found = keys.ranges(Space::Plain).iter().any(|range| range.contains(&made.to_vec()));
            let row = keys.row(Space::Plain, &made, Bytes::new(), &mut Last::default()).filter(|_| found);
            let same = row.is_some_and(|row| row.table == table && row.key == key);
            prop_assert_eq!(keys.refuses(&table, &key).is_none(), same);
        }
    }

    #[test]
    fn roots_are_told_by_their_notes() {
        #[rustfmt::skip]
        let cases = [
            ("nb/meta/run",        Some(("nb", Trace::Run))),
            ("cloud/nb/meta/lock", Some(("cloud/nb", Trace::Lock))),
            ("nb/meta/pointer",    None),
            ("nb/meta/run/x",      None),
            ("meta/run",           None),
        ];
        for (key, expected) in cases {
            assert_eq!(trace(key), expected, "{key}");
        }
        let keys = Keys::new("nb");
        let unused = |key: &str| keys.unused().iter().any(|range| range.contains(&key.as_bytes().to_vec()));
        for (key, expected) in
            [("/nb/a/meta/run", true), ("/nb/z/meta/run", true), ("/nb/meta/run", false), ("/nb0", false)]
        {
            assert_eq!(unused(key), expected, "{key}");
        }
    }

    #[test]
    fn nothing_of_ours_is_among_the_plain_rows() {
        let keys = Keys::new("midflight");
        for key in ["/midflight/meta/lock", "/midflight/journal/1/+a/b"] {
            assert!(!keys.ranges(Space::Plain).iter().any(|range| range.contains(&key.as_bytes().to_vec())));
        }
        for key in ["/lport/a", "/midflight0/a", "/zebra/a"] {
            assert!(keys.ranges(Space::Plain).iter().any(|range| range.contains(&key.as_bytes().to_vec())));
        }
    }
}
