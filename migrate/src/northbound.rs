//! The copy of the database that migrations act on.
//!
//! The one invariant: a migration reads and writes only the tables it declared,
//! and an object it writes that carries an id is found under that id.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::json::{self, MAX_ROW};
use crate::lanes;
use crate::record::{RowKey, Snapshot, Table};
use crate::shelf::Shelf;

/// One object of a table, as migrations see it.
pub type Object = Map<String, Value>;

/// What a migration may not do, or found broken.
#[derive(Debug, thiserror::Error)]
pub enum TouchError {
    #[error("table {table} is not declared; add it to `tables` of the migration")]
    Undeclared { table: Table },

    #[error("{table} {key}: not a JSON object")]
    NotAnObject { table: Table, key: RowKey, source: serde_json::Error },

    #[error("{table} {key}: there is such a row already")]
    Exists { table: Table, key: RowKey },

    #[error("{table} {key}: there is no such row")]
    Missing { table: Table, key: RowKey },

    #[error("{table} {key}: the object names itself {id}; a row is found by the id it carries")]
    OtherId { table: Table, key: RowKey, id: String },

    #[error("{table} {key}: {}", json::too_long(number))]
    TooLong { table: Table, key: RowKey, number: String },

    #[error("{table} {key}: {size} bytes, and {MAX_ROW} is the most a row may have")]
    TooLarge { table: Table, key: RowKey, size: usize },
}

/// Bytes that a migration adds to a row, as a guess.
const GROWTH: usize = 16;

/// What becomes of an object that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    Remove,
}

/// Hands a migration the tables it declared, and no others.
#[derive(Debug)]
pub struct NorthBound<'a> {
    database: &'a mut Snapshot,
    declared: BTreeSet<Table>,
    removed: u64,
}

impl<'a> NorthBound<'a> {
    pub fn new(database: &'a mut Snapshot, declared: &[Table]) -> NorthBound<'a> {
        NorthBound { database, declared: declared.iter().cloned().collect(), removed: 0 }
    }

    /// Rows removed so far.
    pub fn removed(&self) -> u64 {
        self.removed
    }

    pub fn get(&self, table: &Table, key: &RowKey) -> Result<Option<Object>, TouchError> {
        self.check(table)?;
        self.database.get(table, key).map(|value| object(table, key, value)).transpose()
    }

    pub fn keys(&self, table: &Table) -> Result<Vec<RowKey>, TouchError> {
        self.check(table)?;
        Ok(self.database.rows(table).map(|(key, _)| key.clone()).collect())
    }

    /// Adds a row that must not be there yet.
    pub fn create(&mut self, table: &Table, key: RowKey, object: &Object) -> Result<(), TouchError> {
        self.check(table)?;
        if self.database.get(table, &key).is_some() {
            return Err(TouchError::Exists { table: table.clone(), key });
        }
        let value = encode(table, &key, object)?;
        self.database.put(table, key, value);
        Ok(())
    }

    /// Replaces a row that must be there. An object that did not change keeps
    /// the bytes of its row.
    pub fn update(&mut self, table: &Table, key: RowKey, object: &Object) -> Result<(), TouchError> {
        match self.get(table, &key)? {
            None => return Err(TouchError::Missing { table: table.clone(), key }),
            Some(before) if before == *object => return Ok(()),
            Some(_) => {}
        }
        let value = encode(table, &key, object)?;
        self.database.put(table, key, value);
        Ok(())
    }

    /// Removes a row that must be there, whatever it holds.
    pub fn remove(&mut self, table: &Table, key: &RowKey) -> Result<(), TouchError> {
        self.check(table)?;
        if self.database.remove(table, key).is_none() {
            return Err(TouchError::Missing { table: table.clone(), key: key.clone() });
        }
        self.removed += 1;
        Ok(())
    }

    /// Shows every object of a table to `look`, in order, until one is
    /// refused. A row whose object did not change keeps its bytes, so
    /// formatting alone never counts as a change.
    pub fn edit_each(
        &mut self,
        table: &Table,
        mut look: impl FnMut(&RowKey, &mut Object) -> Verdict,
    ) -> Result<(), TouchError> {
        self.check(table)?;
        let rows = self.database.table(table);
        let all: Vec<_> = rows.iter().collect();
        let pieces = all.chunks(lanes::PIECE).map(|piece| edit(table, piece, &mut look));
        let edited = pieces.collect::<Result<_, _>>()?;
        self.put_back(table, edited);
        Ok(())
    }

    /// As [`NorthBound::edit_each`] with a function that looks at one object
    /// alone, on all cores.
    pub fn edit_all(
        &mut self,
        table: &Table,
        look: impl Fn(&RowKey, &mut Object) -> Verdict + Sync,
    ) -> Result<(), TouchError> {
        self.check(table)?;
        let rows = self.database.table(table);
        let all: Vec<_> = rows.iter().collect();
        let pieces = lanes::each(all.chunks(lanes::PIECE), |piece| edit(table, piece, &look));
        // In order: the first failure is that of the first row.
        let edited = pieces.into_iter().collect::<Result<_, _>>()?;
        self.put_back(table, edited);
        Ok(())
    }

    /// A table of which nothing changed stays the one it was.
    fn put_back(&mut self, table: &Table, pieces: Vec<Edited>) {
        if pieces.iter().any(|piece| piece.changed) {
            self.removed += pieces.iter().map(|piece| piece.removed).sum::<u64>();
            self.database.set_table(table, pieces.into_iter().flat_map(|piece| piece.rows).collect());
        }
    }

    fn check(&self, table: &Table) -> Result<(), TouchError> {
        if self.declared.contains(table) {
            Ok(())
        } else {
            Err(TouchError::Undeclared { table: table.clone() })
        }
    }
}

/// What became of some rows of a table that follow each other.
struct Edited {
    rows: Vec<(RowKey, Bytes)>,
    removed: u64,
    changed: bool,
}

/// Shows some rows to `look`, with the same buffers for all of them.
fn edit(
    table: &Table,
    piece: &[(&RowKey, &Bytes)],
    mut look: impl FnMut(&RowKey, &mut Object) -> Verdict,
) -> Result<Edited, TouchError> {
    let (mut before, mut after) = (vec![], vec![]);
    let bytes: usize = piece.iter().map(|(_, value)| value.len() + GROWTH).sum();
    let mut shelf = Shelf::with_capacity(piece.len(), bytes);
    let mut removed = 0;
    for &(key, value) in piece {
        let mut edited = object(table, key, value)?;
        before.clear();
        json::write_object(&mut before, &edited);
        if look(key, &mut edited) == Verdict::Remove {
            removed += 1;
            continue;
        }
        after.clear();
        json::write_object(&mut after, &edited);
        if before == after {
            shelf.keep((key, Some(value)));
        } else {
            check_row(table, key, edited.get("id").and_then(Value::as_str), after.len())?;
            shelf.push((key, None), &after);
        }
    }
    let changed = removed > 0 || shelf.size() > 0;
    let row = |((key, kept), value): ((&RowKey, Option<&Bytes>), Bytes)| {
        (key.clone(), kept.cloned().unwrap_or(value))
    };
    Ok(Edited { rows: shelf.values().map(row).collect(), removed, changed })
}

pub(crate) fn object(table: &Table, key: &RowKey, value: &Bytes) -> Result<Object, TouchError> {
    if value.len() > MAX_ROW {
        return Err(TouchError::TooLarge { table: table.clone(), key: key.clone(), size: value.len() });
    }
    let object: Object = serde_json::from_slice(value).map_err(|source| TouchError::NotAnObject {
        table: table.clone(),
        key: key.clone(),
        source,
    })?;
    if object.values().any(json::has_fraction)
        && let Some(&number) = json::inexact(value).first()
    {
        let number = number.to_owned();
        return Err(TouchError::TooLong { table: table.clone(), key: key.clone(), number });
    }
    Ok(object)
}

fn encode(table: &Table, key: &RowKey, object: &Object) -> Result<Bytes, TouchError> {
    let mut value = vec![];
    json::write_object(&mut value, object);
    check_row(table, key, object.get("id").and_then(Value::as_str), value.len())?;
    Ok(value.into())
}

/// What holds for every row that any kind of migration writes.
pub(crate) fn check_row(
    table: &Table,
    key: &RowKey,
    id: Option<&str>,
    size: usize,
) -> Result<(), TouchError> {
    match id {
        Some(id) if id != &*key.id => {
            return Err(TouchError::OtherId { table: table.clone(), key: key.clone(), id: id.to_owned() });
        }
        _ => {}
    }
    if size > MAX_ROW {
        return Err(TouchError::TooLarge { table: table.clone(), key: key.clone(), size });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn database() -> Snapshot {
        let mut database = Snapshot::default();
        let port = Table::new("lport");
        database.put(&port, RowKey::new("t1", "a"), Bytes::from_static(br#"{ "id":"a", "name":"x" }"#));
        database.put(&port, RowKey::new("t1", "b"), Bytes::from_static(br#"{"id":"b"}"#));
        database
    }

    #[test]
    fn an_unchanged_object_keeps_its_bytes() {
        let (mut database, port) = (database(), Table::new("lport"));
        let before = database.clone();
        NorthBound::new(&mut database, std::slice::from_ref(&port))
            .edit_each(&port, |_, _| Verdict::Keep)
            .unwrap();
        assert_eq!(database, before);
    }

    #[test]
    fn edits_and_removes_rows() {
        let (mut database, port) = (database(), Table::new("lport"));
        NorthBound::new(&mut database, std::slice::from_ref(&port))
            .edit_each(&port, |key, object| {
                object.insert("new".into(), json!(1));
                if &*key.id == "b" { Verdict::Remove } else { Verdict::Keep }
            })
            .unwrap();
        let rows: Vec<_> =
            database.rows(&port).map(|(key, value)| (key.to_string(), value.clone())).collect();
        assert_eq!(rows, [("a@t1".to_owned(), Bytes::from_static(br#"{"id":"a","name":"x","new":1}"#))]);
    }

    #[test]
    fn all_cores_do_what_one_does() {
        let (mut one, port) = (Snapshot::default(), Table::new("lport"));
        for n in 0..1000 {
            let id = format!("p{n:04}");
            let value = format!(r#"{{ "id": "{id}", "n": {n} }}"#);
            one.put(&port, RowKey::new("t", &id), value.into());
        }
        let mut all = one.clone();
        let look = |_: &RowKey, object: &mut Object| match object["n"].as_u64().unwrap_or(0) % 3 {
            0 => Verdict::Remove,
            1 => {
                object.insert("new".into(), json!([1]));
                Verdict::Keep
            }
            _ => Verdict::Keep,
        };
        let declared = std::slice::from_ref(&port);
        let mut by_one = NorthBound::new(&mut one, declared);
        by_one.edit_each(&port, look).unwrap();
        assert_eq!(by_one.removed(), 334);
        let mut by_all = NorthBound::new(&mut all, declared);
        by_all.edit_all(&port, look).unwrap();
        assert_eq!(by_all.removed(), 334);
        assert_eq!(one, all);
    }

    #[test]
    fn refuses_broken_misnamed_and_oversized_rows() {
        let (mut database, port) = (database(), Table::new("lport"));
        let mut north_bound = NorthBound::new(&mut database, std::slice::from_ref(&port));
        let named = |id: &str| Object::from_iter([("id".to_owned(), json!(id))]);
        let misnamed = north_bound.create(&port, RowKey::new("t1", "c"), &named("d"));
        assert!(matches!(misnamed, Err(TouchError::OtherId { .. })), "{misnamed:?}");
        let mut large = named("c");
        large.insert("text".into(), json!("x".repeat(2 << 20)));
        let oversized = north_bound.create(&port, RowKey::new("t1", "c"), &large);
        assert!(matches!(oversized, Err(TouchError::TooLarge { .. })), "{oversized:?}");

        database.put(&port, RowKey::new("t1", "c"), Bytes::from_static(b"{\"id\":"));
        let mut north_bound = NorthBound::new(&mut database, std::slice::from_ref(&port));
        let broken = north_bound.edit_all(&port, |_, _| Verdict::Keep).unwrap_err();
        assert_eq!(broken.to_string(), "lport c@t1: not a JSON object");

        let long = Bytes::from_static(br#"{"id": "c", "n": 18446744073709551617}"#);
        database.put(&port, RowKey::new("t1", "c"), long);
        let mut north_bound = NorthBound::new(&mut database, std::slice::from_ref(&port));
        let lost = north_bound.edit_all(&port, |_, _| Verdict::Keep).unwrap_err().to_string();
        assert!(lost.starts_with("lport c@t1: the number 18446744073709551617"), "{lost}");
    }

    #[test]
    fn refuses_undeclared_tables_and_wrong_assumptions() {
        let (mut database, port, other) = (database(), Table::new("lport"), Table::new("lswitch"));
        let mut north_bound = NorthBound::new(&mut database, std::slice::from_ref(&port));
        let object = Object::new();
        assert!(matches!(north_bound.keys(&other), Err(TouchError::Undeclared { .. })));
        let there = RowKey::new("t1", "a");
        assert!(matches!(north_bound.create(&port, there.clone(), &object), Err(TouchError::Exists { .. })));
        let gone = RowKey::new("t2", "a");
        assert!(matches!(north_bound.update(&port, gone.clone(), &object), Err(TouchError::Missing { .. })));
        assert!(matches!(north_bound.remove(&port, &gone), Err(TouchError::Missing { .. })));
        assert!(north_bound.remove(&port, &there).is_ok());
    }
}
