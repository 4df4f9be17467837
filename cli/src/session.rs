//! What every command is given: where to write, which folder, which API.

use std::{
    fmt::Display,
    future::Future,
    io::{self, IsTerminal, Write},
    path::PathBuf,
};

use anyhow::Context;

use crate::{
    args::{Global, Invocation},
    failure::Report,
    folder::{Environment, Folder},
    output::{self, Answer, Paint},
};

pub(crate) struct Session {
    pub(crate) global: Global,
    pub(crate) invocation: Invocation,
    environment: Environment,
    colour: bool,
}

impl Session {
    pub(crate) fn new(global: Global, invocation: Invocation) -> Session {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let environment = Environment {
            data_home: variable("XDG_DATA_HOME").map(PathBuf::from),
            home: variable("HOME").map(PathBuf::from),
        };
        Session { global, invocation, environment, colour: variable("NO_COLOR").is_none() }
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.context("start the async runtime")?.block_on(work)
    }

    pub(crate) fn folder(&self) -> anyhow::Result<Folder> {
        Folder::locate(self.global.dir.as_deref(), &self.environment)
    }

    /// A result, for stdout.
    pub(crate) fn answer(&self, answer: &impl Answer) -> anyhow::Result<()> {
        output::write(
            &mut io::stdout().lock(),
            self.global.output,
            answer,
            self.paint(io::stdout().is_terminal()),
        )
    }

    /// A result that is told piece by piece, for stdout.
    pub(crate) fn print(&self, text: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        output::ignore_closed_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }

    /// Anything else, for stderr.
    pub(crate) fn say(&self, line: impl Display) {
        say(line);
    }

    pub(crate) fn complain(&self, report: &Report) {
        self.say(format_args!("{} {report}", self.paint_stderr().bad("error:")));
        if let Some(advice) = &report.try_this {
            self.say(format_args!("  {} {advice}", self.paint_stderr().bold("try:")));
        }
    }

    pub(crate) fn paint_stdout(&self) -> Paint {
        self.paint(io::stdout().is_terminal())
    }

    pub(crate) fn paint_stderr(&self) -> Paint {
        self.paint(io::stderr().is_terminal())
    }

    fn paint(&self, is_terminal: bool) -> Paint {
        Paint { on: self.colour && is_terminal }
    }
}

/// A line for stderr. Nobody to hear it is no failure.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
