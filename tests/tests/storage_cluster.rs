//! `midflight up --nodes 3` as a storage cluster: volumes made with kubectl alone, on pods that the nodes run.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use midflight_tests::cluster::Cluster;
use midflight_tests::{noise::noise, place, storage::run};

const SIZE: usize = 8 << 20;

struct Kubectl<'a> {
    binary: &'a Path,
    kubeconfig: String,
}

impl Kubectl<'_> {
    async fn run(&self, arguments: &[&str]) -> String {
        let place = ["--kubeconfig", &self.kubeconfig, "--namespace", "longhorn-system"];
        run(self.binary.to_str().unwrap(), &[&place, arguments].concat()).await.unwrap()
    }

    async fn field(&self, object: &str, path: &str) -> String {
        self.run(&["get", object, "-o", &format!("jsonpath={{{path}}}")]).await
    }

    async fn wait(&self, object: &str, path: &str, value: &str) {
        let condition = format!("--for=jsonpath={{{path}}}={value}");
        self.run(&["wait", object, &condition, "--timeout=60s"]).await;
    }

    async fn attach(&self, volume: &str, node: &str) {
        let change = format!(r#"{{"spec":{{"nodeID":"{node}"}}}}"#);
        self.run(&["patch", volume, "--type=merge", "-p", &change]).await;
    }
}

fn volume(name: &str, frontend: &str) -> String {
    format!(
        r#"{{"apiVersion":"longhorn.io/v1beta2","kind":"Volume","metadata":{{"name":"{name}"}},
            "spec":{{"size":"{SIZE}","numberOfReplicas":3,"dataEngine":"v2","frontend":"{frontend}"}}}}"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_pods_outlives_a_node_its_frontend_and_its_keeper() {
    let Some(binary) = place::kubectl() else {
        return place::skip("kubectl: dev/kubernetes build makes one");
    };
    let cluster = Cluster::up(3).await.unwrap();
    let kubectl = Kubectl { binary: &binary, kubeconfig: cluster.kubeconfig().display().to_string() };
    let (object, engine) = ("volumes.longhorn.io/vol-1", "engines.longhorn.io/vol-1-e-0");
    let file = cluster.room("volume.json");
    std::fs::write(&file, volume("vol-1", "nbd")).unwrap();
    kubectl.run(&["apply", "-f", file.to_str().unwrap()]).await;
    kubectl.wait(object, ".status.state", "detached").await;
    kubectl.attach(object, "node-1").await;
    kubectl.wait(object, ".status.robustness", "healthy").await;

    let endpoint = kubectl.field(engine, ".status.endpoint").await;
    let (written, read) = (cluster.room("written"), cluster.room("read"));
    let mut data = noise(1, SIZE);
    std::fs::write(&written, &data).unwrap();
    run("nbdcopy", &["--flush", written.to_str().unwrap(), &endpoint]).await.unwrap();

    cluster.kill_node("node-2").await.unwrap();
    kubectl.wait(object, ".status.robustness", "degraded").await;
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &endpoint]).await.unwrap();
    data[1 << 20..(1 << 20) + (64 << 10)].fill(0x5a);
    cluster.start().await.unwrap();
    kubectl.wait(object, ".status.robustness", "healthy").await;

    for role in ["frontend", "keeper"] {
        let of_node =
            ["-l", &format!("longhorn.io/component={role}"), "--field-selector=spec.nodeName=node-1"];
        let old = kubectl
            .run(&[&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"], &of_node[..]].concat())
            .await;
        kubectl.run(&[&["delete", "pods", "--wait"], &of_node[..]].concat()).await;
        kubectl
            .run(&[&["wait", "pods", "--for=condition=Ready", "--timeout=60s"], &of_node[..]].concat())
            .await;
        let new = kubectl
            .run(&[&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"], &of_node[..]].concat())
            .await;
        assert_ne!(old, new, "{role}");
        run("nbdcopy", &[&endpoint, read.to_str().unwrap()]).await.unwrap();
        assert!(std::fs::read(&read).unwrap() == data, "the volume holds something else after a new {role}");
    }

    kubectl.attach(object, "").await;
    kubectl.wait(object, ".status.state", "detached").await;
    kubectl.attach(object, "node-2").await;
    kubectl.wait(object, ".status.robustness", "healthy").await;
    let endpoint = kubectl.field(engine, ".status.endpoint").await;
    run("nbdcopy", &[&endpoint, read.to_str().unwrap()]).await.unwrap();
    assert!(
        std::fs::read(&read).unwrap() == data,
        "the volume holds something else on the node that was away"
    );
    kubectl.run(&["delete", object, "--wait", "--timeout=60s"]).await;
    assert_eq!(kubectl.run(&["get", "replicas.longhorn.io", "-o", "name"]).await, "");
}
