//! Decides what an upgrade does next, from its stages and what its journal says.
//!
//! Nothing here runs a command or reads a file, so every rule can be tested as a table.
//!
//! The one invariant: forward, a stage begins only when all before it are done; back, a stage is undone only
//! when all after it are; and services are not started again over something that was left in place.

use super::{
    journal::{Direction, Progress, TaskId, TaskState},
    stage::{Kind, Stage, Way},
};

/// The next step. Each one is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Carry out these tasks of one stage, several at once.
    Do {
        way: Way,
        tasks: Vec<TaskId>,
    },
    /// Write down that these tasks have no way back.
    Leave {
        tasks: Vec<TaskId>,
    },
    /// Every stage is done.
    Complete,
    /// Everything that was done is undone.
    WentBack {
        left: Vec<TaskId>,
    },
    Stuck(Stuck),
}

/// Why nothing more is done by itself. Shown to the operator verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    #[error(
        "these have no undo and were left as they are: {}; the services stay stopped. \
         Put them back by hand and go on with --start-anyway, or mend the cause and go on with --forward",
        names.join(", ")
    )]
    Left { names: Vec<String> },
}

/// The next step. `start_anyway`: the operator has put back what has no undo.
pub fn next(stages: &[Stage], progress: &Progress, start_anyway: bool) -> Next {
    match progress.direction {
        Direction::Forward => forward(stages, progress),
        Direction::Back { .. } => back(stages, progress, start_anyway),
    }
}

fn forward(stages: &[Stage], progress: &Progress) -> Next {
    for stage in 0..stages.len() {
        let tasks = tasks(progress, stage, |state| match state {
            TaskState::WasSo | TaskState::Applied => false,
            TaskState::Untouched
            | TaskState::Applying { .. }
            | TaskState::Failed { .. }
            | TaskState::Undoing { .. }
            | TaskState::Undone
            | TaskState::UndoFailed { .. }
            | TaskState::Left => true,
        });
        if !tasks.is_empty() {
            return Next::Do { way: Way::Apply, tasks };
        }
    }
    Next::Complete
}

fn back(stages: &[Stage], progress: &Progress, start_anyway: bool) -> Next {
    for (index, stage) in stages.iter().enumerate().rev() {
        if !stage.kind.changes_something() {
            continue;
        }
        let tasks = tasks(progress, index, |state| match state {
            TaskState::Untouched | TaskState::WasSo | TaskState::Undone | TaskState::Left => false,
            TaskState::Applying { .. }
            | TaskState::Applied
            | TaskState::Failed { .. }
            | TaskState::Undoing { .. }
            | TaskState::UndoFailed { .. } => true,
        });
        if tasks.is_empty() {
            continue;
        }
        let (undoable, lasting): (Vec<TaskId>, Vec<TaskId>) =
            tasks.into_iter().partition(|id| stage.tasks[id.task].can_undo());
        if !lasting.is_empty() {
            return Next::Leave { tasks: lasting };
        }
        let left = left(stages, progress);
        if stage.kind == Kind::Stop && !left.is_empty() && !start_anyway {
            return Next::Stuck(Stuck::Left { names: left.iter().map(|id| name(stages, *id)).collect() });
        }
        return Next::Do { way: Way::Undo, tasks: undoable };
    }
    Next::WentBack { left: left(stages, progress) }
}

fn tasks(progress: &Progress, stage: usize, wanted: impl Fn(&TaskState) -> bool) -> Vec<TaskId> {
    let states = progress.tasks[stage].iter().enumerate();
    states.filter(|(_, state)| wanted(state)).map(|(task, _)| TaskId { stage, task }).collect()
}

fn left(stages: &[Stage], progress: &Progress) -> Vec<TaskId> {
    (0..stages.len()).flat_map(|stage| tasks(progress, stage, |state| *state == TaskState::Left)).collect()
}

/// A task as people call it: `stop neutron-server on controller-1`.
pub(super) fn name(stages: &[Stage], id: TaskId) -> String {
    let stage = &stages[id.stage];
    match &stage.tasks[id.task].node {
        Some(node) => format!("{} on {node}", stage.name),
        None => stage.name.clone(),
    }
}
