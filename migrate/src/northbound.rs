//! The copy of the database that migrations act on.
//!
//! The one invariant: a migration reads and writes only the tables it declared,
//! and what it writes is a JSON object that names its own id.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::record::{RowKey, Snapshot, Table};

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
}

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
}

impl<'a> NorthBound<'a> {
    pub fn new(database: &'a mut Snapshot, declared: &[Table]) -> NorthBound<'a> {
        NorthBound { database, declared: declared.iter().cloned().collect() }
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
        self.database.put(table, key, encode(object));
        Ok(())
    }

    /// Replaces a row that must be there.
    pub fn update(&mut self, table: &Table, key: RowKey, object: &Object) -> Result<(), TouchError> {
        self.check(table)?;
        if self.database.get(table, &key).is_none() {
            return Err(TouchError::Missing { table: table.clone(), key });
        }
        self.database.put(table, key, encode(object));
        Ok(())
    }

    pub fn remove(&mut self, table: &Table, key: &RowKey) -> Result<(), TouchError> {
        self.check(table)?;
        match self.database.remove(table, key) {
            Some(_) => Ok(()),
            None => Err(TouchError::Missing { table: table.clone(), key: key.clone() }),
        }
    }

    /// Shows every object of a table to `look`. A row whose object did not
    /// change keeps its bytes, so formatting alone never counts as a change.
    pub fn edit_each(
        &mut self,
        table: &Table,
        mut look: impl FnMut(&RowKey, &mut Object) -> Verdict,
    ) -> Result<(), TouchError> {
        self.check(table)?;
        let mut rows = self.database.take_table(table);
        let mut broken = None;
        rows.retain(|key, value| {
            let before = match object(table, key, value) {
                Ok(before) => before,
                Err(error) => {
                    broken.get_or_insert(error);
                    return true;
                }
            };
            let mut after = before.clone();
            let verdict = look(key, &mut after);
            if after != before {
                *value = encode(&after);
            }
            verdict == Verdict::Keep
        });
        self.database.set_table(table, rows);
        broken.map_or(Ok(()), Err)
    }

    fn check(&self, table: &Table) -> Result<(), TouchError> {
        if self.declared.contains(table) {
            Ok(())
        } else {
            Err(TouchError::Undeclared { table: table.clone() })
        }
    }
}

fn object(table: &Table, key: &RowKey, value: &Bytes) -> Result<Object, TouchError> {
    serde_json::from_slice(value).map_err(|source| TouchError::NotAnObject {
        table: table.clone(),
        key: key.clone(),
        source,
    })
}

fn encode(object: &Object) -> Bytes {
    serde_json::to_vec(object).expect("a map with string keys always encodes").into()
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
