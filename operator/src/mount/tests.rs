//! Datasets against a real API server.

mod deletion;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use midflight_api::fluid::{Dataset, JuiceFSRuntime, JuiceFSRuntimeStatus};
use midflight_plan::mount::Version;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::testing::Cluster;
use crate::write::{Cut, Moment, Writer};
use crate::{Figures, bootstrap, run, run_counting, run_datasets};

const PATIENCE: Duration = Duration::from_secs(150);

/// What a dataset has become, as far as daemons and nodes are told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Told {
    image: String,
    variable: String,
    generation: String,
    claim: Vec<String>,
    has_volume: bool,
    phase: String,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

async fn told(client: &Client) -> Told {
    let set = Api::<DaemonSet>::default_namespaced(client.clone()).get_opt("data-fuse").await.unwrap();
    let claim =
        Api::<PersistentVolumeClaim>::default_namespaced(client.clone()).get_opt("data").await.unwrap();
    let volume = Api::<PersistentVolume>::all(client.clone()).get_opt("default-data").await.unwrap();
    let dataset = Api::<Dataset>::default_namespaced(client.clone()).get_opt("data").await.unwrap();
    let (set, claim, dataset) = (json!(set), json!(claim), json!(dataset));
    let template = &set["spec"]["template"];
    let container = &template["spec"]["containers"][0];
    let annotations = &claim["metadata"]["annotations"];
    Told {
        image: text(&container["image"]),
        variable: text(&container["env"][0]["value"]),
        generation: text(&template["metadata"]["labels"]["fuse.runtime.fluid.io/generation"]),
        claim: vec![
            text(&annotations["fuse.runtime.fluid.io/image-version"]),
            text(&claim["metadata"]["labels"]["fuse.runtime.fluid.io/generation"]),
            text(&annotations["midflight.dev/fuse-update-strategy"]),
        ],
        has_volume: volume.is_some(),
        phase: text(&dataset["status"]["phase"]),
    }
}

fn all(image: &str, generation: &str, strategy: &str) -> Told {
    Told {
        image: image.into(),
        variable: image.into(),
        generation: generation.into(),
        claim: [image, generation, strategy].map(str::to_owned).into(),
        has_volume: true,
        phase: "Bound".into(),
    }
}

async fn until(client: &Client, expected: &Told) {
    let mut last = Told::default();
    let reached = async {
        while last != *expected {
            sleep(Duration::from_millis(5)).await;
            last = told(client).await;
        }
    };
    let reached = timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "{last:#?} instead of {expected:#?}");
}

async fn make_dataset(client: &Client, place: &str) {
    let dataset = json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset", "metadata": { "name": "data" },
        "spec": { "mounts": [{ "mountPoint": place, "name": "data" }] },
    });
    let datasets = Api::<Dataset>::default_namespaced(client.clone());
    datasets.create(&PostParams::default(), &serde_json::from_value(dataset).unwrap()).await.unwrap();
}

async fn make_runtime(client: &Client) {
    let runtime = json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "JuiceFSRuntime", "metadata": { "name": "data" },
        "spec": { "fuse": { "image": "fuse", "imageTag": "1", "updateStrategy": "OnIdle" } },
    });
    let runtimes = Api::<JuiceFSRuntime>::default_namespaced(client.clone());
    runtimes.create(&PostParams::default(), &serde_json::from_value(runtime).unwrap()).await.unwrap();
}

async fn make(client: &Client) {
    make_dataset(client, "local:///srv/data").await;
    make_runtime(client).await;
}

/// A cluster with its controllers running.
async fn with_controllers(figures: Figures) -> (Cluster, JoinHandle<()>) {
    let cluster = Cluster::open().await;
    let standing = bootstrap(&cluster.client).await.unwrap();
    let writer = Arc::new(Writer::new(cluster.client.clone()));
    let running = tokio::spawn(async move { run_counting(writer, &standing, figures).await });
    (cluster, running)
}

/// A cluster with its controllers running, and a dataset that was made into daemons.
async fn with_dataset() -> (Cluster, JoinHandle<()>) {
    with_dataset_counting(Figures::default()).await
}

async fn with_dataset_counting(figures: Figures) -> (Cluster, JoinHandle<()>) {
    let (cluster, running) = with_controllers(figures).await;
    make(&cluster.client).await;
    until(&cluster.client, &all("fuse:1", "1", "OnIdle")).await;
    (cluster, running)
}

async fn change(client: &Client, fuse: Value) {
    let runtimes = Api::<JuiceFSRuntime>::default_namespaced(client.clone());
    let patch = Patch::Merge(json!({ "spec": { "fuse": fuse } }));
    runtimes.patch("data", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn a_dataset_is_followed_from_its_making_to_its_end() {
    let (cluster, running) = with_dataset().await;
    let client = &cluster.client;
    change(client, json!({ "imageTag": "2" })).await;
    until(client, &all("fuse:2", "2", "OnIdle")).await;
    change(client, json!({ "env": [{ "name": "LEVEL", "value": "debug" }] })).await;
    until(client, &all("fuse:2", "3", "OnIdle")).await;
    change(client, json!({ "options": { "exclusive": "true" } })).await;
    until(client, &all("fuse:2", "4", "OnIdle")).await;
    change(client, json!({ "resources": { "limits": { "memory": "1Gi" } } })).await;
    until(client, &all("fuse:2", "5", "OnIdle")).await;
    change(client, json!({ "updateStrategy": "OnDelete" })).await;
    until(client, &all("fuse:2", "5", "OnDelete")).await;
    change(client, json!({ "cleanPolicy": "OnFuseChanged" })).await;
    until(client, &all("fuse:2", "5", "OnDelete")).await;
    change(client, json!({ "updateStrategy": null })).await;
    until(client, &all("fuse:2", "5", "OnIdle")).await;

    let gone = DeleteParams::background();
    Api::<JuiceFSRuntime>::default_namespaced(client.clone()).delete("data", &gone).await.unwrap();
    Api::<Dataset>::default_namespaced(client.clone()).delete("data", &gone).await.unwrap();
    until(client, &Told { claim: vec![String::new(); 3], ..Told::default() }).await;
    running.abort();
    cluster.close().await;
}

/// Waits until the runtime says so of its daemons, and gives how many nodes have one.
async fn until_said(client: &Client, message: &str) -> i32 {
    let runtimes = Api::<JuiceFSRuntime>::default_namespaced(client.clone());
    let mut last = JuiceFSRuntimeStatus::default();
    let said = async {
        loop {
            last = runtimes.get("data").await.unwrap().status.unwrap_or_default();
            let mut conditions = last.conditions.iter();
            if conditions.any(|condition| condition.message.as_str() == message) {
                return last.current_fuse_number_scheduled;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let said = timeout(PATIENCE, said).await;
    said.unwrap_or_else(|_| panic!("{last:#?} does not say: {message}"))
}

#[tokio::test]
async fn options_that_daemons_do_not_have_are_told() {
    let (cluster, running) = with_dataset().await;
    let client = &cluster.client;
    change(client, json!({ "options": { "exclusive": "true", "cache-size": "1", "threads": "many" } })).await;
    until_said(client, "daemons do not have these options, or not with that value: cache-size, threads")
        .await;
    change(client, json!({ "options": { "cache-size": null, "threads": "8" } })).await;
    let runtimes = Api::<JuiceFSRuntime>::default_namespaced(client.clone());
    eventually("nothing is said of options that are known", async || {
        let status = runtimes.get("data").await.unwrap().status.unwrap_or_default();
        status.conditions.iter().all(|condition| condition.reason.as_str() != "SomeUnheeded")
    })
    .await;
    running.abort();
    cluster.close().await;
}

/// A pod whose node is not among those of its DaemonSet any more is ended at once, whoever uses it.
#[tokio::test]
async fn daemons_stay_on_their_nodes_when_others_are_wanted() {
    let (cluster, running) = with_dataset().await;
    let client = &cluster.client;
    let node = json!({ "metadata": { "name": "node-1", "labels": { "fluid.io/f-default-data": "true" } } });
    let node = serde_json::from_value(node).unwrap();
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    let pods = Api::<Pod>::default_namespaced(client.clone());
    let daemons = async || {
        let daemons = pods.list(&ListParams::default().labels("role=juicefs-fuse")).await.unwrap();
        daemons.items.into_iter().filter_map(|pod| pod.metadata.uid).collect::<Vec<_>>()
    };
    eventually("the daemon is there", async || daemons().await.len() == 1).await;
    let before = daemons().await;
    change(client, json!({ "nodeSelector": { "disk": "ssd" } })).await;
    let words = "daemons do not have these options, or not with that value: nodeSelector (stays as it was)";
    until_said(client, words).await;
    change(client, json!({ "imageTag": "2" })).await;
    until(client, &all("fuse:2", "2", "OnIdle")).await;
    let set = json!(Api::<DaemonSet>::default_namespaced(client.clone()).get("data-fuse").await.unwrap());
    let nodes = &set["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(*nodes, json!({ "fluid.io/f-default-data": "true" }));
    assert_eq!(daemons().await, before);
    running.abort();
    cluster.close().await;
}

/// Waits until something holds.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let reached = async {
        while !holds().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, reached).await.is_ok(), "never: {what}");
}

/// What `kubectl describe` says of the dataset or its runtime.
async fn events(client: &Client, of: &str) -> Vec<String> {
    let events = Api::<Event>::default_namespaced(client.clone()).list(&ListParams::default()).await.unwrap();
    let about = events.items.into_iter().filter(|event| {
        event.involved_object.kind.as_deref() == Some(of)
            && event.involved_object.name.as_deref() == Some("data")
    });
    let say =
        |event: Event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
    let mut told: Vec<String> = about.map(say).collect();
    told.sort();
    told
}

#[tokio::test]
async fn how_far_an_upgrade_is_can_be_read() {
    let (figures, registry) = Figures::new();
    let (cluster, running) = with_dataset_counting(figures).await;
    let client = &cluster.client;
    let counted = async |daemons: u32, outdated: u32| {
        eventually(&format!("{outdated} of {daemons} daemons are counted as old"), async || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let says = |name: &str, count: u32| {
                let of_data = "{namespace=\"default\",dataset=\"data\"}";
                text.contains(&format!("midflight_{name}{of_data} {count}\n"))
            };
            says("fuse_daemons", daemons) && says("fuse_daemons_outdated", outdated)
        })
        .await;
    };
    let node = json!({ "metadata": { "name": "node-1", "labels": { "fluid.io/f-default-data": "true" } } });
    let node = serde_json::from_value(node).unwrap();
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    counted(1, 0).await;
    change(client, json!({ "imageTag": "2" })).await;
    counted(1, 1).await;
    let old = "1 of 1 daemons are older than generation 2: each goes when no workload on its node uses it";
    assert_eq!(until_said(client, old).await, 1);

    let pods = Api::<Pod>::default_namespaced(client.clone());
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let daemons = pods.list(&ListParams::default().labels("role=juicefs-fuse")).await.unwrap();
    for daemon in daemons {
        pods.delete(daemon.metadata.name.as_deref().unwrap(), &at_once).await.unwrap();
    }
    counted(1, 0).await;
    until_said(client, "no daemon is older than generation 2").await;
    let expected = [
        "FuseChanged: daemons that start now are of generation 2 (fuse:2); older ones are replaced when no workload on \
         their node uses them",
        "FuseUpgraded: no daemon is older than generation 2",
    ];
    eventually("both events are told, once", async || events(client, "JuiceFSRuntime").await == expected)
        .await;
    running.abort();
    cluster.close().await;
}

/// Waits until the dataset says so of itself: its phase, whether it is ready, and why.
async fn until_standing(client: &Client, expected: [&str; 3]) {
    let datasets = Api::<Dataset>::default_namespaced(client.clone());
    eventually(&format!("{expected:?}"), async || {
        let status = &json!(datasets.get("data").await.unwrap())["status"];
        let ready = &status["conditions"][0];
        [&status["phase"], &ready["status"], &ready["message"]] == expected
    })
    .await;
}

#[tokio::test]
async fn a_dataset_that_nobody_serves_says_what_is_missing() {
    const NO_RUNTIME: &str = "there is no JuiceFSRuntime default/data to serve it: create one of the same name in the same namespace";
    let (cluster, running) = with_controllers(Figures::default()).await;
    let client = &cluster.client;
    let datasets = Api::<Dataset>::default_namespaced(client.clone());
    let runtimes = Api::<JuiceFSRuntime>::default_namespaced(client.clone());
    let place = async |place: &str| {
        let patch = Patch::Merge(json!({ "spec": { "mounts": [{ "mountPoint": place, "name": "data" }] } }));
        datasets.patch("data", &PatchParams::default(), &patch).await.map(drop)
    };
    make_dataset(client, "s3://bucket/data").await;
    let words = "nobody serves spec.mounts[0].mountPoint s3://bucket/data: this runtime serves folders of the nodes, local:///PATH";
    until_standing(client, ["NotBound", "False", words]).await;
    let told = [format!("SchemeNotServed: {words}")];
    eventually("it is told once", async || events(client, "Dataset").await == told).await;
    for way_out in
        ["local:///../../etc", "local:///%2e%2E/etc", "local:///data/.%2e/etc", "local:///..%2Fetc"]
    {
        let refused = place(way_out).await.unwrap_err().to_string();
        assert!(refused.contains("spec.mounts[0].mountPoint"), "{refused}");
    }
    place("local:///srv/data").await.unwrap();
    until_standing(client, ["NotBound", "False", NO_RUNTIME]).await;
    make_runtime(client).await;
    until_standing(client, ["Bound", "True", "workloads can mount the claim of its name"]).await;

    let gone = DeleteParams::background();
    runtimes.delete("data", &gone).await.unwrap();
    until_standing(client, ["NotBound", "False", NO_RUNTIME]).await;
    datasets.delete("data", &gone).await.unwrap();
    eventually("both are gone", async || {
        datasets.get_opt("data").await.unwrap().is_none() && runtimes.get_opt("data").await.unwrap().is_none()
    })
    .await;
    make_runtime(client).await;
    eventually("the runtime has nothing to serve", async || {
        let status = runtimes.get("data").await.unwrap().status.unwrap_or_default();
        status.fuse_reason.as_str() == "there is no Dataset default/data for it to serve"
    })
    .await;
    running.abort();
    cluster.close().await;
}

/// Every node is looked at; what is told of them does not grow with their number.
#[tokio::test]
async fn an_upgrade_of_many_nodes_costs_few_writes() {
    const NODES: u32 = 60;
    let (figures, registry) = Figures::new();
    let cluster = Cluster::open().await;
    let client = &cluster.client;
    bootstrap(client).await.unwrap();
    let writer = Arc::new(Writer::new(client.clone()));
    let running = tokio::spawn(run_datasets(Arc::clone(&writer), figures));
    make(client).await;
    until(client, &all("fuse:1", "1", "OnIdle")).await;
    let sets = Api::<DaemonSet>::default_namespaced(client.clone());
    let nodes_report = async |updated: u32| {
        let generation = sets.get("data-fuse").await.unwrap().metadata.generation;
        let status = json!({ "status": {
            "observedGeneration": generation, "desiredNumberScheduled": NODES, "currentNumberScheduled": NODES,
            "numberReady": NODES, "numberMisscheduled": 0, "updatedNumberScheduled": updated,
        } });
        sets.patch_status("data-fuse", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        let outdated = NODES - updated;
        eventually(&format!("{outdated} old daemons are counted"), async || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let of_data = "{namespace=\"default\",dataset=\"data\"}";
            text.contains(&format!("midflight_fuse_daemons_outdated{of_data} {outdated}\n"))
        })
        .await;
    };
    nodes_report(NODES).await;
    let (before, begun) = (writer.issued(), std::time::Instant::now());
    change(client, json!({ "imageTag": "2" })).await;
    until(client, &all("fuse:2", "2", "OnIdle")).await;
    for updated in 0..=NODES {
        nodes_report(updated).await;
    }
    until_said(client, "no daemon is older than generation 2").await;
    // DaemonSet, claim, phases, events, and how the daemons stand once in five seconds at most.
    let at_most = 12 + begun.elapsed().as_secs() / 5;
    let written = writer.issued() - before;
    assert!(written <= at_most, "{written} writes, at most {at_most}");
    running.abort();
    cluster.close().await;
}

#[tokio::test]
async fn the_objects_have_the_fields_of_the_seed() {
    let (cluster, running) = with_dataset().await;
    let client = &cluster.client;
    let set = json!(Api::<DaemonSet>::default_namespaced(client.clone()).get("data-fuse").await.unwrap());
    assert_eq!(set["spec"]["updateStrategy"]["type"], "OnDelete");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"], json!({ "fluid.io/f-default-data": "true" }));
    assert_eq!(pod["tolerations"], json!([{ "operator": "Exists" }]), "wherever a workload may run");
    let folder = "/runtime-mnt/juicefs/default/data";
    let container = &pod["containers"][0];
    assert_eq!(container["env"][0]["name"], "RUNTIMEINFO_FUSE_IMAGE_VERSION");
    assert_eq!(container["volumeMounts"][0]["name"], "juicefs-fuse-mount");
    assert_eq!(container["volumeMounts"][0]["mountPath"], folder);
    assert_eq!(container["volumeMounts"][0]["mountPropagation"], "Bidirectional");
    assert_eq!(pod["volumes"][1]["name"], "juicefs-fuse-meta");
    let metadata = "/runtime-mnt/juicefs/default/.meta/data".to_owned();
    assert_eq!(pod["volumes"][1]["hostPath"], json!({ "path": metadata, "type": "DirectoryOrCreate" }));
    let hook = &container["lifecycle"]["postStart"]["exec"]["command"];
    let line = format!(
        "if [ ! -z $RUNTIMEINFO_FUSE_IMAGE_VERSION ]; then \
         echo $RUNTIMEINFO_FUSE_IMAGE_VERSION > {metadata}/image-version; fi"
    );
    assert_eq!((&hook[0], &hook[1]), (&json!("sh"), &json!("-c")));
    let hook = hook[2].as_str().unwrap();
    assert!(hook.starts_with(&line), "{hook}");
    let room = tempfile::tempdir().unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(hook.replace(&metadata, room.path().to_str().unwrap()));
    for variable in container["env"].as_array().unwrap() {
        shell.env(variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap());
    }
    assert!(shell.status().unwrap().success());
    let read = |name: &str| std::fs::read_to_string(room.path().join(name)).unwrap();
    let reported = Version::reported(Some(&read("image-version")), Some(&read("labels")));
    assert_eq!(reported, Version { image: Some("fuse:1".into()), generation: Some("1".into()) });
    let volume = json!(Api::<PersistentVolume>::all(client.clone()).get("default-data").await.unwrap());
    let attributes = &volume["spec"]["csi"]["volumeAttributes"];
    assert_eq!(attributes["fluid_path"], format!("{folder}/juicefs-fuse"));
    assert_eq!(attributes["mount_pod_node_selector_key"], "fluid.io/f-default-data");
    let dataset = json!(Api::<Dataset>::default_namespaced(client.clone()).get("data").await.unwrap());
    assert_eq!(dataset["status"]["runtimes"][0]["type"], "juicefs");
    running.abort();
    cluster.close().await;
}

#[tokio::test]
async fn an_image_change_is_finished_wherever_the_operator_ended() {
    const WRITES: u64 = 12;
    for write in 0..WRITES {
        let moment = if write % 2 == 0 { Moment::NotSent } else { Moment::Acknowledged };
        let cluster = Cluster::open().await;
        let client = &cluster.client;
        let standing = bootstrap(client).await.unwrap();
        let cut_off = Arc::new(Writer::with_cut(client.clone(), Cut { write, moment }));
        let next = Arc::new(Writer::new(client.clone()));
        let running = tokio::spawn(async move {
            run(cut_off, &standing).await;
            run(next, &standing).await;
        });
        make(client).await;
        change(client, json!({ "imageTag": "2" })).await;
        let done = async {
            loop {
                let told = told(client).await;
                let generation = told.generation.clone();
                // The first image may or may not have been made into daemons.
                if ["1", "2"].contains(&generation.as_str()) && told == all("fuse:2", &generation, "OnIdle") {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(
            timeout(PATIENCE, done).await.is_ok(),
            "cut at {write}, {moment:?}: {:#?}",
            told(client).await
        );
        running.abort();
        cluster.close().await;
    }
}
