//! Reads the upgrade file: one TOML file that names nodes, services, updates and databases.
//!
//! The one invariant: a file that is accepted names only nodes that exist, every name once, and holds no
//! field that we do not know.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{run::Settings, with_causes};

/// A cloud upgrade, as the operator wrote it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Shown in messages and kept in the journal.
    pub name: String,
    /// Nodes on which a command runs at once.
    #[serde(default = "default_at_once")]
    pub at_once: usize,
    /// Longest time for a command that names no other.
    #[serde(default = "default_timeout")]
    pub timeout_seconds: u64,
    /// How long a `check` may take to pass after its command.
    #[serde(default = "default_settle")]
    pub settle_seconds: u64,
    /// Every node, with what its commands find in their environment.
    #[serde(default)]
    pub nodes: BTreeMap<String, BTreeMap<String, String>>,
    /// Names for several nodes.
    #[serde(default)]
    pub groups: BTreeMap<String, Vec<String>>,
    /// Must succeed before anything is touched.
    #[serde(default)]
    pub preflight: Vec<Check>,
    /// In the order in which they are started; stopped in the reverse.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Code and configuration, in the order in which they are updated.
    #[serde(default)]
    pub updates: Vec<Update>,
    /// Other databases, migrated before ours.
    #[serde(default)]
    pub databases: Vec<Database>,
    /// Our own database; absent where only others are upgraded.
    pub migrate: Option<Settings>,
    /// Runs the migrations without the switch before any service is stopped. Not possible where an
    /// update brings the migrations.
    #[serde(default = "default_rehearse")]
    pub rehearse: bool,
    /// Must succeed after the services were started.
    #[serde(default)]
    pub verify: Vec<Check>,
}

/// A command that only looks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub name: String,
    /// Nodes or groups; absent: once, where the upgrade is run.
    pub nodes: Option<Vec<String>>,
    pub check: String,
    pub timeout_seconds: Option<u64>,
}

/// Something that runs on nodes and must not during the migration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub name: String,
    /// Nodes or groups; absent: all nodes.
    pub nodes: Option<Vec<String>>,
    pub stop: String,
    pub start: String,
    /// Succeeds when the service is stopped.
    pub stopped: Option<String>,
    /// Succeeds when the service runs.
    pub started: Option<String>,
    pub timeout_seconds: Option<u64>,
}

/// New code or configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Update {
    pub name: String,
    /// Nodes or groups; absent: all nodes.
    pub nodes: Option<Vec<String>>,
    pub apply: String,
    pub undo: Option<String>,
    /// Succeeds when the update is in place.
    pub check: Option<String>,
    pub timeout_seconds: Option<u64>,
}

/// A database of somebody else, such as Neutron's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    pub name: String,
    pub apply: String,
    pub undo: Option<String>,
    /// Succeeds when the database has its new schema.
    pub check: Option<String>,
    pub timeout_seconds: Option<u64>,
}

/// The longest that a command may take.
const LONGEST_SECONDS: u64 = 30 * 24 * 3600;

fn default_at_once() -> usize {
    8
}

fn default_timeout() -> u64 {
    600
}

fn default_settle() -> u64 {
    30
}

fn default_rehearse() -> bool {
    true
}

/// A message of the parser without the values that it quotes.
fn without_values(message: &str) -> String {
    if let Some((_, rest)) = message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once('`')) {
        return format!("a value that is none of those it may have{rest}");
    }
    match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            format!("{}\"…\"{}", &message[..first], &message[last + 1..])
        }
        (Some(_) | None, _) => message.to_owned(),
    }
}

/// What can be wrong with an upgrade file.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeFileError {
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },

    /// Shows no text of the file: it may hold a password.
    #[error("{}: not an upgrade file: line {line}: {problem}", path.display())]
    Syntax { path: PathBuf, line: usize, problem: String },

    #[error("{}: {field}: {problem}", path.display())]
    Field { path: PathBuf, field: String, problem: String },
}

impl Upgrade {
    pub fn read(path: &Path) -> Result<Upgrade, UpgradeFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| UpgradeFileError::Read { path: path.to_owned(), source })?;
        Upgrade::parse(&text, path)
    }

    pub fn parse(text: &str, path: &Path) -> Result<Upgrade, UpgradeFileError> {
        let mut upgrade: Upgrade = toml::from_str(text).map_err(|error| UpgradeFileError::Syntax {
            path: path.to_owned(),
            line: error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1),
            problem: without_values(error.message()),
        })?;
        upgrade.check().map_err(|(field, problem)| UpgradeFileError::Field {
            path: path.to_owned(),
            field,
            problem,
        })?;
        if let (Some(migrate), Some(folder)) = (&mut upgrade.migrate, path.parent()) {
            migrate.resolve(folder);
        }
        Ok(upgrade)
    }

    /// The nodes meant by names of nodes and groups, each once, in the order named.
    pub(super) fn resolve(&self, names: &[String]) -> Vec<String> {
        let mut nodes = Vec::new();
        for name in names {
            let meant = self.groups.get(name).map_or(std::slice::from_ref(name), Vec::as_slice);
            for node in meant {
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
            }
        }
        nodes
    }

    fn check(&self) -> Result<(), (String, String)> {
        let bad = |field: &str, problem: String| Err((field.to_owned(), problem));
        if self.name.trim().is_empty() {
            return bad("name", "is empty".to_owned());
        }
        if self.at_once == 0 {
            return bad("at_once", "must be at least 1".to_owned());
        }
        let of_parts = self.timeouts().map(|seconds| ("timeout_seconds", seconds));
        let times =
            [("timeout_seconds", self.timeout_seconds), ("settle_seconds", self.settle_seconds.max(1))];
        for (field, seconds) in times.into_iter().chain(of_parts) {
            if !(1..=LONGEST_SECONDS).contains(&seconds) {
                return bad(
                    field,
                    format!("{seconds} is not between 1 and {LONGEST_SECONDS}, which is 30 days"),
                );
            }
        }
        if let Some(migrate) = &self.migrate {
            let sound = migrate.url().map(drop).and_then(|()| migrate.refuse_odd_times());
            sound.map_err(|error| ("migrate".to_owned(), with_causes(&error)))?;
        }
        for (group, nodes) in &self.groups {
            if self.nodes.contains_key(group) {
                return bad("groups", format!("{group} is also the name of a node"));
            }
            if let Some(stray) = nodes.iter().find(|node| !self.nodes.contains_key(*node)) {
                return bad("groups", format!("{group} names {stray}, which is not among [nodes]"));
            }
        }
        for (node, environment) in &self.nodes {
            if let Some(name) = environment.keys().find(|name| !is_variable(name)) {
                return bad("nodes", format!("{node}: {name:?} cannot name a variable of the environment"));
            }
        }
        let mut seen = BTreeSet::new();
        for (field, name, nodes) in self.parts() {
            if name.trim().is_empty() {
                return bad(field, "a name is empty".to_owned());
            }
            if !seen.insert((field, name)) {
                return bad(field, format!("{name} is named twice"));
            }
            let known = |name: &&String| self.nodes.contains_key(*name) || self.groups.contains_key(*name);
            if let Some(stray) = nodes.iter().flat_map(|nodes| nodes.iter()).find(|name| !known(name)) {
                return bad(field, format!("{name}: {stray} is neither a node nor a group"));
            }
            if nodes.is_some_and(Vec::is_empty) {
                return bad(field, format!("{name}: nodes is empty"));
            }
        }
        let on_all = !self.services.is_empty() || !self.updates.is_empty();
        if on_all && self.nodes.is_empty() {
            return bad("nodes", "name at least one node for services and updates".to_owned());
        }
        Ok(())
    }

    /// Those that single parts have for themselves.
    fn timeouts(&self) -> impl Iterator<Item = u64> {
        let checks = self.preflight.iter().chain(&self.verify).map(|check| check.timeout_seconds);
        let services = self.services.iter().map(|service| service.timeout_seconds);
        let updates = self.updates.iter().map(|update| update.timeout_seconds);
        let databases = self.databases.iter().map(|database| database.timeout_seconds);
        checks.chain(services).chain(updates).chain(databases).flatten()
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, &str, Option<&Vec<String>>)> {
        let preflight = self.preflight.iter().map(|c| ("preflight", c.name.as_str(), c.nodes.as_ref()));
        let services = self.services.iter().map(|s| ("services", s.name.as_str(), s.nodes.as_ref()));
        let updates = self.updates.iter().map(|u| ("updates", u.name.as_str(), u.nodes.as_ref()));
        let databases = self.databases.iter().map(|d| ("databases", d.name.as_str(), None));
        let verify = self.verify.iter().map(|c| ("verify", c.name.as_str(), c.nodes.as_ref()));
        preflight.chain(services).chain(updates).chain(databases).chain(verify)
    }
}

fn is_variable(name: &str) -> bool {
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    starts
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with("MIDFLIGHT_")
}
