//! `midflight migrate run`: upgrades a whole cloud from a file.
//!
//! The one invariant: a run that was begun is finished, one way or the other, before another is begun.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use midflight_migrate::{
    cloud::{
        self, Direction, Entry, Journal, JournalError, Kind, Outcome, RunError, Runner, Stage, Upgrade, Way,
        Work, stages,
    },
    run::InCloud,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{target::tool, tell::Teller};
use crate::{
    cluster::Interrupts,
    failure::{Exit, Failure},
    output::{Answer, Paint},
    session::Session,
};

/// Upgrade a whole cloud: stop, update, migrate, start, as a file says
///
/// The steps are the operator's own commands. Each is in a journal before it runs: a run that was killed goes on when it
/// is started again. If a step fails, all is undone in reverse and the data rolled back. Exit codes: 0 complete; 1 failed,
/// and everything is as it was, or run it again to go on; 3 it needs you, and says for what.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The upgrade file
    file: PathBuf,
    /// Show the steps and do nothing
    #[arg(long)]
    plan: bool,
    /// Go back, even if nothing failed
    #[arg(long, conflicts_with_all = ["plan", "forward"])]
    back: bool,
    /// Go forward again, after the cause of a failure was mended
    #[arg(long, conflicts_with = "plan")]
    forward: bool,
    /// Start the services though something has no undo: it was put back by hand
    #[arg(long, conflicts_with = "plan")]
    start_anyway: bool,
    /// Where the journal is [default: the upgrade file with .journal added]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

impl Run {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let upgrade = Upgrade::read(&self.file).map_err(|error| {
            let error = anyhow::Error::new(error);
            Failure::usage(format!("{error:#}"), "see docs/guide/migrations.md for the file")
        })?;
        let steps = stages(&upgrade);
        if self.plan {
            return session.answer(&Steps::of(&upgrade, &steps));
        }
        let path = self.journal.clone().unwrap_or_else(|| beside(&self.file));
        let journal = self.journal(&path, &upgrade, steps)?;
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        tokio::select! {
            outcome = self.drive(session, upgrade, journal) => outcome,
            () = interrupts.next() => Err(Failure::error(
                "interrupted",
                "run it again to go on, or with --back to go back",
            )),
        }
    }

    /// The journal of a run that was begun, or of a new one.
    fn journal(&self, path: &Path, upgrade: &Upgrade, steps: Vec<Stage>) -> anyhow::Result<Journal> {
        let text = fs::read(&self.file).context("read the upgrade file")?;
        let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        let begin = |steps| Journal::begin(path, &upgrade.name, &digest, upgrade.at_once, steps);
        let Some(mut journal) = Journal::open(path).map_err(explain)? else {
            if self.back {
                return Err(Failure::usage(
                    "nothing was begun, so there is no way back",
                    "run it without --back",
                ));
            }
            return begin(steps).map_err(explain);
        };
        let progress = journal.progress().clone();
        let over = progress.closed
            && (progress.direction != Direction::Forward || journal.same_file(&digest).is_err());
        if over && !self.back {
            drop(journal);
            return begin(steps).map_err(explain);
        }
        if !self.back {
            journal.same_file(&digest).map_err(explain)?;
        }
        if self.forward && progress.direction != Direction::Forward {
            journal.write(&Entry::Turned(Direction::Forward)).map_err(explain)?;
        }
        if self.back && progress.direction == Direction::Forward {
            let why = "the operator asked for it".to_owned();
            journal.write(&Entry::Turned(Direction::Back { why })).map_err(explain)?;
        }
        Ok(journal)
    }

    async fn drive(&self, session: &Session, upgrade: Upgrade, journal: Journal) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let tell_ours = |event| teller.tell(&event);
        let ours = match upgrade.migrate {
            Some(settings) => {
                let mut tool = tool()?;
                tool.worker.shared = Some(cloud::shared(journal.path()));
                Some(InCloud::new(tool, settings, journal.id(), &tell_ours))
            }
            None => None,
        };
        let mut tell = |event: &cloud::Event| teller.say(&words(event), event);
        let runner = Runner {
            journal,
            database: ours.as_ref().map(|ours| ours as &dyn cloud::OurDatabase),
            start_anyway: self.start_anyway,
            tell: &mut tell,
        };
        let outcome = runner.run().await.map_err(|error| stopped(error, &self.file))?;
        session.answer(&Told(&outcome))?;
        match outcome {
            Outcome::Complete => Ok(()),
            Outcome::WentBack { why, .. } => Err(Failure::error(
                format!("the upgrade was undone, because {why}"),
                "mend the cause and run it again; the output of every command is beside the journal",
            )),
        }
    }
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

fn explain(error: JournalError) -> anyhow::Error {
    let advice = match &error {
        JournalError::Busy { .. } => "wait for it, or stop it",
        JournalError::Edited { .. } => "put the file back, or go back with --back",
        JournalError::Damaged { .. } => {
            "the journal is the only record of what was done; restore it from a copy"
        }
        JournalError::Open { .. } | JournalError::Write { .. } => "check the folder and its free space",
    };
    let exit = match &error {
        JournalError::Busy { .. } | JournalError::Edited { .. } => Exit::Blocked,
        JournalError::Damaged { .. } | JournalError::Open { .. } | JournalError::Write { .. } => Exit::Error,
    };
    Failure::with(exit, format!("{:#}", anyhow::Error::new(error)), advice)
}

fn stopped(error: RunError, file: &Path) -> anyhow::Error {
    let file = file.display();
    match error {
        RunError::Stuck { .. } => Failure::with(
            Exit::Blocked,
            error.to_string(),
            format!("midflight migrate run {file} --start-anyway, or --forward"),
        ),
        RunError::UndoFailed { .. } => Failure::with(
            Exit::Blocked,
            error.to_string(),
            format!("mend the cause, then `midflight migrate run {file}` goes on with the way back"),
        ),
        RunError::Journal(error) => explain(error),
        RunError::Logs { .. } | RunError::Shared { .. } | RunError::Leftovers { .. } => {
            anyhow::Error::new(error)
        }
    }
}

fn words(event: &cloud::Event) -> String {
    let way = |way: Way| match way {
        Way::Apply => "",
        Way::Undo => "undo ",
    };
    match event {
        cloud::Event::Stage { way: w, stage, tasks, .. } => {
            let nodes = if *tasks > 1 { format!(" ({tasks} nodes)") } else { String::new() };
            format!("• {}{stage}{nodes}", way(*w))
        }
        cloud::Event::Done { way: w, task, milliseconds, said } => {
            let said = said.as_ref().map(|said| format!(": {said}")).unwrap_or_default();
            format!("  ✓ {}{task} ({}){said}", way(*w), super::tell::time(*milliseconds))
        }
        cloud::Event::WasSo { task } => format!("  ✓ {task}: was so already"),
        cloud::Event::Failed { way: w, task, why } => format!("  ✗ {}{task}: {why}", way(*w)),
        cloud::Event::Left { task } => format!("  ! {task}: has no undo, left as it is"),
        cloud::Event::Turned { why } => format!("going back: {why}"),
        cloud::Event::LeftoversEnded { task, processes } => {
            format!("ended {processes} processes that a killed run had left of: {task}")
        }
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Told<'a>(&'a Outcome);

impl Answer for Told<'_> {
    fn to_table(&self, paint: Paint) -> String {
        match self.0 {
            Outcome::Complete => format!(
                "{} the upgrade is complete. When all is well, make the data final with `midflight migrate finalize`.\n",
                paint.good("✓")
            ),
            Outcome::WentBack { left, .. } if left.is_empty() => {
                format!("{} everything is as it was before the upgrade\n", paint.bad("✗"))
            }
            Outcome::WentBack { left, .. } => format!(
                "{} everything is as it was before the upgrade, except: {}\n",
                paint.bad("✗"),
                left.join(", ")
            ),
        }
    }
}

/// The steps of an upgrade that is not run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Steps<'a> {
    upgrade: &'a str,
    steps: Vec<Step<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Step<'a> {
    kind: Kind,
    name: &'a str,
    nodes: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    undo: Option<&'a str>,
    can_be_undone: bool,
}

impl<'a> Steps<'a> {
    fn of(upgrade: &'a Upgrade, stages: &'a [Stage]) -> Steps<'a> {
        let step = |stage: &'a Stage| {
            let commands = stage.tasks.first().and_then(|task| match &task.work {
                Work::Commands(commands) => Some(commands),
                Work::Rehearse | Work::Migrate => None,
            });
            Step {
                kind: stage.kind,
                name: &stage.name,
                nodes: stage.tasks.iter().filter_map(|task| task.node.as_deref()).collect(),
                command: commands.map(|commands| commands.apply.as_str()),
                undo: commands.and_then(|commands| commands.undo.as_deref()),
                can_be_undone: !stage.kind.changes_something()
                    || stage.tasks.iter().all(cloud::Task::can_undo),
            }
        };
        Steps { upgrade: &upgrade.name, steps: stages.iter().map(step).collect() }
    }
}

impl Answer for Steps<'_> {
    fn to_table(&self, paint: Paint) -> String {
        let mut text = format!("{}\n", paint.bold(self.upgrade));
        for (number, step) in self.steps.iter().enumerate() {
            let nodes = match step.nodes.as_slice() {
                [] => "here".to_owned(),
                nodes => nodes.join(", "),
            };
            text += &format!("{:>3}  {} ({nodes})\n", number + 1, step.name);
            text += &step.command.map(|command| format!("       $ {command}\n")).unwrap_or_default();
            text += &step.undo.map(|undo| format!("       undone by: {undo}\n")).unwrap_or_default();
            if !step.can_be_undone {
                text += &format!("       {}\n", paint.bad("has no undo: after it, going back needs you"));
            }
        }
        text
    }
}
