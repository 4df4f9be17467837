//! A flood of large requests and silent watches: the server answers or refuses, and its memory stays bounded.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::future::join_all;
use http::{Request, StatusCode};
use midflight_tests::server::Killable;
use serde_json::json;

const FLOOD: usize = 400;
const AT_ONCE: usize = 200;
const BODY_BYTES: usize = 900 * 1024;
const WATCHES: usize = 300;
/// The flood is 350 MiB of bodies, which parsed would be more.
const MOST_MIB: u64 = 400;

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_answered_or_refused_and_memory_stays_bounded() {
    let server = Killable::start(env!("CARGO_BIN_EXE_embedded_api"), 1000).await.unwrap();
    let endpoint = server.endpoint().await.unwrap();
    let watch = "/api/v1/configmaps?watch=true";
    let opened = (0..WATCHES).map(|_| endpoint.stream(Request::get(watch).body(Vec::new()).unwrap()));
    let silent: Vec<_> = join_all(opened).await.into_iter().map(Result::unwrap).collect();
    assert!(silent.iter().all(|(status, _)| *status == StatusCode::OK));

    let large = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"},
        "data": {"text": "x".repeat(BODY_BYTES)},
    });
    let large = serde_json::to_vec(&large).unwrap();
    let answers = futures::stream::iter(0..FLOOD).map(|_| {
        let create = Request::post("/api/v1/namespaces/default/configmaps?dryRun=All")
            .header("content-type", "application/json")
            .body(large.clone())
            .unwrap();
        let endpoint = endpoint.clone();
        async move { endpoint.call(create).await.unwrap().status.as_u16() }
    });
    let mut counted = BTreeMap::new();
    let mut answers = answers.buffer_unordered(AT_ONCE);
    while let Some(status) = answers.next().await {
        *counted.entry(status).or_insert(0) += 1;
    }
    assert!(counted.keys().all(|status| [201, 429].contains(status)), "{counted:?}");
    assert!(counted.get(&201).is_some_and(|answered| *answered > 0), "{counted:?}");

    let peak = server.peak_mib().unwrap();
    assert!(peak < MOST_MIB, "{peak} MiB at the most; answers: {counted:?}");
}
