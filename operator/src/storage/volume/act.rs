//! Carries out one step of a volume.
//!
//! The invariant: an order to an instance manager carries the term of the record that it was decided on.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{
    DataEngine, Engine, EngineChangeState, EngineSpec, FINALIZER, Frontend, InstanceSpec, InstanceState,
    NAMESPACE, Replica, ReplicaSpec, TargetMoveReason, TargetMoveState, VOLUME_LABEL, Volume,
};
use midflight_api::{
    Address, EngineSeat, FrontendSeat, ImageRef, Member, MemberMode, NodeName, Operation, OperationPhase,
    ReplicaName, VolumeRecord, VolumeRecordSpec,
};
use midflight_plan::storage::engine_image;
use midflight_plan::storage::volume::{Action, attachment, engine_name, next_engine_name};

use super::{Look, Volumes, key};
use crate::controller::{Controller, News, Tone, TurnError};
use crate::storage::orders::{failed, proto};

/// How long the old engine may take to answer what it has.
const DRAIN_WITHIN_MS: u32 = 20;
/// How long a switch-over may take before the engine that does not take over has failed.
const SWITCH_WITHIN_MS: u32 = 3000;

impl Look {
    fn name(&self) -> String {
        self.volume.name_any()
    }

    fn epoch(&self) -> u64 {
        self.observed.record.as_ref().map_or(0, |record| record.term.epoch().number())
    }

    fn engine_order(&self) -> proto::EngineRequest {
        let name = self.observed.engine_in_charge().to_string();
        proto::EngineRequest { name, volume: self.name(), epoch: self.epoch() }
    }

    /// Whether the engine is on another node than its frontend.
    fn is_remote(&self) -> bool {
        let record = self.observed.record.as_ref();
        let engine = record.and_then(|record| Some(&record.engine.as_ref()?.node_id));
        let frontend = record.and_then(|record| Some(&record.frontend.as_ref()?.node_id));
        engine != frontend
    }

    /// Below the folder of binaries for v1; nothing for v2, which the instance manager hosts itself.
    fn binary(&self, image: &ImageRef) -> String {
        match self.volume.spec.data_engine {
            DataEngine::V1 => engine_image::binary(image),
            DataEngine::V2 => String::new(),
        }
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            namespace: Some(NAMESPACE.into()),
            labels: Some([(VOLUME_LABEL.to_owned(), self.name())].into()),
            ..ObjectMeta::default()
        }
    }

    fn instance(&self, node: &NodeName) -> InstanceSpec {
        InstanceSpec {
            volume_name: self.name().into(),
            volume_size: self.volume.spec.size,
            node_id: node.clone(),
            image: self.volume.spec.image.clone(),
            desire_state: InstanceState::Running,
            data_engine: self.volume.spec.data_engine,
            ..InstanceSpec::default()
        }
    }

    fn replica(&self, name: &ReplicaName) -> Option<Arc<Replica>> {
        self.replicas.iter().find(|replica| replica.name_any() == name.as_str()).cloned()
    }
}

impl Volumes {
    pub(super) async fn carry_out(&self, seen: &Look, action: Action) -> Result<(), TurnError> {
        match action {
            Action::Protect { image } => {
                let edit = |volume: &mut Volume| {
                    volume.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
                    volume.finalizers_mut().push(FINALIZER.into());
                    volume.spec.image = image;
                };
                self.volumes.change(&mut seen.volume.clone(), edit).await?;
            }
            Action::Release => {
                let edit = |volume: &mut Volume| volume.finalizers_mut().retain(|one| one != FINALIZER);
                self.volumes.change(&mut seen.volume.clone(), edit).await?;
            }
            Action::ClearTarget => {
                let edit = |volume: &mut Volume| volume.spec.target_node_id = NodeName::default();
                self.volumes.change(&mut seen.volume.clone(), edit).await?;
            }
            Action::MakeReplica { name, node } => {
                self.confirm(seen, Some(&node)).await?;
                self.replicas.create(&new_replica(seen, &name, &node)).await?;
            }
            Action::MakeEngine { name } => self.engines.create(&new_engine(seen, name.as_str())).await?,
            Action::MakeRecord { members } => self.records.create(&new_record(seen, members)).await?,
            Action::TakeTerm { node } => {
                self.change_record(seen, |spec| take_term(spec, seen, node)).await?;
            }
            Action::EndAttachment => self.change_record(seen, |spec| spec.frontend = None).await?,
            Action::ChangeEngine { .. } => {
                let edit = |spec: &mut VolumeRecordSpec| {
                    let node = spec.frontend.as_ref().map(|seat| seat.node_id.clone()).unwrap_or_default();
                    hand_over(spec, &seen.name(), node);
                };
                self.change_record(seen, edit).await?;
            }
            Action::MoveEngine { node } => {
                self.change_record(seen, |spec| hand_over(spec, &seen.name(), node)).await?;
            }
            Action::EndSwitch => {
                let edit = |spec: &mut VolumeRecordSpec| {
                    spec.operation.iter_mut().for_each(|operation| operation.phase = OperationPhase::Done);
                };
                self.change_record(seen, edit).await?;
            }
            Action::Enlist { replica, node } => {
                let edit = |spec: &mut VolumeRecordSpec| {
                    spec.member_version += 1;
                    spec.members.push(Member { replica, node_id: node, mode: MemberMode::Error });
                };
                self.change_record(seen, edit).await?;
            }
            Action::Strike { replica } => {
                let edit = |spec: &mut VolumeRecordSpec| {
                    spec.member_version += 1;
                    spec.members.retain(|member| member.replica != replica);
                };
                self.change_record(seen, edit).await?;
            }
            Action::Salvage { replica } => {
                self.confirm(seen, None).await?;
                self.change_record(seen, |spec| salvage(spec, &replica)).await?;
                let note = format!(
                    "serves what replica {replica} has, as was asked for; what only the others had is lost"
                );
                let news = News { by: Volumes::NAME, tone: Tone::Warning, reason: "Salvaged", note: &note };
                self.volumes.tell(&seen.volume, &news).await;
            }
            Action::EndSalvage => {
                self.change_record(seen, |spec| spec.salvaged = ReplicaName::default()).await?;
            }
            Action::DeleteReplica { replica } => {
                self.confirm(seen, None).await?;
                if let Some(object) = seen.replica(&replica) {
                    self.replicas.delete(&object).await?;
                }
            }
            Action::ForgetReplica { manager, replica } => self.forget(seen, manager, &replica).await?,
            Action::DeleteEngine => {
                if let Some(engine) = &seen.engine {
                    self.engines.delete(engine).await?;
                }
            }
            Action::DeleteRecord => {
                if let Some(record) = &seen.record {
                    self.records.delete(record).await?;
                }
            }
            order => self.order(seen, order).await?,
        }
        Ok(())
    }

    /// That a replica is made or given up rests on what is wanted of the volume and of nodes; nothing else would notice that an old
    /// view was looked at.
    async fn confirm(&self, seen: &Look, place: Option<&NodeName>) -> Result<(), TurnError> {
        self.volumes.confirm(&seen.volume).await?;
        let holders = seen.replicas.iter().map(|replica| &replica.spec.instance.node_id);
        for node in holders.chain(place).collect::<BTreeSet<_>>() {
            if let Some(node) = self.nodes.get(&key(node.as_str()))? {
                self.nodes.confirm(&node).await?;
            }
        }
        Ok(())
    }

    async fn change_record(
        &self,
        seen: &Look,
        edit: impl FnOnce(&mut VolumeRecordSpec),
    ) -> Result<(), TurnError> {
        let Some(record) = &seen.record else { return Ok(()) };
        let edit = |record: &mut VolumeRecord| edit(&mut record.spec);
        Ok(self.records.change(&mut Arc::clone(record), edit).await?)
    }

    /// Orders something of an instance manager.
    async fn order(&self, seen: &Look, action: Action) -> Result<(), TurnError> {
        let refused = |doing: &'static str| failed(move || doing.to_owned());
        match action {
            Action::StartReplica { manager, replica, image, existing } => {
                let order = proto::CreateRequest {
                    kind: proto::Kind::Replica.into(),
                    name: replica.to_string(),
                    volume: seen.name(),
                    epoch: seen.epoch(),
                    binary: seen.binary(&image),
                    size: self.size(seen),
                    existing,
                    ..proto::CreateRequest::default()
                };
                self.manager(&manager)?.create(order).await.map_err(refused("start a replica"))?;
            }
            Action::StopReplica { manager, replica } => {
                let order = delete(proto::Kind::Replica, replica.as_str(), seen, false);
                self.manager(&manager)?.delete(order).await.map_err(refused("stop a replica"))?;
            }
            Action::StartEngine { manager, image, members } => {
                let member = |(name, address): &(ReplicaName, Address)| proto::Member {
                    name: name.to_string(),
                    address: address.to_string(),
                };
                let order = proto::CreateRequest {
                    kind: proto::Kind::Engine.into(),
                    name: seen.observed.engine_in_charge().to_string(),
                    volume: seen.name(),
                    epoch: seen.epoch(),
                    binary: seen.binary(&image),
                    members: members.iter().map(member).collect(),
                    remote: seen.is_remote(),
                    ..proto::CreateRequest::default()
                };
                self.manager(&manager)?.create(order).await.map_err(refused("start the engine"))?;
                self.note(seen, |engine| {
                    let status = engine.status.get_or_insert_default();
                    status.current_replica_address_map = members.into_iter().collect();
                })
                .await?;
            }
            Action::StopEngine { manager, engine } => {
                self.volumes.confirm(&seen.volume).await?;
                let order = delete(proto::Kind::Engine, engine.as_str(), seen, false);
                self.manager(&manager)?.delete(order).await.map_err(refused("stop the engine"))?;
            }
            Action::SwitchOver { manager, engine } => self.switch_over(seen, &manager, &engine).await?,
            Action::AddReplica { manager, replica, address } => {
                let order = proto::ReplicaRequest {
                    engine: Some(seen.engine_order()),
                    replica: replica.to_string(),
                    address: address.to_string(),
                };
                self.manager(&manager)?.add_replica(order).await.map_err(refused("add a replica"))?;
                self.note(seen, |engine| {
                    engine
                        .status
                        .get_or_insert_default()
                        .current_replica_address_map
                        .insert(replica, address);
                })
                .await?;
            }
            Action::RemoveReplica { manager, replica } => {
                let order = proto::ReplicaRequest {
                    engine: Some(seen.engine_order()),
                    replica: replica.to_string(),
                    address: String::new(),
                };
                self.manager(&manager)?.remove_replica(order).await.map_err(refused("remove a replica"))?;
                self.note(seen, |engine| {
                    engine.status.get_or_insert_default().current_replica_address_map.remove(&replica);
                })
                .await?;
            }
            Action::DoubtReplica { replica } => {
                self.note(seen, |engine| {
                    let known = &mut engine.status.get_or_insert_default().current_replica_address_map;
                    known.insert(replica, Address::default());
                })
                .await?;
            }
            Action::ReleaseReplica { manager, replica } => {
                let order = proto::ReplicaRequest {
                    engine: Some(seen.engine_order()),
                    replica: replica.to_string(),
                    address: String::new(),
                };
                self.manager(&manager)?.release_replica(order).await.map_err(refused("release a replica"))?;
                self.note(seen, |engine| {
                    engine.status.get_or_insert_default().current_replica_address_map.remove(&replica);
                })
                .await?;
            }
            Action::Expand { manager, size } => {
                let order = proto::ExpandRequest { engine: Some(seen.engine_order()), size: size.bytes() };
                self.manager(&manager)?.expand(order).await.map_err(refused("grow the volume"))?;
            }
            Action::Throttle { manager, bytes_per_second } => {
                let order = proto::ThrottleRequest { engine: Some(seen.engine_order()), bytes_per_second };
                self.manager(&manager)?.throttle(order).await.map_err(refused("limit rebuilds"))?;
            }
            Action::Bear { manager, seconds } => {
                let order = proto::PatienceRequest { engine: Some(seen.engine_order()), seconds };
                self.manager(&manager)?
                    .patience(order)
                    .await
                    .map_err(refused("set the time of a replica"))?;
            }
            Action::Permit { manager, replicas } => {
                let replicas = replicas.iter().map(ToString::to_string).collect();
                let order = proto::PermitRequest { engine: Some(seen.engine_order()), replicas };
                self.manager(&manager)?.permit(order).await.map_err(refused("say whom to rebuild"))?;
            }
            Action::Offer { manager, engine } => {
                let frontend = seen.observed.record.as_ref().and_then(|record| record.frontend.as_ref());
                let order = proto::AttachRequest {
                    volume: seen.name(),
                    epoch: seen.epoch(),
                    attachment: frontend
                        .and_then(|seat| seat.attach_id.as_str().parse().ok())
                        .unwrap_or_default(),
                    size: self.size(seen),
                    engine: engine.to_string(),
                    device: seen.volume.spec.frontend == Frontend::Blockdev,
                };
                let answer =
                    self.manager(&manager)?.attach(order).await.map_err(refused("attach the volume"))?;
                let endpoint = answer.into_inner().endpoint;
                self.note(seen, |engine| engine.status.get_or_insert_default().endpoint = endpoint.into())
                    .await?;
            }
            Action::Withdraw { manager } => {
                // The term tells an old record from the present one, and nothing an old volume: clients would be cut off for nothing.
                self.volumes.confirm(&seen.volume).await?;
                if let Some(manager) = manager {
                    let order = proto::DetachRequest { volume: seen.name(), epoch: seen.epoch() };
                    self.manager(&manager)?.detach(order).await.map_err(refused("detach the volume"))?;
                }
                self.note(seen, |engine| engine.status.get_or_insert_default().endpoint = "".into()).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets the frontend go over to another engine, and notes how long its clients waited. An engine that does not
    /// take the volume over has failed.
    async fn switch_over(&self, seen: &Look, manager: &str, engine: &Address) -> Result<(), TurnError> {
        let order = proto::SwitchOverRequest {
            volume: seen.name(),
            epoch: seen.epoch(),
            engine: engine.to_string(),
            drain_within_ms: DRAIN_WITHIN_MS,
            within_ms: SWITCH_WITHIN_MS,
        };
        let answer = match self.manager(manager)?.switch_over(order).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) if status.code() == tonic::Code::Internal => Err(status.message().to_owned()),
            Err(status) => return Err(failed(|| "switch over to another engine".to_owned())(status)),
        };
        let at = Timestamp::now().to_string();
        // The same order given again has no pause in its answer, so that this is the only time to note it.
        self.volumes
            .report_over(&mut Arc::clone(&seen.volume), |volume| match volume.spec.data_engine {
                DataEngine::V1 => changed(volume, &answer, &at),
                DataEngine::V2 => moved(volume, &answer, &at),
            })
            .await
    }

    /// The size that the copies have: what the engine last said, or for a new volume what was asked for.
    fn size(&self, seen: &Look) -> u64 {
        let status = seen.engine.as_ref().and_then(|engine| engine.status.as_ref());
        let known = status.map(|status| status.current_size.bytes()).filter(|size| *size > 0);
        known.unwrap_or(seen.volume.spec.size.bytes())
    }

    async fn note(&self, seen: &Look, edit: impl FnOnce(&mut Engine)) -> Result<(), TurnError> {
        match &seen.engine {
            Some(engine) => Ok(self.engines.report(&mut Arc::clone(engine), edit).await?),
            None => Ok(()),
        }
    }

    /// Removes the data of a replica, then its object.
    async fn forget(
        &self,
        seen: &Look,
        manager: Option<String>,
        replica: &ReplicaName,
    ) -> Result<(), TurnError> {
        let Some(mut object) = seen.replica(replica) else { return Ok(()) };
        if let Some(manager) = manager {
            let order = delete(proto::Kind::Replica, replica.as_str(), seen, true);
            let doing = || format!("remove replica {replica}");
            self.manager(&manager)?.delete(order).await.map_err(failed(doing))?;
        }
        if object.metadata.deletion_timestamp.is_none() {
            self.replicas.delete(&object).await?;
            return Ok(());
        }
        let edit =
            |replica: &mut Replica| replica.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
        Ok(self.replicas.change(&mut object, edit).await?)
    }
}

/// Gives the volume to its engine on a node, for a new attachment.
fn take_term(spec: &mut VolumeRecordSpec, seen: &Look, node: NodeName) {
    spec.term = spec.term.next();
    spec.operation = None;
    let attach_id = attachment(&seen.volume.uid().unwrap_or_default(), spec.term).to_string().into();
    spec.frontend = Some(FrontendSeat { attach_id, node_id: node.clone() });
    spec.engine = Some(EngineSeat { name: engine_name(&seen.name()), node_id: node });
}

/// Puts one copy into service, with what it has, and all others out of the record.
fn salvage(spec: &mut VolumeRecordSpec, replica: &ReplicaName) {
    spec.term = spec.term.next();
    spec.member_version += 1;
    spec.members.retain(|member| member.replica == *replica);
    spec.members.iter_mut().for_each(|member| member.mode = MemberMode::ReadWrite);
    spec.salvaged = replica.clone();
}

/// Gives the next term to another engine, which is to be switched over to.
fn hand_over(spec: &mut VolumeRecordSpec, volume: &str, node_id: NodeName) {
    spec.term = spec.term.next();
    let to = EngineSeat { name: next_engine_name(volume, spec.term), node_id };
    let from = spec.engine.replace(to.clone());
    let (id, phase) = (spec.term.to_string().into(), OperationPhase::Switching);
    spec.operation = Some(Operation { id, phase, from, to: Some(to) });
}

/// What the frontend said of a switch-over, or why there was none.
type Answer = Result<proto::SwitchOverResponse, String>;

/// Notes how long clients waited while the engine changed, or why it did not.
fn changed(volume: &mut Volume, answer: &Answer, at: &str) {
    let change = &mut volume.status.get_or_insert_default().engine_change;
    match answer {
        // An answer to the same order given again has no pause in it.
        Ok(switched) if switched.pause_us > 0 => {
            change.at = at.into();
            change.pause_us = number(switched.pause_us);
            change.longest_wait_us = number(switched.longest_wait_us);
            change.replayed = number(switched.replayed);
        }
        Ok(_) => {}
        Err(why) if change.state == EngineChangeState::Moving => {
            change.state = EngineChangeState::Failed;
            change.message = why.as_str().into();
        }
        Err(_) => {}
    }
}

/// Notes how long clients waited while the target moved, or why it did not.
fn moved(volume: &mut Volume, answer: &Answer, at: &str) {
    let known = &mut volume.status.get_or_insert_default().target_move;
    match answer {
        // An answer to the same order given again has no pause in it.
        Ok(switched) if switched.pause_us > 0 => {
            known.pause_us = number(switched.pause_us);
            known.longest_wait_us = number(switched.longest_wait_us);
            known.replayed = number(switched.replayed);
            if known.state == TargetMoveState::Moving {
                known.at = at.into();
            }
        }
        Ok(_) => {}
        Err(why) if known.state == TargetMoveState::Moving => {
            known.state = TargetMoveState::Failed;
            known.at = at.into();
            (known.reason, known.message) = (TargetMoveReason::SwitchFailed, why.as_str().into());
        }
        Err(_) => {}
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn delete(kind: proto::Kind, name: &str, seen: &Look, remove_data: bool) -> proto::DeleteRequest {
    let (name, volume, epoch) = (name.to_owned(), seen.name(), seen.epoch());
    proto::DeleteRequest { kind: kind.into(), name, volume, epoch, remove_data }
}

fn new_replica(seen: &Look, name: &ReplicaName, node: &NodeName) -> Replica {
    let mut metadata = seen.metadata(name.as_str());
    metadata.finalizers = Some(vec![FINALIZER.into()]);
    let spec = ReplicaSpec {
        instance: seen.instance(node),
        engine_name: engine_name(&seen.name()),
        active: true,
        data_directory_name: name.as_str().into(),
        ..ReplicaSpec::default()
    };
    Replica { metadata, spec, status: None }
}

fn new_engine(seen: &Look, name: &str) -> Engine {
    let spec = EngineSpec {
        instance: seen.instance(&NodeName::default()),
        frontend: seen.volume.spec.frontend,
        active: true,
        ..EngineSpec::default()
    };
    Engine { metadata: seen.metadata(name), spec, status: None }
}

fn new_record(seen: &Look, members: Vec<(ReplicaName, NodeName)>) -> VolumeRecord {
    let member = |(replica, node_id)| Member { replica, node_id, mode: MemberMode::ReadWrite };
    let members = members.into_iter().map(member).collect();
    let spec = VolumeRecordSpec { members, member_version: 1, ..VolumeRecordSpec::default() };
    VolumeRecord { metadata: seen.metadata(&seen.name()), spec }
}
