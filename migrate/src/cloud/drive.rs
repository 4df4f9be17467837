//! Carries an upgrade out: looks at the journal, decides, writes down, acts, until nothing is left to do.
//!
//! The one invariant: before a command runs the journal says that it will, and what it did is in the journal
//! before the next one begins.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use serde::Serialize;

use super::{
    decide::{self, Next, Stuck, next},
    hook::{self, Hook, HookError},
    journal::{Direction, Entry, Journal, JournalError, TaskId, TaskState},
    stage::{Commands, Kind, Stage, Task, Way, Work},
};
use crate::{folders, with_causes, worker::SHARED};

/// Time between two looks whether a check passes.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What can go wrong in our own database's part, in words for the operator.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The migration of our own database. Each call may be repeated after it was cut off.
#[async_trait(?Send)]
pub trait OurDatabase {
    /// Everything but the switch. Gives a line for people.
    async fn rehearse(&self) -> Result<String, Cause>;
    async fn apply(&self) -> Result<String, Cause>;
    /// Why `rollback` would be refused now, if it would. Only looks.
    async fn way_back(&self) -> Result<(), Cause>;
    /// Puts the data back that `apply` replaced, or finds that it replaced none.
    async fn rollback(&self) -> Result<String, Cause>;
}

/// What is told while an upgrade goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "event")]
pub enum Event {
    Stage { way: Way, kind: Kind, stage: String, tasks: usize },
    Done { way: Way, task: String, milliseconds: u64, said: Option<String> },
    WasSo { task: String },
    Failed { way: Way, task: String, why: String },
    Left { task: String },
    Turned { why: String },
    LeftoversEnded { task: String, processes: usize },
}

/// How an upgrade ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "outcome")]
pub enum Outcome {
    Complete,
    /// Everything is as it was, except what is named here.
    WentBack {
        why: String,
        left: Vec<String>,
    },
}

/// Why a run stopped before its end. Running it again goes on from here.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Journal(#[from] JournalError),

    #[error("make the folder {} for the output of commands", path.display())]
    Logs { path: PathBuf, source: io::Error },

    #[error("make the folder {} by which migrations share what they found out", path.display())]
    Shared { path: PathBuf, source: io::Error },

    #[error("look for processes of the run that was cut off")]
    Leftovers { source: io::Error },

    #[error("going back because {because}: {task} could not be undone: {why}")]
    UndoFailed { task: String, because: String, why: String },

    #[error("going back because {because}: {stuck}")]
    Stuck { because: String, stuck: Stuck },

    #[error("{because}, and there is no way back, so nothing was stopped or undone: {why}")]
    NoWayBack { because: String, why: String },
}

/// Drives one upgrade.
pub struct Runner<'a> {
    pub journal: Journal,
    pub database: Option<&'a dyn OurDatabase>,
    /// The operator has put back what has no undo.
    pub start_anyway: bool,
    pub tell: &'a mut (dyn FnMut(&Event) + Send),
}

impl Runner<'_> {
    pub async fn run(mut self) -> Result<Outcome, RunError> {
        let places = Places::make(self.journal.path())?;
        self.end_leftovers()?;
        loop {
            match next(self.journal.stages(), self.journal.progress(), self.start_anyway) {
                Next::Do { way, tasks } => self.carry_out(way, &tasks, &places).await?,
                Next::Leave { tasks } => self.leave(&tasks)?,
                Next::Complete => {
                    self.journal.write(&Entry::Closed)?;
                    return Ok(Outcome::Complete);
                }
                Next::WentBack { left } => {
                    self.journal.write(&Entry::Closed)?;
                    let left = left.into_iter().map(|id| self.name(id)).collect();
                    return Ok(Outcome::WentBack { why: self.why(), left });
                }
                Next::Stuck(stuck) => return Err(RunError::Stuck { because: self.why(), stuck }),
            }
        }
    }

    /// Turns back. What our database would refuse is found out before anything is stopped for it.
    pub async fn turn_back(&mut self, why: String) -> Result<(), RunError> {
        if let Some(database) = self.database
            && self.tasks().any(|id| self.is_migrated(id))
        {
            database.way_back().await.map_err(|cause| RunError::NoWayBack {
                because: why.clone(),
                why: with_causes(cause.as_ref()),
            })?;
        }
        (self.tell)(&Event::Turned { why: why.clone() });
        Ok(self.journal.write(&Entry::Turned(Direction::Back { why }))?)
    }

    fn is_migrated(&self, id: TaskId) -> bool {
        let ours = self.journal.stages()[id.stage].kind == Kind::Migrate;
        ours && *self.journal.progress().of(id) == TaskState::Applied
    }

    /// A run that was killed may have left a command running; it is ended before it is run again.
    fn end_leftovers(&mut self) -> Result<(), RunError> {
        let cut_off: Vec<(TaskId, String)> = self
            .tasks()
            .filter_map(|id| match self.journal.progress().of(id) {
                TaskState::Applying { attempt } | TaskState::Undoing { attempt } => {
                    Some((id, attempt.clone()))
                }
                TaskState::Untouched
                | TaskState::WasSo
                | TaskState::Applied
                | TaskState::Failed { .. }
                | TaskState::Undone
                | TaskState::UndoFailed { .. }
                | TaskState::Left => None,
            })
            .collect();
        for (id, attempt) in cut_off {
            let processes = hook::end_leftovers(&attempt).map_err(|source| RunError::Leftovers { source })?;
            if processes > 0 {
                let task = self.name(id);
                (self.tell)(&Event::LeftoversEnded { task, processes });
            }
        }
        Ok(())
    }

    async fn carry_out(&mut self, way: Way, tasks: &[TaskId], places: &Places) -> Result<(), RunError> {
        let stage = &self.journal.stages()[tasks[0].stage];
        let (kind, name) = (stage.kind, stage.name.clone());
        (self.tell)(&Event::Stage { way, kind, stage: name, tasks: tasks.len() });
        let mut failure = None;
        // Begun in chunks: each is in the journal before any of its commands runs.
        for chunk in tasks.chunks(self.journal.at_once()) {
            if failure.is_some() {
                break;
            }
            let begun = self.begin(way, chunk, places).await?;
            let upgrade = self.journal.upgrade().to_owned();
            let stages = self.journal.stages().to_vec();
            let database = self.database;
            let mut running = stream::iter(begun)
                .map(|(id, attempt)| {
                    let order =
                        Order { upgrade: &upgrade, stage: &stages[id.stage], id, way, attempt, places };
                    async move { (id, Instant::now(), order.run(database).await) }
                })
                .buffer_unordered(chunk.len());
            while let Some((id, began, ended)) = running.next().await {
                if let Some(why) = self.settle(id, way, began, ended)? {
                    failure.get_or_insert((id, why));
                }
            }
        }
        match (failure, way) {
            (None, _) => Ok(()),
            (Some((id, why)), Way::Apply) => self.turn_back(format!("{} failed: {why}", self.name(id))).await,
            (Some((id, why)), Way::Undo) => {
                Err(RunError::UndoFailed { task: self.name(id), because: self.why(), why })
            }
        }
    }

    /// Passes over what is found done, and writes down that the others begin. What was begun before may
    /// have been done by us, so it is not passed over.
    async fn begin(
        &mut self,
        way: Way,
        chunk: &[TaskId],
        places: &Places,
    ) -> Result<Vec<(TaskId, String)>, RunError> {
        let attempt = || uuid::Uuid::new_v4().to_string();
        let untouched: Vec<TaskId> = chunk.iter().copied().filter(|&id| self.is_fresh(id)).collect();
        let mut was_so = Vec::new();
        if way == Way::Apply {
            let (upgrade, stages) = (self.journal.upgrade(), self.journal.stages());
            was_so = stream::iter(untouched)
                .map(|id| {
                    let attempt = attempt();
                    let order = Order { upgrade, stage: &stages[id.stage], id, way, attempt, places };
                    async move { order.is_applied().await.then_some(id) }
                })
                .buffer_unordered(chunk.len())
                .filter_map(std::future::ready)
                .collect()
                .await;
        }
        for &id in &was_so {
            self.journal.write(&Entry::WasSo { task: id })?;
            let task = self.name(id);
            (self.tell)(&Event::WasSo { task });
        }
        let mut begun = Vec::new();
        for &id in chunk.iter().filter(|id| !was_so.contains(id)) {
            let attempt = attempt();
            self.journal.write(&Entry::Began { task: id, way, attempt: attempt.clone() })?;
            begun.push((id, attempt));
        }
        Ok(begun)
    }

    /// Never begun, or undone since: what is found done was so without us.
    fn is_fresh(&self, id: TaskId) -> bool {
        matches!(self.journal.progress().of(id), TaskState::Untouched | TaskState::Undone)
    }

    /// Writes down how a task ended. Gives the reason if it failed.
    fn settle(
        &mut self,
        id: TaskId,
        way: Way,
        began: Instant,
        ended: Result<Option<String>, String>,
    ) -> Result<Option<String>, RunError> {
        let task = self.name(id);
        match ended {
            Ok(said) => {
                self.journal.write(&Entry::Ended { task: id, way })?;
                let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                (self.tell)(&Event::Done { way, task, milliseconds, said });
                Ok(None)
            }
            Err(why) => {
                self.journal.write(&Entry::Failed { task: id, way, why: why.clone() })?;
                (self.tell)(&Event::Failed { way, task, why: why.clone() });
                Ok(Some(why))
            }
        }
    }

    fn leave(&mut self, tasks: &[TaskId]) -> Result<(), RunError> {
        for &id in tasks {
            self.journal.write(&Entry::Left { task: id })?;
            let task = self.name(id);
            (self.tell)(&Event::Left { task });
        }
        Ok(())
    }

    fn tasks(&self) -> impl Iterator<Item = TaskId> {
        let stages = self.journal.progress().tasks.iter().enumerate();
        stages.flat_map(|(stage, tasks)| (0..tasks.len()).map(move |task| TaskId { stage, task }))
    }

    fn name(&self, id: TaskId) -> String {
        decide::name(self.journal.stages(), id)
    }

    fn why(&self) -> String {
        match &self.journal.progress().direction {
            Direction::Forward => String::new(),
            Direction::Back { why } => why.clone(),
        }
    }
}

/// One task to carry out.
struct Order<'a> {
    upgrade: &'a str,
    stage: &'a Stage,
    id: TaskId,
    way: Way,
    attempt: String,
    places: &'a Places,
}

impl Order<'_> {
    /// Whether there is nothing to do. Only looks.
    async fn is_applied(&self) -> bool {
        let Work::Commands(commands) = &self.task().work else { return false };
        let Some(check) = &commands.applied else { return false };
        self.hook(check, "check", commands).run().await.is_ok()
    }

    async fn run(&self, database: Option<&dyn OurDatabase>) -> Result<Option<String>, String> {
        let ours = || database.ok_or_else(|| "the upgrade file has no [migrate] section any more".to_owned());
        let said = match (&self.task().work, self.way) {
            (Work::Commands(commands), way) => return self.commands(commands, way).await,
            (Work::Rehearse, Way::Apply) => ours()?.rehearse().await,
            (Work::Migrate, Way::Apply) => ours()?.apply().await,
            (Work::Migrate, Way::Undo) => ours()?.rollback().await,
            (Work::Rehearse, Way::Undo) => Ok(String::new()),
        };
        said.map(Some).map_err(|cause| with_causes(cause.as_ref()))
    }

    async fn commands(&self, commands: &Commands, way: Way) -> Result<Option<String>, String> {
        let (command, check) = match way {
            Way::Apply => (Some(&commands.apply), &commands.applied),
            Way::Undo => (commands.undo.as_ref(), &commands.undone),
        };
        let Some(command) = command else { return Err("there is no command for it".to_owned()) };
        if let Some(check) = check
            && self.hook(check, "check", commands).run().await.is_ok()
        {
            return Ok(None);
        }
        let name = match way {
            Way::Apply => "apply",
            Way::Undo => "undo",
        };
        self.hook(command, name, commands).run().await.map_err(|error| with_causes(&error))?;
        if let Some(check) = check {
            self.settled(check, commands).await.map_err(|error| with_causes(&error))?;
        }
        Ok(None)
    }

    /// Looks until the check passes or the time is over.
    async fn settled(&self, check: &str, commands: &Commands) -> Result<(), HookError> {
        let deadline = Instant::now() + commands.settle;
        loop {
            match self.hook(check, "check", commands).run().await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    fn hook<'b>(&'b self, command: &'b str, action: &'b str, commands: &Commands) -> Hook<'b> {
        let task = self.task();
        let mut environment: BTreeMap<&str, &str> =
            task.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        environment.insert("MIDFLIGHT_UPGRADE", self.upgrade);
        environment.insert(SHARED, &self.places.shared);
        environment.insert("MIDFLIGHT_STAGE", &self.stage.name);
        environment.insert("MIDFLIGHT_ACTION", action);
        environment.insert("MIDFLIGHT_NODE", task.node.as_deref().unwrap_or_default());
        let log = self.places.logs.join(log_name(self.id.stage, &self.stage.name, task.node.as_deref()));
        Hook { command, environment, attempt: &self.attempt, timeout: commands.timeout, log }
    }

    fn task(&self) -> &Task {
        &self.stage.tasks[self.id.task]
    }
}

/// Folders beside the journal.
struct Places {
    /// The output of the upgrade's commands.
    logs: PathBuf,
    /// See [`shared`].
    shared: String,
}

impl Places {
    fn make(journal: &Path) -> Result<Places, RunError> {
        let (logs, shared) = (beside(journal, ".logs"), shared(journal));
        std::fs::create_dir_all(&logs).map_err(|source| RunError::Logs { path: logs.clone(), source })?;
        folders::private(&shared).map_err(|source| RunError::Shared { path: shared.clone(), source })?;
        Ok(Places { logs, shared: shared.to_string_lossy().into_owned() })
    }
}

/// The folder by which the migrations of an upgrade's databases share what they found out.
pub fn shared(journal: &Path) -> PathBuf {
    let shared = beside(journal, ".shared");
    std::path::absolute(&shared).unwrap_or(shared)
}

fn beside(journal: &Path, ending: &str) -> PathBuf {
    let mut name = journal.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    journal.with_file_name(name)
}

fn log_name(number: usize, stage: &str, node: Option<&str>) -> String {
    let name = format!("{number:02}-{stage}-{}", node.unwrap_or("here"));
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    name.chars().map(plain).collect::<String>() + ".log"
}
