//! Datasets of a real cluster: workloads on three nodes, and daemons that are replaced when nobody uses them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use http::{Method, Request};
use serde_json::{Value, json};
use support::{Sandbox, eventually};

const PODS: &str = "/api/v1/namespaces/default/pods";
const FLUID: &str = "/apis/data.fluid.io/v1alpha1/namespaces/default";
const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/data";
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// A workload that checks its own mount: holds a file open, and reads back whatever it writes. Says only what is wrong.
const CHECKER: &str = r#"#!/bin/sh
trap 'exit 0' TERM
exec 3>>"/data/held-$NODE" || echo "WRONG: cannot open"
turn=0
while :; do
    turn=$((turn + 1))
    echo "$turn" >&3 || echo "WRONG: held file at $turn"
    echo "$turn" >"/data/$NODE.new" && mv "/data/$NODE.new" "/data/$NODE" || echo "WRONG: write at $turn"
    read -r seen <"/data/$NODE" || echo "WRONG: read at $turn"
    [ "$seen" = "$turn" ] || echo "WRONG: $seen instead of $turn"
    sleep 0.02
done
"#;

struct Cluster {
    sandbox: Sandbox,
}

impl Cluster {
    fn up() -> Cluster {
        let sandbox = Sandbox::new();
        sandbox.ok(&["up", "--detach", "--nodes", "3"]);
        let cluster = Cluster { sandbox };
        for node in NODES {
            fs::create_dir_all(cluster.node(node).join("data")).unwrap();
        }
        cluster
    }

    fn node(&self, node: &str) -> PathBuf {
        self.sandbox.dir().join("nodes").join(node)
    }

    fn pack(&self, image: &str, binary: &Path) {
        self.sandbox.ok(&["image", "pack", "--tag", image, "--binary", binary.to_str().unwrap()]);
    }

    fn ask(&self, method: Method, path: &str, kind: &str, body: &Value) -> Value {
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let answer = self.sandbox.call("kubeconfig", request.body(body.to_string().into_bytes()).unwrap());
        serde_json::from_str(&answer.unwrap()).unwrap()
    }

    fn create(&self, path: &str, object: &Value) {
        self.ask(Method::POST, path, "application/json", object);
    }

    fn delete(&self, path: &str) {
        self.ask(Method::DELETE, path, "application/json", &json!({}));
    }

    fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.sandbox.get(path).unwrap()).unwrap()
    }

    fn change_fuse(&self, fuse: &Value) {
        let change = json!({ "spec": { "fuse": fuse } });
        self.ask(
            Method::PATCH,
            &format!("{FLUID}/juicefsruntimes/data"),
            "application/merge-patch+json",
            &change,
        );
    }

    /// Waits, and tells what the cluster's processes said where it was in vain.
    fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| eventually(what, holds)));
        assert!(reached.is_ok(), "{what}: {:#}{}", self.get(PODS)["items"], self.sandbox.logs());
    }

    fn start_workload(&self, node: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("workload-{node}") },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 5,
                "containers": [{
                    "name": "main", "image": "checker:v1", "env": [{ "name": "NODE", "value": node }],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        });
        self.create(PODS, &pod);
        self.eventually("the workload counts", || self.turns(node) > 3);
    }

    fn end_workload(&self, node: &str) {
        self.expect_no_error(node);
        let path = format!("{PODS}/workload-{node}");
        self.delete(&path);
        self.eventually("the workload is gone", || self.sandbox.get(&path).is_err());
        fs::remove_file(self.node(node).join("data").join(node)).unwrap();
    }

    /// How far a node's workload has counted.
    fn turns(&self, node: &str) -> u64 {
        let told = fs::read_to_string(self.node(node).join("data").join(node)).unwrap_or_default();
        told.trim().parse().unwrap_or(0)
    }

    fn expect_no_error(&self, node: &str) {
        let before = self.turns(node);
        self.eventually("the workload goes on", || self.turns(node) > before);
        assert_eq!(self.sandbox.get(&format!("{PODS}/workload-{node}/log")).unwrap(), "", "on {node}");
        assert_eq!(
            self.get(&format!("{PODS}/workload-{node}"))["status"]["containerStatuses"][0]["restartCount"],
            0
        );
    }

    /// The daemon of a node: its pod's uid and image.
    fn daemon(&self, node: &str) -> Option<(String, String)> {
        let pods = self.get(PODS);
        let is_it = |pod: &&Value| {
            pod["spec"]["nodeName"] == node
                && pod["metadata"]["name"].as_str().unwrap().starts_with("data-fuse")
        };
        let pod = pods["items"].as_array().unwrap().iter().find(is_it)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((text(&pod["metadata"]["uid"]), text(&pod["spec"]["containers"][0]["image"])))
    }

    fn image(&self, node: &str) -> String {
        self.daemon(node).map(|(_, image)| image).unwrap_or_default()
    }

    /// What the daemon's pod has written down of itself.
    fn reported(&self, node: &str) -> String {
        let file = self.node(node).join("runtime-mnt/juicefs/default/.meta/data/image-version");
        fs::read_to_string(file).unwrap_or_default().trim().to_owned()
    }

    fn labelled(&self, node: &str) -> bool {
        self.get(&format!("/api/v1/nodes/{node}"))["metadata"]["labels"]["fluid.io/f-default-data"] == "true"
    }

    fn mounts(&self, node: &str) -> Vec<String> {
        let (table, below) = (fs::read_to_string("/proc/self/mountinfo").unwrap(), self.node(node));
        let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned);
        places.filter(|place| Path::new(place).starts_with(&below)).collect()
    }
}

/// Two images of the daemon whose bytes differ.
fn daemons(sandbox: &Sandbox) -> [PathBuf; 2] {
    let first = PathBuf::from(env!("CARGO_BIN_EXE_midflight"));
    let second = sandbox.dir().with_file_name("second");
    fs::copy(&first, &second).unwrap();
    fs::OpenOptions::new().append(true).open(&second).unwrap().write_all(b"second").unwrap();
    [first, second]
}

fn script(sandbox: &Sandbox, text: &str) -> PathBuf {
    let path = sandbox.dir().with_file_name("script");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Whether this machine cannot mount; says so, and fails where that may not be.
#[allow(clippy::print_stderr)]
fn skipped() -> bool {
    if rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        return false;
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "mounts cannot be tested");
    eprintln!("SKIPPED: mounting needs root and /dev/fuse");
    true
}

fn make_dataset(cluster: &Cluster) {
    let dataset = json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset", "metadata": { "name": "data" },
        "spec": { "mounts": [{ "mountPoint": "local:///data" }], "accessModes": ["ReadWriteMany"] },
    });
    cluster.create(&format!("{FLUID}/datasets"), &dataset);
    let runtime = json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "JuiceFSRuntime", "metadata": { "name": "data" },
        "spec": { "fuse": { "image": "daemon", "imageTag": "v1", "updateStrategy": "OnIdle" } },
    });
    cluster.create(&format!("{FLUID}/juicefsruntimes"), &runtime);
    cluster.eventually("the dataset has a claim", || cluster.sandbox.get(CLAIM).is_ok());
}

fn wanted(cluster: &Cluster) -> String {
    let claim = cluster.get(CLAIM);
    claim["metadata"]["annotations"]["fuse.runtime.fluid.io/image-version"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn daemons_are_replaced_when_nobody_uses_them() {
    if skipped() {
        return;
    }
    let cluster = Cluster::up();
    let [first, second] = daemons(&cluster.sandbox);
    cluster.pack("daemon:v1", &first);
    cluster.pack("daemon:v2", &second);
    cluster.pack("checker:v1", &script(&cluster.sandbox, CHECKER));

    // 1. Dataset, runtime and workloads: a labelled node gets a daemon, which writes down what it is.
    make_dataset(&cluster);
    for node in NODES {
        cluster.start_workload(node);
        assert!(cluster.labelled(node));
        assert_eq!(cluster.image(node), "daemon:v1");
        cluster.eventually("the daemon has told its image", || cluster.reported(node) == "daemon:v1");
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

    // 3. A workload ends: its node's daemon goes, and no other.
    cluster.end_workload("node-1");
    assert!(!cluster.labelled("node-1"));
    cluster.eventually("the old daemon is gone", || cluster.daemon("node-1").is_none());
    assert_eq!(["node-2", "node-3"].map(|node| cluster.daemon(node)), [before[1].clone(), before[2].clone()]);

    // 4. The next workload gets the new daemon.
    cluster.start_workload("node-1");
    assert_eq!(cluster.image("node-1"), "daemon:v2");
    cluster.eventually("the daemon has told its image", || cluster.reported("node-1") == "daemon:v2");
    assert_eq!(cluster.mounts("node-1").len(), mounts[0], "{:?}", cluster.mounts("node-1"));
    ["node-2", "node-3"].iter().for_each(|node| cluster.expect_no_error(node));

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
