//! Ticks rows off against those that are expected, in whatever order they come.
//!
//! The one invariant: a row counts as found once, however often it comes.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, btree_map};
use std::iter::Peekable;

use bytes::Bytes;

use super::Glimpse;
use crate::record::{RowKey, Rows, Snapshot};

pub(super) struct Roll<'a> {
    tables: BTreeMap<&'a str, OfTable<'a>>,
    found: u64,
}

/// Rows that come in order are compared with the next one expected; from the first that does not,
/// they are looked up.
struct OfTable<'a> {
    rows: &'a Rows,
    next: Peekable<btree_map::Iter<'a, RowKey, Bytes>>,
    passed: usize,
    index: Option<Index<'a>>,
}

/// By topic and id.
type Index<'a> = HashMap<(&'a str, &'a str), Expected<'a>>;

struct Expected<'a> {
    value: &'a Bytes,
    found: Cell<bool>,
}

impl<'a> Roll<'a> {
    pub(super) fn of(expected: &'a Snapshot) -> Roll<'a> {
        let of_table =
            |rows: &'a Rows| OfTable { rows, next: rows.iter().peekable(), passed: 0, index: None };
        let tables = expected.tables().map(|(table, rows)| (table.as_str(), of_table(rows))).collect();
        Roll { tables, found: 0 }
    }

    /// Rows found so far.
    pub(super) fn found(&self) -> u64 {
        self.found
    }

    /// Whether the row is expected, with this value.
    pub(super) fn tick(&mut self, row: Glimpse<'_>) -> bool {
        let Some(table) = self.tables.get_mut(row.table) else { return false };
        match table.tick(row) {
            Tick::First => self.found += 1,
            Tick::Again => {}
            Tick::Wrong => return false,
        }
        true
    }
}

enum Tick {
    First,
    Again,
    Wrong,
}

impl<'a> OfTable<'a> {
    fn tick(&mut self, row: Glimpse<'_>) -> Tick {
        if self.index.is_none() {
            let is_next = |(key, _): &(&RowKey, _)| *key.id == *row.id && *key.topic == *row.topic;
            if let Some((_, value)) = self.next.next_if(is_next) {
                self.passed += 1;
                return if **value == *row.value { Tick::First } else { Tick::Wrong };
            }
        }
        let index: &Index<'_> = self.index.get_or_insert_with(|| index(self.rows, self.passed));
        match index.get(&(row.topic, row.id)) {
            Some(expected) if **expected.value == *row.value => {
                if expected.found.replace(true) {
                    Tick::Again
                } else {
                    Tick::First
                }
            }
            Some(_) | None => Tick::Wrong,
        }
    }
}

fn index(rows: &Rows, passed: usize) -> Index<'_> {
    let expected = |number, value| Expected { value, found: Cell::new(number < passed) };
    let all = rows.iter().enumerate();
    all.map(|(number, (key, value))| ((&*key.topic, &*key.id), expected(number, value))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Table;
    use crate::store::Row;

    fn row(table: &str, id: u8, value: u8) -> Row {
        Row {
            table: Table::new(table),
            key: RowKey::untopical(&id.to_string()),
            value: Bytes::from(vec![value]),
        }
    }

    fn snapshot(rows: &[Row]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for row in rows {
            snapshot.put(&row.table, row.key.clone(), row.value.clone());
        }
        snapshot
    }

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let row =
            (0..2u8, 0..6u8, 0..2u8).prop_map(|(table, id, value)| row(&format!("t{table}"), id, value));
        prop::collection::vec(row, 0..14)
    }

    proptest! {
        #[test]
        fn all_is_found_exactly_when_nothing_differs(expected in rows(), come in rows()) {
            let (expected, mut come) = (snapshot(&expected), come);
            let differ = snapshot(&come) != expected
                || come.iter().any(|row| expected.get(&row.table, &row.key) != Some(&row.value));
            // Some come twice, as they do while a hash of Redis grows.
            come.extend(come.clone().into_iter().step_by(3));
            let mut roll = Roll::of(&expected);
            let wrong = come.iter().filter(|row| !roll.tick((*row).into())).count();
            prop_assert_eq!(wrong == 0 && roll.found() == expected.len() as u64, !differ);
        }

        #[test]
        fn rows_in_order_need_no_index(expected in rows()) {
            let expected = snapshot(&expected);
            let mut roll = Roll::of(&expected);
            for (table, of_table) in expected.tables() {
                for (key, value) in of_table {
                    let row = Row { table: table.clone(), key: key.clone(), value: value.clone() };
                    prop_assert!(roll.tick((&row).into()));
                }
            }
            prop_assert_eq!(roll.found(), expected.len() as u64);
            prop_assert!(roll.tables.values().all(|table| table.index.is_none()));
        }
    }
}
