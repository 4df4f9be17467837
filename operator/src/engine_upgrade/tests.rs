//! The controller against a real API server, with volumes that have no engine behind them.
//!
//! A hollow engine brings each volume to the image it wants after a while. A watch sees every single
//! write, so that the limit is asserted at each of them.

mod crash;
mod policies;
mod pulls;
mod refusals;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{EngineImage, EngineImageStatus, NAMESPACE, Replica, Setting, Volume};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT as LIMIT;
use midflight_api::{Attempt, ImageRef, NodeName, Outcome, Way};
use midflight_plan::engine_upgrade as plan;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};

use crate::controller::Operator;
use crate::figures::Figures;
use crate::testing::Cluster;
use crate::write::Writer;
use crate::{bootstrap, run_engine_upgrades};

const PATIENCE: Duration = Duration::from_secs(150);
const OLD: &str = "midflight.local/engine:old";
const NEW: &str = "midflight.local/engine:new";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

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
            let volume = plan::Volume::of(volume, plan::Replicas::default());
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

    /// What the rules ask of every image.
    async fn images(&self) -> BTreeMap<ImageRef, EngineImageStatus> {
        let images: Api<EngineImage> = self.api();
        let all = images.list(&ListParams::default()).await.unwrap();
        plan::World::of(|_| None, &all).images
    }

    /// What the plan says now, from what the API says.
    async fn forecast(&self) -> plan::Forecast {
        let (settings, volumes, replicas): (Api<Setting>, Api<Volume>, Api<Replica>) =
            (self.api(), self.api(), self.api());
        let all = ListParams::default();
        let settings = settings.list(&all).await.unwrap();
        let value = |name: &str| {
            settings.iter().find(|setting| setting.name_any() == name).map(|setting| setting.value.as_str())
        };
        let world = plan::World { images: self.images().await, ..plan::World::of(value, []) };
        let replicas = replicas.list(&all).await.unwrap();
        let volumes = volumes.list(&all).await.unwrap().into_iter().map(|volume| {
            let of = |replica: &&Replica| replica.spec.instance.volume_name == volume.name_any().as_str();
            plan::Volume::of(&volume, replicas.iter().filter(of).collect())
        });
        plan::forecast(&world, &volumes.collect::<Vec<_>>(), jiff::Timestamp::now())
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

/// Sees every write of every volume, in order, from the first on. A watch ends when the definition of its kind changes.
async fn watch_writes(volumes: Api<Volume>, seen: Arc<Mutex<Seen>>) {
    let mut version = "0".to_owned();
    loop {
        let events = volumes.watch(&WatchParams::default().timeout(290), &version).await.unwrap();
        pin_mut!(events);
        while let Some(event) = events.try_next().await.unwrap() {
            match event {
                WatchEvent::Added(volume) | WatchEvent::Modified(volume) => {
                    version = volume.resource_version().expect("the API gives versions");
                    seen.lock().unwrap().take(volume);
                }
                WatchEvent::Deleted(volume) => {
                    version = volume.resource_version().expect("the API gives versions");
                    seen.lock().unwrap().volumes.remove(&volume.name_any());
                }
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => panic!("{status:?}"),
            }
        }
    }
}

/// Brings each volume to the image it wants, a little later.
async fn hollow_engine(volumes: Api<Volume>, except: &[&str]) {
    loop {
        let events = volumes.watch(&WatchParams::default().timeout(290), "0").await.unwrap();
        let served = events.try_for_each_concurrent(None, async |event| {
            if let WatchEvent::Added(volume) | WatchEvent::Modified(volume) = event
                && volume.is_upgrading()
                && !except.contains(&volume.name_any().as_str())
            {
                sleep(Duration::from_millis(20)).await;
                let image = Patch::Merge(json!({ "status": { "currentImage": volume.spec.image } }));
                volumes.patch_status(&volume.name_any(), &PatchParams::default(), &image).await?;
            }
            Ok(())
        });
        served.await.unwrap();
    }
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
    policies::until_looked(&fleet, "witness").await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["mine"], OLD), "what was taken back rests");
    fleet.until_told("mine", &["EngineUpgradeTakenBack", "EngineUpgradeWaits"]).await;
    fleet.close().await;
}

/// Caches hold the objects of all namespaces; only those of ours count.
#[tokio::test]
async fn what_is_in_other_namespaces_does_not_count() {
    // In the order of their names it comes after ours, so that what it says would win.
    const ELSEWHERE: &str = "zoo";
    let mut fleet = Fleet::open().await;
    let namespaces: Api<Namespace> = Api::all(fleet.client());
    let namespace = json!({ "metadata": { "name": ELSEWHERE } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    let settings: Api<Setting> = Api::namespaced(fleet.client(), ELSEWHERE);
    let setting = typed("Setting", json!({ "metadata": { "name": LIMIT }, "value": "3" }));
    settings.create(&PostParams::default(), &serde_json::from_value(setting).unwrap()).await.unwrap();
    let strangers: Api<Volume> = Api::namespaced(fleet.client(), ELSEWHERE);
    let stranger =
        json!({ "metadata": { "name": "stranger" }, "spec": { "size": "1073741824", "image": OLD } });
    let status = json!({ "state": "detached", "ownerID": "node-2", "currentImage": OLD });
    make(&strangers, stranger, status).await;
    let replicas: Api<Replica> = Api::namespaced(fleet.client(), ELSEWHERE);
    let replica =
        json!({ "metadata": { "name": "r" }, "spec": { "volumeName": "stranger", "nodeID": "node-2" } });
    replicas
        .create(&PostParams::default(), &serde_json::from_value(typed("Replica", replica)).unwrap())
        .await
        .unwrap();
    for name in ["a", "b"] {
        fleet.volume(name, "node-1", json!({})).await;
    }
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until("one begins", |all| all["a"].spec.image == NEW).await;
    policies::until_looked(&fleet, "witness").await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["b"], OLD), "the limit is ours");
    assert_eq!(strangers.get("stranger").await.unwrap().spec.image, OLD, "others' volumes are left alone");
    fleet.close().await;
}

/// What was made is counted and told, also while the caches lag behind our own writes.
#[tokio::test]
async fn a_change_that_was_made_is_counted_and_told_although_a_cache_is_stale() {
    let fleet = Fleet::open().await;
    fleet.volume("a", "node-1", json!({})).await;
    let (figures, registry) = Figures::new();
    let mut operator = Operator::counting(Arc::new(Writer::new(fleet.client())), figures);
    let upgrades = super::EngineUpgrades::new(&mut operator);
    // Nothing feeds the caches, so that they never show this write.
    let replica =
        json!({ "metadata": { "name": "late", "namespace": NAMESPACE }, "spec": { "volumeName": "a" } });
    let replica = serde_json::from_value(typed("Replica", replica)).unwrap();
    upgrades.replicas.0.create(&replica).await.unwrap();
    let volumes: Api<Volume> = fleet.api();
    let volume = volumes.get("a").await.unwrap();
    let mut planned = plan::Fleet::new(plan::World {
        target: NEW.into(),
        policy: plan::Policy { per_node: 1, ..plan::Policy::default() },
        images: fleet.images().await,
        ..plan::World::default()
    });
    let replicas: Api<Replica> = fleet.api();
    let replicas = replicas.list(&ListParams::default()).await.unwrap();
    planned.observe(plan::Volume::of(&volume, replicas.iter().collect()), jiff::Timestamp::now());
    let change = planned.next(jiff::Timestamp::now()).unwrap();
    let carried_out = upgrades.carry_out(Arc::new(volume), change).await;
    assert!(carried_out.is_err(), "the cache is stale");
    assert_eq!(volumes.get("a").await.unwrap().spec.image, NEW, "the change is made nevertheless");
    fleet.until_told("a", &["EngineUpgradeStarted"]).await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains(r#"engine_upgrades_total{outcome="begun"} 1"#), "{text}");
    fleet.close().await;
}

/// What then happens equals the plan: the same volumes, in the same order, in the same way.
#[tokio::test]
async fn volumes_begin_in_the_order_that_the_plan_has_shown() {
    let mut fleet = Fleet::open().await;
    for (number, node) in NODES.iter().cycle().take(9).enumerate() {
        let status = if number % 2 == 0 { attached(node) } else { json!({}) };
        fleet.volume(&format!("vol-{number}"), node, status).await;
    }
    fleet
        .volume(
            "degraded",
            "node-1",
            json!({ "state": "attached", "robustness": "degraded", "currentNodeID": "node-1" }),
        )
        .await;
    fleet.set("concurrent-automatic-engine-upgrade-cluster-limit", "1").await;
    fleet.set(LIMIT, "1").await;
    let plan = fleet.forecast().await;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet
        .until("all that the plan names are there", |all| all.values().filter(|v| done(v)).count() == 9)
        .await;

    let moves = plan.waves.iter().flat_map(|wave| &wave.moves);
    let planned: Vec<(String, Way)> = moves.map(|one| (one.volume.to_string(), one.way)).collect();
    let all = fleet.seen.lock().unwrap().volumes.clone();
    let mut begun: Vec<_> = all
        .iter()
        .filter_map(|(name, volume)| Some((Attempt::of(volume.annotations())?, name.clone())))
        .map(|(attempt, name)| (attempt.issued_at, (name, attempt.way)))
        .collect();
    begun.sort_by_key(|(issued_at, _)| *issued_at);
    assert_eq!(begun.into_iter().map(|(_, one)| one).collect::<Vec<_>>(), planned);
    let left_out: Vec<_> = plan.left_out.iter().map(|one| one.volume.as_str()).collect();
    assert_eq!(left_out, ["degraded"]);
    assert!(runs(&all["degraded"], OLD), "what the plan leaves out stays");
    fleet.close().await;
}
