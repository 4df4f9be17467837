//! Holds a whole database against its models: every object, every reference, every count.
//!
//! The one invariant: what is found is counted in full and shown in part, and
//! the part is the same however many cores looked.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use serde::Serialize;

use super::shape::Shape;
use super::{Kind, Model, Models, Rows};
use crate::json::MAX_ROW;
use crate::lanes;
use crate::migration::is_reserved;
use crate::record::{RowKey, Snapshot, Table};

/// Violations that are shown; the rest is counted.
const SHOWN: usize = 50;

/// What is wrong with a row or a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the model has no such field")]
    UnknownField,
    #[error("the field is required, and missing")]
    Missing,
    #[error("{found} where {expected} belongs")]
    WrongType { expected: &'static str, found: &'static str },
    #[error("{found:?} is none of {values}")]
    NotOneOf { found: String, values: String },
    #[error("there is no {table} {id}")]
    Dangling { table: Table, id: String },
    #[error("{count} of them, and {max} is the most")]
    TooMany { count: u64, max: u64 },
    #[error("{0}")]
    NotJson(String),
    #[error("the row is {size} bytes, and {MAX_ROW} is the most")]
    TooLarge { size: usize },
    #[error("it holds {rows} rows, and there is no model for it")]
    NoModel { rows: u64 },
    #[error("it names itself {found:?}, and is found under another id")]
    OtherId { found: String },
    #[error("not a counter")]
    NotACounter,
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub table: Table,
    /// Absent where the table as a whole is meant.
    pub row: Option<RowKey>,
    /// The path of the field, e.g. `binding.chassis`; empty where the row is meant.
    pub field: String,
    pub problem: Problem,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.table)?;
        if let Some(row) = &self.row {
            write!(f, " {row}")?;
        }
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl Serialize for Violation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// All there are.
    pub count: u64,
    /// The first of them.
    pub shown: Vec<Violation>,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, violation: Violation) {
        self.count += 1;
        if self.shown.len() < SHOWN {
            self.shown.push(violation);
        }
    }

    fn merge(&mut self, other: Report) {
        self.count += other.count;
        self.shown.extend(other.shown.into_iter().take(SHOWN - self.shown.len()));
    }
}

/// Everything in `database` that is not as `models` say. The tool's own tables
/// are not looked at.
pub fn validate(database: &Snapshot, models: &Models) -> Report {
    let ids = ids(database, models);
    let mut report = Report::default();
    for (table, rows) in database.tables().filter(|(table, _)| !is_reserved(table)) {
        let whole = |problem| Violation { table: table.clone(), row: None, field: String::new(), problem };
        let count = rows.len() as u64;
        let Some(model) = models.tables.get(table) else {
            report.add(whole(Problem::NoModel { rows: count }));
            continue;
        };
        if let Some(max) = model.max.filter(|max| count > *max) {
            report.add(whole(Problem::TooMany { count, max }));
        }
        let rows: Vec<(&RowKey, &Bytes)> = rows.iter().collect();
        let looked = lanes::each(rows.chunks(lanes::PIECE), |rows| {
            let shape = Shape::with_ids(models, &ids);
            let mut report = Report::default();
            for (key, value) in rows {
                for (field, problem) in wrong(model, key, value, &shape) {
                    report.add(Violation { table: table.clone(), row: Some((*key).clone()), field, problem });
                }
            }
            report
        });
        looked.into_iter().for_each(|part| report.merge(part));
    }
    report
}

/// Ids of every table that some field refers to.
fn ids<'a>(database: &'a Snapshot, models: &'a Models) -> BTreeMap<&'a Table, HashSet<&'a str>> {
    let objects = models.tables.values().filter_map(|model| match &model.rows {
        Rows::Counter => None,
        Rows::Object(fields) => Some(fields),
    });
    let mut ids = BTreeMap::new();
    for (_, field) in objects.chain(models.embedded.values()).flat_map(|fields| fields.iter()) {
        if let Kind::Reference(table) = &field.kind {
            ids.entry(table)
                .or_insert_with(|| database.rows(table).map(|(key, _)| &*key.id).collect::<HashSet<&str>>());
        }
    }
    ids
}

/// What is wrong with a row, each with the path of its field.
fn wrong<'a>(model: &'a Model, key: &RowKey, value: &Bytes, shape: &Shape<'a>) -> Vec<(String, Problem)> {
    let whole = |problem| vec![(String::new(), problem)];
    match &model.rows {
        _ if value.len() > MAX_ROW => whole(Problem::TooLarge { size: value.len() }),
        Rows::Counter if serde_json::from_slice::<u64>(value).is_ok() => vec![],
        Rows::Counter => whole(Problem::NotACounter),
        Rows::Object(fields) => shape.object(fields, &key.id, value),
    }
}
