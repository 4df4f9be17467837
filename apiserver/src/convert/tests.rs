//! Answers of webhooks as a table, and objects that live in two versions behind a real one.

use std::sync::{Arc, Mutex};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::{checked, verdict};
use crate::kind::ReviewVersion;
use crate::testing::{APPLY, Api, JSON, Webhook};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const V1: &str = "/apis/example.com/v1/namespaces/default/hosts";
const V2: &str = "/apis/example.com/v2/namespaces/default/hosts";

#[test]
fn an_answer_must_be_to_the_question() {
    let question =
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {"uid": "u"}});
    let answer = |response: Value| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
    let success = json!({"status": "Success"});
    #[rustfmt::skip]
    let cases = [
        ("good",         answer(json!({"uid": "u", "result": success, "convertedObjects": [{}]})), Ok(vec![json!({})])),
        ("empty",        answer(json!({"uid": "u", "result": success})),                           Ok(vec![])),
        ("another's",    answer(json!({"uid": "x", "result": success})),                           Err(r#"expected response.uid="u", got "x""#)),
        ("unsuccessful", answer(json!({"uid": "u", "result": {"status": "Failure"}})),             Err("response.result.status was 'Failure', not 'Success'")),
        ("with a word",  answer(json!({"uid": "u", "result": {"status": "Failure", "message": "no"}})), Err("no")),
        ("nothing",      answer(json!(null)),                                                      Err("no response provided")),
        ("other kind",   json!({"apiVersion": "v1", "kind": "Pod"}),
            Err("expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /v1, Kind=Pod")),
    ];
    for (name, answer, expected) in cases {
        let found = verdict(ReviewVersion::V1, &question, answer);
        assert_eq!(found, expected.map_err(str::to_owned), "{name}");
    }
    let lax = verdict(ReviewVersion::V1beta1, &question, answer(json!({"uid": "x", "result": success})));
    assert_eq!(lax, Ok(vec![]), "the older review checks less");
}

#[test]
fn what_comes_back_is_the_same_object() {
    let old = json!({"apiVersion": "e/v1", "kind": "K", "metadata": {
        "name": "n", "namespace": "s", "uid": "u", "labels": {"a": "b"}, "finalizers": ["f"]}});
    let new = |change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        new["apiVersion"] = json!("e/v2");
        change(&mut new);
        checked(&old, new, "e/v2")
    };
    let kept = new(&|object| {
        object["metadata"]["finalizers"] = json!(["other"]);
        object["metadata"]["labels"] = json!({"c": "d"});
        object["spec"] = json!(1);
    });
    let kept = kept.unwrap();
    assert_eq!(kept["metadata"]["finalizers"], json!(["f"]));
    assert_eq!(kept["metadata"]["labels"], json!({"c": "d"}));
    assert_eq!(kept["spec"], 1);
    type Change = fn(&mut Value);
    #[rustfmt::skip]
    let refused: [(Change, &str); 6] = [
        (|new| new["apiVersion"] = json!("e/v1"),           "returned invalid object at index 0: invalid groupVersion (expected e/v2, received e/v1)"),
        (|new| new["kind"] = json!("L"),                    "returned invalid object at index 0: invalid kind (expected K, received L)"),
        (|new| new["metadata"]["name"] = json!("m"),        "returned invalid object: must have the same name: n != m"),
        (|new| new["metadata"]["uid"] = json!("v"),         "returned invalid object: must have the same UID: u != v"),
        (|new| new["metadata"]["labels"] = json!({"a": 1}), "returned invalid metadata: metadata.labels[a] must be a string, but is number in converted object"),
        (|new| new["metadata"]["labels"] = json!([]),       "returned invalid metadata: invalid metadata.labels of type array in converted object"),
    ];
    for (change, expected) in refused {
        assert_eq!(new(&change), Err(expected.to_owned()));
    }
}

/// v1 has `spec.address`, `host:port`; v2 has `spec.host` and `spec.port`.
fn convert(object: &Value, to: &str) -> Value {
    let mut object = object.clone();
    if object["apiVersion"] == to {
        return object;
    }
    object["apiVersion"] = json!(to);
    let spec = object["spec"].clone();
    object["spec"] = match to {
        "example.com/v1" => {
            let part = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
            json!({"address": format!("{}:{}", part("host"), part("port"))})
        }
        _ => {
            let address = spec["address"].as_str().unwrap_or_default();
            let (host, port) = address.split_once(':').unwrap_or((address, ""));
            json!({"host": host, "port": port})
        }
    };
    object
}

fn answer(review: &Value) -> Value {
    let request = &review["request"];
    let to = request["desiredAPIVersion"].as_str().unwrap();
    let objects = request["objects"].as_array().unwrap().iter().map(|object| convert(object, to));
    json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": {
        "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects.collect::<Vec<_>>()}})
}

#[allow(clippy::needless_pass_by_value, reason = "callers give a literal")]
fn definition(client: Value) -> Value {
    let text = json!({"type": "string"});
    let version = |name: &str, storage: bool, fields: Value| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": fields},
                "status": {"type": "object", "properties": {"phase": text}}}}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "hosts.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "hosts", "kind": "Host"},
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}},
            "versions": [version("v1", true, json!({"address": text})), version("v2", false, json!({"host": text, "port": text}))]}})
}

fn v1(name: &str, address: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Host", "metadata": {"name": name}, "spec": {"address": address}})
}

fn v2(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Host", "metadata": {"name": name}, "spec": {"host": host, "port": port}})
}

#[tokio::test]
async fn objects_have_all_versions() {
    let webhook = Webhook::start(|review| Some(answer(review))).await;
    let api = Api::open().await;
    let client = json!({"url": webhook.url, "caBundle": webhook.ca_bundle});
    api.post(DEFINITIONS, definition(client)).await.ok();

    let made = api.post(V2, v2("a", "here", "80")).await.ok();
    assert_eq!(
        (&made["apiVersion"], &made["spec"]),
        (&json!("example.com/v2"), &json!({"host": "here", "port": "80"}))
    );
    assert_eq!(api.get(&format!("{V1}/a")).await.ok()["spec"], json!({"address": "here:80"}));
    api.post(V1, v1("b", "there:90")).await.ok();
    let since = api.get(V2).await.ok()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let patched = api.merge(&format!("{V2}/b"), json!({"spec": {"port": "91"}})).await.ok();
    assert_eq!(patched["spec"], json!({"host": "there", "port": "91"}));
    api.merge(&format!("{V2}/b/status"), json!({"status": {"phase": "Up"}})).await.ok();
    let stored = api.get(&format!("{V1}/b")).await.ok();
    assert_eq!((&stored["spec"]["address"], &stored["status"]["phase"]), (&json!("there:91"), &json!("Up")));

    let list = api.get(&format!("{V2}?limit=1")).await.ok();
    assert_eq!(list["items"][0]["spec"]["host"], "here");
    assert_eq!(list["metadata"]["remainingItemCount"], 1);
    let rest = format!("{V2}?limit=1&continue={}", list["metadata"]["continue"].as_str().unwrap());
    assert_eq!(api.get(&rest).await.ok()["items"][0]["spec"]["host"], "there");

    api.delete(&format!("{V2}/b"), Value::Null).await.ok();
    let seen = api.watch(&format!("{V2}?watch=1&timeoutSeconds=1&resourceVersion={since}")).await;
    let seen: Vec<_> = seen
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), &event["object"]["spec"]["port"]))
        .collect();
    assert_eq!(seen, [("MODIFIED", &json!("91")), ("MODIFIED", &json!("91")), ("DELETED", &json!("91"))]);
}

#[tokio::test]
async fn managers_own_fields_of_the_version_they_wrote() {
    let webhook = Webhook::start(|review| Some(answer(review))).await;
    let api = Api::open().await;
    let client = json!({"url": webhook.url, "caBundle": webhook.ca_bundle});
    api.post(DEFINITIONS, definition(client)).await.ok();
    let apply = async |path: &str, manager: &str, body: Value| {
        api.ask(Method::PATCH, &format!("{path}/a?fieldManager={manager}"), APPLY, body).await
    };
    apply(V1, "one", v1("a", "here:80")).await.ok();
    let conflict = apply(V2, "two", v2("a", "here", "81")).await;
    assert_eq!(conflict.code, 409);
    assert_eq!(conflict.message(), r#"Apply failed with 1 conflict: conflict with "one": .spec.address"#);

    let shared = apply(V2, "two", v2("a", "here", "80")).await.ok();
    let owners = shared["metadata"]["managedFields"].as_array().unwrap();
    let owners: Vec<_> =
        owners.iter().map(|one| (&one["manager"], &one["apiVersion"], &one["fieldsV1"])).collect();
    // One who changed nothing has no time, and comes first.
    assert_eq!(
        owners,
        [
            (&json!("two"), &json!("example.com/v2"), &json!({"f:spec": {"f:host": {}, "f:port": {}}})),
            (&json!("one"), &json!("example.com/v1"), &json!({"f:spec": {"f:address": {}}})),
        ]
    );
    // A plain write in one version takes the fields of managers of both.
    api.merge(&format!("{V2}/a?fieldManager=three"), json!({"spec": {"port": "82"}})).await.ok();
    let taken = api.get(&format!("{V1}/a")).await.ok();
    let owners = taken["metadata"]["managedFields"].as_array().unwrap();
    let owners: Vec<_> = owners.iter().map(|one| (&one["manager"], &one["fieldsV1"])).collect();
    assert_eq!(
        owners,
        [
            (&json!("two"), &json!({"f:spec": {"f:host": {}}})),
            (&json!("three"), &json!({"f:spec": {"f:port": {}}})),
        ]
    );
}

#[tokio::test]
async fn a_webhook_that_cannot_be_asked_stops_what_needs_it_and_nothing_else() {
    let api = Api::open().await;
    let nobody = json!({"service": {"namespace": "n", "name": "s", "path": "/convert"}});
    api.post(DEFINITIONS, definition(nobody)).await.ok();
    api.post(V1, v1("a", "here:80")).await.ok();
    let since = api.get(V1).await.ok()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let one = format!("{V2}/a");
    #[rustfmt::skip]
    let requests = [
        (Method::GET,    V2,   json!(null)),
        (Method::GET,    &one, json!(null)),
        (Method::POST,   V2,   v2("b", "there", "90")),
        (Method::PUT,    &one, {
            let mut new = v2("a", "there", "90");
            new["metadata"]["resourceVersion"] = json!(since);
            new
        }),
        (Method::DELETE, &one, json!(null)),
        (Method::DELETE, V2,   json!(null)),
    ];
    for (method, path, body) in requests {
        let asked = format!("{method} {path}");
        let answer = api.ask(method, path, JSON, body).await;
        assert_eq!(answer.code, 500, "{asked}: {}", answer.body);
        let begins = "conversion webhook for example.com/";
        assert!(answer.message().starts_with(begins), "{asked}: {}", answer.message());
        assert!(
            answer.message().contains(r#"Post "https://s.n.svc:443/convert?timeout=30s""#),
            "{asked}: {}",
            answer.message()
        );
    }
    let list = api.get(V1).await.ok();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["metadata"]["resourceVersion"], since, "nothing was written");

    let watched = api.watch(&format!("{V2}?watch=1&timeoutSeconds=5")).await;
    assert_eq!((&watched[0]["type"], &watched[0]["object"]["code"]), (&json!("ERROR"), &json!(500)));
    api.merge(&format!("{V1}/a"), json!({"spec": {"address": "there:80"}})).await.ok();
    api.delete(&format!("{V1}/a"), Value::Null).await.ok();
    // What was never stored needs nobody.
    assert_eq!(api.get(V2).await.ok()["items"], json!([]));
}

#[tokio::test]
async fn a_new_stored_version_leaves_old_objects_readable() {
    let asked = Arc::new(Mutex::new(0));
    let counted = asked.clone();
    let webhook = Webhook::start(move |review| {
        *counted.lock().unwrap() += review["request"]["objects"].as_array().unwrap().len();
        Some(answer(review))
    })
    .await;
    let api = Api::open().await;
    let client = json!({"url": webhook.url, "caBundle": webhook.ca_bundle});
    api.post(DEFINITIONS, definition(client)).await.ok();
    let names: Vec<String> = (0..300).map(|n| format!("h{n:03}")).collect();
    join_all(names.iter().map(|name| api.post(V1, v1(name, "here:80")))).await;
    let path = format!("{DEFINITIONS}/hosts.example.com");
    let mut crd = api.get(&path).await.ok();
    for (version, stored) in [(0, false), (1, true)] {
        crd["spec"]["versions"][version]["storage"] = json!(stored);
    }
    api.put(&path, crd).await.ok();
    assert_eq!(*asked.lock().unwrap(), 0, "nobody asked for another version");

    let list = api.get(V2).await.ok();
    assert!(
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|item| item["spec"] == json!({"host": "here", "port": "80"}))
    );
    assert_eq!(*asked.lock().unwrap(), 300, "each object is asked for once");
    api.merge(&format!("{V2}/h000"), json!({"spec": {"host": "there"}})).await.ok();
    let before = *asked.lock().unwrap();
    assert_eq!(api.get(&format!("{V2}/h000")).await.ok()["spec"]["host"], "there");
    assert_eq!(*asked.lock().unwrap(), before, "it is stored in the new version now");
    assert_eq!(api.get(&format!("{V1}/h000")).await.ok()["spec"]["address"], "there:80");

    let api = api.reopen().await;
    assert_eq!(api.get(&format!("{V1}/h001")).await.ok()["spec"]["address"], "here:80");
    assert_eq!(api.get(&format!("{V2}/h001")).await.ok()["spec"]["host"], "here");
}
