//! `midflight plan engine-upgrade` against clusters with Midflight's definitions and with Longhorn's own.
//!
//! Nothing runs there: the plan needs objects alone, and changes none.

#![expect(clippy::unwrap_used, reason = "a test that cannot prepare its cluster has failed")]

use std::path::Path;
use std::process::{Command, Output};

use kube::Client;
use midflight_tests::longhorn::{self, make, volume};
use midflight_tests::place;
use midflight_tests::server::Embedded;
use serde_json::{Value, json};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const OLD: &str = "longhornio/longhorn-engine:v1.8.0";
const NEW: &str = "longhornio/longhorn-engine:v1.9.0";

fn plan(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(place::midflight().unwrap());
    command.args(["plan", "engine-upgrade", "--kubeconfig"]).arg(kubeconfig).args(arguments);
    command.output().unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// `SECONDS: VOLUME VOLUME` for each wave.
fn waves(plan: &Value) -> Vec<String> {
    let names = |wave: &Value| {
        let volumes = wave["volumes"].as_array().unwrap().iter();
        volumes.map(|one| one["volume"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
    };
    let waves = plan["waves"].as_array().unwrap().iter();
    waves.map(|wave| format!("{}: {}", wave["startsAfterSeconds"], names(wave))).collect()
}

fn left_out(plan: &Value) -> Vec<(String, String)> {
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    let all = plan["leftOut"].as_array().unwrap().iter();
    all.map(|one| (text(one, "volume"), text(one, "reason"))).collect()
}

async fn engine_image(client: &Client, name: &str, image: &str, version: i32) {
    let nodes: Value =
        NODES.iter().map(|node| (node.to_string(), json!(true))).collect::<serde_json::Map<_, _>>().into();
    let status = json!({
        "ownerID": "node-1", "state": "deployed", "refCount": 0, "noRefSince": "", "incompatible": false, "conditions": [],
        "nodeDeploymentMap": nodes, "version": name, "gitCommit": name, "buildDate": "",
        "cliAPIVersion": 9, "cliAPIMinVersion": 3, "controllerAPIVersion": version, "controllerAPIMinVersion": 3,
        "dataFormatVersion": 1, "dataFormatMinVersion": 1,
    });
    make(client, "EngineImage", name, json!({ "spec": { "image": image }, "status": status })).await.unwrap();
}

fn attached(node: &str) -> Value {
    let status =
        json!({ "state": "attached", "robustness": "healthy", "currentNodeID": node, "currentImage": OLD });
    json!({ "spec": { "image": OLD, "nodeID": node }, "status": status })
}

fn detached() -> Value {
    json!({ "spec": { "image": OLD }, "status": { "currentImage": OLD } })
}

/// Two images, and one volume of each sort.
async fn fill(client: &Client) {
    engine_image(client, "ei-old", OLD, 5).await;
    engine_image(client, "ei-new", NEW, 6).await;
    volume(
        client,
        "big",
        &NODES,
        json!({ "spec": { "image": OLD, "size": "10737418240" }, "status": { "currentImage": OLD } }),
    )
    .await
    .unwrap();
    volume(client, "small", &NODES, detached()).await.unwrap();
    volume(client, "busy", &NODES, attached("node-1")).await.unwrap();
    let mut degraded = attached("node-2");
    degraded["status"]["robustness"] = json!("degraded");
    volume(client, "degraded", &NODES, degraded).await.unwrap();
    let mut standby = detached();
    standby["status"]["isStandby"] = json!(true);
    volume(client, "dr", &NODES, standby).await.unwrap();
    let mut far = detached();
    far["status"]["ownerID"] = json!("node-4");
    volume(client, "far", &["node-4"], far).await.unwrap();
    volume(client, "there", &NODES, json!({ "spec": { "image": NEW }, "status": { "currentImage": NEW } }))
        .await
        .unwrap();
}

async fn settings(client: &Client, limit: &str) {
    for (name, value) in
        [("default-engine-image", NEW), (midflight_api::settings::ENGINE_UPGRADE_LIMIT, limit)]
    {
        make(client, "Setting", name, json!({ "value": value })).await.unwrap();
    }
}

/// What the plan of that cluster must say, whoever's definitions it has.
fn check(kubeconfig: &Path) {
    let output = plan(kubeconfig, &["-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let shown = json_of(&output);
    assert_eq!(shown["target"], NEW);
    assert_eq!(waves(&shown), ["0: small", "10: big", "20: busy"]);
    assert_eq!((&shown["expected"]["seconds"], &shown["there"]), (&json!(50), &json!(1)));
    let expected = [("degraded", "Degraded"), ("dr", "Standby"), ("far", "ImageNotOnNodes")];
    assert_eq!(left_out(&shown), expected.map(|(name, why)| (name.to_owned(), why.to_owned())));
    assert_eq!(shown["leftOut"][2]["message"], "the new image is not on node-4");

    let more = json_of(&plan(kubeconfig, &["-o", "json", "--limit", "3"]));
    assert_eq!(waves(&more), ["0: small big busy"]);

    let people = plan(kubeconfig, &[]);
    let text = String::from_utf8(people.stdout).unwrap();
    for line in [
        "limit       1 of a node at once, any number in all",
        "3      20s      busy     node-1   live       1.0 GiB",
        "WHAT HELPS",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }

    let unknown = plan(kubeconfig, &["--to", "engine:none"]);
    assert_eq!(unknown.status.code(), Some(3), "{unknown:?}");
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        said.contains("there is no EngineImage for engine:none")
            && said.contains("try: create an EngineImage"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_of_midflights_own_cluster() {
    let server = Embedded::start().await.unwrap();
    let client = server.admin.client();
    longhorn::install(&client, &midflight_api::crds()).await.unwrap();
    settings(&client, "1").await;
    fill(&client).await;
    check(&server.kubeconfig());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_of_a_longhorn_cluster_of_today() {
    let Some(definitions) = longhorn::upstream_definitions().unwrap() else { return };
    let server = Embedded::start().await.unwrap();
    let client = server.admin.client();
    longhorn::install(&client, &definitions).await.unwrap();
    settings(&client, "1").await;
    fill(&client).await;
    check(&server.kubeconfig());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_longhorns_kinds_or_with_upgrades_off_is_told_so() {
    let server = Embedded::start().await.unwrap();
    let client = server.admin.client();
    let bare = plan(&server.kubeconfig(), &[]);
    assert_eq!(bare.status.code(), Some(1), "{bare:?}");
    assert!(String::from_utf8_lossy(&bare.stderr).contains("this API does not serve"), "{bare:?}");

    longhorn::install(&client, &midflight_api::crds()).await.unwrap();
    settings(&client, "0").await;
    fill(&client).await;
    let off = plan(&server.kubeconfig(), &["-o", "json"]);
    assert!(off.status.success(), "{off:?}");
    let shown = json_of(&off);
    assert_eq!((&shown["hold"]["reason"], &shown["perNodeLimit"]), (&json!("Off"), &json!(1)));
    assert_eq!(waves(&shown), ["0: small", "10: big", "20: busy"]);
    server.stop().await;
}
