//! Datasets of a real cluster: workloads that check what they see, daemons of two versions, and what is left of both.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use http::{Method, Request};
use serde_json::{Value, json};

use super::{BINARY, Sandbox, eventually};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const FLUID: &str = "/apis/data.fluid.io/v1alpha1/namespaces/default";
pub(crate) const CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/data";

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

pub(crate) struct Cluster {
    pub(crate) sandbox: Sandbox,
}

impl Cluster {
    /// So many nodes, a folder of data on each, and images of the workload and of two versions of the daemon.
    pub(crate) fn up(nodes: u8) -> Cluster {
        let sandbox = Sandbox::new();
        sandbox.ok(&["up", "--detach", "--nodes", &nodes.to_string()]);
        let cluster = Cluster { sandbox };
        for node in 1..=nodes {
            fs::create_dir_all(cluster.node(&format!("node-{node}")).join("data")).unwrap();
        }
        for (image, binary) in [("daemon:v1", PathBuf::from(BINARY)), ("daemon:v2", second_daemon())] {
            cluster.pack(image, &binary);
        }
        cluster.pack("checker:v1", &script(&cluster.sandbox, CHECKER));
        cluster
    }

    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.sandbox.dir().join("nodes").join(node)
    }

    pub(crate) fn pack(&self, image: &str, binary: &Path) {
        self.sandbox.ok(&["image", "pack", "--tag", image, "--binary", binary.to_str().unwrap()]);
    }

    pub(crate) fn ask(&self, method: Method, path: &str, kind: &str, body: &Value) -> Value {
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let answer = self.sandbox.call("kubeconfig", request.body(body.to_string().into_bytes()).unwrap());
        serde_json::from_str(&answer.unwrap()).unwrap()
    }

    pub(crate) fn create(&self, path: &str, object: &Value) {
        self.ask(Method::POST, path, "application/json", object);
    }

    pub(crate) fn delete(&self, path: &str) {
        self.ask(Method::DELETE, path, "application/json", &json!({}));
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        serde_json::from_str(&self.sandbox.get(path).unwrap()).unwrap()
    }

    pub(crate) fn change_fuse(&self, fuse: &Value) {
        let change = json!({ "spec": { "fuse": fuse } });
        self.ask(
            Method::PATCH,
            &format!("{FLUID}/juicefsruntimes/data"),
            "application/merge-patch+json",
            &change,
        );
    }

    /// Waits, and tells what the cluster's processes said where it was in vain.
    pub(crate) fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| eventually(what, holds)));
        assert!(reached.is_ok(), "{what}: {:#}{}", self.get(PODS)["items"], self.sandbox.logs());
    }

    /// Starts a workload, and waits until it counts.
    pub(crate) fn start_workload(&self, node: &str) {
        self.create_workload(node);
        self.eventually("the workload counts", || self.turns(node) > 3);
    }

    pub(crate) fn create_workload(&self, node: &str) {
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
    }

    pub(crate) fn end_workload(&self, node: &str) {
        self.expect_no_error(node);
        self.delete_workload(node);
        self.await_end(node);
    }

    pub(crate) fn delete_workload(&self, node: &str) {
        self.delete(&format!("{PODS}/workload-{node}"));
    }

    pub(crate) fn await_end(&self, node: &str) {
        let path = format!("{PODS}/workload-{node}");
        self.eventually("the workload is gone", || {
            self.sandbox.get(&path).is_err_and(|error| error.contains("not found"))
        });
        fs::remove_file(self.node(node).join("data").join(node)).unwrap();
    }

    pub(crate) fn expect_progress(&self, node: &str) {
        let before = self.turns(node);
        self.eventually("the workload goes on", || self.turns(node) > before + 3);
    }

    /// The process that serves a node's dataset.
    pub(crate) fn daemon_processes(&self, node: &str) -> Vec<i32> {
        // As it is named in the file system that it is on.
        let own = self.node(node).strip_prefix("/tmp").unwrap().to_owned();
        let numbers = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_it = |pid: &i32| {
            let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).into_owned();
            let mounts = String::from_utf8_lossy(&read("mountinfo")).into_owned();
            // Others may serve folders of the machine, and see the mounts of the nodes.
            command.contains("\0--mount\0/runtime-mnt/") && mounts.contains(own.to_str().unwrap())
        };
        numbers.filter(is_it).collect()
    }

    /// How far a node's workload has counted.
    pub(crate) fn turns(&self, node: &str) -> u64 {
        let told = fs::read_to_string(self.node(node).join("data").join(node)).unwrap_or_default();
        told.trim().parse().unwrap_or(0)
    }

    pub(crate) fn expect_no_error(&self, node: &str) {
        self.expect_progress(node);
        assert_eq!(self.sandbox.get(&format!("{PODS}/workload-{node}/log")).unwrap(), "", "on {node}");
        assert_eq!(
            self.get(&format!("{PODS}/workload-{node}"))["status"]["containerStatuses"][0]["restartCount"],
            0
        );
    }

    /// The daemon of a node: its pod's uid and image.
    pub(crate) fn daemon(&self, node: &str) -> Option<(String, String)> {
        let pods = self.get(PODS);
        let is_it = |pod: &&Value| {
            pod["spec"]["nodeName"] == node
                && pod["metadata"]["name"].as_str().unwrap().starts_with("data-fuse")
        };
        let pod = pods["items"].as_array().unwrap().iter().find(is_it)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((text(&pod["metadata"]["uid"]), text(&pod["spec"]["containers"][0]["image"])))
    }

    pub(crate) fn image(&self, node: &str) -> String {
        self.daemon(node).map(|(_, image)| image).unwrap_or_default()
    }

    /// One process serves the node, and it is that version's program.
    pub(crate) fn expect_program(&self, node: &str, image: &str) {
        // One that was sent away ends after its mount has gone.
        self.eventually("one daemon is left", || self.daemon_processes(node).len() == 1);
        let process = self.daemon_processes(node)[0];
        let size = |path: &Path| fs::metadata(path).unwrap().len();
        let runs = Path::new("/proc").join(process.to_string()).join("exe");
        assert_eq!(size(&runs), size(&program_of(image)), "{node} should run {image}");
    }

    /// What the daemon's pod has written down of itself.
    pub(crate) fn reported(&self, node: &str) -> String {
        let file = self.node(node).join("runtime-mnt/juicefs/default/.meta/data/image-version");
        fs::read_to_string(file).unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn labelled(&self, node: &str) -> bool {
        self.get(&format!("/api/v1/nodes/{node}"))["metadata"]["labels"]["fluid.io/f-default-data"] == "true"
    }

    pub(crate) fn mounts(&self, node: &str) -> Vec<String> {
        let (table, below) = (fs::read_to_string("/proc/self/mountinfo").unwrap(), self.node(node));
        let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned);
        places.filter(|place| Path::new(place).starts_with(&below)).collect()
    }
}

/// Another program that serves a folder: what differs between two versions of a daemon is more than a name.
fn second_daemon() -> PathBuf {
    let built = Path::new(BINARY).with_file_name("mffuse");
    if !built.exists() {
        let target = Path::new(BINARY).ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--package", "midflight-fuse", "--bin", "mffuse", "--target-dir"]).arg(target);
        assert!(cargo.status().unwrap().success(), "mffuse cannot be built");
    }
    built
}

/// The program of a version of the daemon.
pub(crate) fn program_of(image: &str) -> PathBuf {
    if image.ends_with("v1") { PathBuf::from(BINARY) } else { second_daemon() }
}

fn script(sandbox: &Sandbox, text: &str) -> PathBuf {
    let path = sandbox.dir().with_file_name("script");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Whether this machine cannot mount; says so, and fails where that may not be.
#[allow(clippy::print_stderr)]
pub(crate) fn skipped() -> bool {
    if rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        return false;
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "mounts cannot be tested");
    eprintln!("SKIPPED: mounting needs root and /dev/fuse");
    true
}

pub(crate) fn make_dataset(cluster: &Cluster) {
    make_dataset_of(cluster, "v1");
}

/// The same with daemons of another version.
pub(crate) fn make_dataset_of(cluster: &Cluster, tag: &str) {
    let dataset = json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset", "metadata": { "name": "data" },
        "spec": { "mounts": [{ "mountPoint": "local:///data" }], "accessModes": ["ReadWriteMany"] },
    });
    cluster.create(&format!("{FLUID}/datasets"), &dataset);
    let runtime = json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "JuiceFSRuntime", "metadata": { "name": "data" },
        "spec": { "fuse": { "image": "daemon", "imageTag": tag, "updateStrategy": "OnIdle" } },
    });
    cluster.create(&format!("{FLUID}/juicefsruntimes"), &runtime);
    cluster.eventually("the dataset has a claim", || cluster.sandbox.get(CLAIM).is_ok());
}

pub(crate) fn wanted(cluster: &Cluster) -> String {
    let claim = cluster.get(CLAIM);
    claim["metadata"]["annotations"]["fuse.runtime.fluid.io/image-version"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
