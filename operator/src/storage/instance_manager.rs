//! Instance managers: one object for each node, image and data engine, which says what its process says.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{
    DataEngine, InstanceManager, InstanceManagerSpec, InstanceProcess, InstanceProcessSpec,
    InstanceProcessStatus, InstanceState, InstanceType, NAMESPACE, Node, Setting,
};
use midflight_api::{ImageRef, NodeName};
use midflight_plan::storage::instance_manager::{self as plan, Action, Answer, Observed, Seen};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::orders::{Orders, proto};
use super::{pods, settings};
use crate::controller::{Controller, Key, Next, Objects, Operator, Stale, TurnError, Wake};

/// How long an instance manager may take to say what it holds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How often it is asked although nothing was heard of it.
const ASK_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct InstanceManagers {
    managers: Objects<InstanceManager>,
    nodes: Objects<Node>,
    settings: Objects<Setting>,
    pods: Objects<Pod>,
    daemon_sets: Objects<DaemonSet>,
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
    observed: Observed,
}

impl InstanceManagers {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> InstanceManagers {
        InstanceManagers {
            managers: operator.objects(),
            nodes: operator.objects(),
            settings: operator.objects(),
            pods: operator.objects(),
            daemon_sets: operator.objects(),
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

    /// Asks the process what it holds, and listens to it from then on.
    async fn ask(&self, key: &Key, address: &str) -> Result<(Answer, Vec<proto::Instance>), TurnError> {
        let mut manager = self.orders.to(address)?;
        match timeout(ANSWERS_WITHIN, manager.list(proto::ListRequest {})).await {
            Ok(Ok(answer)) => {
                self.listen(key, address)?;
                Ok((Answer::Well, answer.into_inner().instances))
            }
            Ok(Err(_)) | Err(_) => Ok((Answer::Silent, Vec::new())),
        }
    }

    /// Wakes the key at every change that the process tells of, and when it tells no more.
    fn listen(&self, key: &Key, address: &str) -> Result<(), TurnError> {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(wake) = self.wake.get().cloned() else { return Ok(()) };
        let place = (key.name.clone(), address.to_owned());
        if listening.get(&place).is_some_and(|task| !task.is_finished()) {
            return Ok(());
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
        Ok(())
    }
}

impl Drop for InstanceManagers {
    fn drop(&mut self) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        listening.values().for_each(AbortHandle::abort);
    }
}

fn name(spec: &InstanceManagerSpec) -> String {
    plan::name(&spec.node_id, &spec.image, spec.data_engine)
}

/// An instance as the status of its instance manager shows it.
fn shown(instance: &proto::Instance, engine: DataEngine) -> InstanceProcess {
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
        wake.on(&self.managers, |manager| vec![Key::of(manager)]);
        wake.on(&self.pods, |pod| {
            let is_ours =
                pod.labels().get(pods::COMPONENT).is_some_and(|role| role == pods::INSTANCE_MANAGER);
            is_ours.then(|| Key::of(pod)).into_iter().collect()
        });
        let settings = self.settings.clone();
        let keys_of = move |node: &NodeName| -> Vec<Key> {
            // Settings are written by people only, so they are never behind a write of ours.
            let wanted = InstanceManagers::wanted_on(&settings, node).unwrap_or_default();
            wanted.iter().map(|spec| Key::new(NAMESPACE, &name(spec))).collect()
        };
        let (nodes, of_node) = (self.nodes.clone(), keys_of.clone());
        wake.on(&self.nodes, move |node| of_node(&node.name_any().into()));
        wake.on(&self.settings, move |setting| match setting.name_any().as_str() {
            settings::INSTANCE_MANAGER_IMAGE | "v1-data-engine" | "v2-data-engine" => {
                let all = nodes.all().unwrap_or_default();
                all.iter().flat_map(|node| keys_of(&node.name_any().into())).collect()
            }
            _ => Vec::new(),
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let object = self.managers.get(key)?;
        let wanted = self.wanted(key, object.as_deref())?;
        let (mut manager, mut instances) = (None, Vec::new());
        if let Some(object) = &object {
            let address = object.status.as_ref().map(|status| status.ip.to_string()).unwrap_or_default();
            let (answer, found) = match address.as_str() {
                "" => (Answer::NoAddress, Vec::new()),
                address => self.ask(key, address).await?,
            };
            instances = found;
            let deleting = object.metadata.deletion_timestamp.is_some();
            let has_pod = self.pods.get(key)?.is_some();
            manager = Some(Seen { deleting, has_pod, instances: instances.len(), answer });
        }
        let observed = Observed { wanted: wanted.is_some(), manager };
        Ok(Some(Look { key: key.clone(), object, wanted, instances, observed }))
    }

    fn decide(seen: &Look) -> Action {
        plan::decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Action) -> Result<(), TurnError> {
        let (Some(object), Action::Report(state)) = (&mut seen.object, decision) else { return Ok(()) };
        let engine = object.spec.data_engine;
        let of = |kind: proto::Kind| -> BTreeMap<String, InstanceProcess> {
            let all = seen.instances.iter().filter(|instance| instance.kind() == kind);
            all.map(|instance| (instance.name.clone(), shown(instance, engine))).collect()
        };
        let (engines, replicas) = (of(proto::Kind::Engine), of(proto::Kind::Replica));
        let is_known = seen.observed.manager.as_ref().is_some_and(|manager| manager.answer == Answer::Well);
        let write = self.managers.report(object, |manager| {
            let status = manager.status.get_or_insert_default();
            status.current_state = *state;
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
                for set in pods::daemon_sets(&object.spec.image) {
                    if self.daemon_sets.get(&Key::of(&set))?.is_none() {
                        self.daemon_sets.create(&set).await?;
                    }
                }
                self.pods.create(&pods::instance_manager(object)).await?;
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
