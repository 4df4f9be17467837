//! `midflight up --nodes 3` as a storage cluster: volumes made with kubectl alone, on pods that the nodes run.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use midflight_tests::cluster::Cluster;
use midflight_tests::{noise::noise, place, storage::run};
use tokio::time::{Instant, sleep};

const SIZE: usize = 8 << 20;
const VOLUMES: [&str; 3] =
    ["volumes.longhorn.io/vol-1", "volumes.longhorn.io/vol-2", "volumes.longhorn.io/vol-3"];

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
        self.run(&["wait", object, &condition, "--timeout=120s"]).await;
    }

    /// The same of all volumes.
    async fn wait_for_all(&self, path: &str, value: &str) {
        for object in VOLUMES {
            self.wait(object, path, value).await;
        }
    }

    /// Waits until there are so many replicas in all; says on which nodes.
    async fn until_replicas(&self, count: usize) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(150);
        loop {
            let nodes =
                self.run(&["get", "replicas.longhorn.io", "-o", "jsonpath={.items[*].spec.nodeID}"]).await;
            let nodes: Vec<String> = nodes.split_whitespace().map(ToOwned::to_owned).collect();
            if nodes.len() == count {
                return nodes;
            }
            assert!(Instant::now() < deadline, "waited until there are {count} replicas: {nodes:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn attach(&self, volume: &str, node: &str) {
        let change = format!(r#"{{"spec":{{"nodeID":"{node}"}}}}"#);
        self.run(&["patch", volume, "--type=merge", "-p", &change]).await;
    }
}

fn volume(name: &str, engine: &str, frontend: &str) -> String {
    format!(
        r#"{{"apiVersion":"longhorn.io/v1beta2","kind":"Volume","metadata":{{"name":"{name}"}},
            "spec":{{"size":"{SIZE}","numberOfReplicas":3,"dataEngine":"{engine}","frontend":"{frontend}"}}}}"#
    )
}

/// A file system on a volume that is a device; unmounted when dropped.
struct Mounted {
    device: String,
    at: PathBuf,
}

impl Mounted {
    async fn make(device: &str, at: PathBuf) -> Mounted {
        run("mkfs.ext4", &["-q", device]).await.unwrap();
        std::fs::create_dir(&at).unwrap();
        run("mount", &[device, at.to_str().unwrap()]).await.unwrap();
        Mounted { device: device.to_owned(), at }
    }

    fn file(&self) -> PathBuf {
        self.at.join("file")
    }

    /// Takes it off the device, which is in order.
    async fn end(self) {
        run("umount", &[self.at.to_str().unwrap()]).await.unwrap();
        run("e2fsck", &["-f", "-n", &self.device]).await.unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever ended it has done this already.
        let _ = std::process::Command::new("umount").args(["-l", "-q"]).arg(&self.at).status();
    }
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
    for (name, engine, frontend) in
        [("vol-1", "v2", "nbd"), ("vol-2", "v1", "nbd"), ("vol-3", "v2", "blockdev")]
    {
        std::fs::write(&file, volume(name, engine, frontend)).unwrap();
        kubectl.run(&["apply", "-f", file.to_str().unwrap()]).await;
    }
    for object in VOLUMES {
        kubectl.wait(object, ".status.state", "detached").await;
        kubectl.attach(object, "node-1").await;
    }
    kubectl.wait_for_all(".status.robustness", "healthy").await;
    let other = kubectl.field("engines.longhorn.io/vol-2-e-0", ".status.endpoint").await;
    let kept = cluster.room("kept");
    std::fs::write(&kept, noise(2, SIZE)).unwrap();
    run("nbdcopy", &["--flush", kept.to_str().unwrap(), &other]).await.unwrap();
    let device = kubectl.field("engines.longhorn.io/vol-3-e-0", ".status.endpoint").await;
    assert!(device.starts_with("/dev/loop"), "{device}");
    let mounted = Mounted::make(&device, cluster.room("mounted")).await;
    std::fs::write(mounted.file(), noise(3, SIZE / 4)).unwrap();
    run("sync", &["-f", mounted.file().to_str().unwrap()]).await.unwrap();

    let endpoint = kubectl.field(engine, ".status.endpoint").await;
    let (written, read) = (cluster.room("written"), cluster.room("read"));
    let mut data = noise(1, SIZE);
    std::fs::write(&written, &data).unwrap();
    run("nbdcopy", &["--flush", written.to_str().unwrap(), &endpoint]).await.unwrap();

    cluster.kill_node("node-2").await.unwrap();
    kubectl.wait_for_all(".status.robustness", "degraded").await;
    std::fs::write(mounted.at.join("while-degraded"), noise(4, SIZE / 8)).unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &endpoint]).await.unwrap();
    data[1 << 20..(1 << 20) + (64 << 10)].fill(0x5a);
    cluster.start().await.unwrap();
    kubectl.wait_for_all(".status.robustness", "healthy").await;
    run("nbdcopy", &[&other, read.to_str().unwrap()]).await.unwrap();
    assert!(std::fs::read(&read).unwrap() == noise(2, SIZE), "the v1 volume holds something else");
    assert!(std::fs::read(mounted.file()).unwrap() == noise(3, SIZE / 4), "the file is another");
    assert!(std::fs::read(mounted.at.join("while-degraded")).unwrap() == noise(4, SIZE / 8));
    mounted.end().await;

    for role in ["frontend", "keeper"] {
        let of_node =
            ["-l", &format!("longhorn.io/component={role}"), "--field-selector=spec.nodeName=node-1"];
        let old = kubectl
            .run(&[&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"], &of_node[..]].concat())
            .await;
        kubectl.run(&[&["delete", "pods", "--wait"], &of_node[..]].concat()).await;
        kubectl
            .run(&[&["wait", "pods", "--for=condition=Ready", "--timeout=120s"], &of_node[..]].concat())
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
    for object in [VOLUMES[0], VOLUMES[2]] {
        kubectl.run(&["delete", object, "--wait", "--timeout=120s"]).await;
    }

    // A node is emptied under a volume that serves, and taken back.
    let fewer = r#"{"spec":{"numberOfReplicas":2}}"#;
    kubectl.run(&["patch", VOLUMES[1], "--type=merge", "-p", fewer]).await;
    let holders = kubectl.until_replicas(2).await;
    let emptied = holders.iter().find(|node| *node != "node-1").unwrap();
    let all = r#"{"value":"block-for-eviction"}"#;
    kubectl.run(&["patch", "settings.longhorn.io/node-drain-policy", "--type=merge", "-p", all]).await;
    cluster.midflight(&["node", "drain", emptied, "--wait"]).await.unwrap();
    assert!(!kubectl.until_replicas(2).await.contains(emptied), "{emptied} is empty");
    cluster.midflight(&["node", "uncordon", emptied]).await.unwrap();
    kubectl.wait(VOLUMES[1], ".status.robustness", "healthy").await;
    run("nbdcopy", &[&other, read.to_str().unwrap()]).await.unwrap();
    assert!(std::fs::read(&read).unwrap() == noise(2, SIZE), "the v1 volume holds something else");
    kubectl.run(&["delete", VOLUMES[1], "--wait", "--timeout=120s"]).await;
    assert!(!Path::new("/sys/block").join(device.trim_start_matches("/dev/")).join("loop").exists());
    assert_eq!(kubectl.run(&["get", "replicas.longhorn.io", "-o", "name"]).await, "");
}
