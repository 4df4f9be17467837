//! Nodes of a real cluster get the data engine of the next build, that of this one again, and the next once more, while clients use every
//! attached volume: the layouts of seed 004 that must succeed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stderr, reason = "the pause of each volume is what people want to know")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use midflight_api::longhorn::{
    DataEngine, DataEngineUpgradeManager, InstanceManager, InstanceManagerState, InstanceState, Node,
    NodeDataEngineUpgrade, NodeUpgradeState, Replica, Snapshot, UpgradeState, Volume, VolumeState,
};
use midflight_tests::fleet::{Fleet, NEXT, NODES};
use midflight_tests::follow::follow;
use midflight_tests::load::{Fio, Load};
use midflight_tests::noise::noise;
use midflight_tests::storage::run;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const SIZE: u64 = 8 << 20;
/// Half of a volume is its client's, the other half fio's.
const BLOCKS: u64 = SIZE / 2 / 4096;

/// Volumes, the node that each is attached to, and where its replicas are.
type Layout = [(&'static str, &'static str, &'static [&'static str]); 3];

const ALL: &[&str] = &NODES;

/// What must be: all engines on one node, all on a node without replicas, one on each node.
const SUCCEED: [Layout; 3] = [
    [("vol-1", "node-1", ALL), ("vol-2", "node-1", ALL), ("vol-3", "node-1", ALL)],
    [
        ("vol-4", "node-1", &["node-2", "node-3"]),
        ("vol-5", "node-1", &["node-2", "node-3"]),
        ("vol-6", "node-1", &["node-2", "node-3"]),
    ],
    [("vol-7", "node-1", ALL), ("vol-8", "node-2", ALL), ("vol-9", "node-3", ALL)],
];

/// A client of every volume of a layout, and fio beside it.
struct Clients {
    of: Vec<(&'static str, Load, Fio)>,
}

impl Clients {
    async fn of(fleet: &Fleet, layout: &Layout) -> Clients {
        let mut of = Vec::new();
        for (seed, (name, _, _)) in (1..).zip(layout) {
            let endpoint = fleet.endpoint(name).await.unwrap();
            let load = Load::on_blocks(&endpoint, name, seed, BLOCKS).unwrap();
            of.push((*name, load, Fio::on(&endpoint, SIZE / 2, SIZE / 2)));
        }
        Clients { of }
    }

    /// None of them met an error, was cut off or lost a write.
    async fn judge(self) {
        for (name, load, fio) in self.of {
            let passes = fio.judge().await.with_context(|| format!("fio on {name}")).unwrap();
            let report = load.judge().await.with_context(|| name.to_owned()).unwrap();
            eprintln!(
                "{name}: {passes} passes of fio; {} writes, {} blocks judged, longest request {} us",
                report.writes, report.verified_blocks, report.longest_wait_us
            );
        }
    }
}

/// What watches see, write by write.
#[derive(Debug, Default)]
struct Seen {
    /// The states of each node's upgrade, in their order.
    states: BTreeMap<String, Vec<NodeUpgradeState>>,
    /// Nodes that were under way at the same time, at most.
    most: usize,
    active: BTreeSet<String>,
    /// Volumes with clients that were not attached for a while.
    detached: BTreeSet<String>,
    /// Where each volume was served.
    served: BTreeSet<(String, String)>,
    /// Where each volume was asked to be served, and with which image.
    asked: BTreeSet<(String, String, String)>,
    /// Nodes that were marked, and took no replicas then.
    closed: BTreeSet<String>,
    /// Volumes that were snapshotted, each with the upgrade of a node that did.
    snapshotted: BTreeSet<(String, String)>,
    /// Volumes whose copy on a node was told to leave, and did not run then.
    left: BTreeSet<(String, String)>,
}

impl Seen {
    fn upgrade(&mut self, upgrade: &NodeDataEngineUpgrade) {
        let node = upgrade.spec.node_id.to_string();
        let state = upgrade.status.as_ref().map(|status| status.state).unwrap_or_default();
        let states = self.states.entry(node.clone()).or_default();
        if state != NodeUpgradeState::Undefined && states.last() != Some(&state) {
            states.push(state);
        }
        match state {
            NodeUpgradeState::Completed | NodeUpgradeState::Error => drop(self.active.remove(&node)),
            _ => drop(self.active.insert(node)),
        }
        self.most = self.most.max(self.active.len());
    }

    fn volume(&mut self, volume: &Volume) {
        let state = volume.status.as_ref().map(|status| status.state).unwrap_or_default();
        if !volume.spec.node_id.is_empty() && state != VolumeState::Attached {
            self.detached.insert(volume.name_any());
        }
        let there = volume.status.as_ref().map(|status| status.current_target_node_id.to_string());
        self.served.extend(there.map(|there| (volume.name_any(), there)));
        let (target, image) = (volume.spec.target_node_id.to_string(), volume.spec.image.to_string());
        self.asked.insert((volume.name_any(), target, image));
    }

    fn node(&mut self, node: &Node) {
        let conditions = node.status.as_ref().map(|status| &status.conditions);
        let is_open = conditions.is_none_or(|conditions| conditions.holds("Schedulable"));
        if node.spec.data_engine_upgrade_requested && !is_open {
            self.closed.insert(node.name_any());
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        let upgrade = snapshot.labels().get("midflight.dev/node-upgrade").cloned();
        let is_ready = snapshot.status.as_ref().is_some_and(|status| status.ready_to_use);
        let volume = snapshot.spec.volume.to_string();
        self.snapshotted.extend(upgrade.filter(|_| is_ready).map(|upgrade| (upgrade, volume)));
    }

    fn replica(&mut self, replica: &Replica) {
        let (spec, status) = (&replica.spec.instance, replica.status.as_ref());
        let runs = status.is_some_and(|status| status.instance.current_state == InstanceState::Running);
        if spec.desire_state == InstanceState::Stopped && !runs {
            self.left.insert((spec.volume_name.to_string(), spec.node_id.to_string()));
        }
    }
}

struct Watch {
    seen: Arc<Mutex<Seen>>,
    tasks: [JoinHandle<()>; 5],
}

impl Watch {
    /// Sees every write from now on.
    async fn begin(fleet: &Fleet) -> Watch {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let upgrades = follow(fleet.all(), Arc::clone(&seen), Seen::upgrade).await;
        let volumes = follow(fleet.all(), Arc::clone(&seen), Seen::volume).await;
        let nodes = follow(fleet.all(), Arc::clone(&seen), Seen::node).await;
        let snapshots = follow(fleet.all(), Arc::clone(&seen), Seen::snapshot).await;
        let replicas = follow(fleet.all(), Arc::clone(&seen), Seen::replica).await;
        Watch { seen, tasks: [upgrades, volumes, nodes, snapshots, replicas] }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn make(fleet: &Fleet, layout: &Layout) {
    for (name, node, replicas) in layout {
        fleet.make(name, ("v2", SIZE), node, replicas).await.unwrap();
    }
}

async fn remove(fleet: &Fleet, layout: &Layout) {
    for (name, ..) in layout {
        fleet.remove(name).await.unwrap();
    }
}

/// What the objects of an upgrade that is over say of the pauses of its volumes.
async fn tell_pauses(fleet: &Fleet, upgrade: &DataEngineUpgradeManager) -> BTreeMap<String, i64> {
    let upgrades: Api<NodeDataEngineUpgrade> = fleet.all();
    let mut pauses = BTreeMap::new();
    for one in upgrades.list(&ListParams::default()).await.unwrap() {
        for (volume, entry) in one.status.unwrap_or_default().volumes {
            if !entry.temporary_node_id.is_empty() {
                eprintln!(
                    "{} on {}: served from {} meanwhile, held back {} us at most, longest request {} us",
                    volume, one.spec.node_id, entry.temporary_node_id, entry.pause_us, entry.longest_wait_us
                );
                let longest = pauses.entry(volume.to_string()).or_default();
                *longest = entry.pause_us.max(*longest);
            }
        }
    }
    let status = upgrade.status.clone().unwrap_or_default();
    for (node, entry) in &status.upgrade_nodes {
        eprintln!("{node}: {} to {}, {} us", entry.started_at, entry.completed_at, entry.longest_pause_us);
    }
    pauses
}

/// Pods of instance managers of the v2 data engine that are of another image: each is called as its InstanceManager is.
async fn pods_of_others(fleet: &Fleet, image: &str) -> Vec<String> {
    let managers = fleet.all::<InstanceManager>().list(&ListParams::default()).await.unwrap();
    let is_old = |one: &&InstanceManager| one.spec.data_engine == DataEngine::V2 && one.spec.image != image;
    let pods: Api<Pod> = fleet.all();
    let mut names = Vec::new();
    for manager in managers.iter().filter(is_old) {
        let name = manager.name_any();
        names.extend(pods.get_opt(&name).await.unwrap().map(|_| name));
    }
    names
}

/// Upgrades all nodes under clients; every promise of the seed is kept.
async fn succeed(fleet: &Fleet, layout: &Layout, image: &str) {
    let clients = Clients::of(fleet, layout).await;
    fleet.make_default(image).await.unwrap();
    let mut old = BTreeMap::new();
    for node in NODES {
        let waits =
            async || Ok(fleet.managers(node).await?.get(image) == Some(&InstanceManagerState::Stopped));
        let is_used = layout.iter().any(|(_, on, replicas)| *on == node || replicas.contains(&node));
        if is_used {
            fleet.until(&format!("the new instance manager of {node} waits"), waits).await.unwrap();
            old.extend(fleet.processes(node).unwrap());
        }
    }
    let replaced = pods_of_others(fleet, image).await;
    assert_eq!(replaced.len(), NODES.len(), "{replaced:?}");
    let watch = Watch::begin(fleet).await;
    let began = Instant::now();
    fleet.begin(json!({ "dataEngine": "v2" })).await.unwrap();
    let upgrade = fleet.until_run(UpgradeState::Completed).await.unwrap();
    eprintln!("three nodes in {:?}", began.elapsed());
    fleet.is_whole().await.unwrap();
    clients.judge().await;

    let pauses = tell_pauses(fleet, &upgrade).await;
    let moved: BTreeSet<&str> = layout.iter().map(|(name, ..)| *name).collect();
    assert_eq!(
        pauses.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        moved,
        "every engine was away once"
    );
    assert!(pauses.values().all(|pause| *pause > 0), "{pauses:?}");
    let status = upgrade.status.unwrap();
    let longest = status.upgrade_nodes.values().map(|node| node.longest_pause_us).max();
    assert_eq!(longest, pauses.values().max().copied());
    assert_eq!((status.instance_manager_image.as_str(), status.upgrading_node.as_str()), (image, ""));

    {
        let seen = watch.seen.lock().unwrap();
        let forth = NodeUpgradeState::ALL
            .iter()
            .filter(|state| !matches!(state, NodeUpgradeState::Undefined | NodeUpgradeState::Error));
        let forth: Vec<NodeUpgradeState> = forth.copied().collect();
        assert!(NODES.iter().all(|node| seen.states[*node] == forth), "{seen:?}");
        assert_eq!(seen.most, 1, "one node at a time");
        assert_eq!(seen.detached, BTreeSet::new(), "nothing was detached");
        assert_eq!(seen.closed, NODES.map(str::to_owned).into(), "every node was closed meanwhile");
        let named = |name: &str, node: &str| (name.to_owned(), node.to_owned());
        for (name, on, replicas) in layout {
            let mut away = seen.served.iter().filter(|(volume, node)| volume == name && node != on);
            let is_asked =
                |node: &str| seen.asked.contains(&(name.to_string(), node.to_owned(), image.to_owned()));
            assert!(away.any(|(_, node)| is_asked(node)), "{name} was served elsewhere: {seen:?}");
            assert!(is_asked(on), "{name} was asked home: {seen:?}");
            for node in NODES.iter().filter(|node| *node == on || replicas.contains(node)) {
                let upgrade = format!("upgrade-{node}");
                assert!(seen.snapshotted.contains(&named(&upgrade, name)), "{upgrade} kept {name}: {seen:?}");
            }
            for node in *replicas {
                assert!(seen.left.contains(&named(name, node)), "the copy of {name} left {node}: {seen:?}");
            }
        }
    }
    assert_eq!(status.owner_id, NODES[0]);
    for one in fleet.all::<NodeDataEngineUpgrade>().list(&ListParams::default()).await.unwrap() {
        let owners: Vec<&str> = one.owner_references().iter().map(|owner| owner.name.as_str()).collect();
        assert_eq!(owners, ["upgrade"], "it goes with the whole");
        let (spec, status) = (&one.spec, one.status.clone().unwrap_or_default());
        assert_eq!((&status.owner_id, spec.instance_manager_image.as_str()), (&spec.node_id, image));
        assert_eq!(
            (spec.data_engine, spec.data_engine_upgrade_manager.as_str()),
            (DataEngine::V2, "upgrade")
        );
    }
    for node in NODES {
        fleet.runs_only(node, image).await.unwrap();
        let objects = fleet.managers(node).await.unwrap();
        assert_eq!(objects, [(image.to_owned(), InstanceManagerState::Running)].into(), "no other is left");
    }
    let pods: Api<Pod> = fleet.all();
    for pod in replaced {
        assert_eq!(pods.get_opt(&pod).await.unwrap().map(|pod| pod.name_any()), None, "the old pod is gone");
    }
    for pid in old.keys() {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the old process {pid} is there");
    }
    for (name, ..) in layout {
        let volume = fleet.all::<Volume>().get(name).await.unwrap();
        assert_eq!(volume.spec.image, image, "{name}");
        assert_eq!(volume.status.unwrap_or_default().current_image, image, "{name}");
    }
    fleet.end().await.unwrap();
}

/// A volume that no client uses, with something in it.
async fn keep(fleet: &Fleet, name: &str, engine: &str, seed: u64) {
    fleet.make(name, (engine, SIZE), "node-1", &["node-1", "node-2"]).await.unwrap();
    let file = fleet.cluster.room(name);
    std::fs::write(&file, noise(seed, SIZE as usize)).unwrap();
    let endpoint = fleet.endpoint(name).await.unwrap();
    run("nbdcopy", &["--flush", file.to_str().unwrap(), &endpoint]).await.unwrap();
}

/// It holds what it held.
async fn kept(fleet: &Fleet, name: &str, seed: u64) {
    let (file, endpoint) = (fleet.cluster.room("read"), fleet.endpoint(name).await.unwrap());
    run("nbdcopy", &[&endpoint, file.to_str().unwrap()]).await.unwrap();
    assert!(std::fs::read(&file).unwrap() == noise(seed, SIZE as usize), "{name} holds something else");
}

/// The replicas of a volume: where each is, since when, and whether it ever failed.
async fn replicas(fleet: &Fleet, volume: &str) -> anyhow::Result<Vec<[String; 4]>> {
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let all = fleet.all::<Replica>().list(&of_volume).await?;
    ensure!(!all.items.is_empty(), "{volume} has no replicas");
    let told = |one: &Replica| {
        let spec = &one.spec;
        let (node, healthy, failed) = (&spec.instance.node_id, &spec.healthy_at, &spec.failed_at);
        [one.uid().unwrap_or_default(), node.to_string(), healthy.to_string(), failed.to_string()]
    };
    Ok(all.iter().map(told).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_layout_that_must_succeed_does_under_clients() {
    let began = Instant::now();
    let fleet = Fleet::up().await.unwrap();
    keep(&fleet, "old", "v1", 1).await;
    keep(&fleet, "idle", "v2", 2).await;
    fleet.change("idle", json!({ "nodeID": "" })).await.unwrap();
    fleet.until_volume("idle", "detached", "unknown").await.unwrap();
    let before = (replicas(&fleet, "old").await.unwrap(), replicas(&fleet, "idle").await.unwrap());

    let this = fleet.this.clone();
    for (layout, image) in SUCCEED.iter().zip([NEXT, &this, NEXT]) {
        make(&fleet, layout).await;
        eprintln!("{:?}: to {image}: {layout:?}", began.elapsed());
        Box::pin(succeed(&fleet, layout, image)).await;
        let idle = fleet.all::<Volume>().get("idle").await.unwrap();
        assert_eq!(idle.spec.image, image, "a detached volume gets the image");
        remove(&fleet, layout).await;
    }

    let after = (replicas(&fleet, "old").await.unwrap(), replicas(&fleet, "idle").await.unwrap());
    assert_eq!(after, before, "nothing of v1 and of detached volumes was touched");
    let old = fleet.all::<Volume>().get("old").await.unwrap();
    assert_ne!(old.spec.image, NEXT, "v1 volumes keep their engine image");
    kept(&fleet, "old", 1).await;
    fleet.change("idle", json!({ "nodeID": "node-2" })).await.unwrap();
    fleet.until_volume("idle", "attached", "healthy").await.unwrap();
    kept(&fleet, "idle", 2).await;
}
