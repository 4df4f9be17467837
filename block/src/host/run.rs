//! An engine as a process, with or without a replica beside it.
//!
//! Invariant: while another engine has the volume, the copy in this process stays in
//! its service.

use std::{io, path::PathBuf, str::FromStr, thread, time::Duration};

use super::{Ended, Host, Over};
use crate::{
    engine::serve::{self as engine, EngineArgs, EngineError, Named},
    net::address::Address,
    replica::serve::{self as replica, ReplicaArgs},
    role,
};

/// Carry out a volume's requests on its replicas.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineProcessArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    /// A replica of the record that this process serves itself: NAME=FOLDER.
    #[arg(long, requires = "local_size")]
    pub local: Option<Local>,
    /// Size of the volume in bytes, for a local folder that holds no copy yet.
    #[arg(long)]
    pub local_size: Option<u64>,
    /// Where engines in other processes reach the local replica.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub local_listen: Address,
}

/// A replica and its folder.
#[derive(Debug, Clone)]
pub struct Local {
    pub name: String,
    pub folder: PathBuf,
}

impl FromStr for Local {
    type Err = String;

    fn from_str(text: &str) -> Result<Local, String> {
        let (name, folder) = text.split_once('=').ok_or(format!("{text} is not NAME=FOLDER"))?;
        Ok(Local { name: name.to_owned(), folder: folder.into() })
    }
}

/// Why the process of an engine does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("wait for messages")]
    Wait(#[source] io::Error),
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// For so long a process stays that has nothing to do any more. Its end costs a CPU a millisecond or two, and those
/// who take the volume over need all of them just then.
const SUCCESSOR_HAS_THE_CPUS: Duration = Duration::from_millis(100);

/// Serves a volume until it is fenced out or the process is stopped. With a replica
/// beside it, it goes on for that one's sake when the volume has moved to another
/// engine; and without it when its store has failed.
pub fn run(args: &EngineProcessArgs) -> Result<(), HostError> {
    let mut host = Host::new().map_err(HostError::Wait)?;
    let mut engine = args.engine.clone();
    let mut local = None;
    if let Some(Local { name, folder }) = &args.local {
        let replica = ReplicaArgs {
            folder: folder.clone(),
            volume: engine.volume.clone(),
            size: args.local_size.unwrap_or_default(),
            listen: args.local_listen.clone(),
            take_over: false,
        };
        let opened = replica::Opened::open(&replica).map_err(Ended::from)?;
        let (id, address) = host.add_replica(opened, &replica).map_err(Ended::from)?;
        engine.replicas.push(Named { name: name.clone(), address: address.clone() });
        local = Some((id, address));
    }
    let opened = engine::Opened::open(&engine).map_err(Ended::from)?;
    let (_, address) = host.add_engine(opened, &engine).map_err(Ended::from)?;
    role::announce(&address);
    if let Some((_, address)) = &local {
        role::announce(address);
    }
    loop {
        for Over { id, why, .. } in host.turn().map_err(HostError::Wait)? {
            match why {
                Ended::Engine(EngineError::Fenced { ours, by } | EngineError::Outbid { ours, by })
                    if local.is_some() =>
                {
                    tracing::info!(%ours, %by, "the volume has moved; its local replica stays");
                }
                Ended::Replica(why) if local.as_ref().is_some_and(|(local, _)| *local == id) => {
                    tracing::error!(%why, "the local replica is lost");
                    local = None;
                }
                why => {
                    if matches!(why, Ended::Engine(EngineError::Fenced { .. })) {
                        thread::sleep(SUCCESSOR_HAS_THE_CPUS);
                    }
                    return Err(why.into());
                }
            }
        }
    }
}
