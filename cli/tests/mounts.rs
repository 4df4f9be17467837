//! The life of a dataset: workloads on three nodes, and daemons that are replaced when nobody uses them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::json;
use support::datasets::{CLAIM, Cluster, FLUID, PODS, make_dataset, make_dataset_of, skipped, wanted};

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

#[test]
fn daemons_are_replaced_when_nobody_uses_them() {
    if skipped() {
        return;
    }
    let cluster = Cluster::up(3);

    // 1. Dataset, runtime and workloads: a labelled node gets a daemon, which writes down what it is.
    make_dataset(&cluster);
    for node in NODES {
        cluster.start_workload(node);
        assert!(cluster.labelled(node));
        assert_eq!(cluster.image(node), "daemon:v1");
        cluster.eventually("the daemon has told its image", || cluster.reported(node) == "daemon:v1");
        cluster.expect_program(node, "daemon:v1");
    }
    let mounts = NODES.map(|node| cluster.mounts(node).len());

    // 2. The image changes: everything is told, no daemon goes.
    let before = NODES.map(|node| cluster.daemon(node));
    cluster.change_fuse(&json!({ "imageTag": "v2" }));
    cluster.eventually("the claim asks for the new image", || wanted(&cluster) == "daemon:v2");
    for node in NODES {
        cluster.expect_no_error(node);
        assert_eq!(cluster.reported(node), "daemon:v1");
    }
    assert_eq!(NODES.map(|node| cluster.daemon(node)), before);
    let shown = cluster.sandbox.json(&["mount", "show", "data"]);
    for (node, seen) in NODES.iter().zip(shown["nodes"].as_array().unwrap()) {
        let kept_by = &seen["usedBy"][0];
        let expected = (json!(node), json!(false), json!(format!("workload-{node}")));
        assert_eq!((seen["name"].clone(), seen["upToDate"].clone(), kept_by["pod"].clone()), expected);
        assert!(kept_by["since"].is_string(), "{shown:#}");
    }

    // 3. A workload ends: its node's daemon goes, and no other.
    cluster.end_workload("node-1");
    cluster
        .eventually("the node has the new image, and lets the old daemon go", || !cluster.labelled("node-1"));
    cluster.eventually("the old daemon is gone", || cluster.daemon("node-1").is_none());
    assert_eq!(["node-2", "node-3"].map(|node| cluster.daemon(node)), [before[1].clone(), before[2].clone()]);

    // 4. The next workload gets the new daemon.
    cluster.start_workload("node-1");
    assert_eq!(cluster.image("node-1"), "daemon:v2");
    cluster.eventually("the daemon has told its image", || cluster.reported("node-1") == "daemon:v2");
    cluster.expect_program("node-1", "daemon:v2");
    assert_eq!(cluster.mounts("node-1").len(), mounts[0], "{:?}", cluster.mounts("node-1"));
    ["node-2", "node-3"].iter().for_each(|node| cluster.expect_no_error(node));
    cluster.eventually("the list tells of one new daemon and two old ones", || {
        let listed = cluster.sandbox.ok(&["mount", "ls"]);
        let words: Vec<&str> = listed.lines().last().unwrap().split_whitespace().collect();
        words == ["default", "data", "Bound", "OnIdle", "daemon:v2", "2", "1", "2", "0", "3"]
    });
    cluster.eventually("the metrics tell of two old daemons", || {
        let old = "midflight_fuse_daemons_outdated{namespace=\"default\",dataset=\"data\"} 2";
        cluster.sandbox.get("/metrics").unwrap().contains(old)
    });

    // OnDelete: an idle daemon stays until the user deletes its pod.
    cluster.change_fuse(&json!({ "updateStrategy": "OnDelete" }));
    cluster.eventually("the claim says so", || {
        cluster.get(CLAIM)["metadata"]["annotations"]["midflight.dev/fuse-update-strategy"] == "OnDelete"
    });
    cluster.end_workload("node-2");
    assert!(cluster.labelled("node-2"));
    let name = |node: &str| {
        let pods = cluster.get(PODS);
        let mut pods = pods["items"].as_array().unwrap().iter();
        let pod = pods.find(|pod| {
            pod["spec"]["nodeName"] == node
                && pod["metadata"]["name"].as_str().unwrap().starts_with("data-fuse")
        });
        pod.unwrap()["metadata"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(cluster.daemon("node-2"), before[1]);
    cluster.delete(&format!("{PODS}/{}", name("node-2")));
    cluster
        .eventually("the user's deletion brings the new image", || cluster.reported("node-2") == "daemon:v2");
    cluster.expect_no_error("node-3");

    for node in ["node-1", "node-3"] {
        cluster.end_workload(node);
    }
    cluster.sandbox.ok(&["down"]);
    for node in NODES {
        assert_eq!(cluster.mounts(node), Vec::<String>::new(), "{node}");
    }
}

/// Whoever uses it goes on, and nothing is left when the last has gone.
#[test]
fn a_dataset_that_is_deleted_under_a_workload_serves_it_to_the_end() {
    if skipped() {
        return;
    }
    let cluster = Cluster::up(1);
    let (node, dataset) = ("node-1", format!("{FLUID}/datasets/data"));
    make_dataset(&cluster);
    cluster.start_workload(node);
    cluster.eventually("the claim is bound", || {
        let status = &cluster.get(CLAIM)["status"];
        (&status["phase"], &status["capacity"]["storage"]) == (&json!("Bound"), &json!("100Pi"))
    });
    let before = cluster.daemon(node);
    cluster.delete(&format!("{FLUID}/juicefsruntimes/data"));
    cluster.delete(&dataset);
    let who = "it was deleted, and goes when nobody uses it any more: pod default/workload-node-1";
    cluster.eventually("the list tells who keeps it", || cluster.sandbox.ok(&["mount", "ls"]).contains(who));
    cluster.expect_no_error(node);
    assert_eq!(cluster.daemon(node), before);

    cluster.end_workload(node);
    cluster.eventually("the dataset is gone", || {
        cluster.sandbox.get(&dataset).is_err_and(|error| error.contains("not found"))
    });
    cluster.eventually("daemon, label and mount are gone", || {
        cluster.daemon(node).is_none() && !cluster.labelled(node) && cluster.mounts(node).is_empty()
    });
    assert!(cluster.node(node).join("data/held-node-1").exists(), "data stays");
    cluster.sandbox.ok(&["down"]);
}

/// A workload waits for a daemon whose image nobody has published.
#[test]
fn a_daemon_that_never_ran_is_made_anew_when_its_image_is_corrected() {
    if skipped() {
        return;
    }
    let cluster = Cluster::up(1);
    make_dataset_of(&cluster, "missing");
    cluster.create_workload("node-1");
    let why = "the daemon on node-1 does not run: its image daemon:missing cannot be had";
    cluster.eventually("the list says what is missing", || {
        let listed = cluster.sandbox.ok(&["mount", "ls"]);
        let words: Vec<&str> = listed.lines().last().unwrap().split_whitespace().skip(6).take(4).collect();
        listed.contains(why) && words == ["0", "0", "1", "1"]
    });
    cluster.change_fuse(&json!({ "imageTag": "v1" }));
    cluster.eventually("the workload counts", || cluster.turns("node-1") > 3);
    cluster.expect_no_error("node-1");

    // A good daemon does not go for one that cannot come, and whoever comes gets it.
    let before = cluster.daemon("node-1");
    cluster.change_fuse(&json!({ "imageTag": "missing" }));
    cluster.eventually("the claim asks for it", || wanted(&cluster) == "daemon:missing");
    cluster.end_workload("node-1");
    cluster.start_workload("node-1");
    assert_eq!(cluster.daemon("node-1"), before);
    cluster.end_workload("node-1");
    cluster.sandbox.ok(&["down"]);
}
