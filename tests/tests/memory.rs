//! A flood of large requests, and watchers that do not read: the server answers or refuses, and its memory
//! stays bounded.

#![expect(clippy::unwrap_used, reason = "a test that cannot reach its server has failed")]

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use http::{Request, StatusCode};
use kube::client::Body;
use midflight_tests::endpoint::Endpoint;
use midflight_tests::server::Killable;
use midflight_tests::wire::{Open, Wire};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BODY_BYTES: usize = 900 * 1024;
/// Requests that send all but the end of their body and wait: 88 MiB, where 64 may be under way.
const HELD: usize = 100;
/// At least so many of them are carried out.
const DONE: usize = 30;
/// Connections that are made at the same time, and requests that come on top of the held ones.
const AT_ONCE: usize = 8;
/// Objects that are written over and over, and how often in all.
const REWRITTEN: usize = 4;
const REWRITES: usize = 200;
const SILENT_WATCHES: usize = 300;
/// These would be sent 180 MiB each.
const DEAF_WATCHES: usize = 20;
/// What is stored (some 70 objects), what of it is under way, the events kept for watchers: 64, 64 and 32 MiB; what
/// is made of the bodies while they are looked at comes on top.
const MOST_MIB: u64 = 400;
const PATIENCE: Duration = Duration::from_secs(150);

fn large(name: &str) -> Vec<u8> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"text": "x".repeat(BODY_BYTES)},
    });
    serde_json::to_vec(&map).unwrap()
}

async fn sent(endpoint: &Endpoint, request: Request<Vec<u8>>) -> u16 {
    endpoint.call(request).await.unwrap().status.as_u16()
}

/// The bytes of a request that creates an object. Clients would send it again when it is refused.
fn creation(endpoint: &Endpoint, query: &str, name: &str) -> Vec<u8> {
    let body = large(name);
    let head = format!(
        "POST {MAPS}{query} HTTP/1.1\r\nHost: api\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        endpoint.token(),
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

/// Creates an object, and sends the last bytes only when it may.
async fn held(connection: Open, request: &[u8], mut may_end: watch::Receiver<bool>) -> u16 {
    let (most, rest) = request.split_at(request.len() - 2);
    let until = async {
        // If nobody is left to say so, the test is over.
        let _ = may_end.wait_for(|may| *may).await;
    };
    connection.exchange_in_two(most, until, rest).await.unwrap().status
}

/// Whether one of some more large requests is refused, as there is no room for all of them.
async fn some_is_refused(endpoint: &Endpoint, wire: &Wire) -> bool {
    let request = creation(endpoint, "?dryRun=All", "probe");
    let answers = join_all((0..AT_ONCE).map(|_| wire.exchange(&request))).await;
    let answers: Vec<u16> = answers.into_iter().map(|answer| answer.unwrap().status).collect();
    assert!(answers.iter().all(|status| [201, 429].contains(status)), "{answers:?}");
    answers.contains(&429)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_answered_or_refused_and_memory_stays_bounded() {
    let server = Killable::start(env!("CARGO_BIN_EXE_embedded_api"), 1000).await.unwrap();
    let endpoint = server.endpoint().await.unwrap();
    let watch = || Request::get("/api/v1/configmaps?watch=true").body(Vec::new()).unwrap();
    let silent = stream::iter(0..SILENT_WATCHES).map(|_| {
        let elsewhere = Request::get("/api/v1/secrets?watch=true").body(Vec::new()).unwrap();
        endpoint.stream(elsewhere)
    });
    let silent: Vec<_> = silent.buffer_unordered(AT_ONCE).map(Result::unwrap).collect().await;
    assert!(silent.iter().all(|(status, _)| *status == StatusCode::OK));
    let client = endpoint.client();
    let deaf = join_all((0..DEAF_WATCHES).map(|_| client.send(watch().map(Body::from)))).await;
    // Held to the end, and never looked into.
    let deaf: Vec<_> = deaf.into_iter().map(Result::unwrap).collect();
    assert!(deaf.iter().all(|answer| answer.status() == StatusCode::OK));

    let wire = endpoint.wire().unwrap();
    let connections = stream::iter(0..HELD).map(|_| wire.open()).buffer_unordered(AT_ONCE);
    let connections: Vec<Open> = connections.map(Result::unwrap).collect().await;
    let (may_end, waits) = watch::channel(false);
    let requests: Vec<_> =
        (0..HELD).map(|number| creation(&endpoint, "", &format!("held-{number}"))).collect();
    let pairs = connections.into_iter().zip(&requests);
    let all_held = join_all(pairs.map(|(connection, request)| held(connection, request, waits.clone())));
    let releasing = async {
        let deadline = Instant::now() + PATIENCE;
        while !some_is_refused(&endpoint, &wire).await {
            assert!(Instant::now() < deadline, "88 MiB are under way, and more is taken");
            sleep(Duration::from_millis(100)).await;
        }
        may_end.send_replace(true);
    };
    let (answers, ()) = tokio::join!(all_held, releasing);
    let mut counted = BTreeMap::new();
    for status in answers {
        *counted.entry(status).or_insert(0) += 1;
    }
    assert!(counted.keys().all(|status| [201, 429].contains(status)), "{counted:?}");
    assert!(counted.get(&201).is_some_and(|done| *done >= DONE), "{counted:?}");

    let rewrites = stream::iter(0..REWRITES).map(|number| {
        let name = format!("rewritten-{}", number % REWRITTEN);
        let put = Request::put(format!("{MAPS}/{name}")).header("content-type", "application/json");
        sent(&endpoint, put.body(large(&name)).unwrap())
    });
    for number in 0..REWRITTEN {
        let create = Request::post(MAPS).header("content-type", "application/json");
        let body = large(&format!("rewritten-{number}"));
        assert_eq!(sent(&endpoint, create.body(body).unwrap()).await, 201);
    }
    let rewritten: Vec<u16> = rewrites.buffer_unordered(REWRITTEN).collect().await;
    assert!(rewritten.iter().all(|status| *status == 200), "{rewritten:?}");

    let peak = server.peak_mib().unwrap();
    assert!(peak < MOST_MIB, "{peak} MiB at the most; answers: {counted:?}");
    drop((silent, deaf));
}
