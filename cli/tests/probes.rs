//! Probes over gRPC, and hooks at the begin and the end of a container.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use support::{
    eventually,
    pods::{Cluster, PODS, condition, ready},
};
use tokio::{net::TcpListener, runtime::Runtime};

/// Where pods of the first node are asked.
const NODE: &str = "127.0.0.2";

/// Notes when it starts and when it is told to end.
const NOTES: &str = r#"#!/bin/sh
trap 'echo term >> /data/notes; exit 0' TERM
echo start >> /data/notes
while :; do sleep 0.05; done
"#;

/// What gRPC's health service says of each service, as its number: 1 serves, 2 does not.
#[derive(Clone, Default)]
struct Health {
    states: Arc<Mutex<BTreeMap<String, u8>>>,
}

impl Health {
    fn says(&self, service: &str, state: u8) {
        self.states.lock().unwrap().insert(service.to_owned(), state);
    }

    /// Answers on a port of the node, for as long as the runtime lives.
    fn serve(&self, runtime: &Runtime) -> u16 {
        let listener = runtime.block_on(TcpListener::bind((NODE, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let health = self.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let health = health.clone();
                tokio::spawn(async move {
                    let answer = service_fn(move |request| health.clone().answer(request));
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        port
    }

    async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        // One byte of flags and four of length, then field 1: the name of the service.
        let service = String::from_utf8(body.get(7..).unwrap_or_default().to_vec()).unwrap();
        let state = self.states.lock().unwrap().get(&service).copied().unwrap_or(3);
        let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 0x08, state]);
        let ended = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
        let body = Full::new(message).with_trailers(async { Some(Ok(ended)) });
        Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
    }
}

fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or_default()
}

fn events(cluster: &Cluster) -> String {
    cluster.sandbox.get("/api/v1/namespaces/default/events").unwrap()
}

#[test]
fn what_a_grpc_server_says_makes_a_pod_ready_and_starts_it_anew() {
    let runtime = Runtime::new().unwrap();
    let health = Health::default();
    let port = health.serve(&runtime);
    health.says("web", 2);
    health.says("live", 1);
    let cluster = Cluster::up();
    cluster.pack("sleeps:v1", "#!/bin/sh\nexec sleep 600\n");
    let probe = |service: &str| json!({ "grpc": { "port": port, "service": service }, "periodSeconds": 1, "failureThreshold": 1 });
    let container = json!({
        "name": "c", "image": "sleeps:v1", "readinessProbe": probe("web"), "livenessProbe": probe("live"),
    });
    cluster.create("asked", json!({ "terminationGracePeriodSeconds": 0, "containers": [container] }));

    cluster.eventually("it runs", "asked", |pod| pod["status"]["phase"] == "Running");
    eventually("an event tells what was answered", || {
        events(&cluster).contains("Readiness probe failed: the service is in state 2, not serving")
    });
    assert_eq!(condition(&cluster.pod("asked"), "Ready"), "False");
    health.says("web", 1);
    cluster.eventually("it is ready", "asked", ready);
    health.says("web", 2);
    let pod = cluster.eventually("it is not ready any more", "asked", |pod| !ready(pod));
    assert_eq!(restarts(&pod), 0, "one that is not ready goes on");
    health.says("web", 1);
    cluster.eventually("it is ready again", "asked", ready);

    health.says("live", 2);
    cluster.eventually("it is started anew", "asked", |pod| restarts(pod) > 0);
    health.says("live", 1);
    cluster.eventually("the next one is ready", "asked", ready);
    assert!(events(&cluster).contains("its liveness probe failed: the service is in state 2, not serving"));
}

/// How many processes have this argument.
fn with_argument(argument: &str) -> usize {
    let lines = fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())).count()
}

#[test]
fn nothing_is_left_of_what_probes_and_hooks_have_started() {
    let cluster = Cluster::up();
    cluster.pack("sleeps:v1", "#!/bin/sh\nexec sleep 600\n");
    // Nobody else on the machine sleeps so long.
    let seconds = |number: usize| format!("{}.{number}", 100_000_000 + std::process::id());
    let shell = |script: String| json!({ "command": ["/bin/sh", "-c", script] });
    let pipe = |number: usize| shell(format!("sleep {} | cat", seconds(number)));
    let create = |name: &str, [hook, probe, endless]: [usize; 3]| {
        let leaves = format!("setsid sleep {} > /dev/null 2>&1 &", seconds(hook));
        cluster.create(name, json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": "sleeps:v1", "lifecycle": { "postStart": { "exec": shell(leaves) } },
                "readinessProbe": { "exec": pipe(probe), "timeoutSeconds": 1, "periodSeconds": 600, "failureThreshold": 1 },
                "livenessProbe": { "exec": pipe(endless), "timeoutSeconds": 600 },
            }],
        }));
        eventually("its hook and a probe have left something", || {
            with_argument(&seconds(hook)) == 1 && with_argument(&seconds(endless)) == 1
        });
    };
    create("asked", [1, 2, 3]);
    eventually("an event tells of it", || {
        events(&cluster).contains("Readiness probe failed: no answer within 1s")
    });
    eventually("the probe that was too late has ended", || with_argument(&seconds(2)) == 0);
    assert_eq!(with_argument(&seconds(1)), 1, "what a hook has left serves on");
    cluster.ask(Method::DELETE, &format!("{PODS}/asked"), &json!({})).unwrap();
    eventually("it is gone", || cluster.sandbox.get(&format!("{PODS}/asked")).is_err());
    assert_eq!([1, 2, 3].map(|number| with_argument(&seconds(number))), [0; 3]);

    create("taken-down", [4, 5, 6]);
    cluster.sandbox.ok(&["down"]);
    assert_eq!([4, 5, 6].map(|number| with_argument(&seconds(number))), [0; 3], "down ends them, too");
}

#[test]
fn a_probe_says_how_long_the_end_may_take_that_it_asks_for() {
    let cluster = Cluster::up();
    cluster.pack("deaf:v1", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.05; done\n");
    let probe = json!({
        "exec": { "command": ["/bin/false"] }, "periodSeconds": 1, "failureThreshold": 1,
        "terminationGracePeriodSeconds": 1,
    });
    let container = json!({ "name": "c", "image": "deaf:v1", "livenessProbe": probe });
    cluster.create("deaf", json!({ "terminationGracePeriodSeconds": 3600, "containers": [container] }));
    cluster.eventually("it is started anew", "deaf", |pod| restarts(pod) > 0);
}

fn notes(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("notes")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn hooks_run_after_the_start_and_before_the_end() {
    let cluster = Cluster::up();
    cluster.pack("notes:v1", NOTES);
    let shell = |script: &str| json!({ "exec": { "command": ["/bin/sh", "-c", script] } });
    let until = |file: &str, note: &str| {
        shell(&format!("echo {note} >> /data/notes; while [ ! -e /data/{file} ]; do sleep 0.05; done"))
    };
    let create = |name: &str, grace: u32, lifecycle: Value| {
        let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
        cluster.create(name, json!({
            "terminationGracePeriodSeconds": grace,
            "containers": [{ "name": "c", "image": "notes:v1", "volumeMounts": mounts, "lifecycle": lifecycle }],
            "volumes": [{ "name": "data", "hostPath": { "path": format!("/var/{name}") } }],
        }));
        cluster.node().join("var").join(name)
    };
    let delete_with = |name: &str, options: Value| {
        cluster.ask(Method::DELETE, &format!("{PODS}/{name}"), &options).unwrap();
    };
    let delete = |name: &str| delete_with(name, json!({}));
    let is_gone = |name: &str| cluster.sandbox.get(&format!("{PODS}/{name}")).is_err();

    let polite = json!({ "postStart": until("go", "post"), "preStop": until("end", "pre") });
    let folder = create("polite", 300, polite);
    eventually("the first hook runs", || notes(&folder).contains(&"post".to_owned()));
    let pod = cluster.eventually("the container runs", "polite", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    });
    assert_eq!(condition(&pod, "Ready"), "False", "it is not ready while its first hook runs");
    fs::write(folder.join("go"), "").unwrap();
    cluster.eventually("it is ready", "polite", ready);
    delete("polite");
    eventually("the last hook runs", || notes(&folder).contains(&"pre".to_owned()));
    assert!(!is_gone("polite") && !notes(&folder).contains(&"term".to_owned()));
    fs::write(folder.join("end"), "").unwrap();
    eventually("it is gone", || is_gone("polite"));
    let mut all = notes(&folder);
    all[..2].sort();
    assert_eq!(all, ["post", "start", "pre", "term"]);

    let folder = create("endless", 300, json!({ "preStop": until("never", "pre") }));
    cluster.eventually("it is ready", "endless", ready);
    eventually("it has begun", || notes(&folder) == ["start"]);
    delete("endless");
    eventually("its last hook runs", || notes(&folder).contains(&"pre".to_owned()));
    delete_with("endless", json!({ "gracePeriodSeconds": 1 }));
    eventually("it is gone although its hook never ended", || is_gone("endless"));
    assert_eq!(notes(&folder), ["start", "pre"], "its time was over");

    create("failing", 0, json!({ "postStart": shell("echo no such luck; exit 7") }));
    cluster.eventually("it is started anew", "failing", |pod| restarts(pod) > 0);
    eventually("an event tells why", || {
        let all = events(&cluster);
        all.contains("its postStart hook failed: exit status: 7: no such luck")
    });
}
