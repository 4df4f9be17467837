//! A cluster without data: a task does what instance managers and the controllers of volumes would do.
//!
//! The invariant: the record is changed by the rules of the API, so that the last copy in service never leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{TryStreamExt, pin_mut};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, Resource, ResourceExt};
use midflight_api::longhorn::{
    DataEngine, DataEngineUpgradeManager, Engine, Image, InstanceManager, InstanceManagerState,
    InstanceState, NAMESPACE, Node, NodeDataEngineUpgrade, NodeUpgradeState, Replica, Setting, Snapshot,
    Volume, VolumeState,
};
use midflight_api::{MemberMode, VolumeRecord};
use midflight_plan::storage::instance_manager::STANDS_IN_FOR;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};

use crate::bootstrap;
use crate::controllers::run_node_upgrades;
use crate::figures::Figures;
use crate::testing::Cluster;
use crate::write::Writer;

const PATIENCE: Duration = Duration::from_secs(180);
pub(super) const OLD: &str = "im:old";
pub(super) const NEW: &str = "im:new";
/// Bytes that the engine of a volume copied for others, and that it copies to each replica that comes back.
const COPIED_BEFORE: i64 = 1 << 20;
pub(super) const MISSED: i64 = 4096;

/// What a watch has seen, write by write.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The states that each node went through.
    pub(super) states: BTreeMap<String, Vec<String>>,
    /// Nodes in the order in which they began.
    pub(super) begun: Vec<String>,
    active: BTreeSet<String>,
    pub(super) most_nodes: usize,
    /// Nodes that were under way at the same time.
    pub(super) together: BTreeSet<BTreeSet<String>>,
    /// The fewest copies in service that any attached volume had.
    pub(super) fewest_copies: usize,
}

pub(super) struct Hollow {
    cluster: Cluster,
    tasks: Tasks,
    pub(super) seen: Arc<Mutex<Seen>>,
    /// Volumes whose engines do not move.
    stuck: Arc<Mutex<BTreeSet<String>>>,
    pub(super) managers_start: Arc<AtomicBool>,
    figures: Figures,
    registry: Registry,
}

/// Ends with the test, also when it panics.
#[derive(Default)]
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
{
}
impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
{
}

impl Hollow {
    pub(super) async fn open(nodes: usize) -> Hollow {
        let cluster = Cluster::open().await;
        bootstrap(&cluster.client).await.unwrap();
        let seen = Arc::new(Mutex::new(Seen { fewest_copies: usize::MAX, ..Seen::default() }));
        let start = Arc::new(AtomicBool::new(true));
        let (figures, registry) = Figures::new();
        let mut hollow = Hollow {
            cluster,
            tasks: Tasks::default(),
            seen,
            stuck: Arc::default(),
            managers_start: start,
            figures,
            registry,
        };
        for number in 1..=nodes {
            let node = format!("node-{number}");
            let ready = json!({ "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "", "reason": "", "message": "", "lastProbeTime": "" }] });
            hollow.make::<Node>(&node, json!({ "name": node, "allowScheduling": true }), ready).await;
            hollow.manager(&node, OLD, "running").await;
        }
        hollow.make_default(NEW).await;
        let (seen, upgrades) = (Arc::clone(&hollow.seen), hollow.api());
        hollow.tasks.0.push(tokio::spawn(watch_upgrades(upgrades, seen)).abort_handle());
        let (seen, records) = (Arc::clone(&hollow.seen), hollow.api());
        hollow.tasks.0.push(tokio::spawn(watch_records(records, seen)).abort_handle());
        let plane = Plane {
            client: hollow.client(),
            stuck: Arc::clone(&hollow.stuck),
            managers_start: Arc::clone(&hollow.managers_start),
        };
        hollow.tasks.0.push(tokio::spawn(plane.run()).abort_handle());
        hollow
    }

    pub(super) fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    pub(super) fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    async fn make<K: Kind>(&self, name: &str, spec: Value, status: Value) {
        let api: Api<K> = self.api();
        let object = json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": { "name": name }, "spec": spec });
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        if !status.is_null() {
            let status = Patch::Merge(json!({ "status": status }));
            api.patch_status(name, &PatchParams::default(), &status).await.unwrap();
        }
    }

    async fn manager(&self, node: &str, image: &str, state: &str) {
        let name = format!("{}-{node}", image.replace(':', "-"));
        let spec = json!({ "nodeID": node, "image": image, "dataEngine": "v2" });
        let status = json!({ "currentState": state, "apiVersion": 2, "apiMinVersion": 1 });
        self.make::<InstanceManager>(&name, spec, status).await;
    }

    /// Another image is the default: it is on every node, with an instance manager that waits.
    pub(super) async fn make_default(&self, image: &str) {
        let mut on: BTreeMap<String, bool> = BTreeMap::new();
        for node in self.nodes().await {
            self.manager(&node.name_any(), image, "stopped").await;
            on.insert(node.name_any(), true);
        }
        let name = image.replace(':', "-");
        let status = json!({ "state": "deployed", "nodeDeploymentMap": on });
        self.make::<Image>(&name, json!({ "instanceManagerImage": image }), status).await;
        self.set("default-instance-manager-image", image).await;
    }

    pub(super) async fn set(&self, name: &str, value: &str) {
        let settings: Api<Setting> = self.api();
        let patch = Patch::Merge(json!({ "value": value }));
        settings.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A volume that is attached to a node, or to none, with a copy in service on each of these.
    pub(super) async fn volume(&self, name: &str, on: &str, copies: &[&str]) {
        let member =
            |node: &&str| json!({ "replica": format!("{name}-r-{node}"), "nodeID": node, "mode": "rw" });
        let members: Vec<Value> = copies.iter().map(member).collect();
        let mut record = json!({ "term": 1, "memberVersion": 1, "members": members });
        if !on.is_empty() {
            let engine = format!("{name}-e-0");
            record["engine"] = json!({ "name": engine, "nodeID": on });
            let spec = json!({ "volumeName": name, "nodeID": on, "dataEngine": "v2" });
            self.make::<Engine>(&engine, spec, json!({ "rebuiltBytes": COPIED_BEFORE })).await;
        }
        self.make::<VolumeRecord>(name, record, Value::Null).await;
        let runs = if on.is_empty() { "stopped" } else { "running" };
        for node in copies {
            let spec =
                json!({ "volumeName": name, "nodeID": node, "dataEngine": "v2", "desireState": "running" });
            self.make::<Replica>(&format!("{name}-r-{node}"), spec, json!({ "currentState": runs })).await;
        }
        let spec = json!({ "size": "1073741824", "image": OLD, "dataEngine": "v2", "nodeID": on, "numberOfReplicas": copies.len() });
        let state = if on.is_empty() { "detached" } else { "attached" };
        let status = json!({ "state": state, "robustness": "healthy", "currentTargetNodeID": on, "currentNodeID": on, "ownerID": copies[0], "currentImage": OLD });
        self.make::<Volume>(name, spec, status).await;
    }

    pub(super) fn stay(&self, volume: &str) {
        self.stuck.lock().unwrap().insert(volume.to_owned());
    }

    pub(super) fn move_on(&self) {
        self.stuck.lock().unwrap().clear();
    }

    /// Runs the controllers until the writer ends or the task is dropped.
    pub(super) fn controllers(&self, writer: Writer) -> JoinHandle<()> {
        tokio::spawn(run_node_upgrades(Arc::new(writer), self.figures.clone()))
    }

    /// What the controllers have counted.
    pub(super) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    pub(super) fn start(&mut self) {
        let running = self.controllers(Writer::new(self.client()));
        self.tasks.0.push(running.abort_handle());
    }

    pub(super) async fn nodes(&self) -> Vec<Node> {
        let nodes: Api<Node> = self.api();
        nodes.list(&ListParams::default()).await.unwrap().items
    }

    /// The images whose instance managers run on a node.
    pub(super) async fn serving(&self, node: &str) -> Vec<String> {
        let managers: Api<InstanceManager> = self.api();
        let runs = |manager: &InstanceManager| {
            let state = manager.status.as_ref().map(|status| status.current_state).unwrap_or_default();
            manager.spec.node_id == node && state == InstanceManagerState::Running
        };
        let all = managers.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().filter(runs).map(|manager| manager.spec.image.to_string()).collect()
    }

    pub(super) async fn records(&self) -> Vec<VolumeRecord> {
        let records: Api<VolumeRecord> = self.api();
        records.list(&ListParams::default()).await.unwrap().items
    }

    pub(super) async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let reached = timeout(PATIENCE, async {
            while !holds().await {
                sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(reached.await.is_ok(), "{what}: {:#?}", self.seen.lock().unwrap());
    }

    pub(super) async fn until_run(
        &self,
        what: &str,
        holds: impl Fn(&DataEngineUpgradeManager) -> bool,
    ) -> DataEngineUpgradeManager {
        let runs: Api<DataEngineUpgradeManager> = self.api();
        let mut last = None;
        let reached = timeout(PATIENCE, async {
            loop {
                last = runs.get_opt("upgrade").await.unwrap();
                match &last {
                    Some(run) if holds(run) => return run.clone(),
                    _ => sleep(Duration::from_millis(10)).await,
                }
            }
        });
        match reached.await {
            Ok(run) => run,
            Err(_) => panic!("{what}: {last:#?} {:#?}", self.seen.lock().unwrap()),
        }
    }

    pub(super) async fn until_node(&self, node: &str, state: NodeUpgradeState) {
        let upgrades: Api<NodeDataEngineUpgrade> = self.api();
        let name = format!("upgrade-{node}");
        self.until(&format!("{node} is {state}"), async || {
            let upgrade = upgrades.get_opt(&name).await.unwrap();
            upgrade.and_then(|upgrade| upgrade.status).is_some_and(|status| status.state == state)
        })
        .await;
    }

    pub(super) async fn until_told(&self, name: &str, reason: &str) {
        let events: Api<Event> = self.api();
        let of = ListParams::default().fields(&format!("involvedObject.name={name}"));
        self.until(&format!("{reason} is told of {name}"), async || {
            events.list(&of).await.unwrap().iter().any(|event| event.reason.as_deref() == Some(reason))
        })
        .await;
    }

    pub(super) async fn close(self) {
        let Hollow { cluster, tasks, .. } = self;
        drop(tasks);
        cluster.close().await;
    }
}

async fn watch_upgrades(upgrades: Api<NodeDataEngineUpgrade>, seen: Arc<Mutex<Seen>>) {
    let events = upgrades.watch(&WatchParams::default().timeout(290), "0").await.unwrap();
    pin_mut!(events);
    while let Some(event) = events.try_next().await.unwrap() {
        let mut seen = seen.lock().unwrap();
        match event {
            WatchEvent::Added(upgrade) | WatchEvent::Modified(upgrade) => seen.take(&upgrade),
            WatchEvent::Deleted(upgrade) => drop(seen.active.remove(upgrade.spec.node_id.as_str())),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => panic!("{status:?}"),
        }
    }
}

impl Seen {
    fn take(&mut self, upgrade: &NodeDataEngineUpgrade) {
        let node = upgrade.spec.node_id.to_string();
        let state = upgrade.status.as_ref().map(|status| status.state).unwrap_or_default();
        let is_over = matches!(state, NodeUpgradeState::Completed | NodeUpgradeState::Error);
        let known = self.states.entry(node.clone()).or_default();
        if state == NodeUpgradeState::Undefined {
            if !self.active.contains(&node) {
                self.begun.push(node.clone());
            }
        } else if known.last().map(String::as_str) != Some(state.as_str()) {
            known.push(state.to_string());
        }
        if is_over {
            self.active.remove(&node)
        } else {
            self.active.insert(node)
        };
        self.most_nodes = self.most_nodes.max(self.active.len());
        if self.active.len() > 1 {
            self.together.insert(self.active.clone());
        }
    }
}

async fn watch_records(records: Api<VolumeRecord>, seen: Arc<Mutex<Seen>>) {
    let events = records.watch(&WatchParams::default().timeout(290), "0").await.unwrap();
    pin_mut!(events);
    while let Some(event) = events.try_next().await.unwrap() {
        if let WatchEvent::Added(record) | WatchEvent::Modified(record) = event
            && record.spec.engine.is_some()
        {
            let copies =
                record.spec.members.iter().filter(|member| member.mode == MemberMode::ReadWrite).count();
            let mut seen = seen.lock().unwrap();
            seen.fewest_copies = seen.fewest_copies.min(copies);
        }
    }
}

/// Does what the lower half of the system does.
struct Plane {
    client: Client,
    stuck: Arc<Mutex<BTreeSet<String>>>,
    managers_start: Arc<AtomicBool>,
}

impl Plane {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn run(self) {
        loop {
            self.replicas().await;
            self.engines().await;
            self.managers().await;
            self.snapshots().await;
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn list<K: Kind>(&self) -> Vec<K> {
        self.api::<K>().list(&ListParams::default()).await.unwrap().items
    }

    async fn say<K: Kind>(&self, name: &str, status: Value) {
        let status = Patch::Merge(json!({ "status": status }));
        self.api::<K>().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    /// Changes a record by the rules of the API; what it refuses stays as it is.
    async fn record(&self, name: &str, edit: impl FnOnce(&mut VolumeRecord)) -> bool {
        let records: Api<VolumeRecord> = self.api();
        let mut record = records.get(name).await.unwrap();
        edit(&mut record);
        records.replace(name, &PostParams::default(), &record).await.is_ok()
    }

    async fn mode(&self, volume: &str, replica: &str, mode: MemberMode) -> bool {
        self.record(volume, |record| {
            record.spec.member_version += 1;
            for member in record.spec.members.iter_mut().filter(|member| member.replica == *replica) {
                member.mode = mode;
            }
        })
        .await
    }

    async fn replicas(&self) {
        let attached: BTreeSet<String> = self
            .list::<Volume>()
            .await
            .iter()
            .filter(|volume| !volume.spec.node_id.is_empty())
            .map(ResourceExt::name_any)
            .collect();
        for replica in self.list::<Replica>().await {
            let (name, volume) = (replica.name_any(), replica.spec.instance.volume_name.to_string());
            let state =
                replica.status.as_ref().map(|status| status.instance.current_state).unwrap_or_default();
            if !attached.contains(&volume) {
                continue;
            }
            match (replica.spec.instance.desire_state, state) {
                (InstanceState::Stopped, InstanceState::Running)
                    if self.mode(&volume, &name, MemberMode::Error).await =>
                {
                    self.say::<Replica>(&name, json!({ "currentState": "stopped" })).await;
                }
                (InstanceState::Running, InstanceState::Stopped) => {
                    self.say::<Replica>(&name, json!({ "currentState": "running" })).await;
                    assert!(self.mode(&volume, &name, MemberMode::WriteOnly).await);
                    self.copy(&format!("{volume}-e-0")).await;
                    assert!(self.mode(&volume, &name, MemberMode::ReadWrite).await);
                }
                _ => {}
            }
        }
    }

    /// An engine copies to a replica what that missed.
    async fn copy(&self, engine: &str) {
        let before = self.api::<Engine>().get(engine).await.unwrap().status.unwrap_or_default().rebuilt_bytes;
        self.say::<Engine>(engine, json!({ "rebuiltBytes": before + MISSED })).await;
    }

    async fn engines(&self) {
        for volume in self.list::<Volume>().await {
            let spec = &volume.spec;
            let target = if spec.target_node_id.is_empty() { &spec.node_id } else { &spec.target_node_id };
            let status = volume.status.clone().unwrap_or_default();
            let name = volume.name_any();
            // An engine that was not moved may be asked to stay at home.
            let is_stuck = self.stuck.lock().unwrap().contains(&name) && *target != spec.node_id;
            let is_attached = status.state == VolumeState::Attached;
            if !is_attached || status.current_target_node_id == *target || is_stuck {
                continue;
            }
            let to = target.clone();
            self.record(&name, |record| {
                record.spec.term = record.spec.term.next();
                if let Some(seat) = &mut record.spec.engine {
                    seat.node_id = to;
                }
            })
            .await;
            let moved = json!({
                "state": "done", "to": target, "at": Timestamp::now().to_string(), "pauseUs": 1200, "longestWaitUs": 2400,
            });
            self.say::<Volume>(&name, json!({ "currentTargetNodeID": target, "targetMove": moved })).await;
        }
    }

    /// The instance manager of the default image, or one that stands in for it, runs where no other does.
    async fn managers(&self) {
        let settings: Api<Setting> = self.api();
        let default = settings.get("default-instance-manager-image").await.unwrap().value;
        let all = self.list::<InstanceManager>().await;
        for manager in all.iter().filter(|one| one.spec.data_engine == DataEngine::V2) {
            let state = manager.status.as_ref().map(|status| status.current_state).unwrap_or_default();
            let alone = all.iter().filter(|other| other.spec.node_id == manager.spec.node_id).all(|other| {
                other.name_any() == manager.name_any()
                    || other
                        .status
                        .as_ref()
                        .is_some_and(|status| status.current_state == InstanceManagerState::Stopped)
            });
            let is_new = manager.spec.image == default.as_str()
                && state == InstanceManagerState::Stopped
                && self.managers_start.load(Ordering::Relaxed);
            let stands_in =
                manager.annotations().contains_key(STANDS_IN_FOR) && state == InstanceManagerState::Undefined;
            if (is_new || stands_in) && alone {
                self.say::<InstanceManager>(&manager.name_any(), json!({ "currentState": "running" })).await;
            }
        }
    }

    async fn snapshots(&self) {
        for snapshot in self.list::<Snapshot>().await {
            if !snapshot.status.as_ref().is_some_and(|status| status.ready_to_use) {
                self.say::<Snapshot>(&snapshot.name_any(), json!({ "readyToUse": true })).await;
            }
        }
    }
}
