//! `midflight migrate`: moves a database to a new schema, all or nothing, with a log and a way back.

mod apply;
mod backup;
mod baseline;
mod check;
mod finalize;
mod history;
mod interrupt;
mod lint;
mod new;
mod plan;
mod restore;
mod rollback;
mod run;
mod sample;
mod status;
mod target;
mod tell;
mod worker;

use std::ffi::OsString;

use clap::{Args, Subcommand};

pub(crate) use self::target::tool;
use crate::session::Session;

/// Move a database to a new schema, all or nothing, with a way back
///
/// Usual order: `lint`, `check`, `plan`, `apply`, and when the services run well on it `finalize`; before that,
/// `rollback` gives the old data back, byte for byte. `run` upgrades a whole cloud from a file. Exit codes: 0 done, or
/// nothing to do; 1 failed; 2 usage; 3 refused, and nothing was changed (`run`: it needs you, and says for
/// what; steps that it took before stay as they are).
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Check),
    Plan(plan::Plan),
    Apply(apply::Apply),
    Rollback(rollback::Rollback),
    Finalize(finalize::Finalize),
    Status(status::Status),
    History(history::History),
    Backup(backup::Backup),
    Restore(restore::Restore),
    Baseline(baseline::Baseline),
    Lint(lint::Lint),
    New(new::New),
    Sample(sample::Sample),
    Run(run::Run),
    #[command(hide = true)]
    Worker(worker::Worker),
}

impl Migrate {
    /// What the worker was told, if this is one: it is run without anything else.
    pub(crate) fn worker(&self) -> Option<&[OsString]> {
        match &self.command {
            Command::Worker(worker) => Some(&worker.arguments),
            Command::Check(_)
            | Command::Plan(_)
            | Command::Apply(_)
            | Command::Rollback(_)
            | Command::Finalize(_)
            | Command::Status(_)
            | Command::History(_)
            | Command::Backup(_)
            | Command::Restore(_)
            | Command::Baseline(_)
            | Command::Lint(_)
            | Command::New(_)
            | Command::Sample(_)
            | Command::Run(_) => None,
        }
    }

    pub(crate) fn run(self, session: &Session) -> anyhow::Result<()> {
        match self.command {
            Command::Check(check) => session.block_on(check.run(session)),
            Command::Plan(plan) => session.block_on(plan.run(session)),
            Command::Apply(apply) => session.block_on(apply.run(session)),
            Command::Rollback(rollback) => session.block_on(rollback.run(session)),
            Command::Finalize(finalize) => session.block_on(finalize.run(session)),
            Command::Status(status) => session.block_on(status.run(session)),
            Command::History(history) => session.block_on(history.run(session)),
            Command::Backup(backup) => session.block_on(backup.run(session)),
            Command::Restore(restore) => session.block_on(restore.run(session)),
            Command::Baseline(baseline) => session.block_on(baseline.run(session)),
            Command::Lint(lint) => lint.run(session),
            Command::New(new) => new.run(session),
            Command::Sample(sample) => sample.run(session),
            Command::Run(run) => session.block_on(run.run(session)),
            Command::Worker(_) => Ok(()),
        }
    }
}
