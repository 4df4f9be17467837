//! The controller against a real API server, with volumes that have no engine behind them.
//!
//! A hollow engine brings each volume to the image it wants after a while. A watch sees every single
//! write, so that the limit is asserted at each of them.

mod crash;
mod policies;
mod pulls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{EngineImage, NAMESPACE, Replica, Setting, Volume};
use midflight_api::{Attempt, NodeName, Outcome};
use midflight_plan::engine_upgrade as plan;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};

use crate::figures::Figures;
use crate::testing::Cluster;
use crate::write::Writer;
use crate::{bootstrap, run_engine_upgrades};

const PATIENCE: Duration = Duration::from_secs(60);
const OLD: &str = "midflight.local/engine:old";
const NEW: &str = "midflight.local/engine:new";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const LIMIT: &str = super::LIMIT;

/// A cluster with two engine images, of which the new one is the default.
struct Fleet {
    cluster: Cluster,
    tasks: Tasks,
    seen: Arc<Mutex<Seen>>,
}

/// What a watch has seen of all volumes, write by write.
#[derive(Debug, Default)]
struct Seen {
    volumes: BTreeMap<String, Volume>,
    /// The most volumes of one node that were on their way after any write.
    most: usize,
    /// The same of the whole cluster.
    most_in_all: usize,
    writes: usize,
}

impl Seen {
    fn take(&mut self, volume: Volume) {
        self.writes += 1;
        self.volumes.insert(volume.name_any(), volume);
        let mut nodes: BTreeMap<NodeName, usize> = BTreeMap::new();
        for volume in self.volumes.values() {
            let volume = plan::Volume::of(volume, BTreeSet::new());
            if volume.is_upgrading() {
                *nodes.entry(volume.seat().cloned().unwrap_or_default()).or_default() += 1;
            }
        }
        self.most = self.most.max(nodes.values().copied().max().unwrap_or_default());
        self.most_in_all = self.most_in_all.max(nodes.values().sum());
    }
}

/// Ends with the test, also when it panics.
#[derive(Default)]
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Fleet {
    async fn open() -> Fleet {
        let fleet = Fleet::empty().await;
        for (name, image) in [("ei-old", OLD), ("ei-new", NEW)] {
            let images: Api<EngineImage> = fleet.api();
            let object = json!({ "metadata": { "name": name }, "spec": { "image": image } });
            let nodes: BTreeMap<&str, bool> = NODES.iter().map(|node| (*node, true)).collect();
            let status = json!({ "state": "deployed", "gitCommit": name, "controllerAPIVersion": 5,
                "controllerAPIMinVersion": 3, "nodeDeploymentMap": nodes });
            make(&images, object, status).await;
        }
        fleet.set("default-engine-image", NEW).await;
        fleet
    }

    /// One without images.
    async fn empty() -> Fleet {
        let cluster = Cluster::open().await;
        bootstrap(&cluster.client).await.unwrap();
        let mut fleet = Fleet { cluster, tasks: Tasks::default(), seen: Arc::default() };
        fleet.tasks.0.push(tokio::spawn(watch_writes(fleet.api(), Arc::clone(&fleet.seen))).abort_handle());
        fleet
    }

    fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    fn api<K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(
        &self,
    ) -> Api<K> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    async fn set(&self, name: &str, value: &str) {
        let settings: Api<Setting> = self.api();
        let change = Patch::Merge(json!({ "value": value }));
        settings.patch(name, &PatchParams::default(), &change).await.unwrap();
    }

    /// A volume of the old image on the node with replicas on all; `status` is merged into what it says.
    async fn volume(&self, name: &str, node: &str, status: Value) {
        self.volume_on(&NODES, name, node, status).await;
    }

    /// The same with replicas on these nodes.
    async fn volume_on(&self, replicas_on: &[&str], name: &str, node: &str, status: Value) {
        let spec = json!({ "size": "1073741824", "image": OLD });
        let volumes: Api<Volume> = self.api();
        let mut whole =
            json!({ "state": "detached", "robustness": "unknown", "ownerID": node, "currentImage": OLD });
        let more = status.as_object().cloned().unwrap_or_default();
        whole.as_object_mut().unwrap().extend(more);
        let replicas: Api<Replica> = self.api();
        for node in replicas_on {
            let object = json!({ "metadata": { "name": format!("{name}-r-{node}") }, "spec": { "volumeName": name, "nodeID": node } });
            replicas
                .create(&PostParams::default(), &serde_json::from_value(typed("Replica", object)).unwrap())
                .await
                .unwrap();
        }
        make(&volumes, typed("Volume", json!({ "metadata": { "name": name }, "spec": spec })), whole).await;
    }

    async fn change(&self, name: &str, status: Value) {
        let volumes: Api<Volume> = self.api();
        let patch = Patch::Merge(json!({ "status": status }));
        volumes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Brings volumes to the image they want, except these.
    fn hollow_engine(&mut self, except: &'static [&'static str]) {
        self.tasks.0.push(tokio::spawn(hollow_engine(self.api(), except)).abort_handle());
    }

    /// Runs the controller until the writer ends or the task is dropped.
    fn controller(&self, writer: Writer) -> JoinHandle<()> {
        tokio::spawn(run_engine_upgrades(Arc::new(writer), Figures::default()))
    }

    fn start(&mut self) {
        let running = self.controller(Writer::new(self.client()));
        self.tasks.0.push(running.abort_handle());
    }

    /// Waits until the watch has seen this.
    async fn until(&self, what: &str, holds: impl Fn(&BTreeMap<String, Volume>) -> bool) {
        let reached = timeout(PATIENCE, async {
            while !holds(&self.seen.lock().unwrap().volumes) {
                sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(reached.await.is_ok(), "{what}: {:#?}", self.seen.lock().unwrap().volumes);
    }

    fn attempt(&self, name: &str) -> Option<Attempt> {
        Attempt::of(self.seen.lock().unwrap().volumes[name].annotations())
    }

    /// Waits until this was told of an object, and nothing else. Events of two turns come in any order.
    async fn until_told(&self, name: &str, reasons: &[&str]) {
        let events: Api<Event> = self.api();
        let of = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let (mut told, mut reasons): (Vec<String>, Vec<&str>) = (Vec::new(), reasons.to_vec());
        reasons.sort_unstable();
        let all_told = async {
            while told != reasons {
                sleep(Duration::from_millis(5)).await;
                told = events.list(&of).await.unwrap().into_iter().filter_map(|event| event.reason).collect();
                told.sort_unstable();
            }
        };
        let reached = timeout(PATIENCE, all_told).await.is_ok();
        assert!(reached, "{name}: {told:?} instead of {reasons:?}");
    }

    async fn close(self) {
        let Fleet { cluster, tasks, .. } = self;
        drop(tasks);
        cluster.close().await;
    }
}

fn typed(kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!("longhorn.io/v1beta2");
    object["kind"] = json!(kind);
    object
}

async fn make<K>(api: &Api<K>, object: Value, status: Value)
where
    K: Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned
        + kube::Resource<DynamicType = ()>,
{
    let object: K = serde_json::from_value(typed(&K::kind(&()), object)).unwrap();
    let name = object.name_any();
    api.create(&PostParams::default(), &object).await.unwrap();
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({ "status": status })))
        .await
        .unwrap();
}

/// Sees every write of every volume, in order, from the first on.
async fn watch_writes(volumes: Api<Volume>, seen: Arc<Mutex<Seen>>) {
    let events = volumes.watch(&WatchParams::default().timeout(290), "0").await.unwrap();
    pin_mut!(events);
    while let Some(event) = events.try_next().await.unwrap() {
        match event {
            WatchEvent::Added(volume) | WatchEvent::Modified(volume) => seen.lock().unwrap().take(volume),
            WatchEvent::Deleted(volume) => drop(seen.lock().unwrap().volumes.remove(&volume.name_any())),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => panic!("{status:?}"),
        }
    }
}

/// Brings each volume to the image it wants, a little later.
async fn hollow_engine(volumes: Api<Volume>, except: &[&str]) {
    let events = volumes.watch(&WatchParams::default().timeout(290), "0").await.unwrap();
    events
        .try_for_each_concurrent(None, async |event| {
            if let WatchEvent::Added(volume) | WatchEvent::Modified(volume) = event
                && volume.is_upgrading()
                && !except.contains(&volume.name_any().as_str())
            {
                sleep(Duration::from_millis(20)).await;
                let image = Patch::Merge(json!({ "status": { "currentImage": volume.spec.image } }));
                volumes.patch_status(&volume.name_any(), &PatchParams::default(), &image).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
}

fn attached(node: &str) -> Value {
    json!({ "state": "attached", "robustness": "healthy", "currentNodeID": node })
}

fn runs(volume: &Volume, image: &str) -> bool {
    let status = volume.status.clone().unwrap_or_default();
    volume.spec.image == image && status.current_image == image
}

fn failed(volume: &Volume) -> bool {
    Attempt::of(volume.annotations()).is_some_and(|attempt| attempt.outcome == Outcome::Failed)
}

/// At the new image, and the attempt written off.
fn done(volume: &Volume) -> bool {
    runs(volume, NEW)
        && Attempt::of(volume.annotations()).is_some_and(|attempt| attempt.outcome == Outcome::Done)
}

/// Seed 000, case 1: ten volumes, five of them attached, limit 3.
#[tokio::test]
async fn ten_volumes_move_and_never_more_than_three_at_once() {
    let mut fleet = Fleet::open().await;
    for number in 0..10 {
        let status = if number < 5 { attached("node-1") } else { json!({}) };
        fleet.volume(&format!("vol-{number}"), "node-1", status).await;
    }
    fleet.until("all are seen", |all| all.values().filter(|v| runs(v, OLD)).count() == 10).await;
    let before = fleet.seen.lock().unwrap().writes;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set(LIMIT, "3").await;
    fleet.until("all are at the new image", |all| all.values().all(done)).await;
    let (most, writes) = {
        let seen = fleet.seen.lock().unwrap();
        (seen.most, seen.writes - before)
    };
    assert_eq!(most, 3, "the limit is used and never exceeded");
    assert_eq!(writes, 30, "two writes of the controller and one of the engine for each volume");
    fleet.until_told("vol-0", &["EngineUpgradeStarted", "EngineUpgraded"]).await;
    fleet.close().await;
}

/// Seed 000, cases 2 to 4: DR, expanding and degraded volumes stay; the latter two move once they are well.
#[tokio::test]
async fn volumes_that_must_not_move_stay_until_they_may() {
    let mut fleet = Fleet::open().await;
    fleet.volume("dr", "node-1", json!({ "isStandby": true, "state": "attached", "robustness": "healthy", "currentNodeID": "node-1" })).await;
    fleet.volume("expanding", "node-1", json!({ "expansionRequired": true })).await;
    let degraded = json!({ "state": "attached", "robustness": "degraded", "currentNodeID": "node-1" });
    fleet.volume("degraded", "node-1", degraded).await;
    fleet.volume("well", "node-1", attached("node-1")).await;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set(LIMIT, "3").await;
    fleet.until("the well one moves", |all| done(&all["well"])).await;
    fleet.volume("later", "node-1", json!({})).await;
    fleet.until("a later one moves, too", |all| all.get("later").is_some_and(done)).await;
    let stay = |all: &BTreeMap<String, Volume>| {
        ["dr", "expanding", "degraded"].iter().all(|name| runs(&all[*name], OLD))
    };
    assert!(stay(&fleet.seen.lock().unwrap().volumes));
    fleet.until_told("degraded", &["EngineUpgradeWaits"]).await;

    fleet.change("expanding", json!({ "expansionRequired": false })).await;
    fleet.change("degraded", json!({ "robustness": "healthy" })).await;
    fleet.until("both move", |all| done(&all["expanding"]) && done(&all["degraded"])).await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["dr"], OLD));
    fleet.close().await;
}

#[tokio::test]
async fn an_upgrade_that_does_not_arrive_goes_back_and_frees_its_place() {
    let mut fleet = Fleet::open().await;
    fleet.set("automatic-engine-upgrade-deadline-seconds", "2").await;
    fleet.volume("a-stuck", "node-1", json!({})).await;
    fleet.volume("b-next", "node-1", json!({})).await;
    fleet.hollow_engine(&["a-stuck"]);
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet
        .until("it goes back, and the next one moves", |all| {
            runs(&all["a-stuck"], OLD) && done(&all["b-next"])
        })
        .await;
    let attempt = fleet.attempt("a-stuck").unwrap();
    assert_eq!((attempt.outcome, attempt.failures), (Outcome::Failed, 1));
    assert_eq!(fleet.seen.lock().unwrap().most, 1);
    // It rests after the failure.
    fleet.until_told("a-stuck", &["EngineUpgradeStarted", "EngineUpgradeFailed", "EngineUpgradeWaits"]).await;
    fleet.close().await;
}

#[tokio::test]
async fn the_deadline_of_a_volume_is_kept_that_comes_where_there_was_none() {
    let mut fleet = Fleet::open().await;
    fleet.set("automatic-engine-upgrade-deadline-seconds", "2").await;
    fleet.set(LIMIT, "1").await;
    fleet.hollow_engine(&["stuck"]);
    fleet.start();
    // Not a wait for something: by then nobody looks at the clock any more.
    sleep(2 * super::LOOK_AT_THE_CLOCK).await;
    fleet.volume("stuck", "node-1", json!({})).await;
    let failed = |volume: &Volume| {
        Attempt::of(volume.annotations()).is_some_and(|attempt| attempt.outcome == Outcome::Failed)
    };
    fleet.until("it goes back", |all| all.get("stuck").is_some_and(failed)).await;
    fleet.close().await;
}

/// A user's own upgrade counts, and one that is taken back is not begun again at once.
#[tokio::test]
async fn what_users_ask_for_counts_and_is_respected() {
    let mut fleet = Fleet::open().await;
    fleet.volume("mine", "node-1", attached("node-1")).await;
    fleet.volume("other", "node-1", json!({})).await;
    let volumes: Api<Volume> = fleet.api();
    let ask = async |image: &str| {
        let patch = Patch::Merge(json!({ "spec": { "image": image } }));
        volumes.patch("mine", &PatchParams::default(), &patch).await.unwrap();
    };
    ask(NEW).await;
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until("the user's is noticed", |all| Attempt::of(all["mine"].annotations()).is_some()).await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["other"], OLD), "its place is taken");
    ask(OLD).await;
    fleet.hollow_engine(&["mine"]);
    fleet.until("the other moves", |all| done(&all["other"])).await;
    fleet.close().await;
}
