//! Tells in what a mended upgrade file differs from the one that a run was begun with.
//!
//! The one invariant: what is accepted as mended has the same steps on the same nodes, so the journal speaks of
//! them as before; only what a step runs is another.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use super::{
    script::Script,
    stage::{Stage, Task, Work},
};

/// One thing that is run otherwise than the run was begun with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mended {
    /// The step, as people call it.
    pub step: String,
    pub part: &'static str,
    pub before: String,
    pub after: String,
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n    - {}\n    + {}", self.step, self.part, self.before, self.after)
    }
}

/// Why a changed file is not the same upgrade any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtherUpgrade {
    #[error("step {number} was {before:?} and is now {after:?}")]
    Step { number: usize, before: String, after: String },

    #[error("{step} runs on other nodes: {} before, {} now", before.join(", "), after.join(", "))]
    Nodes { step: String, before: Vec<String>, after: Vec<String> },

    #[error("it names another database: {before} before, {after} now")]
    Database { before: String, after: String },
}

/// What is run otherwise, first step to last; a command that is the same on all nodes of a step is named once.
pub fn changes(before: &Script, after: &Script) -> Result<Vec<Mended>, OtherUpgrade> {
    same_database(before, after)?;
    let name = |stages: &[Stage], number: usize| match stages.get(number) {
        Some(stage) => stage.name.clone(),
        None => "nothing".to_owned(),
    };
    let mut changes = Vec::new();
    for number in 0..before.stages.len().max(after.stages.len()) {
        let (old, new) = match (before.stages.get(number), after.stages.get(number)) {
            (Some(old), Some(new)) if (old.kind, &old.name) == (new.kind, &new.name) => (old, new),
            _ => {
                return Err(OtherUpgrade::Step {
                    number: number + 1,
                    before: name(&before.stages, number),
                    after: name(&after.stages, number),
                });
            }
        };
        if nodes(old) != nodes(new) {
            return Err(OtherUpgrade::Nodes {
                step: old.name.clone(),
                before: nodes(old),
                after: nodes(new),
            });
        }
        for (old_task, new_task) in old.tasks.iter().zip(&new.tasks) {
            for change in of_task(&old.name, old_task, new_task) {
                if !changes.contains(&change) {
                    changes.push(change);
                }
            }
        }
    }
    Ok(changes)
}

/// The way back leads to the database that the run began with. (Where none is kept, its steps tell the same.)
pub fn same_database(before: &Script, after: &Script) -> Result<(), OtherUpgrade> {
    let name = |database: &Option<String>| database.clone().unwrap_or_else(|| "none".to_owned());
    if before.database.is_none() || before.database == after.database {
        return Ok(());
    }
    Err(OtherUpgrade::Database { before: name(&before.database), after: name(&after.database) })
}

fn nodes(stage: &Stage) -> Vec<String> {
    stage.tasks.iter().map(|task| task.node.clone().unwrap_or_else(|| "here".to_owned())).collect()
}

fn of_task(step: &str, before: &Task, after: &Task) -> Vec<Mended> {
    let mut pairs: Vec<(&'static str, String, String)> = Vec::new();
    if let (Work::Commands(old), Work::Commands(new)) = (&before.work, &after.work) {
        let or_none = |command: &Option<String>| command.clone().unwrap_or_else(|| "(none)".to_owned());
        pairs.push(("command", old.apply.clone(), new.apply.clone()));
        pairs.push(("done when", or_none(&old.applied), or_none(&new.applied)));
        pairs.push(("undone by", or_none(&old.undo), or_none(&new.undo)));
        pairs.push(("undone when", or_none(&old.undone), or_none(&new.undone)));
        pairs.push(("longest time", seconds(old.timeout), seconds(new.timeout)));
        pairs.push(("time to settle", seconds(old.settle), seconds(new.settle)));
    }
    pairs.push(("environment", variables(&before.environment), variables(&after.environment)));
    pairs
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(part, before, after)| Mended { step: step.to_owned(), part, before, after })
        .collect()
}

fn seconds(time: std::time::Duration) -> String {
    format!("{} s", time.as_secs())
}

fn variables(environment: &BTreeMap<String, String>) -> String {
    environment.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
