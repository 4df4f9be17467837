//! `midflight tour`: shows what exists, act by act, on a cluster of its own that is gone afterwards.
//!
//! The one invariant: however the tour ends, it leaves no process and no file behind.

mod control_plane;
mod durable_writes;
mod engine_switch;
mod migration;
mod node_loss;
mod program;

use std::time::Instant;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use self::program::{Act, Outcome, PROGRAM};
use crate::{
    args::Format,
    cluster::{Interrupts, Temporary},
    failure::{Failure, Report},
    output::{Answer, Paint},
    session::Session,
};

/// How many nodes the tour's cluster has.
const NODES: u8 = 3;

/// See what Midflight does, on a cluster of its own that is gone afterwards
///
/// Needs nothing but this binary.
#[derive(Debug, Args)]
pub(crate) struct Tour {}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    acts: Vec<ActTold>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ActTold {
    title: &'static str,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Tour {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let stage = Temporary::build(session, NODES).context("build a stage for the tour")?;
        session.show(&title(&stage))?;
        let mut acts = Vec::new();
        let interrupted = tokio::select! {
            played = play_all(session, &stage, &mut acts) => played.map(|()| false),
            () = interrupts.next() => Ok(true),
        };
        stage.clear().await.context("clean up after the tour")?;
        if interrupted? {
            return Err(Failure::error(
                "interrupted",
                "what the tour had made is gone; start it again any time",
            ));
        }
        let told = Told { acts, seconds: began.elapsed().as_secs_f64() };
        session.answer(&told)?;
        told.verdict()
    }
}

fn title(stage: &Temporary) -> String {
    format!("Midflight {} · tour · in {}", env!("CARGO_PKG_VERSION"), stage.folder().root().display())
}

async fn play_all(session: &Session, stage: &Temporary, acts: &mut Vec<ActTold>) -> anyhow::Result<()> {
    for (number, act) in PROGRAM.iter().enumerate() {
        session.show(&introduction(number + 1, act, session.paint_stdout()))?;
        let outcome =
            (act.play)(stage).await.unwrap_or_else(|error| Outcome::Failed(Report::of(&error).to_string()));
        session.show(&outcome.to_text(session.paint_stdout()))?;
        let failed = matches!(outcome, Outcome::Failed(_));
        acts.push(ActTold { title: act.title, outcome });
        if failed && act.needed_by_others {
            break;
        }
    }
    Ok(())
}

fn introduction(number: usize, act: &Act, paint: Paint) -> String {
    let command = act.command.map(|command| format!("\n  $ {command}")).unwrap_or_default();
    format!("\n{}\n  {}{command}", paint.bold(&format!("{number}  {}", act.title)), act.about)
}

impl Told {
    fn failed(&self) -> usize {
        self.acts.iter().filter(|act| matches!(act.outcome, Outcome::Failed(_))).count()
    }

    fn verdict(&self) -> anyhow::Result<()> {
        match self.failed() {
            0 => Ok(()),
            failed => Err(Failure::error(
                format!("{failed} of {} acts failed", self.acts.len()),
                "run it again with --log debug; a defect is worth a report",
            )),
        }
    }
}

impl Answer for Told {
    fn to_table(&self, _: Paint) -> String {
        let shown = self.acts.len() - self.failed();
        format!(
            "\n{shown} shown, {} failed in {:.1} s. Everything the tour made is gone.\n",
            self.failed(),
            self.seconds
        )
    }
}

impl Session {
    /// Part of a result that is told as it comes; left out where a program reads the whole at the end.
    fn show(&self, text: &str) -> anyhow::Result<()> {
        match self.global.output {
            Format::Table => self.print(&format!("{text}\n")),
            Format::Json | Format::Yaml => Ok(()),
        }
    }
}
