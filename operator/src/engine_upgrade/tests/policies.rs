//! What users asked for beyond the seed: a limit of the cluster, pause and resume, rest, halt, opt-out; and limits that
//! change while volumes move.

use super::*;

const PAUSED: &str = "automatic-engine-upgrade-paused";

/// How many have been asked for the new image.
fn begun(all: &BTreeMap<String, Volume>) -> usize {
    all.values().filter(|volume| volume.spec.image == NEW).count()
}

/// Waits for a turn of the controller that comes after all that was written so far: a volume of a node that has room moves.
pub(super) async fn until_looked(fleet: &Fleet, witness: &str) {
    fleet.volume_on(&["node-3"], witness, "node-3", json!({})).await;
    fleet
        .until("the controller has looked again", |all| all.get(witness).is_some_and(|v| v.spec.image == NEW))
        .await;
}

#[tokio::test]
async fn the_limit_of_the_cluster_holds_at_every_write() {
    let mut fleet = Fleet::open().await;
    for (number, node) in NODES.iter().cycle().take(9).enumerate() {
        fleet.volume(&format!("vol-{number}"), node, json!({})).await;
    }
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set("concurrent-automatic-engine-upgrade-cluster-limit", "2").await;
    fleet.set(LIMIT, "3").await;
    fleet.until("all are at the new image", |all| all.len() == 9 && all.values().all(done)).await;
    assert_eq!(fleet.seen.lock().unwrap().most_in_all, 2, "the limit is used and never exceeded");
    fleet.close().await;
}

#[tokio::test]
async fn paused_nothing_begins_what_has_begun_goes_on_and_resumed_the_rest_follows() {
    let mut fleet = Fleet::open().await;
    fleet.volume("a", "node-1", json!({})).await;
    fleet.volume("b", "node-1", json!({})).await;
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until("the first begins", |all| begun(all) == 1).await;
    fleet.set(PAUSED, "true").await;
    fleet.until_told(LIMIT, &["EngineUpgradesHeld"]).await;
    fleet.hollow_engine(&[]);
    fleet.until("the first arrives", |all| done(&all["a"])).await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["b"], OLD), "nothing further begins");
    fleet.set(PAUSED, "false").await;
    fleet.until("the other follows", |all| done(&all["b"])).await;
    fleet.close().await;
}

#[tokio::test]
async fn a_node_rests_between_two_of_its_volumes() {
    let mut fleet = Fleet::open().await;
    fleet.set("automatic-engine-upgrade-settle-seconds", "2").await;
    fleet.volume("a", "node-1", json!({})).await;
    fleet.volume("b", "node-1", json!({})).await;
    fleet.volume("c", "node-2", json!({})).await;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until("all are at the new image", |all| all.values().all(done)).await;
    let attempt = |name| fleet.attempt(name).unwrap();
    let rest = attempt("b").issued_at.duration_since(attempt("a").ended_at.unwrap());
    assert!(rest.as_secs() >= 2, "rested {rest:?}");
    assert!(attempt("c").issued_at < attempt("b").issued_at, "another node does not wait");
    fleet.close().await;
}

#[tokio::test]
async fn halted_by_a_failure_the_rest_goes_on_when_somebody_says_so() {
    let mut fleet = Fleet::open().await;
    fleet.set("automatic-engine-upgrade-deadline-seconds", "2").await;
    fleet.set("automatic-engine-upgrade-failure-threshold", "1").await;
    fleet.volume("a-stuck", "node-1", json!({})).await;
    fleet.volume("b-next", "node-1", json!({})).await;
    fleet.hollow_engine(&["a-stuck"]);
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until("the first goes back", |all| runs(&all["a-stuck"], OLD) && failed(&all["a-stuck"])).await;
    fleet.until_told(LIMIT, &["EngineUpgradesHeld"]).await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["b-next"], OLD), "the rest is halted");
    fleet.set("automatic-engine-upgrade-failure-threshold", "2").await;
    fleet.until("the rest goes on", |all| done(&all["b-next"])).await;
    fleet.close().await;
}

#[tokio::test]
async fn a_volume_that_opted_out_stays_until_its_owner_says_otherwise() {
    let mut fleet = Fleet::open().await;
    fleet.volume("mine", "node-1", json!({})).await;
    let volumes: Api<Volume> = fleet.api();
    let annotate = async |value: Value| {
        let patch =
            Patch::Merge(json!({ "metadata": { "annotations": { "midflight.dev/engine-upgrade": value } } }));
        volumes.patch("mine", &PatchParams::default(), &patch).await.unwrap();
    };
    annotate(json!("never")).await;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set(LIMIT, "1").await;
    until_looked(&fleet, "witness").await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["mine"], OLD));
    fleet.until_told("mine", &["EngineUpgradeSkipped"]).await;
    annotate(Value::Null).await;
    fleet.until("it moves", |all| done(&all["mine"])).await;
    fleet.close().await;
}

/// Upstream case 15: the limit is raised and lowered while volumes move, one is upgraded by hand, all are deleted.
#[tokio::test]
async fn a_limit_that_changes_holds_at_once_and_volumes_may_go_meanwhile() {
    let mut fleet = Fleet::open().await;
    for number in 0..6 {
        fleet.volume(&format!("vol-{number}"), "node-1", json!({})).await;
    }
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until("one begins", |all| begun(all) == 1).await;
    fleet.set(LIMIT, "3").await;
    fleet.until("three have begun", |all| begun(all) == 3).await;
    fleet.set(LIMIT, "2").await;
    until_looked(&fleet, "witness").await;
    let begun_now = begun(&fleet.seen.lock().unwrap().volumes);
    assert_eq!(begun_now, 3 + 1, "lowered, nothing further of the node begins");

    let volumes: Api<Volume> = fleet.api();
    let by_hand = Patch::Merge(json!({ "spec": { "image": NEW } }));
    volumes.patch("vol-5", &PatchParams::default(), &by_hand).await.unwrap();
    for number in 0..3 {
        volumes.delete(&format!("vol-{number}"), &kube::api::DeleteParams::default()).await.unwrap();
    }
    fleet
        .until("with one by hand, one more has room", |all| {
            let there = |name: &str| all.get(name).is_some_and(|volume| volume.spec.image == NEW);
            there("vol-5") && there("vol-3") && !there("vol-4")
        })
        .await;
    fleet.hollow_engine(&[]);
    fleet
        .until("what is left moves", |all| {
            ["vol-3", "vol-4", "vol-5"].iter().all(|name| runs(&all[*name], NEW))
        })
        .await;
    fleet.close().await;
}

/// From the moment somebody asks for a larger volume, before its controller has said so.
#[tokio::test]
async fn a_volume_that_was_asked_to_grow_stays_although_its_status_does_not_say_so_yet() {
    let mut fleet = Fleet::open().await;
    fleet.volume_on(&["node-1"], "grows", "node-1", json!({})).await;
    let replicas: Api<Replica> = fleet.api();
    let size = async |bytes: &str| {
        let patch = Patch::Merge(json!({ "spec": { "volumeSize": bytes } }));
        replicas.patch("grows-r-node-1", &PatchParams::default(), &patch).await.unwrap();
    };
    // The volume has twice as much.
    size("536870912").await;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set(LIMIT, "1").await;
    fleet.until_told("grows", &["EngineUpgradeWaits"]).await;
    until_looked(&fleet, "witness").await;
    assert!(runs(&fleet.seen.lock().unwrap().volumes["grows"], OLD));
    size("1073741824").await;
    fleet.until("it moves", |all| done(&all["grows"])).await;
    fleet.close().await;
}

/// Upstream case 13: an image that is not on every node serves the volumes whose nodes have it.
#[tokio::test]
async fn an_image_on_some_nodes_serves_their_volumes_and_the_others_follow() {
    let mut fleet = Fleet::open().await;
    let images: Api<EngineImage> = fleet.api();
    let on_node_3 = async |there: bool| {
        let patch = Patch::Merge(json!({ "status": { "nodeDeploymentMap": { "node-3": there } } }));
        images.patch_status("ei-new", &PatchParams::default(), &patch).await.unwrap();
    };
    on_node_3(false).await;
    fleet.volume("everywhere", "node-1", attached("node-1")).await;
    fleet.volume_on(&["node-1", "node-2"], "here", "node-1", attached("node-1")).await;
    fleet.volume_on(&["node-1", "node-2"], "attached-there", "node-3", attached("node-3")).await;
    fleet.hollow_engine(&[]);
    fleet.start();
    fleet.set(LIMIT, "3").await;
    fleet.until("one moves", |all| done(&all["here"])).await;
    fleet.until_told("everywhere", &["EngineUpgradeWaits"]).await;
    fleet.until_told("attached-there", &["EngineUpgradeWaits"]).await;
    let all = fleet.seen.lock().unwrap().volumes.clone();
    assert!(runs(&all["everywhere"], OLD) && runs(&all["attached-there"], OLD));
    on_node_3(true).await;
    fleet.until("the others follow", |all| done(&all["everywhere"]) && done(&all["attached-there"])).await;
    fleet.close().await;
}
