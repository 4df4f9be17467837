//! The controllers against a real API server, with volumes that have no engine behind them.
//!
//! `hollow` does what instance managers and the controllers of volumes do, a little later. A watch sees every single
//! write, so that the promises are asserted at each of them.

mod hollow;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use midflight_api::MemberMode;
use midflight_api::longhorn::{
    DataEngineUpgradeManager, NodeDataEngineUpgrade, NodeUpgradeState, Replica, Snapshot, UpgradeState,
    Volume,
};
use serde_json::json;
use tokio::time::sleep;

use self::hollow::{Hollow, MISSED, NEW, OLD};
use crate::write::{Cut, Moment, Writer};

/// The states of a node that is upgraded, in the order of the seed.
const SEED: [&str; 9] = [
    "undefined",
    "initializing",
    "failing-replicas",
    "switching-over",
    "upgrading-instance-manager",
    "switching-back",
    "rebuilding-replica",
    "finalizing",
    "completed",
];

fn is(run: &DataEngineUpgradeManager, state: UpgradeState) -> bool {
    run.status.as_ref().is_some_and(|status| status.state == state)
}

#[tokio::test]
async fn three_nodes_are_upgraded_one_by_one_in_the_order_of_the_seed() {
    let mut hollow = Hollow::open(3).await;
    hollow.volume("vol-1", "node-1", &["node-1", "node-2", "node-3"]).await;
    hollow.volume("vol-2", "node-2", &["node-2", "node-3"]).await;
    hollow.volume("vol-3", "", &["node-3"]).await;
    hollow.start();
    hollow.begin(json!({ "dataEngine": "v2" })).await;
    let run = hollow.until_run("it is completed", |run| is(run, UpgradeState::Completed)).await;
    let status = run.status.unwrap();
    assert!(status.upgrade_nodes.values().all(|node| node.state == NodeUpgradeState::Completed));
    assert_eq!((status.instance_manager_image.as_str(), status.upgrading_node.as_str()), (NEW, ""));
    assert!(status.conditions.holds("Ready") && !status.conditions.holds("Reconciling"));
    {
        let seen = hollow.seen.lock().unwrap();
        assert_eq!(seen.most_nodes, 1, "one by one");
        assert_eq!(seen.begun, ["node-1", "node-2", "node-3"]);
        for (node, states) in &seen.states {
            let expected: Vec<&str> = SEED[1..].to_vec();
            assert_eq!(*states, expected, "{node}");
        }
        assert_eq!(seen.fewest_copies, 1, "vol-2 had one of two, never none");
    }
    hollow.assert_whole().await;
    let volumes: Api<Volume> = hollow.api();
    for volume in volumes.list(&ListParams::default()).await.unwrap() {
        assert_eq!(volume.spec.image, NEW, "{}", volume.name_any());
    }
    hollow.until_told("upgrade-node-1", "FailingReplicas").await;
    hollow.close().await;
}

#[tokio::test]
async fn how_far_an_upgrade_is_can_be_read() {
    let mut hollow = Hollow::open(3).await;
    for volume in ["vol-1", "vol-2"] {
        hollow.volume(volume, "node-1", &["node-1", "node-2", "node-3"]).await;
    }
    hollow.start();
    hollow.begin(json!({ "dataEngine": "v2" })).await;
    hollow.until_run("it is completed", |run| is(run, UpgradeState::Completed)).await;
    let upgrades: Api<NodeDataEngineUpgrade> = hollow.api();
    for upgrade in upgrades.list(&ListParams::default()).await.unwrap() {
        for (volume, entry) in upgrade.status.clone().unwrap().volumes {
            assert_eq!(entry.rebuilt_bytes, MISSED, "{volume} of {}", upgrade.name_any());
        }
    }
    let state = |state: &str, count: u32| {
        format!("node_upgrade_nodes{{upgrade=\"upgrade\",state=\"{state}\"}} {count}")
    };
    hollow.until_counted(&state("completed", 3)).await;
    hollow.until_counted(&state("switching-over", 0)).await;
    for outcome in ["begun", "done"] {
        hollow.until_counted(&format!("node_upgrades_total{{outcome=\"{outcome}\"}} 3")).await;
    }
    hollow.until_counted(&format!("node_upgrade_rebuilt_bytes_total {}", 6 * MISSED)).await;

    let runs: Api<DataEngineUpgradeManager> = hollow.api();
    runs.delete("upgrade", &DeleteParams::default()).await.unwrap();
    hollow
        .until("nothing is counted of what is gone", async || {
            !hollow.metrics().contains("upgrade=\"upgrade\"")
        })
        .await;
    hollow.close().await;
}

/// Seed 004, the layouts that fail: the reason is the seed's, and nothing at all is changed.
#[tokio::test]
async fn a_single_replica_stops_the_upgrade_before_the_first_change() {
    for place in ["node-1", "node-2"] {
        let mut hollow = Hollow::open(3).await;
        hollow.volume("vol-1", "node-1", &[place]).await;
        for name in ["vol-2", "vol-3"] {
            hollow.volume(name, "node-1", &["node-1", "node-2", "node-3"]).await;
        }
        let before = hollow.versions().await;
        hollow.start();
        hollow.begin(json!({ "dataEngine": "v2" })).await;
        let run = hollow.until_run("it has failed", |run| is(run, UpgradeState::Error)).await;
        let message = run.status.unwrap().message;
        assert!(message.as_str().starts_with("single replica of vol-1"), "{message}");
        assert_eq!(hollow.versions().await, before, "nothing was changed");
        hollow.close().await;
    }
}

/// An engine that does not move: its node goes back and is tried again after the others, and the upgrade is not completed.
#[tokio::test]
async fn a_node_that_fails_goes_back_and_the_others_are_upgraded() {
    let mut hollow = Hollow::open(3).await;
    hollow.set("node-upgrade-deadline-seconds", "2").await;
    hollow.set("node-upgrade-retry-limit", "1").await;
    hollow.set("node-upgrade-back-off-seconds", "1").await;
    hollow.volume("stuck", "node-1", &["node-1", "node-2", "node-3"]).await;
    hollow.stay("stuck");
    hollow.start();
    hollow.begin(json!({ "dataEngine": "v2" })).await;
    let run = hollow.until_run("it has failed", |run| is(run, UpgradeState::Error)).await;
    let status = run.status.unwrap();
    assert_eq!(status.upgrade_nodes["node-1"].failures, 2);
    let why = status.upgrade_nodes["node-1"].message.as_str();
    assert!(why.contains("switching-over was not over within 2 s: the engine of stuck moves to"), "{why}");
    assert_eq!(status.upgrade_nodes["node-3"].state, NodeUpgradeState::Completed);
    hollow.until_counted("node_upgrades_total{outcome=\"failed\"} 2").await;
    hollow.until_counted("node_upgrade_nodes{upgrade=\"upgrade\",state=\"error\"} 1").await;
    hollow.assert_whole().await;

    // What was in the way is gone: a change of the spec goes on where it failed.
    hollow.move_on();
    let runs: Api<DataEngineUpgradeManager> = hollow.api();
    for paused in [true, false] {
        let patch = Patch::Merge(json!({ "spec": { "paused": paused } }));
        runs.patch("upgrade", &PatchParams::default(), &patch).await.unwrap();
        let generation = if paused { 2 } else { 3 };
        hollow
            .until_run("the change is seen", |run| {
                run.status.as_ref().is_some_and(|status| status.observed_generation >= generation)
            })
            .await;
    }
    hollow.until_run("it is completed", |run| is(run, UpgradeState::Completed)).await;
    assert_eq!(
        hollow.seen.lock().unwrap().begun.iter().filter(|node| *node == "node-3").count(),
        1,
        "not again"
    );
    hollow.assert_whole().await;
    hollow.close().await;
}

#[tokio::test]
async fn a_deleted_upgrade_brings_everything_back_before_it_goes() {
    let mut hollow = Hollow::open(3).await;
    hollow.volume("vol-1", "node-1", &["node-1", "node-2", "node-3"]).await;
    hollow.managers_start.store(false, Ordering::Relaxed);
    hollow.start();
    hollow.begin(json!({ "dataEngine": "v2" })).await;
    hollow.until_node("node-1", NodeUpgradeState::UpgradingInstanceManager).await;
    let runs: Api<DataEngineUpgradeManager> = hollow.api();
    runs.delete("upgrade", &DeleteParams::default()).await.unwrap();
    hollow.until("it is gone", async || runs.get_opt("upgrade").await.unwrap().is_none()).await;
    {
        let states = &hollow.seen.lock().unwrap().states["node-1"];
        let back =
            ["upgrading-instance-manager", "switching-back", "rebuilding-replica", "finalizing", "error"];
        assert_eq!(states[states.len() - back.len()..], back, "it stayed until all was back");
    }
    assert_eq!(hollow.serving("node-1").await, [OLD], "the image of before serves again");
    let upgrades: Api<NodeDataEngineUpgrade> = hollow.api();
    assert_eq!(upgrades.list(&ListParams::default()).await.unwrap().items.len(), 0);
    hollow.assert_whole().await;
    hollow.close().await;
}

/// One that an earlier build took, with a name that is too long for a label: the API refuses the upgrades of its nodes.
#[tokio::test]
async fn an_upgrade_whose_nodes_cannot_begin_says_why() {
    let mut hollow = Hollow::open(2).await;
    hollow.set("node-upgrade-deadline-seconds", "2").await;
    hollow.set("node-upgrade-retry-limit", "0").await;
    hollow.start();
    let name = "u".repeat(64);
    hollow.begin_as(&name, json!({ "dataEngine": "v2" })).await;
    let runs: Api<DataEngineUpgradeManager> = hollow.api();
    let why = "the API refuses its NodeDataEngineUpgrade: ";
    let status = async || runs.get(&name).await.unwrap().status.unwrap_or_default();
    hollow
        .until("it says why", async || {
            let status = status().await;
            let entry = status.upgrade_nodes.get("node-1").cloned().unwrap_or_default();
            entry.message.as_str().starts_with(why)
                && status.message.as_str() == format!("node-1: {}", entry.message)
        })
        .await;
    hollow.until("it is given up", async || status().await.state == UpgradeState::Error).await;
    let told = status().await.message;
    for node in ["node-1", "node-2"] {
        let given_up = "failed 1 times, last: its NodeDataEngineUpgrade was not made within 2 s: ";
        assert!(told.as_str().contains(&format!("{node}: {given_up}{why}")), "{told}");
    }
    hollow.assert_whole().await;
    hollow.close().await;
}

#[tokio::test]
async fn nodes_that_share_nothing_are_upgraded_together() {
    let mut hollow = Hollow::open(4).await;
    hollow.volume("vol-1", "node-1", &["node-1", "node-2"]).await;
    hollow.volume("vol-2", "node-3", &["node-3", "node-4"]).await;
    hollow.start();
    hollow.begin(json!({ "dataEngine": "v2", "maxParallelNodes": 2 })).await;
    hollow.until_run("it is completed", |run| is(run, UpgradeState::Completed)).await;
    let together = hollow.seen.lock().unwrap().together.clone();
    let expected: BTreeSet<BTreeSet<String>> =
        [["node-1", "node-3"], ["node-2", "node-4"], ["node-1", "node-4"], ["node-2", "node-3"]]
            .map(|pair| pair.map(String::from).into())
            .into();
    assert!(!together.is_empty() && together.is_subset(&expected), "{together:?}");
    assert_eq!(hollow.seen.lock().unwrap().fewest_copies, 1);
    hollow.close().await;
}

#[tokio::test]
async fn paused_begins_no_node_and_goes_on_afterwards() {
    let mut hollow = Hollow::open(2).await;
    hollow.volume("vol-1", "node-1", &["node-1", "node-2"]).await;
    hollow.start();
    hollow.begin(json!({ "dataEngine": "v2", "paused": true })).await;
    let told = |run: &DataEngineUpgradeManager| {
        run.status.as_ref().is_some_and(|status| status.message.as_str().starts_with("paused"))
    };
    hollow.until_run("it says that it is paused", told).await;
    assert!(hollow.seen.lock().unwrap().begun.is_empty());
    let runs: Api<DataEngineUpgradeManager> = hollow.api();
    let patch = Patch::Merge(json!({ "spec": { "paused": false } }));
    runs.patch("upgrade", &PatchParams::default(), &patch).await.unwrap();
    hollow.until_run("it is completed", |run| is(run, UpgradeState::Completed)).await;
    hollow.close().await;
}

/// Another image becomes the default meanwhile: the node goes back, and all begins anew without a failure.
#[tokio::test]
async fn another_default_image_begins_anew() {
    let mut hollow = Hollow::open(2).await;
    hollow.volume("vol-1", "node-1", &["node-1", "node-2"]).await;
    hollow.stay("vol-1");
    hollow.start();
    hollow.begin(json!({ "dataEngine": "v2" })).await;
    hollow.until_node("node-1", NodeUpgradeState::SwitchingOver).await;
    hollow.make_default("im:third").await;
    hollow.move_on();
    let run = hollow.until_run("it is completed", |run| is(run, UpgradeState::Completed)).await;
    let status = run.status.unwrap();
    assert_eq!(status.instance_manager_image, "im:third");
    assert!(status.upgrade_nodes.values().all(|node| node.failures == 0));
    hollow.assert_whole().await;
    hollow.close().await;
}

/// A few of the writes, others each time; `dev/soak node-upgrade` takes all of them.
#[tokio::test]
async fn the_controllers_may_end_around_a_write() {
    let first = u64::from(std::process::id()) % 15;
    assert!(cut_writes(first, 15).await >= 2);
}

#[tokio::test]
#[ignore = "takes minutes: dev/soak runs it"]
async fn the_controllers_may_end_around_every_write() {
    let cut = cut_writes(0, 1).await;
    assert!(cut > 30, "only {cut} writes were cut");
}

/// Ends the controllers around writes from the first on, and lets others go on. Returns how many were cut.
async fn cut_writes(first: u64, step: usize) -> u32 {
    let moments = [Moment::NotSent, Moment::AnswerLost, Moment::Acknowledged];
    let mut cut = 0;
    for (write, moment) in (first..).step_by(step).zip(moments.into_iter().cycle()) {
        let mut hollow = Hollow::open(2).await;
        hollow.volume("vol-1", "node-1", &["node-1", "node-2"]).await;
        hollow.begin(json!({ "dataEngine": "v2" })).await;
        let first = hollow.controllers(Writer::with_cut(hollow.client(), Cut { write, moment }));
        let ended = tokio::select! {
            _ = hollow.until_run("the first goes on", |run| is(run, UpgradeState::Completed)) => false,
            () = async { while !first.is_finished() { sleep(Duration::from_millis(5)).await } } => true,
        };
        first.abort();
        if ended {
            hollow.start();
            let what = format!("write {write}, {moment:?}");
            hollow.until_run(&what, |run| is(run, UpgradeState::Completed)).await;
        }
        hollow.assert_whole().await;
        assert_eq!(hollow.seen.lock().unwrap().fewest_copies, 1, "write {write}, {moment:?}");
        hollow.close().await;
        cut += u32::from(ended);
        if !ended && moment != Moment::AnswerLost {
            break;
        }
    }
    cut
}

impl Hollow {
    /// Asserts that everything is as before the upgrade, on whichever image.
    async fn assert_whole(&self) {
        for node in self.nodes().await {
            assert!(!node.spec.data_engine_upgrade_requested, "{} is marked", node.name_any());
        }
        let replicas: Api<Replica> = self.api();
        for replica in replicas.list(&ListParams::default()).await.unwrap() {
            assert_ne!(replica.spec.instance.desire_state.as_str(), "stopped", "{}", replica.name_any());
        }
        let volumes: Api<Volume> = self.api();
        for volume in volumes.list(&ListParams::default()).await.unwrap() {
            assert_eq!(volume.spec.target_node_id, "", "{}", volume.name_any());
            let status = volume.status.clone().unwrap_or_default();
            assert_eq!(status.current_target_node_id, volume.spec.node_id, "{}", volume.name_any());
        }
        for record in self.records().await {
            let all = record.spec.members.iter().all(|member| member.mode == MemberMode::ReadWrite);
            assert!(all, "{}: {:?}", record.name_any(), record.spec.members);
        }
        let snapshots: Api<Snapshot> = self.api();
        assert_eq!(snapshots.list(&ListParams::default()).await.unwrap().items.len(), 0);
    }

    /// What each object that an upgrade could change was last.
    async fn versions(&self) -> BTreeMap<String, String> {
        let mut versions = BTreeMap::new();
        let (volumes, replicas): (Api<Volume>, Api<Replica>) = (self.api(), self.api());
        let all = ListParams::default();
        let named = |name: String, version: Option<String>| (name, version.unwrap_or_default());
        for one in volumes.list(&all).await.unwrap() {
            versions.extend([named(one.name_any(), one.resource_version())]);
        }
        for one in replicas.list(&all).await.unwrap() {
            versions.extend([named(one.name_any(), one.resource_version())]);
        }
        for one in self.nodes().await {
            versions.extend([named(one.name_any(), one.resource_version())]);
        }
        versions
    }

    async fn until_counted(&self, line: &str) {
        let line = format!("midflight_{line}\n");
        self.until(&line, async || self.metrics().contains(&line)).await;
    }

    async fn begin(&self, spec: serde_json::Value) {
        self.begin_as("upgrade", spec).await;
    }

    async fn begin_as(&self, name: &str, spec: serde_json::Value) {
        let runs: Api<DataEngineUpgradeManager> = self.api();
        let object = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "DataEngineUpgradeManager",
            "metadata": { "name": name }, "spec": spec });
        runs.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
}
