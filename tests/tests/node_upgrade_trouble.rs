//! Upgrades of nodes that cannot be, that fail, that are called off, and those in which volumes grow or go, on real instance managers
//! and under clients that judge every block.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use kube::api::ListParams;
use midflight_api::longhorn::{
    DataEngine, Engine, InstanceManager, InstanceManagerState, NodeUpgradeState, UpgradeState, Volume,
};
use midflight_tests::fleet::{DOES_NOT_START, Fleet, NEXT, NODES};
use midflight_tests::load::Load;
use serde_json::json;

const SIZE: u64 = 8 << 20;
/// Of blocks of 4 KiB: what a client uses of a volume that grows, and of others.
const BLOCKS: u64 = SIZE / 4096;
const ALL: &[&str] = &NODES;

async fn busy(fleet: &Fleet, name: &str, seed: u64, on: &str, replicas: &[&str]) -> Load {
    fleet.make(name, ("v2", SIZE), on, replicas).await.unwrap();
    Load::on_blocks(&fleet.endpoint(name).await.unwrap(), name, seed, BLOCKS).unwrap()
}

/// Upgrades all nodes, and waits until that has come to an end.
async fn upgrade(fleet: &Fleet, end: UpgradeState) -> String {
    fleet.begin(json!({ "dataEngine": "v2" })).await.unwrap();
    fleet.until_run(end).await.unwrap().status.unwrap().message.to_string()
}

async fn all_serve(fleet: &Fleet, nodes: &[&str], image: &str) {
    for node in nodes {
        let serves = async || fleet.serves(node, image).await;
        fleet.until(&format!("{node} serves with {image}"), serves).await.expect("it serves");
    }
}

/// Seed 004, the layouts that must fail: with a single replica nothing is begun, wherever it is.
async fn a_single_replica_is_named_and_nothing_is_changed(fleet: &Fleet) {
    for replica in ["node-1", "node-2"] {
        // Nodes that run the image already are in nobody's way, and those with nothing on them get it at once.
        fleet.make_default(&fleet.this).await.unwrap();
        all_serve(fleet, &NODES, &fleet.this).await;
        let load = busy(fleet, "vol-1", 1, "node-1", &[replica]).await;
        fleet.make_default(NEXT).await.unwrap();
        let idle: Vec<&str> =
            NODES.into_iter().filter(|node| *node != "node-1" && *node != replica).collect();
        all_serve(fleet, &idle, NEXT).await;
        let before = NODES.map(|node| fleet.processes(node).unwrap());
        let message = upgrade(fleet, UpgradeState::Error).await;
        assert!(message.contains("single replica of vol-1"), "{message}");
        fleet.is_whole().await.unwrap();
        fleet.end().await.unwrap();
        assert_eq!(NODES.map(|node| fleet.processes(node).unwrap()), before, "every process is what it was");
        load.judge().await.unwrap();
        fleet.remove("vol-1").await.unwrap();
    }
}

/// An image of a build that speaks with nobody here: it is known before any of it has run, and nothing is begun.
async fn an_image_that_speaks_other_versions_is_not_begun_with(fleet: &Fleet) {
    let far = "midflight.local/instance-manager:far";
    let says = json!({ "version": "9", "engine": {
        "api": { "oldest": 1, "newest": 1 },
        "wire": { "oldest": 90, "newest": 91 },
        "disk": { "oldest": 1, "newest": 1 },
    } });
    let first = format!("[ \"$1\" != version ] || {{ echo '{says}'; exit; }}");
    fleet.pack_after("far", &first).await.unwrap();
    all_serve(fleet, &NODES, NEXT).await;
    let load = busy(fleet, "vol-3", 3, "node-1", ALL).await;
    fleet.make_default(far).await.unwrap();
    fleet
        .until("the objects say what runs speaks, and what is to come", async || {
            let all = fleet.all::<InstanceManager>().list(&ListParams::default()).await?;
            let v2 = all.items.into_iter().filter(|one| one.spec.data_engine == DataEngine::V2);
            let known = v2.map(|one| {
                let status = one.status.unwrap_or_default();
                let wire = (status.proxy_api_min_version, status.proxy_api_version);
                match (one.spec.image == far, status.current_state) {
                    (true, InstanceManagerState::Stopped) => wire == (90, 91),
                    (false, InstanceManagerState::Running) => {
                        status.api_version > 0 && wire.1 > 0 && status.data_format_version > 0
                    }
                    (true | false, _) => false,
                }
            });
            Ok(known.filter(|known| *known).count() == 2 * NODES.len())
        })
        .await
        .unwrap();
    let before = NODES.map(|node| fleet.processes(node).unwrap());
    let message = upgrade(fleet, UpgradeState::Error).await;
    assert!(
        message.contains(&format!("{far} knows versions 90 to 91 of the interface between")),
        "{message}"
    );
    fleet.is_whole().await.unwrap();
    fleet.end().await.unwrap();
    assert_eq!(NODES.map(|node| fleet.processes(node).unwrap()), before, "every process is what it was");
    load.judge().await.unwrap();
    fleet.make_default(NEXT).await.unwrap();
    fleet.remove("vol-3").await.unwrap();
}

/// An image whose instance manager does not start: the nodes are taken back to the one before.
async fn an_image_that_does_not_start_is_left_again(fleet: &Fleet) {
    fleet.pack_after("broken", DOES_NOT_START).await.unwrap();
    // Nodes with nothing on them have got the next one at once, and would get the broken one so.
    all_serve(fleet, &NODES, NEXT).await;
    let load = busy(fleet, "vol-2", 2, "node-1", ALL).await;
    fleet.make_default("midflight.local/instance-manager:broken").await.unwrap();
    fleet.set("node-upgrade-retry-limit", "0").await.unwrap();
    fleet.set("node-upgrade-deadline-seconds", "20").await.unwrap();

    let message = upgrade(fleet, UpgradeState::Error).await;
    assert!(NODES.iter().any(|node| message.contains(node)), "it says which node: {message}");
    fleet.until("all is whole", async || Ok(fleet.is_whole().await.is_ok())).await.unwrap();
    fleet.end().await.unwrap();
    for node in NODES {
        fleet.runs_only(node, NEXT).await.unwrap();
    }
    load.judge().await.unwrap();
    fleet.remove("vol-2").await.unwrap();
    for (setting, value) in [("node-upgrade-retry-limit", "5"), ("node-upgrade-deadline-seconds", "600")] {
        fleet.set(setting, value).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_upgraded_is_left_as_it_was() {
    let fleet = Fleet::up().await.unwrap();
    a_single_replica_is_named_and_nothing_is_changed(&fleet).await;
    an_image_that_speaks_other_versions_is_not_begun_with(&fleet).await;
    an_image_that_does_not_start_is_left_again(&fleet).await;
}

/// Called off in the middle, everything serves as before; begun again, it ends.
async fn an_upgrade_that_is_called_off_can_be_begun_again(fleet: &Fleet) {
    let load = busy(fleet, "vol-1", 1, "node-1", ALL).await;
    fleet.begin(json!({ "dataEngine": "v2" })).await.unwrap();
    fleet.until_node("node-1", NodeUpgradeState::UpgradingInstanceManager).await.unwrap();
    fleet.end().await.unwrap();
    fleet.until("all is whole", async || Ok(fleet.is_whole().await.is_ok())).await.unwrap();
    upgrade(fleet, UpgradeState::Completed).await;
    fleet.is_whole().await.unwrap();
    for node in NODES {
        fleet.runs_only(node, NEXT).await.unwrap();
    }
    fleet.end().await.unwrap();
    load.judge().await.unwrap();
    fleet.remove("vol-1").await.unwrap();
}

/// Upstream case 19 and one of its proposal: a volume that is to grow has its size in the end, and one that is deleted holds nobody up.
async fn volumes_may_grow_and_go_meanwhile(fleet: &Fleet) {
    let grows = busy(fleet, "grows", 2, "node-1", ALL).await;
    fleet.make("goes", ("v2", SIZE), "node-1", ALL).await.unwrap();
    fleet.make_default(&fleet.this).await.unwrap();
    fleet.begin(json!({ "dataEngine": "v2" })).await.unwrap();
    fleet.until_node("node-1", NodeUpgradeState::SwitchingOver).await.unwrap();
    fleet.change("grows", json!({ "size": (2 * SIZE).to_string() })).await.unwrap();
    fleet.remove("goes").await.unwrap();
    fleet.until_run(UpgradeState::Completed).await.unwrap();
    fleet
        .until("it has grown", async || {
            let engine = fleet.all::<Engine>().get("grows-e-0").await?.status.unwrap_or_default();
            Ok(engine.current_size.bytes() == 2 * SIZE)
        })
        .await
        .unwrap();
    fleet.until_volume("grows", "attached", "healthy").await.unwrap();
    fleet.until("all is whole", async || Ok(fleet.is_whole().await.is_ok())).await.unwrap();
    assert_eq!(fleet.all::<Volume>().get_opt("goes").await.unwrap().map(|_| ()), None);
    for node in NODES {
        fleet.runs_only(node, &fleet.this).await.unwrap();
    }
    grows.judge().await.unwrap();
    fleet.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_may_be_called_off_and_volumes_may_change_in_it() {
    let fleet = Fleet::up().await.unwrap();
    fleet.make_default(NEXT).await.unwrap();
    an_upgrade_that_is_called_off_can_be_begun_again(&fleet).await;
    volumes_may_grow_and_go_meanwhile(&fleet).await;
}
