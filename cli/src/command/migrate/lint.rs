//! `midflight migrate lint`: looks at migrations before anybody needs them.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use midflight_migrate::{
    migration::{self, Context, LintProblem, Severity},
    run::Settings,
};
use serde::Serialize;

use super::{target::tool, tell::count};
use crate::{
    failure::Failure,
    output::{Answer, Paint},
    session::Session,
};

/// Load every migration, check their order, and try each on its fixtures
///
/// A migration's folder may hold `before.json` and `after.json`. Needs no database.
#[derive(Debug, Args)]
pub(super) struct Lint {
    /// Folder with migrations; may be given several times, besides the usual ones
    #[arg(long, value_name = "DIR")]
    path: Vec<PathBuf>,
}

impl Lint {
    pub(super) fn run(self, session: &Session) -> anyhow::Result<()> {
        let tool = tool()?;
        let context = Context {
            worker: &tool.worker,
            tool_version: tool.version,
            clock: &Timestamp::now,
            progress: &|_| {},
        };
        let search_path = Settings { paths: self.path, ..Settings::of("") }.search_path();
        let found = Found(migration::lint(&search_path, &tool.compiled_in, &context));
        session.answer(&found)?;
        if found.0.is_clean() {
            return Ok(());
        }
        let errors = found.0.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
        Err(Failure::error(
            format!("{} found", count(errors, "error")),
            "mend what is named, then lint again",
        ))
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Found(migration::Lint);

impl Answer for Found {
    fn to_table(&self, paint: Paint) -> String {
        let Found(lint) = self;
        let mut text: String = lint.migrations.iter().map(|id| format!("  {id}\n")).collect();
        for problem in &lint.problems {
            text += &format!("{} {problem}\n", mark(problem, paint));
        }
        text + &format!("{}, {} tried on fixtures\n", count(lint.migrations.len(), "migration"), lint.tried)
    }
}

fn mark(problem: &LintProblem, paint: Paint) -> String {
    match problem.severity {
        Severity::Error => paint.bad("error:"),
        Severity::Warning => paint.bold("warning:"),
    }
}
