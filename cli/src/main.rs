//! The `midflight` binary: wires everything together, one file per command.
//!
//! Results go to stdout, everything else to stderr. This is the only place
//! that reads the environment and decides the exit code.

mod args;
mod cluster;
mod command;
mod credentials;
mod failure;
mod folder;
mod image_name;
mod list;
mod listen;
mod logging;
mod lookout;
mod memory;
mod nodes;
mod output;
mod own_store;
mod process;
mod registry;
mod rest;
mod session;
mod target;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::{
    args::{Cli, Command},
    session::Session,
};

fn main() -> ExitCode {
    let invocation = args::Invocation::of(std::env::args_os().next().as_deref());
    let matches = Cli::command().bin_name(invocation.name()).get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if let Command::Migrate(migrate) = &cli.command
        && let Some(arguments) = migrate.worker()
    {
        return midflight_migrate::worker::main(arguments.iter().cloned());
    }
    logging::start(&cli.global, cli.command.is_role());
    let session = Session::new(cli.global, invocation);
    match cli.command.run(&session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let report = target::report(&session, &error);
            session.complain(&report);
            report.exit.into()
        }
    }
}
