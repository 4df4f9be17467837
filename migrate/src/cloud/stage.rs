//! Lays an upgrade out as stages, in the order in which they are done.
//!
//! ```text
//! preflight ▶ rehearse ▶ stop … ▶ update … ▶ other databases … ▶ migrate ▶ start … ▶ verify
//! ```
//!
//! The one invariant: services are stopped in the reverse of the order in which they are started, and
//! undoing the stages from last to first gives the order of the way back.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::file::{Check, Database, Service, Update, Upgrade};

/// What a stage is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    Preflight,
    Rehearse,
    Stop,
    Update,
    Database,
    Migrate,
    Start,
    Verify,
}

impl Kind {
    /// Whether there may be something to undo.
    pub fn changes_something(self) -> bool {
        match self {
            Kind::Preflight | Kind::Rehearse | Kind::Verify => false,
            Kind::Stop | Kind::Update | Kind::Database | Kind::Migrate | Kind::Start => true,
        }
    }
}

/// Which way a task is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    Apply,
    Undo,
}

/// One thing that is done, on one node or on several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    pub name: String,
    pub kind: Kind,
    /// One per node, or one in all.
    pub tasks: Vec<Task>,
}

/// A stage on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Absent: where the upgrade is run.
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    pub work: Work,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Work {
    /// The operator's commands.
    Commands(Commands),
    /// Our migrations, without the switch.
    Rehearse,
    /// Our migrations.
    Migrate,
}

/// What the operator wrote for a task. Each one may be run again after it was cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Commands {
    pub apply: String,
    /// Succeeds when `apply` has nothing more to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Succeeds when `undo` has nothing more to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undone: Option<String>,
    pub timeout: Duration,
    /// How long a check may take to pass after its command.
    pub settle: Duration,
}

impl Task {
    /// Whether what it did can be taken back.
    pub fn can_undo(&self) -> bool {
        match &self.work {
            Work::Commands(commands) => commands.undo.is_some(),
            Work::Rehearse | Work::Migrate => true,
        }
    }
}

/// Everything an upgrade does, first to last.
pub fn stages(upgrade: &Upgrade) -> Vec<Stage> {
    let mut stages = Vec::new();
    stages.extend(upgrade.preflight.iter().map(|check| look(upgrade, check, Kind::Preflight)));
    if upgrade.migrate.is_some() && upgrade.rehearse {
        stages.push(own("rehearse the migrations", Kind::Rehearse, Work::Rehearse));
    }
    stages.extend(upgrade.services.iter().rev().map(|service| stop(upgrade, service)));
    stages.extend(upgrade.updates.iter().map(|part| update(upgrade, part)));
    stages.extend(upgrade.databases.iter().map(|part| database(upgrade, part)));
    if upgrade.migrate.is_some() {
        stages.push(own("migrate the database", Kind::Migrate, Work::Migrate));
    }
    stages.extend(upgrade.services.iter().map(|service| start(upgrade, service)));
    stages.extend(upgrade.verify.iter().map(|check| look(upgrade, check, Kind::Verify)));
    stages
}

fn own(name: &str, kind: Kind, work: Work) -> Stage {
    let task = Task { node: None, environment: BTreeMap::new(), work };
    Stage { name: name.to_owned(), kind, tasks: vec![task] }
}

fn look(upgrade: &Upgrade, check: &Check, kind: Kind) -> Stage {
    let commands = Commands { apply: check.check.clone(), ..bare(upgrade, check.timeout_seconds) };
    let tasks = match &check.nodes {
        Some(names) => per_node(upgrade, Some(names), &commands),
        None => vec![here(commands)],
    };
    Stage { name: format!("check {}", check.name), kind, tasks }
}

fn stop(upgrade: &Upgrade, service: &Service) -> Stage {
    let commands = Commands {
        apply: service.stop.clone(),
        applied: service.stopped.clone(),
        undo: Some(service.start.clone()),
        undone: service.started.clone(),
        ..bare(upgrade, service.timeout_seconds)
    };
    let tasks = per_node(upgrade, service.nodes.as_ref(), &commands);
    Stage { name: format!("stop {}", service.name), kind: Kind::Stop, tasks }
}

fn start(upgrade: &Upgrade, service: &Service) -> Stage {
    let commands = Commands {
        apply: service.start.clone(),
        applied: service.started.clone(),
        undo: Some(service.stop.clone()),
        undone: service.stopped.clone(),
        ..bare(upgrade, service.timeout_seconds)
    };
    let tasks = per_node(upgrade, service.nodes.as_ref(), &commands);
    Stage { name: format!("start {}", service.name), kind: Kind::Start, tasks }
}

fn update(upgrade: &Upgrade, update: &Update) -> Stage {
    let commands = Commands {
        apply: update.apply.clone(),
        applied: update.check.clone(),
        undo: update.undo.clone(),
        ..bare(upgrade, update.timeout_seconds)
    };
    let tasks = per_node(upgrade, update.nodes.as_ref(), &commands);
    Stage { name: format!("update {}", update.name), kind: Kind::Update, tasks }
}

fn database(upgrade: &Upgrade, database: &Database) -> Stage {
    let commands = Commands {
        apply: database.apply.clone(),
        applied: database.check.clone(),
        undo: database.undo.clone(),
        ..bare(upgrade, database.timeout_seconds)
    };
    Stage {
        name: format!("migrate database {}", database.name),
        kind: Kind::Database,
        tasks: vec![here(commands)],
    }
}

fn bare(upgrade: &Upgrade, timeout_seconds: Option<u64>) -> Commands {
    Commands {
        apply: String::new(),
        applied: None,
        undo: None,
        undone: None,
        timeout: Duration::from_secs(timeout_seconds.unwrap_or(upgrade.timeout_seconds)),
        settle: Duration::from_secs(upgrade.settle_seconds),
    }
}

fn here(commands: Commands) -> Task {
    Task { node: None, environment: BTreeMap::new(), work: Work::Commands(commands) }
}

fn per_node(upgrade: &Upgrade, names: Option<&Vec<String>>, commands: &Commands) -> Vec<Task> {
    let nodes = match names {
        Some(names) => upgrade.resolve(names),
        None => upgrade.nodes.keys().cloned().collect(),
    };
    let task = |node: String| Task {
        environment: upgrade.nodes.get(&node).cloned().unwrap_or_default(),
        node: Some(node),
        work: Work::Commands(commands.clone()),
    };
    nodes.into_iter().map(task).collect()
}
