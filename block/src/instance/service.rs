//! The registry as the service of `proto/instance.proto`.
//!
//! Invariant: nothing of a request reaches the registry before it was read into a
//! type that cannot hold anything else.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, stream};
use prost::Message;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tonic::{Code, Request, Response, Status};

use super::{
    API,
    attach::Attach,
    backups::Events,
    commands::SwitchOver,
    life::{State, Told, View},
    metrics::Metrics,
    names::{Key, Kind, Name},
    proto::{self, instance_manager_server::InstanceManager},
    refused::Refused,
    registry::{Registry, Target},
    spec::{Particulars, Seat, Spec},
};
use crate::{
    engine::control::{Command, Flaw},
    epoch::Epoch,
    net::address::Address,
    record::Attachment,
    replica::layers::{FORMATS, Taken},
    wire::hello::VERSIONS,
};

#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) registry: Arc<Registry>,
    pub(super) metrics: Arc<Metrics>,
}

const LONGEST_SWITCH: Duration = Duration::from_secs(60);

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        use proto::Reason;
        let (code, reason, asked, known) = match &refused {
            Refused::StaleEpoch { asked, known, .. } => {
                (Code::FailedPrecondition, Reason::StaleEpoch, asked.bits(), known.bits())
            }
            Refused::OtherEpoch { asked, known, .. } => {
                (Code::FailedPrecondition, Reason::OtherEpoch, asked.bits(), known.bits())
            }
            Refused::OtherVolume { .. } => (Code::FailedPrecondition, Reason::OtherVolume, 0, 0),
            Refused::Different { .. } => (Code::AlreadyExists, Reason::Different, 0, 0),
            Refused::NotFound { .. } => (Code::NotFound, Reason::NotFound, 0, 0),
            Refused::Invalid(_) => (Code::InvalidArgument, Reason::Invalid, 0, 0),
            Refused::Busy(_) => (Code::Unavailable, Reason::Busy, 0, 0),
            Refused::Failed { .. } => (Code::Internal, Reason::Failed, 0, 0),
        };
        let details = proto::Refusal { reason: reason.into(), asked, known }.encode_to_vec();
        Status::with_details(code, refused.to_string(), details.into())
    }
}

pub(super) fn name(text: &str) -> Result<Name, Refused> {
    text.parse().map_err(Refused::Invalid)
}

fn address(text: &str) -> Result<Address, Refused> {
    text.parse().map_err(Refused::Invalid)
}

fn kind(number: i32) -> Result<Kind, Refused> {
    match proto::Kind::try_from(number) {
        Ok(proto::Kind::Replica) => Ok(Kind::Replica),
        Ok(proto::Kind::Engine) => Ok(Kind::Engine),
        Ok(proto::Kind::Unspecified) | Err(_) => Err(Refused::Invalid("say replica or engine".into())),
    }
}

fn seat(member: &proto::Member) -> Result<Seat, Refused> {
    Ok(Seat { name: name(&member.name)?, address: address(&member.address)? })
}

fn engine(request: &proto::EngineRequest) -> Result<Target, Refused> {
    Ok(Target {
        key: Key { kind: Kind::Engine, name: name(&request.name)? },
        volume: name(&request.volume)?,
        epoch: Epoch::from_bits(request.epoch),
    })
}

pub(super) fn some_engine(request: Option<&proto::EngineRequest>) -> Result<Target, Refused> {
    engine(request.ok_or_else(|| Refused::Invalid("name the engine".into()))?)
}

fn wanted(request: &proto::CreateRequest) -> Result<Spec, Refused> {
    let particulars = match kind(request.kind)? {
        Kind::Replica => Particulars::Replica { size: request.size, existing: request.existing },
        Kind::Engine => Particulars::Engine {
            members: request.members.iter().map(seat).collect::<Result<_, _>>()?,
            remote: request.remote,
            suspended: false,
            permitted: request.permitted.clone(),
        },
    };
    Ok(Spec {
        name: name(&request.name)?,
        volume: name(&request.volume)?,
        epoch: Epoch::from_bits(request.epoch),
        ahead: Epoch::from_bits(request.epoch),
        binary: (!request.binary.is_empty()).then(|| request.binary.clone().into()),
        particulars,
        address: None,
    })
}

fn copy((replica, layers): (String, Vec<Taken>)) -> proto::Copy {
    let layer =
        |taken: Taken| proto::Layer { snapshot: taken.snapshot.unwrap_or_default(), bytes: taken.bytes };
    proto::Copy { replica, layers: layers.into_iter().map(layer).collect() }
}

fn shown(view: View) -> proto::Instance {
    let state = match view.state {
        State::Starting => proto::State::Starting,
        State::Running => proto::State::Running,
        State::Lost => proto::State::Lost,
        State::Fenced => proto::State::Fenced,
        State::Failed => proto::State::Failed,
    };
    let kind = match view.spec.key().kind {
        Kind::Replica => proto::Kind::Replica,
        Kind::Engine => proto::Kind::Engine,
    };
    proto::Instance {
        kind: kind.into(),
        name: view.spec.name.to_string(),
        volume: view.spec.volume.to_string(),
        epoch: view.spec.epoch.bits(),
        state: state.into(),
        suspended: view.spec.is_suspended(),
        address: view.spec.address.map(|address| address.to_string()).unwrap_or_default(),
        binary: view.spec.binary.map(|binary| binary.display().to_string()).unwrap_or_default(),
        pid: view.pid.unwrap_or(0),
        restarts: view.restarts,
        why: view.why,
    }
}

fn event(told: Told) -> proto::Event {
    use proto::event::Change;
    let change = match told {
        Told::Changed(view) => Change::Changed(shown(view)),
        Told::Removed(view) => Change::Removed(shown(view)),
    };
    proto::Event { change: Some(change) }
}

async fn next_change(mut changes: Receiver<Told>) -> Option<(Result<proto::Event, Status>, Receiver<Told>)> {
    match changes.recv().await {
        Ok(told) => Some((Ok(event(told)), changes)),
        Err(RecvError::Lagged(_)) => {
            // Whoever reads too slowly begins again: a gap would be a lie.
            let behind = Status::aborted("too many changes at once; watch again");
            Some((Err(behind), changes.resubscribe()))
        }
        Err(RecvError::Closed) => None,
    }
}

impl Service {
    /// Carries a command out where it may take its time.
    async fn answer<T: Send + 'static>(
        &self,
        command: &'static str,
        work: impl FnOnce(&Registry) -> Result<T, Refused> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let registry = Arc::clone(&self.registry);
        let done = tokio::task::spawn_blocking(move || work(&registry)).await;
        let answer = match done {
            Ok(Ok(answer)) => Ok(Response::new(answer)),
            Ok(Err(refused)) => {
                tracing::warn!(command, %refused, "refused");
                Err(refused.into())
            }
            Err(error) => Err(Status::internal(format!("the command was not finished: {error}"))),
        };
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.metrics.answered(command, code);
        answer
    }

    async fn engine(
        &self,
        command: &'static str,
        work: impl FnOnce(&Registry) -> Result<(), Refused> + Send + 'static,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        self.answer(command, move |registry| work(registry).map(|()| proto::EngineResponse {})).await
    }

    async fn snapshot(
        &self,
        name: &'static str,
        request: proto::SnapshotRequest,
        command: impl FnOnce(String) -> Command + Send + 'static,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        self.engine(name, move |registry| {
            let target = some_engine(request.engine.as_ref())?;
            registry.command(&target, &command(request.snapshot))
        })
        .await
    }
}

fn flaw(flaw: Flaw) -> proto::Flaw {
    proto::Flaw { replica: flaw.replica, what: flaw.what, repaired: flaw.repaired }
}

#[tonic::async_trait]
impl InstanceManager for Service {
    async fn version(
        &self,
        _: Request<proto::VersionRequest>,
    ) -> Result<Response<proto::VersionResponse>, Status> {
        let range = |(oldest, newest)| Some(proto::Range { oldest, newest });
        self.answer("version", move |_| {
            Ok(proto::VersionResponse {
                version: env!("CARGO_PKG_VERSION").into(),
                api: range(API),
                wire: range((VERSIONS.oldest.into(), VERSIONS.newest.into())),
                disk: range((*FORMATS.start(), *FORMATS.end())),
            })
        })
        .await
    }

    async fn create(
        &self,
        request: Request<proto::CreateRequest>,
    ) -> Result<Response<proto::Instance>, Status> {
        let request = request.into_inner();
        self.answer("create", move |registry| registry.create(wanted(&request)?).map(shown)).await
    }

    async fn delete(
        &self,
        request: Request<proto::DeleteRequest>,
    ) -> Result<Response<proto::DeleteResponse>, Status> {
        let request = request.into_inner();
        self.answer("delete", move |registry| {
            let target = Target {
                key: Key { kind: kind(request.kind)?, name: name(&request.name)? },
                volume: name(&request.volume)?,
                epoch: Epoch::from_bits(request.epoch),
            };
            registry.delete(&target, request.remove_data).map(|()| proto::DeleteResponse {})
        })
        .await
    }

    async fn list(&self, _: Request<proto::ListRequest>) -> Result<Response<proto::ListResponse>, Status> {
        self.answer("list", |registry| {
            Ok(proto::ListResponse { instances: registry.list().into_iter().map(shown).collect() })
        })
        .await
    }

    async fn usage(&self, _: Request<proto::UsageRequest>) -> Result<Response<proto::UsageResponse>, Status> {
        self.answer("usage", |registry| {
            let copies = registry.copies().map_err(Refused::failed("look through the replicas"))?;
            let disk_free = registry.disk_free().map_err(Refused::failed("look at the disk"))?;
            Ok(proto::UsageResponse { copies: copies.into_iter().map(copy).collect(), disk_free })
        })
        .await
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::Event, Status>> + Send>>;

    async fn watch(&self, _: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (there, changes) = self.registry.watch();
        self.metrics.answered("watch", Code::Ok);
        let synced = proto::Event { change: Some(proto::event::Change::Synced(proto::Synced {})) };
        let first = there.into_iter().map(|view| event(Told::Changed(view))).chain([synced]).map(Ok);
        let all = stream::iter(first.collect::<Vec<_>>()).chain(stream::unfold(changes, next_change));
        Ok(Response::new(Box::pin(all)))
    }

    async fn suspend(
        &self,
        request: Request<proto::EngineRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("suspend", move |registry| registry.suspend(&engine(&request)?, true)).await
    }

    async fn resume(
        &self,
        request: Request<proto::EngineRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("resume", move |registry| registry.suspend(&engine(&request)?, false)).await
    }

    async fn status(
        &self,
        request: Request<proto::EngineRequest>,
    ) -> Result<Response<proto::EngineStatus>, Status> {
        let request = request.into_inner();
        self.answer("status", move |registry| {
            let status = registry.status(&engine(&request)?)?;
            let snapshots = status.layout.snapshots.into_iter().map(|snapshot| snapshot.name).collect();
            Ok(proto::EngineStatus {
                epoch: status.epoch.bits(),
                serving: status.serving,
                size: status.layout.size,
                snapshots,
                in_service: status.in_service as u32,
                members: status.members as u32,
                suspended: status.suspended,
                attached: status.attached,
                copied_bytes: status.copied_bytes,
                waits_for: status.waits_for,
                trouble: status.trouble.map(|trouble| trouble.to_string()).unwrap_or_default(),
                damaged: status.damaged.into_iter().map(flaw).collect(),
                rebuild_limit: status.rebuild_limit,
                patience: status.patience,
                may_rebuild: status.may_rebuild.map(|replicas| proto::Permitted { replicas }),
            })
        })
        .await
    }

    async fn add_replica(
        &self,
        request: Request<proto::ReplicaRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("add-replica", move |registry| {
            let added = Seat { name: name(&request.replica)?, address: address(&request.address)? };
            registry.add_replica(&some_engine(request.engine.as_ref())?, added)
        })
        .await
    }

    async fn remove_replica(
        &self,
        request: Request<proto::ReplicaRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("remove-replica", move |registry| {
            registry.remove_replica(&some_engine(request.engine.as_ref())?, &name(&request.replica)?)
        })
        .await
    }

    async fn release_replica(
        &self,
        request: Request<proto::ReplicaRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("release-replica", move |registry| {
            registry.release_replica(&some_engine(request.engine.as_ref())?, &name(&request.replica)?)
        })
        .await
    }

    async fn rebuild_replica(
        &self,
        request: Request<proto::ReplicaRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("rebuild-replica", move |registry| {
            registry.rebuild_replica(&some_engine(request.engine.as_ref())?, &name(&request.replica)?)
        })
        .await
    }

    async fn create_snapshot(
        &self,
        request: Request<proto::SnapshotRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        self.snapshot("create-snapshot", request.into_inner(), |name| Command::Snapshot { name }).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<proto::SnapshotRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        self.snapshot("delete-snapshot", request.into_inner(), |name| Command::RemoveSnapshot { name }).await
    }

    async fn revert_snapshot(
        &self,
        request: Request<proto::RevertRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("revert-snapshot", move |registry| {
            let target = some_engine(request.engine.as_ref())?;
            if request.head == 0 {
                return Err(Refused::Invalid("a revert needs a number of its own".into()));
            }
            let revert = Command::Revert { name: request.snapshot, head: Some(request.head) };
            registry.revert(&target, &revert)
        })
        .await
    }

    async fn expand(
        &self,
        request: Request<proto::ExpandRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("expand", move |registry| {
            let target = some_engine(request.engine.as_ref())?;
            registry.expand(&target, request.size)
        })
        .await
    }

    async fn throttle(
        &self,
        request: Request<proto::ThrottleRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("throttle", move |registry| {
            let bytes_per_second = Some(request.bytes_per_second).filter(|rate| *rate > 0);
            let target = some_engine(request.engine.as_ref())?;
            registry.command(&target, &Command::Throttle { bytes_per_second })
        })
        .await
    }

    async fn patience(
        &self,
        request: Request<proto::PatienceRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("patience", move |registry| {
            let target = some_engine(request.engine.as_ref())?;
            registry.command(&target, &Command::Patience { seconds: request.seconds })
        })
        .await
    }

    async fn permit(
        &self,
        request: Request<proto::PermitRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("permit", move |registry| {
            let target = some_engine(request.engine.as_ref())?;
            registry.permit(&target, request.replicas)
        })
        .await
    }

    type CreateBackupStream = Events;

    async fn create_backup(
        &self,
        request: Request<proto::CreateBackupRequest>,
    ) -> Result<Response<Events>, Status> {
        Ok(self.backing_up(request.into_inner()))
    }

    type RestoreBackupStream = Events;

    async fn restore_backup(
        &self,
        request: Request<proto::RestoreBackupRequest>,
    ) -> Result<Response<Events>, Status> {
        Ok(self.restoring(request.into_inner()))
    }

    async fn list_backups(
        &self,
        request: Request<proto::BackupsRequest>,
    ) -> Result<Response<proto::ListBackupsResponse>, Status> {
        let request = request.into_inner();
        self.answer("list-backups", move |registry| registry.backups(&request)).await
    }

    type VerifyBackupsStream = Events;

    async fn verify_backups(
        &self,
        request: Request<proto::BackupsRequest>,
    ) -> Result<Response<Events>, Status> {
        Ok(self.verifying(request.into_inner()))
    }

    async fn delete_backup(
        &self,
        request: Request<proto::DeleteBackupRequest>,
    ) -> Result<Response<proto::DeleteBackupResponse>, Status> {
        let request = request.into_inner();
        self.answer("delete-backup", move |registry| registry.delete_backup(&request)).await
    }

    async fn finalize(
        &self,
        request: Request<proto::EngineRequest>,
    ) -> Result<Response<proto::EngineResponse>, Status> {
        let request = request.into_inner();
        self.engine("finalize", move |registry| registry.command(&engine(&request)?, &Command::Finalize))
            .await
    }

    async fn attach(
        &self,
        request: Request<proto::AttachRequest>,
    ) -> Result<Response<proto::AttachResponse>, Status> {
        let request = request.into_inner();
        self.answer("attach", move |registry| {
            let endpoint = registry.attach(&Attach {
                volume: name(&request.volume)?,
                epoch: Epoch::from_bits(request.epoch),
                attachment: Attachment::from_bits(request.attachment),
                size: request.size,
                engine: address(&request.engine)?,
                device: request.device,
            })?;
            Ok(proto::AttachResponse { endpoint })
        })
        .await
    }

    async fn detach(
        &self,
        request: Request<proto::DetachRequest>,
    ) -> Result<Response<proto::DetachResponse>, Status> {
        let request = request.into_inner();
        self.answer("detach", move |registry| {
            registry.detach(&name(&request.volume)?, Epoch::from_bits(request.epoch))?;
            Ok(proto::DetachResponse {})
        })
        .await
    }

    async fn switch_over(
        &self,
        request: Request<proto::SwitchOverRequest>,
    ) -> Result<Response<proto::SwitchOverResponse>, Status> {
        let request = request.into_inner();
        self.answer("switch-over", move |registry| {
            let within = Duration::from_millis(request.within_ms.into());
            let switched = registry.switch_over(&SwitchOver {
                volume: name(&request.volume)?,
                epoch: Epoch::from_bits(request.epoch),
                engine: address(&request.engine)?,
                drain_within: Duration::from_millis(request.drain_within_ms.into()),
                within: within.clamp(Duration::from_millis(1), LONGEST_SWITCH),
            })?;
            Ok(proto::SwitchOverResponse {
                epoch: switched.epoch.bits(),
                pause_us: switched.pause_us,
                longest_wait_us: switched.longest_wait_us,
                replayed: switched.replayed as u64,
                drained: switched.drained,
            })
        })
        .await
    }
}
