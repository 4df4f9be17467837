//! The judge of CSI plugins (csi-sanity) on the real plugin and a real daemon.

use std::collections::BTreeMap;

use midflight_tests::{dataset::Served, place};
use serde_json::Value;
use tokio::process::Command;

/// What is not promised, and why; each with the words by which its cases are known.
#[rustfmt::skip]
const LEFT_OUT: [(&str, &str); 11] = [
    ("GetCapacity",                  "volumes share the space of their dataset: no volume has some of its own"),
    ("ControllerPublishVolume",      "nothing is attached to a node: its daemon mounts the dataset"),
    ("ControllerUnpublishVolume",    "nothing is attached to a node: its daemon mounts the dataset"),
    ("volume lifecycle",             "begins with ControllerPublishVolume"),
    ("ListSnapshots",                "datasets have no snapshots"),
    ("GetSnapshot",                  "datasets have no snapshots"),
    ("DeleteSnapshot",               "datasets have no snapshots"),
    ("CreateSnapshot",               "datasets have no snapshots"),
    ("source",                       "volumes begin empty: no snapshots, no clones"),
    ("volume attribute class",       "a folder has nothing that could be modified"),
    ("ModifyVolume",                 "a folder has nothing that could be modified"),
];
/// Services that the plugin does not have.
const ABSENT_SERVICES: [&str; 1] = ["GroupController"];
/// What the judge itself has switched off.
const PENDING: [&str; 1] = ["pagination should detect volumes added between pages"];

#[tokio::test(flavor = "multi_thread")]
async fn the_judge_of_csi_finds_nothing_wrong() {
    if !rustix::process::geteuid().is_root() {
        return place::skip("mounting needs root");
    }
    let Some(judge) = place::csi_sanity() else {
        return place::skip("csi-sanity is not there: run dev/kubernetes build");
    };
    let served = Served::start().await.unwrap();
    let mounts = served.mounts().unwrap();
    let (parameters, report) = (served.path("parameters.yaml"), served.path("report.json"));
    std::fs::write(&parameters, "runtime_namespace: default\nruntime_name: data\n").unwrap();
    let judged = Command::new(judge)
        .arg(format!("--csi.endpoint=unix://{}", served.socket().display()))
        .arg(format!("--csi.stagingdir={}", served.path("staging").display()))
        .arg(format!("--csi.mountdir={}", served.path("workloads").display()))
        .arg(format!("--csi.testvolumeparameters={}", parameters.display()))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .arg("--ginkgo.no-color")
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&judged.stdout);
    assert!(judged.status.success(), "{said}\n{}", served.logs());

    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for case in report[0]["SpecReports"].as_array().unwrap() {
        if case["LeafNodeType"] != "It" {
            continue;
        }
        let state = case["State"].as_str().unwrap();
        *counts.entry(state).or_default() += 1;
        let words = case["ContainerHierarchyTexts"].as_array().unwrap().iter().filter_map(Value::as_str);
        let name = words.chain(case["LeafNodeText"].as_str()).collect::<Vec<_>>().join(" ");
        let is_reasoned = match state {
            "passed" => true,
            "skipped" => {
                LEFT_OUT.iter().any(|(part, _)| name.contains(part))
                    || ABSENT_SERVICES.iter().any(|service| name.contains(service))
            }
            "pending" => PENDING.iter().any(|part| name.contains(part)),
            _ => false,
        };
        assert!(is_reasoned, "{state} without a reason: {name}");
    }
    assert!(counts["passed"] >= 45, "too few cases ran: {counts:?}");
    assert_eq!(served.mounts().unwrap(), mounts, "mounts are left behind");
    assert_eq!(
        std::fs::read_dir(served.path("node/data/.volumes")).unwrap().count(),
        0,
        "volumes are left behind"
    );
    assert_eq!(
        std::fs::read_dir(served.path("state/volumes")).unwrap().count(),
        0,
        "records are left behind"
    );
    served.stop().await;
}
