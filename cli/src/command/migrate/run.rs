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
        self, Direction, Entry, Journal, JournalError, Kind, Outcome, RunError, Runner, Script, Stage,
        Upgrade, Way, Work,
    },
    run::{InCloud, Settings, Stopper},
};
use serde::Serialize;

use super::{interrupt, target::tool, tell::Teller};
use crate::{
    failure::{Exit, Failure},
    output::{Answer, Paint},
    session::Session,
};

/// Upgrade a whole cloud: stop, update, migrate, start, as a file says
///
/// The steps are the operator's own commands. Each is in a journal before it runs: a run that was killed goes on when it
/// is started again. If a step fails, all is undone in reverse and the data rolled back. Exit codes: 0 complete, or back
/// as asked with --back; 1 failed, and everything is as it was, or run it again to go on; 3 it needs you, and says for what.
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
    /// Go back though rows were written to our database since it was migrated, and give up what was written
    #[arg(long, requires = "back")]
    discard_writes: bool,
    /// Start the services though something has no undo: it was put back by hand
    #[arg(long, conflicts_with = "plan")]
    start_anyway: bool,
    /// Go on by the upgrade file as it is now: the same steps, with other commands
    #[arg(long, conflicts_with = "plan")]
    accept_changes: bool,
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
        let text = fs::read(&self.file).context("read the upgrade file")?;
        let script = Script::of(&upgrade, &text);
        if self.plan {
            return session.answer(&Steps::of(&upgrade, &script.stages));
        }
        let path = self.journal.clone().unwrap_or_else(|| beside(&self.file));
        let journal = self.journal(&path, script, &Teller::new(session))?;
        let stopper = Stopper::default();
        let interrupted = interrupt::watch_upgrade(&stopper).context("listen for signals")?;
        let mut drive = Box::pin(self.drive(session, upgrade, journal, stopper.clone()));
        tokio::select! {
            outcome = &mut drive => outcome,
            Ok(()) = interrupted => {
                let given_up = stopper.give_up().await;
                // Ends the commands that run.
                drop(drive);
                interrupt::end_upgrade(given_up)
            }
        }
    }

    /// The journal of a run that was begun, or of a new one.
    fn journal(&self, path: &Path, script: Script, teller: &Teller) -> anyhow::Result<Journal> {
        let Some(mut journal) = Journal::open(path).map_err(explain)? else {
            if self.back {
                return Err(Failure::usage(
                    "nothing was begun, so there is no way back",
                    "run it without --back",
                ));
            }
            self.refuse_start_anyway(None)?;
            return Journal::begin(path, script).map_err(explain);
        };
        let progress = journal.progress().clone();
        self.refuse_start_anyway(Some(&progress))?;
        let edited = journal.script().digest != script.digest;
        let over = progress.closed && (progress.direction != Direction::Forward || edited);
        if over && !self.back {
            drop(journal);
            return Journal::begin(path, script).map_err(explain);
        }
        if edited {
            self.mend(&mut journal, script, teller)?;
        }
        if self.forward && progress.direction != Direction::Forward {
            journal.write(&Entry::Turned(Direction::Forward)).map_err(explain)?;
        }
        Ok(journal)
    }

    /// Only an upgrade that is on its way back has services to start anyway.
    fn refuse_start_anyway(&self, progress: Option<&cloud::Progress>) -> anyhow::Result<()> {
        let going_back =
            progress.is_some_and(|progress| !progress.closed && progress.direction != Direction::Forward);
        if !self.start_anyway || going_back || self.back {
            return Ok(());
        }
        Err(Failure::usage(
            "no upgrade is on its way back, so there is nothing to start anyway",
            "run it without --start-anyway",
        ))
    }

    /// Takes the commands of a file that was changed since the run began, if the operator says so. Without
    /// that, the way back goes by the commands the run began with, and the way forward is refused.
    fn mend(&self, journal: &mut Journal, script: Script, teller: &Teller) -> anyhow::Result<()> {
        let (file, path) = (self.file.display(), journal.path().display());
        let found = if self.back && !self.accept_changes {
            cloud::same_database(journal.script(), &script).map(|()| Vec::new())
        } else {
            cloud::changes(journal.script(), &script)
        };
        let changes = found.map_err(|other| {
            Failure::with(
                Exit::Blocked,
                format!("{file} is another upgrade than the one begun in {path}: {other}"),
                "put that back: while an upgrade is under way only commands may be mended; or go back with --back",
            )
        })?;
        if self.back && !self.accept_changes {
            let text = format!(
                "{file} was changed since the run began; going back by the commands it began with \
                 (--accept-changes takes those of the file)"
            );
            teller.say(&text, &serde_json::json!({"event": "warning", "text": &text}));
            return Ok(());
        }
        let shown: String = changes.iter().map(|change| format!("\n  {change}")).collect();
        if !self.accept_changes && !changes.is_empty() {
            return Err(Failure::with(
                Exit::Blocked,
                format!("{file} was changed since the run in {path} began:{shown}"),
                "look at the changes; add --accept-changes to go on by them, or put the file back",
            ));
        }
        if !changes.is_empty() {
            teller.say(&format!("going on by a mended file:{shown}"), &Accepted { changes });
        }
        journal.write(&Entry::Mended(script)).map_err(explain)
    }

    async fn drive(
        &self,
        session: &Session,
        upgrade: Upgrade,
        journal: Journal,
        stopper: Stopper,
    ) -> anyhow::Result<()> {
        let teller = Teller::new(session);
        let tell_ours = |event| teller.tell(&event);
        let finalize = upgrade.migrate.as_ref().map(finalize).transpose()?;
        let ours = match upgrade.migrate {
            Some(settings) => {
                let settings = Settings { discard_writes: self.discard_writes, ..settings };
                let mut tool = tool()?;
                tool.worker.shared = Some(cloud::shared(journal.path()));
                Some(InCloud::new(tool, settings, journal.id(), &tell_ours).stopped_by(stopper))
            }
            None => None,
        };
        let mut tell = |event: &cloud::Event| teller.say(&words(event), event);
        let forward = journal.progress().direction == Direction::Forward;
        let mut runner = Runner {
            journal,
            database: ours.as_ref().map(|ours| ours as &dyn cloud::OurDatabase),
            start_anyway: self.start_anyway,
            tell: &mut tell,
        };
        if self.back && forward {
            let asked = "the operator asked for it".to_owned();
            runner.turn_back(asked).await.map_err(|error| stopped(error, &self.file))?;
        }
        let outcome = runner.run().await.map_err(|error| stopped(error, &self.file))?;
        session.answer(&Told { outcome: &outcome, asked_for: self.back, finalize })?;
        match outcome {
            Outcome::Complete => Ok(()),
            Outcome::WentBack { .. } if self.back => Ok(()),
            Outcome::WentBack { why, .. } => Err(Failure::error(
                format!("the upgrade was undone, because {why}"),
                "mend the cause and run it again; the output of every command is beside the journal",
            )),
        }
    }
}

/// The command that makes the data final; it shows no password.
fn finalize(settings: &Settings) -> anyhow::Result<String> {
    let (url, layout) = (settings.url().context("read the upgrade file")?, settings.layout);
    Ok(format!("midflight migrate finalize --store '{url}' --layout {layout}"))
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

fn explain(error: JournalError) -> anyhow::Error {
    let advice = match &error {
        JournalError::Busy { .. } => "wait for it, or stop it",
        JournalError::Damaged { .. } => {
            "the journal is the only record of what was done; restore it from a copy"
        }
        JournalError::Open { .. } | JournalError::Write { .. } => "check the folder and its free space",
    };
    let exit = match &error {
        JournalError::Busy { .. } => Exit::Blocked,
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
            format!(
                "mend the cause, then `midflight migrate run {file}` goes on with the way back; if the command is \
                 wrong, mend it in the file and add --accept-changes; or go forward again with --forward"
            ),
        ),
        RunError::NoWayBack { .. } => Failure::with(
            Exit::Blocked,
            error.to_string(),
            format!(
                "mend what keeps it from going on, then `midflight migrate run {file} --forward`; to go back all \
                 the same and give up what was written, `midflight migrate run {file} --back --discard-writes`; from what was \
                 made final only `midflight migrate restore` of the backup made before leads back"
            ),
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

/// What a mended file runs otherwise.
#[derive(Serialize)]
#[serde(tag = "event", rename = "accepted")]
struct Accepted {
    changes: Vec<cloud::Mended>,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Told<'a> {
    outcome: &'a Outcome,
    /// Whether to go back is what was asked for.
    #[serde(skip)]
    asked_for: bool,
    /// What makes our data final, where there is any.
    #[serde(skip)]
    finalize: Option<String>,
}

impl Answer for Told<'_> {
    fn to_table(&self, paint: Paint) -> String {
        let back = || if self.asked_for { paint.good("✓") } else { paint.bad("✗") };
        match self.outcome {
            Outcome::Complete => {
                let next = self
                    .finalize
                    .as_ref()
                    .map(|command| format!(" When all is well, make the data final:\n  {command}"));
                format!("{} the upgrade is complete.{}\n", paint.good("✓"), next.unwrap_or_default())
            }
            Outcome::WentBack { left, .. } if left.is_empty() => {
                format!("{} everything is as it was before the upgrade\n", back())
            }
            Outcome::WentBack { left, .. } => format!(
                "{} everything is as it was before the upgrade, except: {}\n",
                back(),
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
