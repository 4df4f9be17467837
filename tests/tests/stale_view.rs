//! Controllers that start with an old view of the cluster, and keep it for a while, do nothing that was right only then.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::time::Duration;

use http::{Method, Request, Uri};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{DataEngine, NAMESPACE, Node, Replica, TargetMoveState};
use midflight_api::{VolumeRecord, VolumeRecordSpec};
use midflight_operator::Writer;
use midflight_tests::load::Load;
use midflight_tests::storage::Storage;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};
use tower::service_fn;

/// For how long a view stays old.
const LATE: Duration = Duration::from_millis(1500);

/// A client whose lists are as they were at a version, and whose watches begin late.
fn behind(client: &Client, version: u64) -> Client {
    partly_behind(client, version, "")
}

/// The same, of the kind at the end of this path alone.
fn partly_behind(client: &Client, version: u64, kind: &'static str) -> Client {
    let (client, until) = (client.clone(), Instant::now() + LATE);
    let service = service_fn(move |mut request: Request<Body>| {
        let client = client.clone();
        async move {
            if !request.uri().path().ends_with(kind) {
                return client.send(request).await;
            }
            let query = request.uri().query().unwrap_or_default().to_owned();
            let is_watch = query.contains("watch=");
            let is_first_page = query.contains("limit=") && !query.contains("continue=");
            if is_watch {
                sleep_until(until).await;
            } else if request.method() == Method::GET && is_first_page && Instant::now() < until {
                let path = request.uri().path();
                let old = format!("{path}?{query}&resourceVersion={version}&resourceVersionMatch=Exact");
                *request.uri_mut() = old.parse::<Uri>().expect("a path and a query");
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// How often something was written, in all.
async fn version(storage: &Storage) -> u64 {
    let list = storage.volumes().list(&ListParams::default()).await.unwrap();
    list.metadata.resource_version.unwrap().parse().unwrap()
}

async fn record(storage: &Storage) -> VolumeRecordSpec {
    let records: Api<VolumeRecord> = Api::namespaced(storage.client.clone(), NAMESPACE);
    records.get("vol-1").await.unwrap().spec
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_view_leads_to_nothing_that_was_right_only_then() {
    let mut storage = Storage::start(3, DataEngine::V2).await.unwrap();
    let before_all = version(&storage).await;
    let spec = json!({
        "size": (4 << 20).to_string(), "numberOfReplicas": 3, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-2",
    });
    storage.create_volume("vol-1", spec).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let elsewhere = version(&storage).await;
    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    let nowhere = version(&storage).await;
    storage.change_volume("vol-1", json!({ "nodeID": "node-1" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();

    let endpoint = storage.endpoint("vol-1").await.unwrap();
    let load = Load::on(&endpoint, "vol-1", 1).unwrap();
    let expected = record(&storage).await;
    for (view, events) in [
        ("all", None),
        ("elsewhere", None),
        ("nowhere", None),
        ("five", Some(5)),
        ("one", Some(1)),
        ("of the volume", None),
    ] {
        let old = match (view, events) {
            (_, Some(events)) => version(&storage).await - events,
            ("elsewhere", None) => elsewhere,
            ("nowhere" | "of the volume", None) => nowhere,
            (_, None) => before_all,
        };
        // The record, the engine and the instance managers are as they are now.
        let kind = if view == "of the volume" { "/volumes" } else { "" };
        let client = partly_behind(&storage.client, old, kind);
        storage.replace_operator(Writer::new(client)).await;
        sleep(2 * LATE).await;
        storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
        assert_eq!(record(&storage).await, expected, "with the view {view}");
        assert_eq!(storage.endpoint("vol-1").await.unwrap(), endpoint, "with the view {view}");
    }
    load.judge().await.unwrap();
    storage.stop().await;
}

/// All that old views could make controllers change, apart from what the record has.
#[derive(Debug, PartialEq, Eq)]
struct Settled {
    replicas: BTreeSet<String>,
    snapshots: BTreeSet<String>,
    layers: Vec<String>,
    backups: BTreeSet<String>,
    in_target: BTreeSet<String>,
}

fn names<K: ResourceExt>(all: impl IntoIterator<Item = K>) -> BTreeSet<String> {
    all.into_iter().map(|object| object.name_any()).collect()
}

async fn settled(storage: &Storage) -> Settled {
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = ListParams::default();
    let folder = storage.room("backups/volumes/vol-1");
    Settled {
        replicas: names(replicas.list(&all).await.unwrap()),
        snapshots: names(storage.snapshots().list(&all).await.unwrap()),
        layers: storage.layers("vol-1").await.unwrap(),
        backups: names(storage.backups().list(&all).await.unwrap()),
        in_target: std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect(),
    }
}

async fn move_target(storage: &Storage, node: &str) {
    storage.change_volume("vol-1", json!({ "targetNodeID": node })).await.unwrap();
    let there = async || {
        let status = storage.volumes().get("vol-1").await?.status.unwrap_or_default();
        let is_done = status.target_move.state == TargetMoveState::Done;
        Ok((status.current_target_node_id == node && is_done).then_some(()))
    };
    storage.until(&format!("the target is on {node}"), there).await.unwrap();
}

/// Asks for a node to be emptied, or takes it back.
async fn empty(storage: &Storage, node: &str, asked: bool) {
    let nodes: Api<Node> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let change = Patch::Merge(json!({ "spec": { "evictionRequested": asked, "allowScheduling": !asked } }));
    nodes.patch(node, &PatchParams::default(), &change).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_backups_targets_and_replicas_stay_as_they_are_under_an_old_view() {
    let mut storage = Storage::start(3, DataEngine::V2).await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    let mut views = vec![("before all", version(&storage).await)];
    let spec = json!({
        "size": (4 << 20).to_string(), "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume("vol-1", spec).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    storage.create_snapshot("vol-1", "monday").await.unwrap();
    views.push(("a snapshot is wanted that is gone", version(&storage).await));
    let ready = async || {
        let status = storage.snapshots().get("monday").await?.status.unwrap_or_default();
        Ok(status.ready_to_use.then_some(()))
    };
    storage.until("the snapshot is there", ready).await.unwrap();
    storage.take_snapshot("vol-1", "tuesday").await.unwrap();
    storage.create_backup("monday", "b-0", None).await.unwrap();
    views.push(("a backup is wanted that is gone", version(&storage).await));
    storage.back_up("tuesday", "b-1").await.unwrap();
    storage.backups().delete("b-0", &DeleteParams::default()).await.unwrap();
    views.push(("a backup is to go, and so it is", version(&storage).await));
    let gone = async || Ok(storage.backups().get_opt("b-0").await?.is_none().then_some(()));
    storage.until("the backup is gone", gone).await.unwrap();
    storage.remove_snapshot("monday").await.unwrap();
    move_target(&storage, "node-2").await;
    views.push(("the target is away", version(&storage).await));
    move_target(&storage, "node-1").await;

    // A node is emptied, and taken back; its replica has gone to another.
    let of = async || settled(&storage).await.replicas;
    let before = of().await;
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = replicas.list(&ListParams::default()).await.unwrap();
    let on = |replica: &Replica| replica.spec.instance.node_id.to_string();
    let left = all.iter().map(on).find(|node| node != "node-1").unwrap();
    empty(&storage, &left, true).await;
    views.push(("a node is to be emptied that is not", version(&storage).await));
    let moved = async || {
        let now = of().await;
        Ok((now.len() == 2 && now != before).then_some(()))
    };
    storage.until("the replica has gone to another node", moved).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    empty(&storage, &left, false).await;
    // While nobody looked, the other one was to be emptied as well.
    let all = replicas.list(&ListParams::default()).await.unwrap();
    let right = all.iter().map(on).find(|node| node != "node-1").unwrap();
    storage.let_in(&left, true).await.unwrap();
    storage.stop_operator().await;
    empty(&storage, &right, true).await;
    views.push(("the node of a replica is to be emptied", version(&storage).await));
    empty(&storage, &right, false).await;
    storage.replace_operator(Writer::new(storage.client.clone())).await;

    let load = Load::on(&storage.endpoint("vol-1").await.unwrap(), "vol-1", 1).unwrap();
    let kept = async || Ok((storage.layers("vol-1").await? == ["tuesday"]).then_some(()));
    storage.until("the engine has the snapshot that was kept", kept).await.unwrap();
    let (expected, members) = (settled(&storage).await, record(&storage).await);
    for (view, old) in views {
        let client = behind(&storage.client, old);
        storage.replace_operator(Writer::new(client)).await;
        sleep(2 * LATE).await;
        storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
        assert_eq!(settled(&storage).await, expected, "with the view {view}");
        assert_eq!(record(&storage).await, members, "with the view {view}");
    }
    load.judge().await.unwrap();
    storage.stop().await;
}
