//! `midflight tour`: shows what exists, act by act, on a cluster of its own that is gone afterwards.
//!
//! The one invariant: however the tour ends, it leaves no process and no file behind.

mod control_plane;
mod durable_writes;
mod engine_switch;
mod engine_upgrade;
mod load;
mod migration;
mod mount_upgrade;
mod next;
mod node_loss;
mod node_upgrade;
mod program;
mod stage;
mod workload;

use std::{path::PathBuf, time::Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

pub(crate) use self::workload::TourWorkload;
use self::{
    program::{Act, Outcome, PROGRAM},
    stage::Stage,
};
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
/// Needs nothing but this binary. Acts that upgrade to the next version build that from the source around the current
/// folder with cargo, and are skipped where there is none.
#[derive(Debug, Args)]
pub(crate) struct Tour {
    /// Program of the next version, built with `--features next` [default: built when it is needed]
    #[arg(long, value_name = "PATH")]
    next: Option<PathBuf>,
}

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
        let cluster = Temporary::build(session, NODES).context("build a stage for the tour")?;
        session.show(&title(&cluster))?;
        let stage = Stage::new(session, cluster, self.next);
        let mut acts = Vec::new();
        let interrupted = tokio::select! {
            played = play_all(session, &stage, &mut acts) => played.map(|()| false),
            () = interrupts.next() => Ok(true),
        };
        stage.cluster.clear().await.context("clean up after the tour")?;
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

fn title(cluster: &Temporary) -> String {
    format!("Midflight {} · tour · in {}", env!("CARGO_PKG_VERSION"), cluster.folder().root().display())
}

async fn play_all(session: &Session, stage: &Stage<'_>, acts: &mut Vec<ActTold>) -> anyhow::Result<()> {
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

    fn skipped(&self) -> usize {
        self.acts.iter().filter(|act| matches!(act.outcome, Outcome::Skipped(_))).count()
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
        let (failed, skipped) = (self.failed(), self.skipped());
        let shown = self.acts.len() - failed - skipped;
        let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        format!(
            "\n{shown} shown{skipped}, {failed} failed in {:.1} s. Everything the tour made is gone.\n",
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
