//! Small databases written down as files: what a migration is tried on, and
//! what it must make of it.
//!
//! A file is a JSON object with a member per table: a list of objects, each
//! under its own id and topic, or an object of values by id.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use similar::TextDiff;

use crate::json;
use crate::record::{RowKey, Snapshot, Table};

/// The files of a migration's folder that it is tried on.
pub(super) const BEFORE: &str = "before.json";
pub(super) const AFTER: &str = "after.json";

/// Why a fixture is none.
#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },

    #[error("{}: not a JSON object of tables", path.display())]
    Syntax { path: PathBuf, source: serde_json::Error },

    #[error("{}: {table}: {problem}", path.display())]
    Table { path: PathBuf, table: String, problem: String },
}

/// Reads a database from a file.
pub fn read(path: &Path) -> Result<Snapshot, FixtureError> {
    let text = std::fs::read(path).map_err(|source| FixtureError::Read { path: path.to_owned(), source })?;
    parse(path, &text)
}

/// Reads a database from the text of a file.
pub fn parse(path: &Path, text: &[u8]) -> Result<Snapshot, FixtureError> {
    let tables: Map<String, Value> = serde_json::from_slice(text)
        .map_err(|source| FixtureError::Syntax { path: path.to_owned(), source })?;
    let mut database = Snapshot::default();
    for (name, rows) in tables {
        let table = Table::new(&name);
        let wrong = |problem: &str| FixtureError::Table {
            path: path.to_owned(),
            table: name.clone(),
            problem: problem.to_owned(),
        };
        let rows: Vec<(RowKey, Value)> = match rows {
            Value::Array(objects) => {
                let keyed = objects.into_iter().map(|object| Some((key(&object)?, object)));
                keyed.collect::<Option<_>>().ok_or_else(|| wrong("an object without an id"))?
            }
            Value::Object(values) => {
                values.into_iter().map(|(id, value)| (RowKey::untopical(&id), value)).collect()
            }
            _ => return Err(wrong("neither a list of objects nor values by id")),
        };
        for (key, value) in rows {
            if database.get(&table, &key).is_some() {
                return Err(wrong(&format!("{key} is there twice")));
            }
            let mut bytes = vec![];
            json::write_value(&mut bytes, &value);
            database.put(&table, key, bytes.into());
        }
    }
    Ok(database)
}

fn key(object: &Value) -> Option<RowKey> {
    let id = object.get("id")?.as_str()?;
    let topic = object.get("topic").and_then(Value::as_str).unwrap_or("");
    Some(RowKey::new(topic, id))
}

/// How two databases differ, line by line; nothing where they do not.
pub(super) fn difference(expected: &Snapshot, got: &Snapshot) -> Option<String> {
    if expected == got {
        return None;
    }
    let (expected, got) = (lines(expected), lines(got));
    let diff = TextDiff::from_lines(&expected, &got);
    Some(diff.unified_diff().context_radius(0).header("expected", "got").to_string())
}

fn lines(database: &Snapshot) -> String {
    let mut text = String::new();
    for (table, rows) in database.tables() {
        for (key, value) in rows {
            writeln!(text, "{table} {key} {}", String::from_utf8_lossy(value)).expect("a string takes all");
        }
    }
    text
}
