//! `midflight completion`: a script that lets a shell complete our commands.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{args::Cli, output::ignore_closed_pipe, session::Session};

/// Print the completion script of a shell
///
/// For bash, put this into ~/.bashrc: source <(midflight completion bash)
#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// The shell
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(self, _: &Session) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "midflight", &mut script);
        ignore_closed_pipe(io::stdout().write_all(&script))
    }
}
