//! The processes of the data plane as commands: one struct of arguments each,
//! for the binary of this crate and for `midflight`.
//!
//! Invariant: a role says where it listens as its first line on stdout, once it
//! can be reached; a replica beside an engine is the second line.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use midflight_handover::Keeper;
use serde::Serialize;

use crate::{
    backup::{
        BackupError,
        command::{self as backup, BackupArgs},
        progress,
    },
    blockdev::shield,
    caller::ControlError,
    check,
    engine::control::{self, VolumeArgs},
    frontend::serve::{self as frontend, FrontendArgs},
    host::run::{self as engine, EngineProcessArgs},
    instance::{self, client::InstanceArgs, serve::InstanceManagerArgs},
    net::address::Address,
    record::command::{self as record, RecordArgs},
    replica::{
        serve::{self as replica, ReplicaArgs},
        succession::TakeOverError,
    },
};

#[derive(Debug, clap::Subcommand)]
pub enum Role {
    #[command(hide = true)]
    Replica(ReplicaArgs),
    #[command(hide = true)]
    Engine(EngineProcessArgs),
    #[command(hide = true)]
    Frontend(FrontendArgs),
    #[command(hide = true)]
    Keeper(KeeperArgs),
    #[command(hide = true)]
    InstanceManager(InstanceManagerArgs),
    #[command(hide = true)]
    Instance(InstanceArgs),
    #[command(hide = true)]
    Record(RecordArgs),
    #[command(hide = true)]
    Check(check::CheckArgs),
    #[command(hide = true)]
    Ask(VolumeArgs),
    #[command(hide = true)]
    Backup(BackupArgs),
}

/// Why a role ended.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    #[error(transparent)]
    Replica(#[from] replica::ReplicaError),
    #[error(transparent)]
    Engine(#[from] engine::HostError),
    #[error(transparent)]
    Frontend(#[from] frontend::FrontendError),
    #[error("keep descriptors at {}", path.display())]
    Keeper { path: PathBuf, source: io::Error },
    #[error(transparent)]
    InstanceManager(#[from] instance::serve::InstanceManagerError),
    #[error(transparent)]
    Instance(#[from] instance::client::ClientError),
    #[error(transparent)]
    Record(#[from] record::CommandError),
    #[error(transparent)]
    Check(#[from] check::CheckError),
    #[error(transparent)]
    Ask(#[from] ControlError),
    #[error(transparent)]
    Backup(#[from] BackupError),
}

impl RoleError {
    /// Whether someone did not let this process do what it was started for; nothing was changed.
    pub fn is_refusal(&self) -> bool {
        matches!(self, RoleError::Replica(replica::ReplicaError::TakeOver(TakeOverError::Refused(_))))
    }
}

/// How a process ends that was refused; as `midflight` does where something stands in the way.
pub const REFUSED: u8 = 3;

impl Role {
    pub fn run(self) -> Result<(), RoleError> {
        match &self {
            // All these are on the way of the kernel's dirty pages when a volume is a block device.
            Role::Replica(_)
            | Role::Engine(_)
            | Role::Frontend(_)
            | Role::Keeper(_)
            | Role::InstanceManager(_) => shield::raise(),
            Role::Instance(_) | Role::Record(_) | Role::Check(_) | Role::Ask(_) | Role::Backup(_) => {}
        }
        match self {
            Role::Replica(args) => Ok(replica::run(&args)?),
            Role::Engine(args) => Ok(engine::run(&args)?),
            Role::Frontend(args) => Ok(frontend::run(&args)?),
            Role::Keeper(args) => keep(&args),
            Role::InstanceManager(args) => Ok(instance::serve::run(&args)?),
            Role::Instance(args) => Ok(instance::client::run(args, &mut |told| tell_json(told))?),
            Role::Record(args) => Ok(record::run(&args, &mut io::stdout())?),
            Role::Ask(args) => Ok(control::run(&args, &mut io::stdout())?),
            Role::Backup(args) => {
                let told = backup::run(&args, &mut progress::to_writer(io::stderr(), true))?;
                tell_json(&told).map_err(BackupError::Output)?;
                told.damage().map_or(Ok(()), |damage| Err(damage.into()))
            }
            Role::Check(args) => Ok(check::run(&args, &mut io::stdout())?),
        }
    }
}

/// An answer as one JSON value.
pub fn tell_json(told: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout();
    serde_json::to_writer(&mut out, told)?;
    writeln!(out)
}

/// Hold the descriptors of a node's frontend while that is replaced.
#[derive(Debug, Clone, clap::Args)]
pub struct KeeperArgs {
    /// Unix socket to listen on.
    #[arg(long)]
    pub listen: PathBuf,
}

fn keep(args: &KeeperArgs) -> Result<(), RoleError> {
    let failed = |source| RoleError::Keeper { path: args.listen.clone(), source };
    let keeper = Keeper::bind(&args.listen).map_err(failed)?;
    announce(&Address::Unix(args.listen.clone()));
    keeper.run().map_err(failed)
}

/// A number that names this process among all that ever spoke to a replica.
pub(crate) fn process_name() -> u64 {
    let mut raw = [0; 8];
    let filled = rustix::rand::getrandom(&mut raw[..], rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(raw.len()), "the kernel gives eight random bytes");
    u64::from_le_bytes(raw)
}

/// An error with all its causes.
pub fn in_words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Tells whoever started this process where it can be reached.
pub(crate) fn announce(address: &Address) {
    let mut out = io::stdout();
    // Nobody has to listen: a process started by hand serves all the same.
    let _ = writeln!(out, "{address}").and_then(|()| out.flush());
}
