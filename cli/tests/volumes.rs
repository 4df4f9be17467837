//! `midflight volume` and `upgrade nodes`, as somebody would use them who waits for what was asked for.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use support::{Sandbox, eventually, kill};

const OBJECTS: &str = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system";

fn object(sandbox: &Sandbox, path: &str) -> Option<Value> {
    sandbox.get(&format!("{OBJECTS}/{path}")).ok().map(|text| serde_json::from_str(&text).unwrap())
}

fn send(sandbox: &Sandbox, request: http::request::Builder, body: &Value) {
    sandbox.call("kubeconfig", request.body(body.to_string().into_bytes()).unwrap()).unwrap();
}

fn set(sandbox: &Sandbox, setting: &str, value: &str) {
    let request = http::Request::patch(format!("{OBJECTS}/settings/{setting}"));
    send(sandbox, request.header("content-type", "application/merge-patch+json"), &json!({ "value": value }));
}

fn up(nodes: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach", "--nodes", nodes]);
    sandbox.ok(&["volume", "create", "v", "--size=8Mi", "--replicas=1", "--wait"]);
    sandbox
}

#[test]
fn whoever_waits_is_told_when_it_is_really_so() {
    let sandbox = up("2");
    let refused = sandbox.fails(1, &["volume", "attach", "v", "--node=node-9", "--wait"]);
    assert!(refused.contains("there is no node node-9") && refused.contains("node-1, node-2"), "{refused}");

    for node in ["node-1", "node-2"] {
        sandbox.ok(&["volume", "attach", "v", "--node", node, "--wait"]);
        let listed = sandbox.json(&["volume", "ls"]);
        assert_eq!((&listed[0]["node"], &listed[0]["state"]), (&json!(node), &json!("attached")), "{listed}");
        let other = if node == "node-1" { "--node=node-2" } else { "--node=node-1" };
        let refused = sandbox.fails(3, &["volume", "attach", "v", other]);
        assert!(
            refused.contains(&format!("attached to node {node}")) && refused.contains("volume detach v"),
            "{refused}"
        );
        sandbox.ok(&["volume", "detach", "v", "--wait"]);
    }
    sandbox.ok(&["volume", "attach", "v", "--node=node-2", "--wait"]);

    let default = || object(&sandbox, "settings/default-instance-manager-image").unwrap()["value"].clone();
    let before = default();
    let refused = sandbox.fails(3, &["upgrade", "nodes", "--to=other:v9", "--nodes=node-1,node-9"]);
    assert!(refused.contains("node-9 is not in the cluster"), "{refused}");
    assert_eq!(default(), before, "what is refused sets nothing");
    for nobodys in ["instance-manager:nobody", "midflight.local/instance-manager:nobody"] {
        for command in [["plan", "node-upgrade"], ["upgrade", "nodes"]] {
            let refused = sandbox.fails(3, &[command[0], command[1], "--to", nobodys]);
            let why = format!("{nobodys} is not published, and is not on node-1, node-2");
            assert!(refused.contains(&why) && refused.contains("midflight image ls"), "{refused}");
            assert!(refused.contains("midflight image pack --tag instance-manager:TAG"), "{refused}");
        }
    }
    assert_eq!(default(), before, "an image that nobody has published never becomes the default");

    // The API takes one upgrade at a time, so that a second one would fail after the default has changed.
    sandbox.ok(&["image", "pack", "--tag=instance-manager:again"]);
    let other = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "DataEngineUpgradeManager", "metadata": { "name": "other" },
        "spec": { "dataEngine": "v2", "paused": true },
    });
    let request = http::Request::post(format!("{OBJECTS}/dataengineupgrademanagers"));
    send(&sandbox, request.header("content-type", "application/json"), &other);
    let refused = sandbox.fails(3, &["upgrade", "nodes", "--to=instance-manager:again", "--nodes=node-1"]);
    assert!(refused.contains("the node upgrade `other` is not over, and nothing was changed"), "{refused}");
    assert_eq!(default(), before, "what the API would refuse sets nothing");
    eventually("it is shown how far that is which is under way", || {
        sandbox.json(&["upgrade", "nodes", "--name=other"])["state"] == "initializing"
    });
    sandbox.ok(&["upgrade", "nodes", "--name=other", "--abort", "--wait"]);
    let refused =
        sandbox.run(&["upgrade", "nodes", "--to=instance-manager:again", "--nodes=node-1", "--name=N_O"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(support::text(&refused.stderr).contains("nothing was changed"), "{refused:?}");
    assert_eq!(default(), before, "nor does a name that the API refuses");

    // Every node runs the image, so that a single replica is in nobody's way: the plan and the upgrade say the same.
    sandbox.ok(&["plan", "node-upgrade"]);
    sandbox.ok(&["upgrade", "nodes"]);
    sandbox.ok(&["upgrade", "nodes", "--wait", "--timeout=120"]);

    sandbox.ok(&["volume", "detach", "v", "--wait"]);
    sandbox.ok(&["volume", "expand", "v", "--size=16Mi", "--wait"]);
    let engines = object(&sandbox, "engines").unwrap();
    assert_eq!(engines["items"][0]["status"]["currentSize"], (16 << 20).to_string(), "{engines:#}");
}

/// What becomes of nodes that are under way is told, and what to do next.
#[test]
fn whoever_holds_or_gives_up_a_node_upgrade_is_told_what_comes_of_it() {
    let sandbox = up("2");
    sandbox.ok(&["image", "pack", "--tag=instance-manager:again"]);
    let plan = sandbox.json(&["plan", "node-upgrade", "--to=instance-manager:again", "--nodes=node-2"]);
    assert_eq!(plan["lacking"], json!(["node-2"]), "nobody brings it before it is asked for: {plan}");
    assert_eq!(plan["caveat"], Value::Null, "what is published says what it speaks: {plan}");

    sandbox.ok(&["volume", "attach", "v", "--node=node-1", "--wait"]);
    let ends = |code: i32, arguments: &[&str]| {
        let ended = sandbox.run(arguments);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {ended:?}");
        support::text(&ended.stderr)
    };
    let said = |arguments: &[&str]| ends(0, arguments);
    let default = || object(&sandbox, "settings/default-instance-manager-image").unwrap()["value"].clone();
    let before = default();
    let refused = sandbox.fails(3, &["upgrade", "nodes", "--to=instance-manager:again", "--wait"]);
    assert!(refused.contains("single replica of v; nothing was changed"), "{refused}");
    assert!(refused.contains("raise its numberOfReplicas to 2"), "{refused}");
    assert_eq!(default(), before, "what nodes cannot be upgraded to never becomes the default");
    assert!(object(&sandbox, "dataengineupgrademanagers/upgrade").is_none(), "and nothing begins");

    // Somebody else made it the default: the upgrade says what is in the way, and nothing of the nodes changes.
    set(&sandbox, "default-instance-manager-image", "midflight.local/instance-manager:again");
    let refused = ends(3, &["upgrade", "nodes", "--to=instance-manager:again", "--wait", "--timeout=150"]);
    assert!(refused.contains("single replica of v"), "{refused}");
    let held = said(&["upgrade", "nodes", "--pause"]);
    assert!(held.contains("the upgrade has failed") && held.contains("--resume` tries it again"), "{held}");
    let ended = said(&["upgrade", "nodes", "--abort", "--wait"]);
    let next = "default-instance-manager-image is still midflight.local/instance-manager:again";
    assert!(ended.contains("every node is in service") && ended.contains(next), "{ended}");
    assert!(ended.contains("brings it and every node back"), "{ended}");

    sandbox.ok(&["volume", "detach", "v", "--wait"]);
    sandbox.ok(&["upgrade", "nodes", "--wait", "--timeout=150"]);
    let held = said(&["upgrade", "nodes", "--pause"]);
    assert!(held.contains("nothing is left to be paused: every node is upgraded"), "{held}");
    let ended = said(&["upgrade", "nodes", "--abort"]);
    assert!(
        ended.contains("it is gone, and every node is in service") && !ended.contains("still"),
        "{ended}"
    );
}

#[test]
fn a_wait_outlives_the_control_plane_and_whoever_does_not_wait_is_told_what_to_start() {
    let sandbox = up("1");
    // Of a volume that nobody has, it waits until somebody does.
    let mut waits =
        sandbox.spawn(&["volume", "snapshot", "create", "v", "--name=s", "--wait", "--timeout=120"]);
    eventually("the snapshot is asked for", || object(&sandbox, "snapshots/s").is_some());
    kill(sandbox.running("control"));
    let mut said = BufReader::new(waits.stderr.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    assert!(line.contains("the API does not answer") && line.contains("waits until it does"), "{line}");
    let refused = sandbox.fails(1, &["volume", "ls"]);
    assert!(refused.contains("no API answers at https://127.0.0.1:"), "{refused}");
    assert!(
        refused.contains(&format!("midflight up --detach --dir {}", sandbox.dir().display())),
        "{refused}"
    );

    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["volume", "attach", "v", "--node=node-1", "--wait"]);
    let ended = waits.wait_with_output().unwrap();
    assert!(ended.status.success(), "{:?}", said.collect::<Vec<_>>());
    assert_eq!(support::text(&ended.stdout), "s\n");
    assert_eq!(said.count(), 0, "it is told once");
}

#[test]
fn a_backup_may_have_the_name_of_one_that_was_removed_and_outlives_a_purge() {
    let sandbox = up("1");
    sandbox.ok(&["volume", "attach", "v", "--node=node-1", "--wait"]);
    let refused = sandbox.fails(1, &["volume", "backup", "create", "v", "--snapshot=nope", "--wait"]);
    assert!(refused.contains("volume v has no snapshot nope"), "{refused}");
    for what in ["snapshot", "backup"] {
        assert!(sandbox.fails(1, &["volume", what, "ls", "nope"]).contains("there is no volume nope"));
        assert_eq!(sandbox.json(&["volume", what, "ls", "v"]), json!([]));
    }
    for _ in 0..2 {
        sandbox.ok(&["volume", "backup", "create", "v", "--name=b", "--wait"]);
        let refused = sandbox.fails(1, &["volume", "backup", "create", "v", "--name=b"]);
        assert!(refused.contains("there is a backup b already"), "{refused}");
        sandbox.ok(&["volume", "backup", "rm", "b", "--wait"]);
    }
    let snapshots = || sandbox.json(&["volume", "snapshot", "ls"]).as_array().unwrap().len();
    eventually("what was taken for backups is gone with them", || snapshots() == 0);

    // A snapshot of that name is somebody's own, and stays.
    sandbox.ok(&["volume", "snapshot", "create", "v", "--name=b", "--wait"]);
    sandbox.ok(&["volume", "backup", "create", "v", "--name=b", "--wait"]);
    assert_eq!(snapshots(), 2);

    // One node cannot be upgraded, and the plan and the upgrade say so in the same way.
    for refused in [&["plan", "node-upgrade"][..], &["upgrade", "nodes"], &["upgrade", "nodes", "--wait"]] {
        assert!(sandbox.fails(3, refused).contains("a cluster of one node"), "{refused:?}");
    }
    for what in ["--pause", "--resume", "--abort"] {
        assert!(sandbox.fails(1, &["upgrade", "nodes", what]).contains("there is no node upgrade `upgrade`"));
    }

    let purged = sandbox.ok(&["down", "--purge"]);
    assert!(purged.contains("kept 1 backup in") && purged.contains("--purge-backups"), "{purged}");
    assert!(!sandbox.dir().join("store.redb").exists());
    sandbox.ok(&["up", "--detach"]);
    eventually("the backup is found again", || {
        sandbox.json(&["volume", "backup", "ls"])[0]["state"] == "Completed"
    });
    sandbox.ok(&["down", "--purge", "--purge-backups"]);
    assert!(!sandbox.dir().exists());
}
