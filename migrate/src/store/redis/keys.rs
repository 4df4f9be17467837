//! Keys of Redis: Dragonflow's rows as they are, and everything of ours behind one root.
//!
//! ```text
//! {TABLE.TOPIC}ID                   a row of Dragonflow's, a string
//! {ROOT}:meta:{pointer,run,lock}    notes, strings
//! {ROOT}:SPACE                      names of the tables of a space, a set
//! {ROOT}:SPACE:TABLE                rows of a table, a hash
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Note, Space, names, roots::Trace};
use crate::record::{RowKey, Table};

#[derive(Debug)]
pub(super) struct Keys {
    root: String,
}

/// The tables of a space that is the tool's own: the set of their names, and their hashes.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    pub(super) index: String,
}

impl Tables {
    pub(super) fn hash(&self, table: &str) -> String {
        format!("{}:{table}", self.index)
    }
}

impl Keys {
    pub(super) fn new(root: &str) -> Keys {
        Keys { root: format!("{{{root}}}") }
    }

    pub(super) fn lock(&self) -> String {
        format!("{}:meta:lock", self.root)
    }

    pub(super) fn note(&self, note: Note) -> String {
        format!("{}:meta:{}", self.root, note.name())
    }

    /// `None` for Dragonflow's own rows.
    pub(super) fn tables(&self, space: Space) -> Option<Tables> {
        names::space(space).map(|name| Tables { index: format!("{}:{name}", self.root) })
    }
}

/// What the notes of any root look like.
pub(super) const NOTES: &str = "{*}:meta:*";

/// The root whose note a key looks like.
pub(super) fn trace(key: &str) -> Option<(&str, Trace)> {
    let (root, name) = key.strip_prefix('{')?.split_once("}:meta:")?;
    Some((root, Trace::named(name)?))
}

pub(super) fn plain(table: &Table, key: &RowKey) -> String {
    format!("{{{table}.{}}}{}", key.topic, key.id)
}

/// Why Dragonflow's keys have no place for a row, if they have none.
pub(super) fn refuses(table: &Table, key: &RowKey) -> Option<&'static str> {
    if table.as_str().is_empty() || key.id.is_empty() {
        return Some("its table or id is empty");
    }
    if table.as_str().contains(['.', '}']) || key.topic.contains('}') {
        return Some("Dragonflow's keys in Redis ({TABLE.TOPIC}ID) cannot hold a . or } in this place");
    }
    None
}

/// Hands out one copy of each table and topic.
#[derive(Debug, Default)]
pub(super) struct Shared {
    tables: HashMap<String, Table>,
    topics: HashMap<String, Arc<str>>,
}

impl Shared {
    pub(super) fn table(&mut self, name: &str) -> Table {
        if let Some(table) = self.tables.get(name) {
            return table.clone();
        }
        self.tables.entry(name.to_owned()).or_insert_with(|| Table::new(name)).clone()
    }

    fn topic(&mut self, name: &str) -> Arc<str> {
        if let Some(topic) = self.topics.get(name) {
            return topic.clone();
        }
        self.topics.entry(name.to_owned()).or_insert_with(|| Arc::from(name)).clone()
    }

    /// Where a row of Dragonflow's stands. Keys of another shape are not rows.
    pub(super) fn plain(&mut self, key: &[u8]) -> Option<(Table, RowKey)> {
        let key = std::str::from_utf8(key).ok()?;
        let (tag, id) = key.strip_prefix('{')?.split_once('}')?;
        let (table, topic) = tag.split_once('.')?;
        if table.is_empty() || id.is_empty() {
            return None;
        }
        let key = RowKey { topic: self.topic(topic), id: id.into() };
        Some((self.table(table), key))
    }

    /// The key of a row by its name in its table's hash.
    pub(super) fn field(&mut self, field: &[u8]) -> Option<RowKey> {
        let (topic, id) = names::split_row(std::str::from_utf8(field).ok()?);
        Some(RowKey { topic: self.topic(&topic), id: id.as_ref().into() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_keys_keep_their_topic_and_others_are_passed_over() {
        #[rustfmt::skip]
        let cases = [
            ("{lport.9b1d}5a0f",     Some(("lport", "9b1d", "5a0f"))),
            ("{chassis.}compute-1",  Some(("chassis", "", "compute-1"))),
            ("{unique_key.}lport",   Some(("unique_key", "", "lport"))),
            ("{lport.a.b}c}d",       Some(("lport", "a.b", "c}d"))),
            ("{midflight}:meta:run", None),
            ("session:77",           None),
            ("{lport.t}",            None),
            ("{.t}x",                None),
        ];
        for (key, expected) in cases {
            let row = Shared::default().plain(key.as_bytes());
            let expected = expected.map(|(table, topic, id)| (Table::new(table), RowKey::new(topic, id)));
            if let Some((table, row)) = &expected {
                assert_eq!(plain(table, row), key);
            }
            assert_eq!(row, expected, "{key}");
        }
    }

    proptest! {
        #[test]
        fn a_row_that_is_not_refused_reads_back_as_itself(table in "[a.}{]{0,2}", topic in "[t.}{]{0,2}", id in "[a.}{]{0,2}") {
            let (table, key) = (Table::new(table), RowKey::new(&topic, &id));
            let same = Shared::default().plain(plain(&table, &key).as_bytes()) == Some((table.clone(), key.clone()));
            prop_assert_eq!(refuses(&table, &key).is_none(), same);
        }
    }
}
