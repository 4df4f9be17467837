//! The calls of kubelet about volumes on this node.
//!
//! Invariant: of one volume, one call is carried out at a time; every call may be repeated, and
//! after a crash at any point the next one finds what it needs in records and mounts.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    sync::{Mutex, PoisonError},
};

use kube::Client;
use midflight_plan::mount::{Arrival, Departure, Seen, Version, arrive, depart};
use tonic::{Request, Response, Status, async_trait};

use super::{
    CsiConfig,
    cluster::{Cluster, Label, Wish},
    mounts::{self, Access, Place},
    proto::{
        NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
        NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
        NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse,
        NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
        NodeUnstageVolumeResponse, VolumeCondition, VolumeUsage,
        node_server::Node,
        node_service_capability::{Rpc, Type, rpc},
        volume_capability::access_mode::Mode,
        volume_usage::Unit,
    },
    record::{Record, Records},
    volume::{Attributes, VolumeId, absolute, check},
};

pub(super) struct NodeService {
    config: CsiConfig,
    cluster: Cluster,
    records: Records,
    /// Volumes that a call works on.
    busy: Mutex<BTreeSet<VolumeId>>,
}

/// Keeps other calls off a volume.
struct Turn<'a> {
    busy: &'a Mutex<BTreeSet<VolumeId>>,
    volume: VolumeId,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.volume);
    }
}

fn failed(doing: &str) -> impl FnOnce(io::Error) -> Status + '_ {
    move |error| Status::internal(format!("{doing}: {error}"))
}

/// What would block a thread of the runtime.
async fn aside<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(format!("{doing}: {error}")))?.map_err(failed(doing))
}

impl NodeService {
    pub(super) fn open(config: CsiConfig, client: Client) -> io::Result<NodeService> {
        let records = Records::open(&config.state)?;
        let cluster = Cluster::new(client, config.node.clone());
        Ok(NodeService { cluster, records, busy: Mutex::default(), config })
    }

    fn turn(&self, volume: &VolumeId) -> Result<Turn<'_>, Status> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(volume.clone()) {
            return Err(Status::aborted(format!("another call works on {}", volume.as_str())));
        }
        Ok(Turn { busy: &self.busy, volume: volume.clone() })
    }

    fn record(&self, volume: &VolumeId) -> Result<Option<Record>, Status> {
        self.records.get(volume).map_err(failed("read the record"))
    }

    fn write(&self, volume: &VolumeId, record: &Record) -> Result<(), Status> {
        self.records.put(volume, record).map_err(failed("write the record"))
    }

    /// Looks at a volume's mount; one that nobody serves is removed.
    async fn observe(&self, attributes: &Attributes, wish: &Wish, leaving: bool) -> Result<Seen, Status> {
        let looked_at = attributes.clone();
        let (running, users) = aside("look at the mount", move || {
            let device = match mounts::look(&looked_at.mount)? {
                Place::Served { device } => device,
                Place::Dead => {
                    mounts::clear(&looked_at.mount)?;
                    return Ok((None, 0));
                }
                Place::Plain => return Ok((None, 0)),
            };
            Ok((Some(reported(&looked_at.metadata())), mounts::users(&device, &looked_at.mount)?))
        })
        .await?;
        Ok(Seen { policy: wish.policy, wanted: wish.version.clone(), running, users, leaving })
    }

    /// Writes down that the daemon goes, then takes its label.
    async fn send_away(&self, volume: &VolumeId, record: &mut Record) -> Result<(), Status> {
        record.leaving = true;
        self.write(volume, record)?;
        self.cluster.label(&record.attributes.label, Label::Absent).await?;
        tracing::info!(volume = volume.as_str(), "the daemon is outdated and idle: sent away");
        Ok(())
    }

    /// Waits until a daemon that was sent away has gone.
    async fn await_end(&self, volume: &VolumeId, record: &mut Record) -> Result<(), Status> {
        let (mount, patience) = (record.attributes.mount.clone(), self.config.patience);
        let gone = aside("wait for the end of the old daemon", move || {
            mounts::wait_until(patience, || Ok(!matches!(mounts::look(&mount)?, Place::Served { .. })))
        })
        .await?;
        if !gone {
            return Err(Status::unavailable("the daemon that was sent away is still there"));
        }
        record.leaving = false;
        self.write(volume, record)
    }

    async fn stage(&self, volume: &VolumeId, staging: &Path, attributes: Attributes) -> Result<(), Status> {
        let wish = self.cluster.wish(&attributes).await?;
        let before = self.record(volume)?;
        let leaving = before.as_ref().is_some_and(|record| record.leaving);
        let mut record = Record { attributes, staged: Some(staging.to_owned()), leaving };
        let seen = self.observe(&record.attributes, &wish, leaving).await?;
        match arrive(&seen) {
            Arrival::Label => {}
            Arrival::SendAway | Arrival::AwaitEnd => {
                self.send_away(volume, &mut record).await?;
                self.await_end(volume, &mut record).await?;
            }
        }
        // The label comes last: a stage that fails has left none behind, unless its answer was lost.
        record.leaving = false;
        self.write(volume, &record)?;
        self.cluster.label(&record.attributes.label, Label::Present).await
    }

    async fn unstage(&self, volume: &VolumeId, mut record: Record) -> Result<(), Status> {
        let wish = self.cluster.wish(&record.attributes).await?;
        let seen = self.observe(&record.attributes, &wish, record.leaving).await?;
        let departure = depart(&seen).map_err(|in_use| Status::failed_precondition(in_use.to_string()))?;
        match departure {
            Departure::Keep => self.records.remove(volume).map_err(failed("remove the record")),
            Departure::SendAway => {
                self.send_away(volume, &mut record).await?;
                record.staged = None;
                self.write(volume, &record)
            }
        }
    }

    async fn publish(&self, record: Record, target: &Path, access: Access) -> Result<(), Status> {
        let (attributes, target) = (record.attributes, target.to_owned());
        let patience = self.config.patience;
        let bound = aside("bind the mount", move || {
            let mut served = None;
            mounts::wait_until(patience, || {
                served = match mounts::look(&attributes.mount)? {
                    Place::Served { device } => Some(device),
                    Place::Dead => {
                        mounts::clear(&attributes.mount)?;
                        None
                    }
                    Place::Plain => None,
                };
                Ok(served.is_some())
            })?;
            let Some(device) = served else { return Ok(false) };
            match mounts::look(&target)? {
                Place::Served { device: there } if there == device => return Ok(true),
                // Of a daemon that has gone: removed, and bound once.
                Place::Served { .. } | Place::Dead => mounts::clear(&target)?,
                Place::Plain => {}
            }
            mounts::bind(&attributes.mount, attributes.sub_path.as_deref(), &target, access)?;
            Ok(true)
        })
        .await?;
        if bound { Ok(()) } else { Err(Status::unavailable("the FUSE daemon has not mounted yet")) }
    }
}

/// What a daemon's pod has written down of itself.
fn reported(metadata: &Path) -> Version {
    let read = |name: &str| fs::read_to_string(metadata.join(name)).ok();
    Version::reported(read("image-version").as_deref(), read("labels").as_deref())
}

#[async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId::new(&request.volume_id)?;
        let staging = absolute("staging_target_path", &request.staging_target_path)?;
        check(request.volume_capability.as_ref())?;
        let attributes = Attributes::of(&request.volume_context)?;
        let _turn = self.turn(&volume)?;
        self.stage(&volume, &staging, attributes).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId::new(&request.volume_id)?;
        absolute("staging_target_path", &request.staging_target_path)?;
        let _turn = self.turn(&volume)?;
        if let Some(record) = self.record(&volume)?.filter(|record| record.staged.is_some()) {
            self.unstage(&volume, record).await?;
        }
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId::new(&request.volume_id)?;
        let target = absolute("target_path", &request.target_path)?;
        let staging = absolute("staging_target_path", &request.staging_target_path)?;
        check(request.volume_capability.as_ref())?;
        let mode = request.volume_capability.and_then(|capability| capability.access_mode);
        let reads = matches!(
            mode.map(|mode| mode.mode()),
            Some(Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
        );
        let access = if request.readonly || reads { Access::ReadOnly } else { Access::ReadWrite };
        let _turn = self.turn(&volume)?;
        let record = self.record(&volume)?.filter(|record| record.staged.as_ref() == Some(&staging));
        let record = record.ok_or_else(|| Status::failed_precondition("the volume is not staged there"))?;
        self.publish(record, &target, access).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId::new(&request.volume_id)?;
        let target = absolute("target_path", &request.target_path)?;
        let _turn = self.turn(&volume)?;
        aside("remove the bind mount", move || {
            mounts::clear(&target)?;
            match fs::remove_dir(&target) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })
        .await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId::new(&request.volume_id)?;
        let path = absolute("volume_path", &request.volume_path)?;
        if self.record(&volume)?.is_none() {
            return Err(Status::not_found(format!("{} is not on this node", volume.as_str())));
        }
        let place = aside("look at the volume", {
            let path = path.clone();
            move || mounts::look(&path)
        })
        .await?;
        match place {
            Place::Plain => Err(Status::not_found(format!("nothing is mounted at {}", path.display()))),
            Place::Dead => Ok(Response::new(NodeGetVolumeStatsResponse {
                usage: Vec::new(),
                volume_condition: Some(VolumeCondition {
                    abnormal: true,
                    message: "the daemon has gone".to_owned(),
                }),
            })),
            Place::Served { .. } => {
                let seen = aside("measure the volume", move || Ok(rustix::fs::statvfs(&path)?)).await?;
                let usage = |unit: Unit, scale: u64, total: u64, free: u64, available: u64| VolumeUsage {
                    available: (available * scale) as i64,
                    total: (total * scale) as i64,
                    used: (total.saturating_sub(free) * scale) as i64,
                    unit: unit.into(),
                };
                Ok(Response::new(NodeGetVolumeStatsResponse {
                    usage: vec![
                        usage(Unit::Bytes, seen.f_frsize, seen.f_blocks, seen.f_bfree, seen.f_bavail),
                        usage(Unit::Inodes, 1, seen.f_files, seen.f_ffree, seen.f_favail),
                    ],
                    volume_condition: Some(VolumeCondition { abnormal: false, message: String::new() }),
                }))
            }
        }
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let can = [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::VolumeCondition];
        let capabilities =
            can.map(|can| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: can.into() })) });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse { node_id: self.config.node.clone(), max_volumes_per_node: 0 }))
    }
}
