//! Models: what the objects of each table look like, declared in one file per release.
//!
//! The one invariant: models that were accepted refer only to tables and
//! embedded models that they declare themselves.

mod difference;
mod parse;
mod shape;
mod stored;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;

use serde_json::Value;

pub use difference::{Difference, Refusal, Step, diff, diff_from_unknown, fill};
pub use parse::ModelError;
pub use stored::{StoredError, stored, write};
pub use validate::{Problem, Report, Violation, validate};

use crate::record::Table;

/// All models of one release.
#[derive(Debug, Clone, PartialEq)]
pub struct Models {
    pub release: String,
    pub tables: BTreeMap<Table, Model>,
    /// Models that live inside others, by name.
    pub embedded: BTreeMap<String, Fields>,
    /// The file as it was written.
    pub source: String,
}

impl Models {
    /// Whether they differ in nothing but comments and spaces.
    pub(crate) fn says_the_same_as(&self, other: &Models) -> bool {
        (&self.release, &self.tables, &self.embedded) == (&other.release, &other.tables, &other.embedded)
    }
}

/// What a table holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// For people, e.g. `LogicalPort`.
    pub name: String,
    /// Rows it may hold at most.
    pub max: Option<u64>,
    pub rows: Rows,
}

/// What a row is.
#[derive(Debug, Clone, PartialEq)]
pub enum Rows {
    /// A whole number, counted up for new objects.
    Counter,
    Object(Fields),
}

/// The fields of an object, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields(Vec<(String, Field)>);

impl Fields {
    /// The most fields a model may have; `validate` keeps a bit for each.
    const MOST: usize = 128;

    pub fn get(&self, name: &str) -> Option<&Field> {
        self.position(name).map(|at| &self.0[at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Field)> {
        self.0.iter().map(|(name, field)| (name.as_str(), field))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.0.binary_search_by(|(other, _)| other.as_str().cmp(name)).ok()
    }
}

/// One field of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub kind: Kind,
    pub many: Many,
    pub required: bool,
    /// What objects that lack the field are given when it is added.
    pub default: Option<Value>,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Any,
    String,
    Integer,
    Number,
    Bool,
    Ip,
    Cidr,
    Mac,
    OneOf(Vec<String>),
    /// The id of an object in a table.
    Reference(Table),
    /// An object of an embedded model.
    Embedded(String),
}

/// How many values a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Many {
    One,
    List {
        max: Option<u64>,
    },
    /// Values by name.
    Map {
        max: Option<u64>,
    },
}
