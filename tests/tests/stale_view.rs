//! Controllers that start with an old view of the cluster, and keep it for a while, do nothing that was right only then.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use http::{Method, Request, Uri};
use kube::Client;
use kube::api::{Api, ListParams};
use kube::client::Body;
use midflight_api::longhorn::{DataEngine, NAMESPACE};
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
    let (client, until) = (client.clone(), Instant::now() + LATE);
    let service = service_fn(move |mut request: Request<Body>| {
        let client = client.clone();
        async move {
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
    for (view, events) in
        [("all", None), ("elsewhere", None), ("nowhere", None), ("five", Some(5)), ("one", Some(1))]
    {
        let old = match (view, events) {
            (_, Some(events)) => version(&storage).await - events,
            ("elsewhere", None) => elsewhere,
            ("nowhere", None) => nowhere,
            (_, None) => before_all,
        };
        let client = behind(&storage.client, old);
        storage.replace_operator(Writer::new(client)).await;
        sleep(2 * LATE).await;
        storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
        assert_eq!(record(&storage).await, expected, "with the view {view}");
        assert_eq!(storage.endpoint("vol-1").await.unwrap(), endpoint, "with the view {view}");
    }
    load.judge().await.unwrap();
    storage.stop().await;
}
