//! The shape of the command line.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use midflight_block::role::{Role, in_words};

use crate::{
    command,
    failure::{Exit, Failure},
    session::Session,
};

/// Midflight upgrades the engines of stateful systems while they fly.
///
/// Exit codes: 0 ok, 1 error, 2 usage, 3 blocked, 4 timed out.
#[derive(Debug, Parser)]
#[command(name = "midflight", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) global: Global,
}

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Folder of the embedded cluster [default: $XDG_DATA_HOME/midflight]
    #[arg(long, global = true, value_name = "DIR", env = "MIDFLIGHT_DIR", hide_env_values = true)]
    pub(crate) dir: Option<PathBuf>,
    /// Kubeconfig of the cluster to speak to [default: the one in the folder]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; of kubectl's own where neither a file nor a folder is named
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// How results are printed
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
    /// Which log lines to show on stderr, such as `debug` or `info,kube=warn`
    #[arg(long, global = true, value_name = "FILTER", env = "MIDFLIGHT_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
    /// How log lines are written
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", env = "MIDFLIGHT_LOG_FORMAT")]
    #[arg(hide_env_values = true)]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
    Yaml,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(command::up::Up),
    Down(command::down::Down),
    Status(command::status::Status),
    Image(command::image::Image),
    Node(command::node::NodeCommand),
    Plan(command::plan::Plan),
    Upgrade(command::upgrade::Upgrade),
    Volume(command::volume::VolumeCommand),
    Migrate(Box<command::migrate::Migrate>),
    Mount(command::mount::Mount),
    Tour(command::tour::Tour),
    Bench(command::bench::Bench),
    Crds(command::crds::Crds),
    Version(command::version::Version),
    Completion(command::completion::Completion),
    #[command(hide = true)]
    Serve(command::serve::Serve),
    #[command(hide = true)]
    Agent(command::agent::Agent),
    #[command(hide = true)]
    Container(command::container::Container),
    #[command(hide = true)]
    TourWorkload(command::tour::TourWorkload),
    #[command(hide = true)]
    EngineImage(command::engine_image::EngineImage),
    #[command(hide = true)]
    Csi(command::csi::Csi),
    #[command(hide = true)]
    Fuse(midflight_fuse::daemon::FuseArgs),
    /// The processes of a volume.
    #[command(flatten)]
    Process(Role),
}

impl Command {
    /// A role is a long-lived process that `up` starts; its stderr is a log file.
    pub(crate) fn is_role(&self) -> bool {
        match self {
            Command::Process(role) => !matches!(role, Role::Instance(_) | Role::Backup(_)),
            Command::Serve(_)
            | Command::Agent(_)
            | Command::Container(_)
            | Command::TourWorkload(_)
            | Command::EngineImage(_)
            | Command::Csi(_)
            | Command::Fuse(_) => true,
            Command::Up(_)
            | Command::Down(_)
            | Command::Status(_)
            | Command::Image(_)
            | Command::Node(_)
            | Command::Plan(_)
            | Command::Upgrade(_)
            | Command::Volume(_)
            | Command::Migrate(_)
            | Command::Mount(_)
            | Command::Tour(_)
            | Command::Bench(_)
            | Command::Crds(_)
            | Command::Version(_)
            | Command::Completion(_) => false,
        }
    }

    pub(crate) fn run(self, session: &Session) -> anyhow::Result<()> {
        match self {
            Command::Up(up) => session.block_on(up.run(session)),
            Command::Down(down) => session.block_on(down.run(session)),
            Command::Status(status) => session.block_on(status.run(session)),
            Command::Image(image) => image.run(session),
            Command::Node(node) => session.block_on(node.run(session)),
            Command::Plan(plan) => session.block_on(plan.run(session)),
            Command::Upgrade(upgrade) => session.block_on(upgrade.run(session)),
            Command::Volume(volume) => session.block_on(volume.run(session)),
            Command::Migrate(migrate) => migrate.run(session),
            Command::Mount(mount) => session.block_on(mount.run(session)),
            Command::Tour(tour) => session.block_on(tour.run(session)),
            Command::Bench(bench) => session.block_on(bench.run(session)),
            Command::Crds(crds) => crds.run(session),
            Command::Version(version) => version.run(session),
            Command::Completion(completion) => completion.run(session),
            Command::Serve(serve) => session.block_on(serve.run(session)),
            Command::Agent(agent) => session.block_on(agent.run(session)),
            // A process that changes its namespaces must have one thread.
            Command::Container(container) => container.run(),
            Command::TourWorkload(workload) => session.block_on(workload.run()),
            Command::EngineImage(image) => image.run(),
            Command::Csi(csi) => session.block_on(csi.run(session)),
            Command::Fuse(args) => Ok(midflight_fuse::daemon::run(&args)?),
            Command::Process(Role::Instance(args)) => command::instance::run(args, session),
            Command::Process(Role::Backup(args)) => command::backup::run(&args, session),
            // The data plane has threads of its own and wants no runtime beside them.
            Command::Process(role) => role.run().map_err(|error| match error.is_refusal() {
                true => Failure::with(
                    Exit::Blocked,
                    in_words(&error),
                    "stop the other process, and start this one after it",
                ),
                false => error.into(),
            }),
        }
    }
}

/// Under which name we were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invocation {
    Itself,
    /// As `kubectl-midflight`: kubectl's own kubeconfig is the default then.
    KubectlPlugin,
}

impl Invocation {
    pub(crate) fn of(program: Option<&OsStr>) -> Invocation {
        match program.and_then(|program| Path::new(program).file_stem()) {
            Some(name) if name == "kubectl-midflight" => Invocation::KubectlPlugin,
            _ => Invocation::Itself,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Invocation::Itself => "midflight",
            Invocation::KubectlPlugin => "kubectl midflight",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn roles_are_not_on_the_first_help_page() {
        let help = Cli::command().render_help().to_string();
        assert!(
            help.contains("\n  up ") && !help.contains("\n  agent ") && !help.contains("\n  serve "),
            "{help}"
        );
    }

    #[test]
    fn the_name_decides_whether_it_is_a_plugin() {
        let of = |name: &str| Invocation::of(Some(OsStr::new(name)));
        assert_eq!(of("/usr/bin/kubectl-midflight"), Invocation::KubectlPlugin);
        assert_eq!(of("/usr/bin/midflight"), Invocation::Itself);
        assert_eq!(Invocation::of(None), Invocation::Itself);
    }
}
