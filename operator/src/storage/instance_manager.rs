//! Instance managers: one object for each node, image and data engine, which says what its process says. Deleting the object
//! ends its pod, which belongs to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{
    DataEngine, InstanceManager, InstanceManagerSpec, InstanceProcess, InstanceProcessSpec,
    InstanceProcessStatus, InstanceState, InstanceType, NAMESPACE, Node, Replica, Setting, Volume,
};
use midflight_api::{EngineSeat, ImageRef, NodeName, OperationPhase, VolumeRecord};
use midflight_plan::storage::engine_image::{Range, Ranges};
use midflight_plan::storage::instance_manager::{self as plan, Action, Answer, Observed, Seen};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::held::{self, Held};
use super::orders::{Orders, proto};
use super::{pods, settings};
use crate::controller::{Controller, Index, Key, Next, Objects, Operator, Stale, TurnError, Wake};

/// How long an instance manager may take to say what it holds, when it is asked and when it is asked once more: volumes leave the node
/// of one that is silent.
const ANSWERS_WITHIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(4)];
/// How often it is asked although nothing was heard of it.
const ASK_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct InstanceManagers {
    managers: Objects<InstanceManager>,
    managers_at: Index<InstanceManager>,
    nodes: Objects<Node>,
    held: Held,
    settings: Objects<Setting>,
    pods: Objects<Pod>,
    pods_at: Index<Pod>,
    daemon_sets: Objects<DaemonSet>,
    records: Objects<VolumeRecord>,
    volumes: Objects<Volume>,
    volumes_at: Index<Volume>,
    replicas: Objects<Replica>,
    replicas_at: Index<Replica>,
    orders: Arc<Orders>,
    wake: OnceLock<Wake<Key>>,
    /// Who listens to which instance manager, by its name and address.
    listening: Arc<Mutex<HashMap<(String, String), AbortHandle>>>,
}

pub(crate) struct Look {
    key: Key,
    object: Option<Arc<InstanceManager>>,
    /// What the instance manager of this name is, if there should be one.
    wanted: Option<InstanceManagerSpec>,
    instances: Vec<proto::Instance>,
    /// What its program speaks, if there is news of it.
    speaks: Option<Ranges>,
    /// Engines that are to take a volume over, by name.
    standby: BTreeSet<String>,
    observed: Observed,
}

/// What a process has answered.
struct Heard {
    answer: Answer,
    instances: Vec<proto::Instance>,
    /// What it speaks, if it was asked.
    speaks: Option<Ranges>,
}

/// What a process says that it speaks.
fn ranges(said: &proto::VersionResponse) -> Ranges {
    let range = |given: Option<&proto::Range>| {
        given.map(|range| Range { oldest: range.oldest, newest: range.newest }).unwrap_or_default()
    };
    Ranges { api: range(said.api.as_ref()), wire: range(said.wire.as_ref()), disk: range(said.disk.as_ref()) }
}

impl InstanceManagers {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> InstanceManagers {
        let managers: Objects<InstanceManager> = operator.objects();
        let pods: Objects<Pod> = operator.objects();
        let (volumes, replicas): (Objects<Volume>, Objects<Replica>) =
            (operator.objects(), operator.objects());
        InstanceManagers {
            managers_at: managers
                .index(|manager| vec![place(&manager.spec.node_id, manager.spec.data_engine)]),
            managers,
            nodes: operator.objects(),
            held: Held::new(operator),
            settings: operator.objects(),
            pods_at: pods.index(|pod| pods::place_of_manager(pod).into_iter().collect()),
            pods,
            daemon_sets: operator.objects(),
            records: operator.objects(),
            volumes_at: volumes.index(places_of_engine),
            volumes,
            replicas_at: replicas.index(|replica| {
                vec![place(&replica.spec.instance.node_id, replica.spec.instance.data_engine)]
            }),
            replicas,
            orders,
            wake: OnceLock::new(),
            listening: Arc::default(),
        }
    }

    /// What there should be on this node.
    fn wanted_on(settings: &Objects<Setting>, node: &NodeName) -> Result<Vec<InstanceManagerSpec>, Stale> {
        let image = ImageRef::from(settings::value(settings, settings::INSTANCE_MANAGER_IMAGE)?);
        let spec = |data_engine: DataEngine| InstanceManagerSpec {
            image: image.clone(),
            node_id: node.clone(),
            data_engine,
            ..InstanceManagerSpec::default()
        };
        Ok(settings::data_engines(settings)?.into_iter().map(spec).collect())
    }

    fn wanted(
        &self,
        key: &Key,
        object: Option<&InstanceManager>,
    ) -> Result<Option<InstanceManagerSpec>, Stale> {
        let nodes: Vec<NodeName> = match object {
            Some(object) => {
                let node = &object.spec.node_id;
                let there = self.nodes.get(&Key::new(NAMESPACE, node.as_str()))?.is_some();
                there.then(|| node.clone()).into_iter().collect()
            }
            None => self.nodes.all()?.iter().map(|node| node.name_any().into()).collect(),
        };
        for node in nodes {
            let wanted = Self::wanted_on(&self.settings, &node)?;
            if let Some(spec) = wanted.into_iter().find(|spec| name(spec) == key.name) {
                return Ok(Some(spec));
            }
        }
        Ok(None)
    }

    /// Whether it was brought back because that of the default image does not start on its node.
    fn stands_in(&self, object: &InstanceManager) -> Result<bool, Stale> {
        let Some(image) = object.annotations().get(plan::STANDS_IN_FOR) else { return Ok(false) };
        let node = Key::new(NAMESPACE, object.spec.node_id.as_str());
        let default = settings::value(&self.settings, settings::INSTANCE_MANAGER_IMAGE)?;
        Ok(*image == default && self.nodes.get(&node)?.is_some())
    }

    /// Whether the node lacks the image of the instance manager that is to take the place of this one.
    fn next_is_missing(&self, spec: &InstanceManagerSpec) -> Result<bool, Stale> {
        let node = &spec.node_id;
        if self.nodes.get(&Key::new(NAMESPACE, node.as_str()))?.is_none() {
            return Ok(false);
        }
        let mut wanted = Self::wanted_on(&self.settings, node)?.into_iter();
        let Some(next) = wanted.find(|next| next.data_engine == spec.data_engine) else { return Ok(false) };
        // Where images are not brought to nodes before they are needed, the pod of the next one brings it.
        let is_brought = settings::value(&self.settings, settings::PRE_PULL)? == "true";
        Ok(is_brought && next.image != spec.image && !self.held.has(node, &next.image)?)
    }

    /// Whether an attached volume has an engine or a replica there, or is to have.
    fn is_needed(&self, place: &str) -> Result<bool, Stale> {
        if self.volumes.by(self.volumes_at, place)?.iter().any(|volume| is_attached(volume)) {
            return Ok(true);
        }
        for replica in self.replicas.by(self.replicas_at, place)? {
            let volume = Key::new(NAMESPACE, replica.spec.instance.volume_name.as_str());
            if self.volumes.get(&volume)?.is_some_and(|volume| is_attached(&volume)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Asks the process what it holds, and listens to it from then on. One that was not listened to yet, or of which that is not known,
    /// is asked what it speaks.
    async fn ask(&self, key: &Key, address: &str, is_unknown: bool) -> Result<Heard, TurnError> {
        let mut manager = self.orders.to(address)?;
        for within in ANSWERS_WITHIN {
            match timeout(within, manager.list(proto::ListRequest {})).await {
                Ok(Ok(answer)) => {
                    let mut heard = Heard {
                        answer: Answer::Well,
                        instances: answer.into_inner().instances,
                        speaks: None,
                    };
                    if self.listen(key, address)? || is_unknown {
                        let version = timeout(within, manager.version(proto::VersionRequest {})).await;
                        heard.speaks =
                            version.ok().and_then(Result::ok).map(|said| ranges(&said.into_inner()));
                    }
                    return Ok(heard);
                }
                Ok(Err(_)) => break,
                Err(_) => {}
            }
        }
        Ok(Heard { answer: Answer::Silent, instances: Vec::new(), speaks: None })
    }

    /// Wakes the key at every change that the process tells of, and when it tells no more. Says whether that has begun now.
    fn listen(&self, key: &Key, address: &str) -> Result<bool, TurnError> {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(wake) = self.wake.get().cloned() else { return Ok(false) };
        let place = (key.name.clone(), address.to_owned());
        if listening.get(&place).is_some_and(|task| !task.is_finished()) {
            return Ok(false);
        }
        let (mut manager, key) = (self.orders.to(address)?, key.clone());
        let task = tokio::spawn(async move {
            if let Ok(stream) = manager.watch(proto::WatchRequest {}).await {
                let mut stream = stream.into_inner();
                while let Ok(Some(_)) = stream.message().await {
                    wake.one(key.clone());
                }
            }
            wake.one(key);
        });
        listening.retain(|_, task| !task.is_finished());
        listening.insert(place, task.abort_handle());
        Ok(true)
    }
}

impl Drop for InstanceManagers {
    fn drop(&mut self) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        listening.values().for_each(AbortHandle::abort);
    }
}

/// The engine that is to take a volume over, while it is.
fn takes_over(record: Option<&VolumeRecord>) -> Option<&EngineSeat> {
    let operation = record?.spec.operation.as_ref()?;
    operation.to.as_ref().filter(|_| operation.phase == OperationPhase::Switching)
}

/// Whether somebody is to be served.
fn is_attached(volume: &Volume) -> bool {
    !volume.spec.node_id.is_empty() && volume.metadata.deletion_timestamp.is_none()
}

/// Where the engine of a volume is, or is to be.
fn places_of_engine(volume: &Volume) -> Vec<String> {
    let spec = &volume.spec;
    let serves_on = volume.status.as_ref().map(|status| status.current_target_node_id.clone());
    let nodes: BTreeSet<NodeName> =
        [spec.node_id.clone(), spec.target_node_id.clone()].into_iter().chain(serves_on).collect();
    let named = nodes.iter().filter(|node| !node.is_empty());
    named.map(|node| place(node, spec.data_engine)).collect()
}

/// Where an instance manager is: those of one place share a folder.
fn place(node: &NodeName, engine: DataEngine) -> String {
    format!("{node}/{engine}")
}

fn name(spec: &InstanceManagerSpec) -> String {
    plan::name(&spec.node_id, &spec.image, spec.data_engine)
}

/// An instance as the status of its instance manager shows it.
fn shown(instance: &proto::Instance, engine: DataEngine, is_standby: bool) -> InstanceProcess {
    let state = match instance.state() {
        proto::State::Unspecified | proto::State::Lost | proto::State::Fenced => InstanceState::Stopped,
        proto::State::Starting => InstanceState::Starting,
        proto::State::Running if instance.suspended => InstanceState::Suspended,
        proto::State::Running => InstanceState::Running,
        proto::State::Failed => InstanceState::Error,
    };
    let kind = match instance.kind() {
        proto::Kind::Engine => InstanceType::Engine,
        proto::Kind::Replica => InstanceType::Replica,
        proto::Kind::Unspecified => InstanceType::Undefined,
    };
    let port = instance.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default();
    let standby_port = if is_standby { port } else { 0 };
    InstanceProcess {
        spec: InstanceProcessSpec {
            name: instance.name.as_str().into(),
            data_engine: engine,
            binary: instance.binary.as_str().into(),
        },
        status: InstanceProcessStatus {
            state,
            kind,
            error_msg: instance.why.as_str().into(),
            listen: instance.address.as_str().into(),
            port_start: port,
            port_end: port,
            standby_target_port_start: standby_port,
            standby_target_port_end: standby_port,
            restarts: i64::try_from(instance.restarts).unwrap_or(i64::MAX),
            ..InstanceProcessStatus::default()
        },
    }
}

impl Controller for InstanceManagers {
    const NAME: &'static str = "instance-manager";
    type Key = Key;
    type Seen = Look;
    type Decision = Action;

    fn watch(&self, wake: &Wake<Key>) {
        // Set once: a controller is added once.
        let _ = self.wake.set(wake.clone());
        // One that comes or goes is news for the others of its place.
        let (managers, at) = (self.managers.clone(), self.managers_at);
        let rivals = move |place: &str| -> Vec<Key> {
            managers.by(at, place).unwrap_or_default().iter().map(|manager| Key::of(&**manager)).collect()
        };
        let (of_place, of_engine) = (rivals.clone(), rivals.clone());
        // One that has taken a volume over stands by no more.
        wake.on_change(&self.records, move |old, new| match (takes_over(old), takes_over(new)) {
            (Some(seat), None) => of_engine(&place(&seat.node_id, DataEngine::V2)),
            (Some(_), Some(_)) | (None, _) => Vec::new(),
        });
        wake.on_change(&self.managers, move |old, new| {
            let Some(either) = new.or(old) else { return Vec::new() };
            let is_going = |manager: Option<&InstanceManager>| {
                manager.is_none_or(|manager| manager.metadata.deletion_timestamp.is_some())
            };
            let mut keys = vec![Key::of(either)];
            if is_going(old) != is_going(new) {
                keys.extend(of_place(&place(&either.spec.node_id, either.spec.data_engine)));
            }
            keys
        });
        wake.on(&self.pods, move |pod| match pods::place_of_manager(pod) {
            Some(place) => rivals(&place).into_iter().chain([Key::of(pod)]).collect(),
            None => Vec::new(),
        });
        let settings = self.settings.clone();
        let keys_of = move |node: &NodeName| -> Vec<Key> {
            // Settings are written by people only, so they are never behind a write of ours.
            let wanted = InstanceManagers::wanted_on(&settings, node).unwrap_or_default();
            wanted.iter().map(|spec| Key::new(NAMESPACE, &name(spec))).collect()
        };
        let (nodes, of_node) = (self.nodes.clone(), keys_of.clone());
        wake.on(&self.nodes, move |node| of_node(&node.name_any().into()));
        // One that waited for the image of the next one may go.
        let managers = self.managers.clone();
        wake.on_change(&self.held.images, move |old, new| match held::has_moved(old, new) {
            true => managers.shown().iter().map(|manager| Key::of(&**manager)).collect(),
            false => Vec::new(),
        });
        // What its image speaks is news for one that does not run yet.
        let managers = self.managers.clone();
        wake.on_change(&self.held.machines, move |old, new| match held::has_heard(old, new) {
            true => {
                let node = old.or(new).map(ResourceExt::name_any).unwrap_or_default();
                let all = managers.shown();
                let here = all.iter().filter(|manager| manager.spec.node_id == node.as_str());
                here.map(|manager| Key::of(&**manager)).collect()
            }
            false => Vec::new(),
        });
        let managers = self.managers.clone();
        wake.on(&self.settings, move |setting| match setting.name_any().as_str() {
            settings::INSTANCE_MANAGER_IMAGE | settings::PRE_PULL | "v1-data-engine" | "v2-data-engine" => {
                let all = nodes.all().unwrap_or_default();
                // Those that there are too: one that waited to run may not be needed any more.
                let there = managers.all().unwrap_or_default();
                let there = there.iter().map(|manager| Key::of(&**manager));
                all.iter().flat_map(|node| keys_of(&node.name_any().into())).chain(there).collect()
            }
            _ => Vec::new(),
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let object = self.managers.get(key)?;
        let wanted = self.wanted(key, object.as_deref())?;
        let (mut manager, mut instances, mut speaks) = (None, Vec::new(), None);
        if let Some(object) = &object {
            let address = object.status.as_ref().map(|status| status.ip.to_string()).unwrap_or_default();
            let has_pod = self.pods.get(key)?.is_some();
            let is_unknown = object.status.as_ref().is_none_or(|status| status.api_version == 0);
            let Heard { answer, instances: found, speaks: said } = match address.as_str() {
                "" => Heard { answer: Answer::NoAddress, instances: Vec::new(), speaks: None },
                address => self.ask(key, address, is_unknown).await?,
            };
            // Of what does not run yet the image may say it.
            speaks = match said {
                None if !has_pod => self.held.speaks(&object.spec.node_id, &object.spec.image)?,
                said => said,
            };
            let told = object
                .status
                .as_ref()
                .map_or(0, |status| status.instance_engines.len() + status.instance_replicas.len());
            let held = if answer == Answer::Well { found.len() } else { told };
            instances = found;
            let deleting = object.metadata.deletion_timestamp.is_some();
            manager = Some(Seen { deleting, has_pod, instances: held, answer });
        }
        let spec = object.as_ref().map(|object| &object.spec).or(wanted.as_ref());
        let place = spec.map(|spec| place(&spec.node_id, spec.data_engine)).unwrap_or_default();
        let is_other = |name: &str| name != key.name;
        let observed = Observed {
            wanted: wanted.is_some(),
            // That of the default image stays anyway.
            needed: wanted.is_none() && self.is_needed(&place)?,
            next_is_missing: match &object {
                Some(object) => self.next_is_missing(&object.spec)?,
                None => false,
            },
            stands_in: match &object {
                Some(object) => self.stands_in(object)?,
                None => false,
            },
            manager,
            has_rival: self
                .managers
                .by(self.managers_at, &place)?
                .iter()
                .any(|one| is_other(&one.name_any())),
            is_taken: self.pods.by(self.pods_at, &place)?.iter().any(|pod| is_other(&pod.name_any())),
        };
        let mut standby = BTreeSet::new();
        for instance in instances.iter().filter(|instance| instance.kind() == proto::Kind::Engine) {
            let record = self.records.get(&Key::new(NAMESPACE, &instance.volume))?;
            if takes_over(record.as_deref()).is_some_and(|seat| seat.name == instance.name.as_str()) {
                standby.insert(instance.name.clone());
            }
        }
        Ok(Some(Look { key: key.clone(), object, wanted, instances, speaks, standby, observed }))
    }

    fn decide(seen: &Look) -> Action {
        plan::decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Action) -> Result<(), TurnError> {
        let (Some(object), Action::Report(state)) = (&mut seen.object, decision) else { return Ok(()) };
        let engine = object.spec.data_engine;
        let of = |kind: proto::Kind| -> BTreeMap<String, InstanceProcess> {
            let all = seen.instances.iter().filter(|instance| instance.kind() == kind);
            let shown = |instance: &proto::Instance| {
                (instance.name.clone(), shown(instance, engine, seen.standby.contains(&instance.name)))
            };
            all.map(shown).collect()
        };
        let (engines, replicas) = (of(proto::Kind::Engine), of(proto::Kind::Replica));
        let is_known = seen.observed.manager.as_ref().is_some_and(|manager| manager.answer == Answer::Well);
        let speaks = seen.speaks;
        let write = self.managers.report(object, |manager| {
            let status = manager.status.get_or_insert_default();
            status.current_state = *state;
            if let Some(Ranges { api, wire, disk }) = speaks {
                (status.api_min_version, status.api_version) = api.fields();
                (status.proxy_api_min_version, status.proxy_api_version) = wire.fields();
                (status.data_format_min_version, status.data_format_version) = disk.fields();
            }
            if is_known {
                (status.instance_engines, status.instance_replicas) = (engines, replicas);
            }
        });
        Ok(write.await?)
    }

    async fn act(&self, seen: Look, decision: Action) -> Result<Next, TurnError> {
        match (decision, seen.wanted, &seen.object) {
            (Action::Create, Some(spec), _) => {
                let metadata = ObjectMeta {
                    name: Some(seen.key.name),
                    namespace: Some(seen.key.namespace),
                    ..ObjectMeta::default()
                };
                self.managers.create(&InstanceManager { metadata, spec, status: None }).await?;
                Ok(Next::OnChange)
            }
            (Action::MakePod, _, Some(object)) => {
                let pull = settings::pull_policy(&self.settings)?;
                for set in pods::daemon_sets(&object.spec.image, pull) {
                    if self.daemon_sets.get(&Key::of(&set))?.is_none() {
                        self.daemon_sets.create(&set).await?;
                    }
                }
                self.pods.create(&pods::instance_manager(object, pull)).await?;
                Ok(Next::OnChange)
            }
            (Action::Retire, _, Some(object)) => {
                self.managers.delete(object).await?;
                Ok(Next::OnChange)
            }
            (Action::Report(_), _, Some(object)) => {
                let is_announced = object.status.as_ref().is_some_and(|status| !status.ip.is_empty());
                Ok(if is_announced { Next::After(ASK_EVERY) } else { Next::OnChange })
            }
            (Action::Create | Action::MakePod | Action::Retire | Action::Report(_) | Action::Nothing, ..) => {
                Ok(Next::OnChange)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use midflight_api::Operation;

    use super::*;

    #[test]
    fn an_engine_that_is_to_take_over_stands_by() {
        let seat = |name: &str| EngineSeat { name: name.into(), node_id: "node-2".into() };
        let record = |phase| {
            let mut record = VolumeRecord::default();
            let (from, to) = (Some(seat("v-e-0")), Some(seat("v-e-2")));
            record.spec.operation = Some(Operation { id: "2".into(), phase, from, to });
            record
        };
        let switching = record(OperationPhase::Switching);
        assert_eq!(takes_over(Some(&switching)), Some(&seat("v-e-2")));
        assert_eq!(takes_over(Some(&record(OperationPhase::Done))), None);
        assert_eq!(takes_over(None), None);

        let mut engine = proto::Instance { address: "127.0.0.3:4000".into(), ..proto::Instance::default() };
        engine.set_state(proto::State::Running);
        for (is_standby, ports) in [(true, (4000, 4000)), (false, (0, 0))] {
            let status = shown(&engine, DataEngine::V2, is_standby).status;
            assert_eq!((status.standby_target_port_start, status.standby_target_port_end), ports);
            assert_eq!((status.port_start, status.state), (4000, InstanceState::Running));
        }
        engine.suspended = true;
        assert_eq!(shown(&engine, DataEngine::V2, false).status.state, InstanceState::Suspended);
    }
}
