//! Migrations that are compiled in: a function over the database.

use std::fmt;

use jiff::Timestamp;

use super::manifest::{Header, is_identity, is_resource, is_table};
use crate::northbound::NorthBound;
use crate::record::Table;

/// Why a function gave up.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A migration written in Rust. Each is a `static`, and whoever builds a tool
/// lists them in an array: one that is forgotten there is an unused item to the
/// compiler, not a migration that silently never runs.
pub struct Native {
    pub id: &'static str,
    pub release: &'static str,
    pub description: &'static str,
    /// A time with a zone, e.g. `2017-07-19T12:00:00Z`.
    pub proposed_at: &'static str,
    pub after: &'static [&'static str],
    pub replaces: &'static [&'static str],
    pub tables: &'static [&'static str],
    pub max_removed: Option<u64>,
    /// Stands for the program in the checksum: raise it when the function
    /// comes to do something else.
    pub revision: u32,
    /// A small database before and after, as JSON: `lint` tries the function on it.
    pub fixtures: Option<Fixtures>,
    pub migration: fn(&mut NorthBound<'_>) -> Result<(), Failure>,
}

/// What a function is tried on, and what it must make of it; `include_str!` takes them from files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixtures {
    pub before: &'static str,
    pub after: &'static str,
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Native").field("id", &self.id).field("revision", &self.revision).finish()
    }
}

/// What the tables of a database may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// Such that the keys of every database can hold it.
    Keys,
    /// As the resources of an API: `PLURAL`, or `PLURAL.GROUP`.
    Resources,
}

impl Naming {
    fn check(self, name: &str) -> Result<(), String> {
        match self {
            Naming::Keys if is_table(name) => Ok(()),
            Naming::Resources if is_resource(name) => Ok(()),
            Naming::Keys => Err(format!("{name:?} may hold only letters, digits, '_' and '-'")),
            Naming::Resources => Err(format!("{name:?} is neither PLURAL nor PLURAL.GROUP")),
        }
    }
}

impl Native {
    /// What a manifest would say, or which field is wrong and why.
    pub(super) fn header(&self, naming: Naming) -> Result<Header, (&'static str, String)> {
        if !is_identity(self.id) {
            return Err(("id", format!("{:?} is not an id", self.id)));
        }
        let proposed_at: Timestamp = self
            .proposed_at
            .parse()
            .map_err(|_| ("proposed_at", format!("{:?} is not a time with a zone", self.proposed_at)))?;
        if self.tables.is_empty() {
            return Err(("tables", "name at least one table".to_owned()));
        }
        self.tables.iter().try_for_each(|name| naming.check(name)).map_err(|problem| ("tables", problem))?;
        let tables: Vec<Table> = self.tables.iter().map(Table::new).collect();
        if let Some(ours) = tables.iter().find(|table| super::log::is_reserved(table)) {
            return Err(("tables", format!("{ours} is kept by the tool itself")));
        }
        let owned = |list: &[&str]| list.iter().map(|&id| id.to_owned()).collect();
        Ok(Header {
            id: self.id.to_owned(),
            release: self.release.to_owned(),
            description: self.description.to_owned(),
            proposed_at,
            after: owned(self.after),
            replaces: owned(self.replaces),
            tables,
        })
    }
}
