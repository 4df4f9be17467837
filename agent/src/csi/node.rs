//! The calls of kubelet about volumes on this node.
//!
//! Invariant: of one volume, one call is carried out at a time; every call may be repeated, and
//! after a crash at any point the next one finds what it needs in records and mounts.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use kube::Client;
use tonic::{Request, Response, Status, async_trait};

use super::{
    CsiConfig, Images,
    binding::{NO_ANSWER, sick},
    cluster::Cluster,
    mounts::{Access, Mounts, Place},
    proto::{
        NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
        NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
        NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
        NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
        NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeCondition,
        VolumeUsage,
        node_server::Node,
        node_service_capability::{Rpc, Type, rpc},
        volume_usage::Unit,
    },
    question::ask,
    record::{Published, Record, Records},
    volume::{Attributes, Daemon, VolumeId, absolute, check},
};

pub(super) struct NodeService {
    pub(super) config: CsiConfig,
    pub(super) cluster: Cluster,
    pub(super) records: Records,
    pub(super) mounts: Mounts,
    pub(super) images: Images,
    /// What calls work on.
    busy: Mutex<BTreeSet<Busy>>,
    /// What was last said of volumes that cannot be looked after.
    troubles: Mutex<BTreeMap<VolumeId, String>>,
    /// What people were last told of daemons, of each kind of news.
    told: Mutex<BTreeMap<(Daemon, &'static str), String>>,
}

/// How long a call waits for its turn.
const LOOKS_END_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What one call at a time works on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Busy {
    Volume(VolumeId),
    Daemon(Daemon),
}

/// Keeps other calls off.
pub(super) struct Turn<'a> {
    busy: &'a Mutex<BTreeSet<Busy>>,
    with: Busy,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.with);
    }
}

pub(super) fn failed(doing: &str) -> impl FnOnce(io::Error) -> Status + '_ {
    move |error| Status::internal(format!("{doing}: {error}"))
}

/// What would block a thread of the runtime.
pub(super) async fn aside<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(format!("{doing}: {error}")))?.map_err(failed(doing))
}

impl NodeService {
    pub(super) fn open(
        config: CsiConfig,
        client: Client,
        mounts: Mounts,
        images: Images,
    ) -> io::Result<NodeService> {
        let records = Records::open(&config.state)?;
        let cluster = Cluster::new(client, config.node.clone());
        Ok(NodeService {
            cluster,
            records,
            mounts,
            images,
            busy: Mutex::default(),
            troubles: Mutex::default(),
            told: Mutex::default(),
            config,
        })
    }

    pub(super) fn turn(&self, with: Busy) -> Result<Turn<'_>, Status> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(with.clone()) {
            return Err(Status::aborted("another call works on the volume, or on its daemon"));
        }
        Ok(Turn { busy: &self.busy, with })
    }

    /// The turn of a call. Looks of our own are short, so it is waited for a little; a call that takes longer is told of.
    pub(super) async fn call(&self, with: Busy) -> Result<Turn<'_>, Status> {
        let until = Instant::now() + LOOKS_END_WITHIN;
        loop {
            match self.turn(with.clone()) {
                Err(_) if Instant::now() < until => tokio::time::sleep(LOOK_AGAIN).await,
                answer => return answer,
            }
        }
    }

    /// Says why a volume cannot be looked after, once: the others are, and the next look comes soon.
    pub(super) fn tell_trouble(&self, volume: &VolumeId, looked: io::Result<()>) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = looked else {
            troubles.remove(volume);
            return;
        };
        let error = error.to_string();
        if troubles.get(volume) != Some(&error) {
            tracing::warn!(volume = volume.as_str(), error, "the mounts of its workloads cannot be repaired");
            troubles.insert(volume.clone(), error);
        }
    }

    /// What is wrong with a daemon in one respect, if people were not told before; nothing where all is well again.
    pub(super) fn new_trouble_of(
        &self,
        daemon: &Daemon,
        reason: &'static str,
        trouble: Option<String>,
    ) -> Option<String> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (daemon.clone(), reason);
        let before = match &trouble {
            Some(trouble) => told.insert(of, trouble.clone()),
            None => told.remove(&of),
        };
        trouble.filter(|trouble| before.as_ref() != Some(trouble))
    }

    pub(super) fn record(&self, volume: &VolumeId) -> Result<Option<Record>, Status> {
        self.records.get(volume).map_err(failed("read the record"))
    }

    pub(super) fn write(&self, volume: &VolumeId, record: &Record) -> Result<(), Status> {
        self.records.put(volume, record).map_err(failed("write the record"))
    }

    /// Where a call says that a workload has a volume.
    fn published(&self, volume: &str, path: &str) -> Result<Published, Status> {
        let volume = VolumeId::new(volume)?;
        if path.is_empty() {
            return Err(Status::invalid_argument("volume_path is missing"));
        }
        let published = self.record(&volume)?.into_iter().flat_map(|record| record.published);
        published
            .into_iter()
            .find(|published| published.target == Path::new(path))
            .ok_or_else(|| Status::not_found(format!("{} is not at {path}", volume.as_str())))
    }
}

/// What is said of a volume that cannot be measured.
fn abnormal(why: &str) -> NodeGetVolumeStatsResponse {
    let condition = VolumeCondition { abnormal: true, message: why.to_owned() };
    NodeGetVolumeStatsResponse { usage: Vec::new(), volume_condition: Some(condition) }
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
        let attributes = Attributes::of(&request.volume_context, &self.config.root)?;
        let _turn = self.call(Busy::Volume(volume.clone())).await?;
        self.stage(&volume, &staging, attributes).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId::new(&request.volume_id)?;
        let staging = absolute("staging_target_path", &request.staging_target_path)?;
        let _turn = self.call(Busy::Volume(volume.clone())).await?;
        // What is not staged there needs nothing.
        if let Some(record) = self.record(&volume)?.filter(|record| record.staged == staging) {
            self.unstage(&volume, &record).await?;
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
        let usage = check(request.volume_capability.as_ref())?;
        let staging = absolute("staging_target_path", &request.staging_target_path)?;
        let access = if request.readonly { Access::ReadOnly } else { usage.access };
        let _turn = self.call(Busy::Volume(volume.clone())).await?;
        let record = self.record(&volume)?.filter(|record| record.staged == staging);
        let record = record.ok_or_else(|| Status::failed_precondition("the volume is not staged there"))?;
        self.publish(&volume, record, Published { target, access }, usage.crowd).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = VolumeId::new(&request.volume_id)?;
        let target = absolute("target_path", &request.target_path)?;
        let _turn = self.call(Busy::Volume(volume.clone())).await?;
        self.unpublish(&volume, &target).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        self.published(&request.volume_id, &request.volume_path)?;
        // A folder has the size of what is in it: there is nothing to do on a node.
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let Published { target: path, .. } = self.published(&request.volume_id, &request.volume_path)?;
        let place = aside("look at the volume", {
            let (mounts, path) = (self.mounts.clone(), path.clone());
            move || mounts.look(&path)
        })
        .await?;
        match place {
            Place::Plain => Err(Status::not_found(format!("nothing is mounted at {}", path.display()))),
            Place::Dead => Ok(Response::new(abnormal("the daemon has gone"))),
            Place::Silent { .. } => Ok(Response::new(abnormal(NO_ANSWER))),
            Place::Sick { errno, .. } => Ok(Response::new(abnormal(&sick(errno)))),
            Place::Served { device } => {
                let asking = move || ask(&device, move || rustix::fs::statvfs(&path));
                let Some(seen) = aside("measure the volume", asking).await? else {
                    return Ok(Response::new(abnormal(NO_ANSWER)));
                };
                let seen = match seen {
                    Ok(seen) => seen,
                    Err(errno) => return Ok(Response::new(abnormal(&sick(errno)))),
                };
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
        let can = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::VolumeCondition,
            rpc::Type::SingleNodeMultiWriter,
        ];
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
