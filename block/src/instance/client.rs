//! Orders to an instance manager, given by hand.
//!
//! Invariant: an order is given once; what comes back is told as it comes.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use futures::StreamExt;
use tonic::Status;

use super::{
    backup_orders::{self, BackupOrder},
    order::{OrderError, Orders, orders},
    proto,
    secret::Secret,
    told::{EngineStatus, Event, Range, Shown, Switched, Told, Version},
};
use crate::{backup::BackupError, engine::control::Flaw, epoch::Epoch};

/// Give orders to an instance manager.
#[derive(Debug, Clone, clap::Args)]
pub struct InstanceArgs {
    /// Where the instance manager listens.
    #[arg(long, value_name = "IP:PORT")]
    pub at: SocketAddr,
    /// File with the cluster's secret.
    #[arg(long, value_name = "FILE")]
    pub secret: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// What the instance manager is, and which versions it speaks.
    Version,
    /// All its instances.
    List,
    /// All its instances, then every change, until it ends.
    Watch,
    /// Start a replica.
    CreateReplica {
        #[command(flatten)]
        target: TargetArgs,
        /// Size of the volume in bytes, for a folder that holds no copy yet.
        #[arg(long)]
        size: u64,
        /// Make it a process of this binary, below the folder of binaries.
        #[arg(long, default_value = "")]
        binary: String,
    },
    /// Start an engine.
    CreateEngine {
        #[command(flatten)]
        target: TargetArgs,
        /// Where a replica of the record is; give it once for each.
        #[arg(long = "replica", required = true, value_name = "NAME=ADDRESS")]
        replicas: Vec<MemberArg>,
        /// Let other nodes reach it.
        #[arg(long)]
        remote: bool,
        /// Make it a process of this binary, below the folder of binaries.
        #[arg(long, default_value = "")]
        binary: String,
        /// Rebuild this replica when it returns; give it once for each. Without it, none is rebuilt before `permit` says so.
        #[arg(long = "permit", value_name = "NAME")]
        permitted: Vec<String>,
    },
    /// End a replica; its copy stays.
    DeleteReplica {
        #[command(flatten)]
        target: TargetArgs,
        /// Remove its copy too.
        #[arg(long)]
        remove_data: bool,
    },
    /// End an engine.
    DeleteEngine(TargetArgs),
    /// Let the requests of a volume wait.
    Suspend(TargetArgs),
    /// Go on with them.
    Resume(TargetArgs),
    /// How an engine is.
    Status(TargetArgs),
    /// Give the volume another replica, which is rebuilt when that is permitted.
    AddReplica {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long, value_name = "NAME=ADDRESS")]
        replica: MemberArg,
    },
    /// Take a replica from the volume.
    RemoveReplica {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        replica: String,
    },
    /// Let a replica go that is to come back; `add-replica` takes it back.
    ReleaseReplica {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        replica: String,
    },
    /// Copy a replica anew from the others.
    RebuildReplica {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        replica: String,
    },
    /// Keep the volume as it is now under a name.
    CreateSnapshot {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        snapshot: String,
    },
    /// Forget a snapshot.
    DeleteSnapshot {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        snapshot: String,
    },
    /// Make the volume what it was.
    RevertSnapshot {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        snapshot: String,
        /// A number drawn for this revert: the order given again with it throws nothing away
        /// that was written since.
        #[arg(long)]
        head: std::num::NonZeroU64,
    },
    /// Make the volume larger.
    Expand {
        #[command(flatten)]
        target: TargetArgs,
        /// Bytes.
        #[arg(long)]
        size: u64,
    },
    /// Let rebuilds go no faster than this, for as long as the engine lives.
    Throttle {
        #[command(flatten)]
        target: TargetArgs,
        /// Without it, as fast as they can.
        #[arg(long, default_value_t = 0)]
        bytes_per_second: u64,
    },
    /// Let a replica be silent for this long before it is taken out of service, for as long as the engine lives.
    Patience {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        seconds: u32,
    },
    /// Rebuild these replicas and no others when they return, also when the engine is started again.
    Permit {
        #[command(flatten)]
        target: TargetArgs,
        #[arg(long)]
        replicas: Vec<String>,
    },
    #[command(flatten)]
    Backup(BackupOrder),
    /// Make the upgrade of a volume final: use what the newest on-disk format has.
    Finalize(TargetArgs),
    /// Move a volume of this node's frontend to another engine, which the record names.
    SwitchOver {
        #[arg(long)]
        volume: String,
        #[arg(long)]
        term: u64,
        /// Where the engine listens.
        #[arg(long)]
        engine: String,
        /// How long the old engine may take to answer what it has.
        #[arg(long, default_value_t = 100)]
        drain_within_ms: u32,
        /// How long the whole may take.
        #[arg(long, default_value_t = 10_000)]
        within_ms: u32,
    },
}

/// Whom a command is for.
#[derive(Debug, Clone, clap::Args)]
pub struct TargetArgs {
    /// Name of the instance.
    pub name: String,
    #[arg(long)]
    pub volume: String,
    /// Term of the volume's record.
    #[arg(long)]
    pub term: u64,
}

impl From<TargetArgs> for proto::EngineRequest {
    fn from(target: TargetArgs) -> proto::EngineRequest {
        let epoch = Epoch::of_term(target.term).bits();
        proto::EngineRequest { name: target.name, volume: target.volume, epoch }
    }
}

/// A replica and where it is.
#[derive(Debug, Clone)]
pub struct MemberArg(proto::Member);

impl FromStr for MemberArg {
    type Err = String;

    fn from_str(text: &str) -> Result<MemberArg, String> {
        let (name, address) = text.split_once('=').ok_or(format!("{text} is not NAME=ADDRESS"))?;
        Ok(MemberArg(proto::Member { name: name.into(), address: address.into() }))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("read the secret {}", path.display())]
    Secret { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    #[error("the instance manager says: {}", .0.message())]
    Refused(#[source] Box<Status>),
    #[error(transparent)]
    Damage(#[from] BackupError),
    #[error("tell the answer")]
    Tell(#[source] io::Error),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> ClientError {
        ClientError::Refused(Box::new(status))
    }
}

fn flaw(flaw: proto::Flaw) -> Flaw {
    Flaw { replica: flaw.replica, what: flaw.what, repaired: flaw.repaired }
}

/// Gives the order and tells what comes back, piece by piece.
pub fn run(args: InstanceArgs, tell: &mut dyn FnMut(&Told) -> io::Result<()>) -> Result<(), ClientError> {
    let secret = load(&args.secret)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ClientError::Runtime)?.block_on(async {
        let mut orders = orders(args.at, &secret)?;
        if let Command::Watch = args.command {
            return watch(&mut orders, tell).await;
        }
        let told = give(&mut orders, args.command).await?;
        tell(&told).map_err(ClientError::Tell)?;
        match &told {
            Told::Backup(told) => told.damage().map_or(Ok(()), |damage| Err(damage.into())),
            _ => Ok(()),
        }
    })
}

fn load(path: &Path) -> Result<Secret, ClientError> {
    Secret::load(path).map_err(|source| ClientError::Secret { path: path.to_owned(), source })
}

async fn watch(
    orders: &mut Orders,
    tell: &mut dyn FnMut(&Told) -> io::Result<()>,
) -> Result<(), ClientError> {
    use proto::event::Change;
    let mut events = orders.watch(proto::WatchRequest {}).await?.into_inner();
    while let Some(event) = events.next().await {
        let (change, instance) = match event?.change {
            Some(Change::Changed(instance)) => ("changed", Some(instance.into())),
            Some(Change::Removed(instance)) => ("removed", Some(instance.into())),
            Some(Change::Synced(_)) => ("synced", None),
            None => continue,
        };
        tell(&Told::Event(Event { change, instance })).map_err(ClientError::Tell)?;
    }
    Ok(())
}

async fn give(orders: &mut Orders, command: Command) -> Result<Told, Status> {
    let done = Told::Done { done: true };
    let replica = |target: TargetArgs, replica: String| proto::ReplicaRequest {
        engine: Some(target.into()),
        replica,
        address: String::new(),
    };
    let snapshot = |target: TargetArgs, snapshot: String| proto::SnapshotRequest {
        engine: Some(target.into()),
        snapshot,
    };
    match command {
        Command::Version | Command::Watch => {
            let told = orders.version(proto::VersionRequest {}).await?.into_inner();
            let range = |range: Option<proto::Range>| {
                let range = range.unwrap_or_default();
                Range { oldest: range.oldest, newest: range.newest }
            };
            let (api, wire, disk) = (range(told.api), range(told.wire), range(told.disk));
            return Ok(Told::Version(Version { version: told.version, api, wire, disk }));
        }
        Command::List => {
            let told = orders.list(proto::ListRequest {}).await?.into_inner();
            return Ok(Told::Instances(told.instances.into_iter().map(Shown::from).collect()));
        }
        Command::CreateReplica { target, size, binary } => {
            let request = create(proto::Kind::Replica, target, binary);
            let request = proto::CreateRequest { size, ..request };
            return Ok(Told::Instance(orders.create(request).await?.into_inner().into()));
        }
        Command::CreateEngine { target, replicas, remote, binary, permitted } => {
            let request = create(proto::Kind::Engine, target, binary);
            let members = replicas.into_iter().map(|MemberArg(member)| member).collect();
            let request = proto::CreateRequest { members, remote, permitted, ..request };
            return Ok(Told::Instance(orders.create(request).await?.into_inner().into()));
        }
        Command::DeleteReplica { target, remove_data } => {
            let request = delete(proto::Kind::Replica, target);
            orders.delete(proto::DeleteRequest { remove_data, ..request }).await?;
        }
        Command::DeleteEngine(target) => {
            orders.delete(delete(proto::Kind::Engine, target)).await?;
        }
        Command::Suspend(target) => drop(orders.suspend(proto::EngineRequest::from(target)).await?),
        Command::Resume(target) => drop(orders.resume(proto::EngineRequest::from(target)).await?),
        Command::Finalize(target) => drop(orders.finalize(proto::EngineRequest::from(target)).await?),
        Command::Status(target) => {
            let status = orders.status(proto::EngineRequest::from(target)).await?.into_inner();
            return Ok(Told::Status(EngineStatus {
                epoch: Epoch::from_bits(status.epoch).to_string(),
                serving: status.serving,
                suspended: status.suspended,
                size: status.size,
                snapshots: status.snapshots,
                in_service: status.in_service,
                members: status.members,
                attached: status.attached,
                copied_bytes: status.copied_bytes,
                waits_for: status.waits_for,
                trouble: status.trouble,
                damaged: status.damaged.into_iter().map(flaw).collect(),
            }));
        }
        Command::AddReplica { target, replica: MemberArg(member) } => {
            let engine = Some(target.into());
            let request = proto::ReplicaRequest { engine, replica: member.name, address: member.address };
            orders.add_replica(request).await?;
        }
        Command::RemoveReplica { target, replica: name } => {
            orders.remove_replica(replica(target, name)).await?;
        }
        Command::ReleaseReplica { target, replica: name } => {
            orders.release_replica(replica(target, name)).await?;
        }
        Command::RebuildReplica { target, replica: name } => {
            orders.rebuild_replica(replica(target, name)).await?;
        }
        Command::CreateSnapshot { target, snapshot: name } => {
            orders.create_snapshot(snapshot(target, name)).await?;
        }
        Command::DeleteSnapshot { target, snapshot: name } => {
            orders.delete_snapshot(snapshot(target, name)).await?;
        }
        Command::RevertSnapshot { target, snapshot, head } => {
            let engine = Some(target.into());
            let request = proto::RevertRequest { engine, snapshot, head: head.get() };
            orders.revert_snapshot(request).await?;
        }
        Command::Expand { target, size } => {
            orders.expand(proto::ExpandRequest { engine: Some(target.into()), size }).await?;
        }
        Command::Throttle { target, bytes_per_second } => {
            let request = proto::ThrottleRequest { engine: Some(target.into()), bytes_per_second };
            orders.throttle(request).await?;
        }
        Command::Patience { target, seconds } => {
            orders.patience(proto::PatienceRequest { engine: Some(target.into()), seconds }).await?;
        }
        Command::Permit { target, replicas } => {
            orders.permit(proto::PermitRequest { engine: Some(target.into()), replicas }).await?;
        }
        Command::Backup(order) => return Ok(Told::Backup(backup_orders::give(orders, order).await?)),
        Command::SwitchOver { volume, term, engine, drain_within_ms, within_ms } => {
            let epoch = Epoch::of_term(term).bits();
            let request = proto::SwitchOverRequest { volume, epoch, engine, drain_within_ms, within_ms };
            let switched = orders.switch_over(request).await?.into_inner();
            return Ok(Told::Switched(Switched {
                epoch: Epoch::from_bits(switched.epoch).to_string(),
                pause_us: switched.pause_us,
                longest_wait_us: switched.longest_wait_us,
                replayed: switched.replayed,
                drained: switched.drained,
            }));
        }
    }
    Ok(done)
}

fn create(kind: proto::Kind, target: TargetArgs, binary: String) -> proto::CreateRequest {
    let TargetArgs { name, volume, term } = target;
    let epoch = Epoch::of_term(term).bits();
    proto::CreateRequest { kind: kind.into(), name, volume, epoch, binary, ..Default::default() }
}

fn delete(kind: proto::Kind, target: TargetArgs) -> proto::DeleteRequest {
    let TargetArgs { name, volume, term } = target;
    let epoch = Epoch::of_term(term).bits();
    proto::DeleteRequest { kind: kind.into(), name, volume, epoch, remove_data: false }
}
