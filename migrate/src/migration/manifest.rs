//! Reads a migration's manifest: one TOML file, with every field checked.
//!
//! The one invariant: a manifest that is accepted says who the migration is,
//! when it was proposed (with a zone), and which tables it may touch.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use crate::record::Table;
use crate::worker::Filter;

/// What a log entry repeats of a migration, and what orders it among others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Unique identity, e.g. `dragonflow.core.queens.port_binding`.
    pub id: String,
    /// Release the migration belongs to.
    pub release: String,
    pub description: String,
    pub proposed_at: Timestamp,
    /// Ids that must be applied before this one, whatever the dates say.
    pub after: Vec<String>,
    /// Ids that this one stands for: where they are applied, it counts as applied.
    pub replaces: Vec<String>,
    /// Tables it may read and write; any other is refused.
    pub tables: Vec<Table>,
}

/// How a migration from a folder does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A jq filter per table, run on each object.
    Jq { filters: Vec<(Table, String)>, stall: Duration },
    /// A command that reads rows and writes rows as lines of JSON.
    Exec { command: Vec<String>, timeout: Duration },
}

/// The name of the manifest in the folder of a migration.
pub const FILE: &str = "migration.toml";

/// A migration as found in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub header: Header,
    pub program: Program,
    /// Rows it may remove in all; more is an error.
    pub max_removed: Option<u64>,
    /// Bytes of memory its program may take.
    pub memory: u64,
    /// The folder of the manifest; relative commands and fixtures are found there.
    pub folder: PathBuf,
}

/// What can be wrong with a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },

    #[error("{}: not a migration manifest", path.display())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },

    #[error("{}: {field}: {problem}", path.display())]
    Field { path: PathBuf, field: &'static str, problem: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    release: String,
    description: String,
    proposed_at: String,
    #[serde(default)]
    after: Vec<String>,
    #[serde(default)]
    replaces: Vec<String>,
    tables: Vec<String>,
    #[serde(default)]
    jq: BTreeMap<String, String>,
    exec: Option<WrittenExec>,
    max_removed: Option<u64>,
    #[serde(default)]
    limits: WrittenLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenLimits {
    /// The longest a jq filter may think about one object.
    stall_seconds: u64,
    memory_mib: u64,
}

impl Default for WrittenLimits {
    fn default() -> WrittenLimits {
        WrittenLimits { stall_seconds: 30, memory_mib: 1024 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenExec {
    command: Vec<String>,
    #[serde(default = "default_timeout_seconds")]
    timeout_seconds: u64,
}

/// How long a program may be given.
const SECONDS: RangeInclusive<u64> = 1..=30 * 24 * 3600;

fn default_timeout_seconds() -> u64 {
    600
}

impl Manifest {
    pub fn read(path: &Path) -> Result<Manifest, ManifestError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ManifestError::Read { path: path.to_owned(), source })?;
        Manifest::parse(path, &text)
    }

    pub fn parse(path: &Path, text: &str) -> Result<Manifest, ManifestError> {
        let written: Written = toml::from_str(text)
            .map_err(|source| ManifestError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        let bad = |field, problem: String| ManifestError::Field { path: path.to_owned(), field, problem };

        if !is_identity(&written.id) {
            return Err(bad(
                "id",
                format!("{:?} may hold only letters, digits, '.', '_' and '-'", written.id),
            ));
        }
        let proposed_at = written.proposed_at.parse().map_err(|_| {
            bad(
                "proposed_at",
                format!("{:?} is not a time with a zone, e.g. 2017-07-19T12:00:00Z", written.proposed_at),
            )
        })?;
        if written.tables.is_empty() {
            return Err(bad("tables", "name at least one table".to_owned()));
        }
        if let Some(odd) = written.tables.iter().find(|name| !is_table(name)) {
            return Err(bad("tables", format!("{odd:?} may hold only letters, digits, '_' and '-'")));
        }
        let tables: Vec<Table> = written.tables.iter().map(Table::new).collect();
        if let Some(ours) = tables.iter().find(|table| super::log::is_reserved(table)) {
            return Err(bad("tables", format!("{ours} is kept by the tool itself")));
        }
        let WrittenLimits { stall_seconds, memory_mib } = written.limits;
        if !SECONDS.contains(&stall_seconds) || !(16..=1 << 20).contains(&memory_mib) {
            let problem =
                "stall_seconds is at least 1 and at most 30 days, memory_mib between 16 and 1048576";
            return Err(bad("limits", problem.to_owned()));
        }
        let stall = Duration::from_secs(stall_seconds);
        let program = program(written.jq, written.exec, &tables, stall)
            .map_err(|(field, problem)| bad(field, problem))?;
        let header = Header {
            id: written.id,
            release: written.release,
            description: written.description,
            proposed_at,
            after: written.after,
            replaces: written.replaces,
            tables,
        };
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(Manifest { header, program, max_removed: written.max_removed, memory: memory_mib << 20, folder })
    }
}

fn program(
    jq: BTreeMap<String, String>,
    exec: Option<WrittenExec>,
    tables: &[Table],
    stall: Duration,
) -> Result<Program, (&'static str, String)> {
    match (jq.is_empty(), exec) {
        (false, None) => {
            let filters: Vec<_> = jq.into_iter().map(|(table, filter)| (Table::new(table), filter)).collect();
            for (table, filter) in &filters {
                if !tables.contains(table) {
                    return Err(("jq", format!("{table} is not among the declared tables")));
                }
                Filter::compile(filter).map_err(|problem| ("jq", format!("{table}: {problem}")))?;
            }
            Ok(Program::Jq { filters, stall })
        }
        (true, Some(exec)) if exec.command.is_empty() => Err(("exec", "command is empty".to_owned())),
        (true, Some(exec)) if !SECONDS.contains(&exec.timeout_seconds) => {
            Err(("exec", "timeout_seconds is at least 1 and at most 30 days".to_owned()))
        }
        (true, Some(exec)) => {
            let timeout = Duration::from_secs(exec.timeout_seconds);
            Ok(Program::Exec { command: exec.command, timeout })
        }
        (true, None) => Err(("jq", "give either [jq] filters or an [exec] command".to_owned())),
        (false, Some(_)) => Err(("exec", "give [jq] or [exec], not both".to_owned())),
    }
}

/// What the layouts of all databases can keep in their keys.
pub(crate) fn is_table(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 100
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// What a resource of an API is called: its plural, and its group where it has one.
pub(super) fn is_resource(name: &str) -> bool {
    name.len() <= 317 && name.split('.').all(is_table)
}

pub(super) fn is_identity(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 200
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}
