//! Watches: what is seen, in which form, and how they end.

use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::testing::{Api, GADGETS, gadget};

fn shown(events: &[Value]) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    events
        .iter()
        .map(|event| format!("{} {}", word(&event["type"]), word(&event["object"]["metadata"]["name"])))
        .collect()
}

async fn version(api: &Api) -> String {
    api.get(GADGETS).await.ok()["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_watch_shows_every_change_since_a_version() {
    let api = Api::with_gadgets().await;
    let start = version(&api).await;
    let path = format!("{GADGETS}/a");
    api.post(GADGETS, gadget("a", 1)).await.ok();
    api.merge(&path, json!({"spec": {"size": 2}})).await.ok();
    api.delete(&path, Value::Null).await.ok();
    let end = version(&api).await;
    let events = api.watch(&format!("{GADGETS}?watch=true&timeoutSeconds=1&resourceVersion={start}")).await;
    assert_eq!(shown(&events), ["ADDED a", "MODIFIED a", "DELETED a"]);
    assert_eq!(events[2]["object"]["metadata"]["resourceVersion"], json!(end), "the version of the deletion");
    assert_eq!(events[2]["object"]["spec"]["size"], 2);
}

#[tokio::test]
async fn without_a_version_a_watch_begins_with_what_there_is() {
    let api = Api::with_gadgets().await;
    api.post(GADGETS, gadget("a", 1)).await.ok();
    let events = api.watch(&format!("{GADGETS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(shown(&events), ["ADDED a"]);

    let query = "watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0";
    let events = api.watch(&format!("{GADGETS}?{query}")).await;
    assert_eq!(shown(&events), ["ADDED a", "BOOKMARK "]);
    assert_eq!(events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(events[1]["object"]["kind"], "Gadget");
    let refused = api.get(&format!("{GADGETS}?watch=1&sendInitialEvents=true")).await;
    assert_eq!(refused.code, 422);
}

#[tokio::test]
async fn selectors_turn_changes_into_comings_and_goings() {
    let api = Api::with_gadgets().await;
    let start = version(&api).await;
    let path = format!("{GADGETS}/a");
    api.post(GADGETS, gadget("a", 1)).await.ok();
    api.merge(&path, json!({"metadata": {"labels": {"on": "yes"}}})).await.ok();
    api.merge(&path, json!({"spec": {"size": 5}})).await.ok();
    let left = api.merge(&path, json!({"metadata": {"labels": {"on": "no"}}})).await.ok();
    api.delete(&path, Value::Null).await.ok();
    let query = format!("watch=1&timeoutSeconds=1&resourceVersion={start}&labelSelector=on%3Dyes");
    let events = api.watch(&format!("{GADGETS}?{query}")).await;
    assert_eq!(shown(&events), ["ADDED a", "MODIFIED a", "DELETED a"]);
    assert_eq!(events[2]["object"]["metadata"]["labels"]["on"], "yes", "as it last matched");
    assert_eq!(events[2]["object"]["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn a_version_that_is_forgotten_gets_410_inside_the_stream() {
    let api = Api::with_gadgets().await;
    let events = api.watch(&format!("{GADGETS}?watch=1&resourceVersion=0&timeoutSeconds=1")).await;
    assert!(events.is_empty());
    let api = api.reopen().await;
    let events = api.watch(&format!("{GADGETS}?watch=1&resourceVersion=1")).await;
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(event["object"]["reason"], "Expired");
}

#[tokio::test]
async fn a_watch_may_ask_for_any_time_that_is_a_number() {
    let api = Api::with_gadgets().await;
    let out_of_range = "strconv.ParseInt: parsing \"18446744073709551615\": value out of range";
    #[rustfmt::skip]
    let cases = [
        ("9223372036854775807",  200, ""),
        ("18446744073709551615", 400, out_of_range),
        ("soon",                 400, "strconv.ParseInt: parsing \"soon\": invalid syntax"),
        ("-1",                   400, "timeoutSeconds must not be negative"),
    ];
    for (seconds, code, message) in cases {
        let path = format!("{GADGETS}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        let response = api.send(http::Request::get(&path).body(Full::default()).unwrap()).await;
        assert_eq!(response.status().as_u16(), code, "{seconds}");
        if code != 200 {
            assert_eq!(api.get(&path).await.message(), message, "{seconds}");
        }
    }
}

#[tokio::test]
async fn a_watch_that_never_catches_up_ends_when_its_time_is_up_or_the_server_stops() {
    let api = Api::with_gadgets().await;
    let start = version(&api).await;
    let long = "x".repeat(30_000);
    for number in 0..12 {
        let mut object = gadget(&format!("g{number}"), 1);
        object["metadata"]["annotations"] = json!({"long": long});
        api.post(GADGETS, object).await.ok();
    }
    // One piece is taken; of what has happened much more is at hand.
    let begin = async |seconds: &str| {
        let path = format!("{GADGETS}?watch=1&resourceVersion={start}&timeoutSeconds={seconds}");
        let mut body = api.send(http::Request::get(path).body(Full::default()).unwrap()).await.into_body();
        assert!(body.frame().await.is_some());
        body
    };
    let mut timed = begin("1").await;
    assert!(timed.frame().await.is_some(), "its time is not up");
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(timed.frame().await.is_none());

    let mut stopped = begin("3600").await;
    assert!(stopped.frame().await.is_some());
    api.server.shutdown().await;
    assert!(stopped.frame().await.is_none());
}

#[tokio::test]
async fn tables_name_their_columns_once() {
    let api = Api::with_gadgets().await;
    let start = version(&api).await;
    api.post(GADGETS, gadget("a", 1)).await.ok();
    api.post(GADGETS, gadget("b", 2)).await.ok();
    let request = http::Request::get(format!("{GADGETS}?watch=1&timeoutSeconds=1&resourceVersion={start}"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let body = api.send(request.body(Full::default()).unwrap()).await.into_body();
    let bytes = body.collect().await.unwrap().to_bytes();
    let events: Vec<Value> = bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(events.len(), 2);
    assert!(events[0]["object"]["columnDefinitions"].is_array());
    assert!(events[1]["object"]["columnDefinitions"].is_null());
    assert_eq!(events[1]["object"]["rows"][0]["cells"][0], "b");
}

#[tokio::test]
async fn a_watch_ends_when_its_kind_changes_or_the_server_stops() {
    let api = std::sync::Arc::new(Api::with_gadgets().await);
    let watching = |api: std::sync::Arc<Api>| {
        tokio::spawn(async move { api.watch(&format!("{GADGETS}?watch=1")).await })
    };
    let watch = watching(api.clone());
    api.until("/metrics", |answer| {
        answer.body.as_str().is_some_and(|text| text.contains("longrunning_requests 1"))
    })
    .await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.example.com";
    api.merge(definition, json!({"spec": {"names": {"categories": ["all"]}}})).await.ok();
    assert!(watch.await.unwrap().is_empty());

    let watch = watching(api.clone());
    api.until("/metrics", |answer| {
        answer.body.as_str().is_some_and(|text| text.contains("longrunning_requests 1"))
    })
    .await;
    api.server.shutdown().await;
    assert!(watch.await.unwrap().is_empty());
}
