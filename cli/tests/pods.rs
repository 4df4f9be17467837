//! Pods of a real cluster: processes from images, watched, restarted, taken up again, ended without a trace.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{fs, path::Path};

use http::Method;
use serde_json::{Value, json};
use support::{
    eventually, kill, lives,
    pods::{Cluster, PODS, condition, ready},
};

/// Says who it is, marks its volumes, and ends when asked to.
const SERVICE: &str = r#"#!/bin/sh
trap 'echo bye; exit 0' TERM
echo "hello $*" && echo oops >&2
touch /scratch/ready /data/was-here
echo no > /etc/midflight-test && echo the machine was changed
sleep 600 & sleep 601 &
while :; do sleep 0.05; done
"#;

fn service() -> Value {
    json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{
            "name": "main", "image": "hello:v1", "args": ["from", "$(NODE)"],
            "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
            "volumeMounts": [
                { "name": "scratch", "mountPath": "/scratch" }, { "name": "host", "mountPath": "/data" },
            ],
            "readinessProbe": { "exec": { "command": ["/bin/sh", "-c", "test -e /scratch/ready"] }, "periodSeconds": 1 },
        }],
        "volumes": [{ "name": "scratch", "emptyDir": {} }, { "name": "host", "hostPath": { "path": "/var/data" } }],
    })
}

/// Processes of pods below a folder: their environment names it.
fn left(pods: &Path) -> Vec<String> {
    let pods = pods.display().to_string();
    let names = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let found = String::from_utf8_lossy(&environment).contains(&pods);
        found.then(|| fs::read_to_string(entry.path().join("comm")).unwrap_or_default())
    });
    names.collect()
}

#[test]
fn a_pod_runs_outlives_its_agent_and_ends_without_a_trace() {
    let cluster = Cluster::up();
    cluster.pack("hello:v1", SERVICE);
    cluster.create("hello", service());
    let pod = cluster.eventually("it is ready", "hello", ready);
    let status = &pod["status"];
    assert_eq!([&status["phase"], &status["podIP"]], ["Running", "127.0.0.2"]);
    let container = &status["containerStatuses"][0];
    assert!(
        container["imageID"].as_str().unwrap().starts_with("midflight.local/hello@sha256:"),
        "{container}"
    );
    let log = cluster.file(&pod, "log");
    assert!(log.contains(" stdout F hello from node-1\n") && log.contains(" stderr F oops\n"), "{log}");
    assert!(log.contains("Read-only file system") && !log.contains("the machine was changed"), "{log}");
    assert!(cluster.node().join("var/data/was-here").exists(), "hostPath is rooted in the node's folder");

    let (agent, pid) = (cluster.sandbox.running("node-1"), cluster.pid(&pod));
    kill(agent);
    assert!(lives(pid), "pods outlive their agent");
    cluster.sandbox.ok(&["up", "--detach"]);
    assert_ne!(cluster.sandbox.running("node-1"), agent);
    let again = cluster.eventually("it is still ready", "hello", ready);
    assert_eq!(
        (cluster.pid(&again), &again["status"]["containerStatuses"][0]["restartCount"]),
        (pid, &json!(0))
    );
    assert_eq!(again["status"]["containerStatuses"][0]["containerID"], container["containerID"]);

    cluster.ask(Method::DELETE, &format!("{PODS}/hello"), &json!({})).unwrap();
    eventually("it is gone", || cluster.sandbox.get(&format!("{PODS}/hello")).is_err());
    let folder = cluster.node().join("pods").join(pod["metadata"]["uid"].as_str().unwrap());
    assert_eq!((lives(pid), left(&folder)), (false, Vec::new()), "also what it started is gone");
    assert!(!folder.exists());
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&cluster.sandbox.dir().display().to_string()), "{mounts}");
}

#[test]
fn a_container_that_fails_is_seen_to_and_started_again() {
    let cluster = Cluster::up();
    cluster.pack("fails:v1", "#!/bin/sh\nexit 3\n");
    cluster.pack("sick:v1", "#!/bin/sh\nexec sleep 600\n");
    cluster.create("fails", json!({ "containers": [{ "name": "c", "image": "fails:v1" }] }));
    cluster.create(
        "once",
        json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "fails:v1" }] }),
    );
    let nothing = json!({ "name": "c", "image": "sick:v1", "command": ["/no/such/program"] });
    cluster.create("nothing", json!({ "restartPolicy": "Never", "containers": [nothing] }));
    let probe = json!({ "exec": { "command": ["/bin/false"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let sick = json!({ "name": "c", "image": "sick:v1", "livenessProbe": probe });
    cluster.create("sick", json!({ "terminationGracePeriodSeconds": 0, "containers": [sick] }));
    let unready = json!({ "name": "c", "image": "sick:v1", "readinessProbe": probe });
    cluster.create("unready", json!({ "containers": [unready] }));

    let status = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    let restarted = |pod: &Value| status(pod)["restartCount"].as_i64() >= Some(2);
    let pod = cluster.eventually("it is started again", "fails", restarted);
    assert_eq!(status(&pod)["lastState"]["terminated"]["exitCode"], 3, "{pod:#}");
    let pod = cluster.eventually("it fails for good", "once", |pod| pod["status"]["phase"] == "Failed");
    assert_eq!(status(&pod)["state"]["terminated"]["exitCode"], 3);
    let pod = cluster.eventually("it cannot start", "nothing", |pod| pod["status"]["phase"] == "Failed");
    let terminated = &status(&pod)["state"]["terminated"];
    assert_eq!(terminated["reason"], "StartError");
    assert!(terminated["message"].as_str().unwrap().contains("/no/such/program"), "{terminated}");
    cluster.eventually("it is started anew", "sick", |pod| status(pod)["restartCount"].as_i64() >= Some(1));
    let pod = cluster.eventually("it runs", "unready", |pod| pod["status"]["phase"] == "Running");
    assert_eq!(condition(&pod, "Ready"), "False");

    eventually("events tell what probes said", || {
        let events = cluster.sandbox.get("/api/v1/namespaces/default/events").unwrap();
        events.contains("Readiness probe failed") && events.contains("its liveness probe failed")
    });
    cluster.sandbox.ok(&["down"]);
    assert_eq!(left(&cluster.sandbox.dir()), Vec::<String>::new(), "down ends pods too");
}

/// Notes its life, and ends when it is told to by a file or a signal.
const NOTES: &str = r#"#!/bin/sh
trap 'echo "$1 is asked" >> /data/notes; exit 0' TERM
echo "$1 begins" >> /data/notes
while [ ! -e "/data/$1.end" ]; do sleep 0.05; done
rm "/data/$1.end"
"#;

/// Before, a pod with such a container waited for its end for ever.
#[test]
fn an_init_container_that_is_always_restarted_runs_beside_the_others() {
    let cluster = Cluster::up();
    cluster.pack("notes:v1", NOTES);
    let create = |name: &str, restart: &str| {
        let container = |container: &str| {
            json!({
                "name": container, "image": "notes:v1", "args": [container],
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            })
        };
        let mut side = container("side");
        side["restartPolicy"] = json!("Always");
        side["startupProbe"] = json!({ "exec": { "command": ["/bin/sh", "-c", "test -e /data/side.ready"] }, "periodSeconds": 1, "failureThreshold": 600 });
        cluster.create(
            name,
            json!({
                "restartPolicy": restart,
                "initContainers": [side, container("init")],
                "containers": [container("main")],
                "volumes": [{ "name": "data", "hostPath": { "path": format!("/var/{name}") } }],
            }),
        );
        cluster.node().join("var").join(name)
    };
    let notes = |folder: &Path| -> Vec<String> {
        let text = fs::read_to_string(folder.join("notes")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let has =
        |folder: &Path, expected: &[&str]| eventually(&expected.join(", "), || notes(folder) == expected);
    let side = |pod: &Value| pod["status"]["initContainerStatuses"][0].clone();
    let phase = |pod: &Value| pod["status"]["phase"].clone();

    let folder = create("job", "OnFailure");
    has(&folder, &["side begins"]);
    let pod = cluster.eventually("it runs", "job", |pod| side(pod)["state"]["running"].is_object());
    assert_eq!((&side(&pod)["started"], phase(&pod)), (&json!(false), json!("Pending")));
    fs::write(folder.join("side.ready"), "").unwrap();
    has(&folder, &["side begins", "init begins"]);
    fs::write(folder.join("init.end"), "").unwrap();
    has(&folder, &["side begins", "init begins", "main begins"]);
    let pod = cluster.eventually("it is ready", "job", ready);
    assert_eq!((&side(&pod)["ready"], phase(&pod)), (&json!(true), json!("Running")));
    fs::write(folder.join("side.end"), "").unwrap();
    let all = ["side begins", "init begins", "main begins", "side begins", "side is asked"];
    // From then on it notes the signal, too.
    has(&folder, &all[..4]);
    cluster.eventually("it is started again", "job", |pod| side(pod)["restartCount"] == 1 && ready(pod));
    fs::write(folder.join("main.end"), "").unwrap();
    cluster.eventually("the pod is done without it", "job", |pod| phase(pod) == "Succeeded");
    assert_eq!(notes(&folder), all);

    let folder = create("service", "Always");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("side.ready"), "").unwrap();
    fs::write(folder.join("init.end"), "").unwrap();
    has(&folder, &all[..3]);
    cluster.eventually("it is ready", "service", ready);
    cluster.ask(Method::DELETE, &format!("{PODS}/service"), &json!({})).unwrap();
    eventually("it is gone", || cluster.sandbox.get(&format!("{PODS}/service")).is_err());
    assert_eq!(notes(&folder), [&all[..3], &["main is asked", "side is asked"]].concat());
}

/// As by kubelet: one event that counts, however often it is tried.
#[test]
fn a_pod_whose_claim_is_missing_is_one_event_that_counts() {
    let cluster = Cluster::up();
    cluster.pack("hello:v1", "#!/bin/sh\nexec sleep 600\n");
    let waits = json!({ "name": "c", "image": "hello:v1", "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let missing = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "nobodys" } });
    cluster.create("waits", json!({ "containers": [waits], "volumes": [missing] }));
    let failed = || -> Vec<Value> {
        let events = cluster.sandbox.get("/api/v1/namespaces/default/events").unwrap();
        let events: Value = serde_json::from_str(&events).unwrap();
        let is_it =
            |event: &&Value| event["reason"] == "Failed" && event["involvedObject"]["name"] == "waits";
        events["items"].as_array().unwrap().iter().filter(is_it).cloned().collect()
    };
    eventually("it is tried, and told, again", || {
        failed().iter().any(|event| event["series"]["count"].as_i64() >= Some(3))
    });
    let failed = failed();
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert!(failed[0]["message"].as_str().unwrap().contains("there is no claim nobodys"), "{failed:#?}");
    cluster.eventually("it says so itself", "waits", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerError"
    });
}

#[test]
fn an_image_that_is_not_what_it_says_is_refused_until_it_is() {
    let cluster = Cluster::up();
    cluster.pack("hello:v1", "#!/bin/sh\nexec sleep 600\n");
    let registry = cluster.sandbox.dir().join("registry");
    let manifest: Value =
        serde_json::from_str(&cluster.sandbox.get("/v2/hello/manifests/v1").unwrap()).unwrap();
    let layer = manifest["layers"][0]["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
    let good = fs::read(registry.join(&layer)).unwrap();
    let mut bad = good.clone();
    bad[600] ^= 1;
    fs::write(registry.join(&layer), bad).unwrap();

    cluster.create("hello", json!({ "containers": [{ "name": "c", "image": "hello:v1" }] }));
    let waiting = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let refused = |pod: &Value| waiting(pod)["reason"].as_str().is_some_and(|reason| reason.contains("Pull"));
    let pod = cluster.eventually("it is refused", "hello", refused);
    assert!(waiting(&pod)["message"].as_str().unwrap().contains("its digest is"), "{pod:#}");
    let images = fs::read_dir(cluster.node().join("images")).unwrap().flatten();
    let known = images.filter_map(|image| fs::read_to_string(image.path().join("image.json")).ok());
    let kept = known.filter(|image| image.contains("hello:v1")).count();
    assert_eq!((kept, &pod["status"]["phase"]), (0, &json!("Pending")), "nothing of it is kept");

    fs::write(registry.join(&layer), good).unwrap();
    cluster.eventually("it is tried again", "hello", ready);
    cluster.create("absent", json!({ "containers": [{ "name": "c", "image": "absent:v1" }] }));
    let pod = cluster.eventually("it is not found", "absent", refused);
    assert!(waiting(&pod)["message"].as_str().unwrap().contains("has no absent:v1"), "{pod:#}");
}

#[test]
fn a_daemon_set_runs_on_every_node_and_its_logs_are_read() {
    let cluster = Cluster::of("2");
    cluster.pack("hello:v1", SERVICE);
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "hello" },
        "spec": {
            "selector": { "matchLabels": { "app": "hello" } },
            "template": { "metadata": { "labels": { "app": "hello" } }, "spec": service() },
        },
    });
    cluster.ask(Method::POST, "/apis/apps/v1/namespaces/default/daemonsets", &set).unwrap();
    let get = |path: &str| -> Value { serde_json::from_str(&cluster.sandbox.get(path).unwrap()).unwrap() };
    eventually("both nodes have a pod that is ready", || {
        get("/apis/apps/v1/namespaces/default/daemonsets/hello")["status"]["numberReady"] == 2
    });
    let pods = get(PODS)["items"].as_array().unwrap().clone();
    let names: Vec<&str> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    for (pod, name) in pods.iter().zip(&names) {
        let node = pod["spec"]["nodeName"].as_str().unwrap();
        let log = cluster.sandbox.get(&format!("{PODS}/{name}/log")).unwrap();
        assert!(log.starts_with(&format!("hello from {node}\n")) || log.starts_with("oops\n"), "{log}");
        let first = cluster.sandbox.get(&format!("{PODS}/{name}/log?limitBytes=5&timestamps=true")).unwrap();
        assert!(first.len() == 5 && first.starts_with("20"), "{first}");
    }
    let refused = cluster.sandbox.get(&format!("{PODS}/{}/log?container=other", names[0])).unwrap_err();
    assert!(refused.contains("container other is not valid for pod"), "{refused}");

    let follow = format!("{PODS}/{}/log?follow=true&tailLines=0", names[0]);
    std::thread::scope(|scope| {
        let following = scope.spawn(|| cluster.sandbox.get(&follow));
        cluster.ask(Method::DELETE, &format!("{PODS}/{}", names[0]), &json!({})).unwrap();
        let said = following.join().unwrap();
        // It may have ended before it was asked for its log; then there is none.
        assert!(said.as_ref().is_ok_and(|said| said == "bye\n") || said.is_err(), "{said:?}");
    });
    eventually("its set makes a new one", || {
        let uid = |pod: &Value| pod["metadata"]["uid"].clone();
        get(PODS)["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|pod| ready(pod) && uid(pod) != uid(&pods[0]))
            .count()
            == 2
    });

    let loose = json!({ "metadata": { "name": "loose" }, "spec": { "containers": [{
        "name": "c", "image": "hello:v1", "command": ["/bin/sleep", "600"],
    }] } });
    cluster.ask(Method::POST, PODS, &loose).unwrap();
    cluster.eventually("a pod without a node gets one", "loose", ready);
    cluster.ask(Method::DELETE, "/apis/apps/v1/namespaces/default/daemonsets/hello", &json!({})).unwrap();
    eventually("its pods go with it", || get(PODS)["items"].as_array().unwrap().len() == 1);
}
