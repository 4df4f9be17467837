//! Looks at every migration on a search path before anybody needs it: does it
//! load, is its order certain, does it do what its fixtures say.
//!
//! The one invariant: everything is looked at, whatever is wrong elsewhere.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::fixture::{AFTER, BEFORE};
use super::load::{compiled, folders, from_folder, refuse_twice};
use super::native::{Fixtures, Naming};
use super::run::{Context, run};
use super::{Allowed, Migration, Native, Work, exposed, fixture, log, pending};
use crate::record::Table;
use crate::with_causes;

/// What was found on a search path.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lint {
    /// Ids of the migrations, in the order in which they would run where that is certain.
    pub migrations: Vec<String>,
    /// How many were tried on fixtures.
    pub tried: usize,
    pub problems: Vec<LintProblem>,
}

/// Something wrong, or that could be better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LintProblem {
    /// The migration or the folder.
    pub at: String,
    pub problem: String,
    /// Whether a run could go wrong, or only nobody would notice if it did.
    pub severity: Severity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
}

impl fmt::Display for LintProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.problem)
    }
}

impl Lint {
    /// Whether every migration could be run.
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.severity == Severity::Warning)
    }

    fn error(&mut self, at: impl fmt::Display, problem: impl Into<String>) {
        let (at, problem) = (at.to_string(), problem.into());
        self.problems.push(LintProblem { at, problem, severity: Severity::Error });
    }

    fn warn(&mut self, at: impl fmt::Display, problem: &str) {
        let (at, problem) = (at.to_string(), problem.to_owned());
        self.problems.push(LintProblem { at, problem, severity: Severity::Warning });
    }
}

/// Loads, orders and tries every migration.
pub fn lint(search_path: &[PathBuf], compiled_in: &[&'static Native], context: &Context<'_>) -> Lint {
    let mut lint = Lint::default();
    let mut found = vec![];
    for native in compiled_in {
        match compiled(native, Naming::Keys) {
            Ok(migration) => found.push(migration),
            Err(error) => lint.error(native.id, with_causes(&error)),
        }
    }
    if search_path.is_empty() && compiled_in.is_empty() {
        lint.error("search path", "no folder with migrations was named (--path)");
    }
    for path in search_path {
        match folders(path) {
            Ok(folders) => {
                for folder in folders {
                    match from_folder(&folder) {
                        Ok(migration) => found.push(migration),
                        Err(error) => lint.error(folder.display(), with_causes(&error)),
                    }
                }
            }
            Err(error) => lint.error("search path", with_causes(&error)),
        }
    }
    order(&mut lint, &found);
    for migration in &found {
        if let Some(warning) = exposed(migration) {
            lint.warn(&migration.header.id, &warning);
        }
        try_out(&mut lint, migration, context);
    }
    lint
}

fn order(lint: &mut Lint, found: &[Migration]) {
    let headers: Vec<_> = found.iter().map(|migration| migration.header.clone()).collect();
    let ordered = refuse_twice(found)
        .map_err(|error| error.to_string())
        .and_then(|()| pending(&headers, &[], Allowed::default()).map_err(|error| error.to_string()));
    let ids = |indices: &mut dyn Iterator<Item = usize>| indices.map(|i| headers[i].id.clone()).collect();
    match ordered {
        Ok(order) => lint.migrations = ids(&mut order.into_iter()),
        Err(problem) => {
            lint.migrations = ids(&mut (0..headers.len()));
            lint.error("order", problem);
        }
    }
}

fn try_out(lint: &mut Lint, migration: &Migration, context: &Context<'_>) {
    let id = &migration.header.id;
    let fixtures = match &migration.work {
        Work::Native(native) => match &native.fixtures {
            None => return lint.warn(id, "it has no fixtures to be tried on"),
            Some(Fixtures { before, after }) => {
                let parse = |name: &str, text: &str| fixture::parse(Path::new(name), text.as_bytes());
                (parse(BEFORE, before), parse(AFTER, after))
            }
        },
        Work::Folder(manifest) => {
            let (before, after) = (manifest.folder.join(BEFORE), manifest.folder.join(AFTER));
            match (before.exists(), after.exists()) {
                (true, true) => {}
                (false, false) => {
                    return lint.warn(id, "it has no before.json and after.json to be tried on");
                }
                _ => return lint.error(id, "it has one of before.json and after.json, but not the other"),
            }
            (fixture::read(&before), fixture::read(&after))
        }
    };
    let (mut database, expected) = match fixtures {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => return lint.error(id, with_causes(&error)),
    };
    lint.tried += 1;
    if let Err(error) = run(&[migration], &mut database, context) {
        return lint.error(id, with_causes(&error.source));
    }
    database.take_table(&Table::new(log::TABLE));
    if let Some(difference) = fixture::difference(&expected, &database) {
        lint.error(id, format!("it does not make after.json of before.json:\n{difference}"));
    }
}
