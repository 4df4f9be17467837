//! PATCH in its four forms, and scale.

use http::Method;
use serde_json::json;

use crate::testing::{APPLY, Api, GADGETS, JSON, gadget};

#[tokio::test]
async fn each_kind_of_patch_changes_the_object() {
    let api = Api::with_gadgets().await;
    let path = format!("{GADGETS}/g1");
    api.post(GADGETS, gadget("g1", 3)).await.ok();
    let merged =
        api.merge(&path, json!({"spec": {"size": 4}, "metadata": {"labels": {"a": "b"}}})).await.ok();
    assert_eq!((&merged["spec"]["size"], &merged["metadata"]["labels"]["a"]), (&json!(4), &json!("b")));

    let json_patch = "application/json-patch+json";
    let hold = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/x"]},
    ]);
    let held = api.ask(Method::PATCH, &path, json_patch, hold.clone()).await.ok();
    assert_eq!(held["metadata"]["finalizers"], json!(["example.com/x"]));
    let failed = api.ask(Method::PATCH, &path, json_patch, hold).await;
    assert_eq!((failed.code, failed.reason()), (422, "Invalid"));

    let unsupported =
        api.ask(Method::PATCH, &path, "application/strategic-merge-patch+json", json!({})).await;
    assert_eq!((unsupported.code, unsupported.reason()), (415, "UnsupportedMediaType"));
    assert_eq!(api.ask(Method::PATCH, &path, JSON, json!({})).await.code, 415);
    assert_eq!(api.merge(&format!("{GADGETS}/none"), json!({})).await.code, 404);

    let stale = api.merge(&path, json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 1}})).await;
    assert_eq!((stale.code, stale.reason()), (409, "Conflict"));
    let version = api.get(&path).await.ok()["metadata"]["resourceVersion"].clone();
    let same = api.merge(&path, json!({"spec": {"size": 4}})).await.ok();
    assert_eq!(same["metadata"]["resourceVersion"], version, "a patch that changes nothing writes nothing");
}

#[tokio::test]
async fn apply_creates_owns_and_conflicts() {
    let api = Api::with_gadgets().await;
    let path = format!("{GADGETS}/g1");
    let unnamed = api.ask(Method::PATCH, &path, APPLY, gadget("g1", 3)).await;
    assert_eq!(unnamed.code, 422);
    let made = api.ask(Method::PATCH, &format!("{path}?fieldManager=one"), APPLY, gadget("g1", 3)).await;
    assert_eq!(made.code, 201);
    let made = made.ok();
    let again = api.ask(Method::PATCH, &format!("{path}?fieldManager=one"), APPLY, gadget("g1", 3)).await;
    assert_eq!(again.code, 200);
    assert_eq!(again.ok()["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);

    let conflict = api.ask(Method::PATCH, &format!("{path}?fieldManager=two"), APPLY, gadget("g1", 4)).await;
    assert_eq!((conflict.code, conflict.reason()), (409, "Conflict"), "{}", conflict.body);
    assert_eq!(conflict.body["details"]["causes"][0]["reason"], "FieldManagerConflict");
    let forced = api
        .ask(Method::PATCH, &format!("{path}?fieldManager=two&force=true"), APPLY, gadget("g1", 4))
        .await
        .ok();
    assert_eq!(forced["spec"]["size"], 4);

    let status = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "status": {"phase": "Up"}});
    let reported =
        api.ask(Method::PATCH, &format!("{path}/status?fieldManager=three"), APPLY, status).await.ok();
    assert_eq!(
        (&reported["status"]["phase"], &reported["metadata"]["generation"]),
        (&json!("Up"), &json!(2))
    );
}

#[tokio::test]
async fn concurrent_patches_without_a_version_all_stick() {
    let api = std::sync::Arc::new(Api::with_gadgets().await);
    api.post(GADGETS, gadget("g1", 0)).await.ok();
    let patch = |number: usize| {
        let api = api.clone();
        async move {
            let labels = json!({"metadata": {"labels": {format!("l{number}"): "x"}}});
            api.merge(&format!("{GADGETS}/g1"), labels).await.ok();
        }
    };
    let tasks: Vec<_> = (0..20).map(|number| tokio::spawn(patch(number))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let labels =
        api.get(&format!("{GADGETS}/g1")).await.ok()["metadata"]["labels"].as_object().unwrap().len();
    assert_eq!(labels, 20);
}

#[tokio::test]
async fn scale_reads_and_writes_the_replicas() {
    let api = Api::with_gadgets().await;
    let path = format!("{GADGETS}/g1/scale");
    api.post(GADGETS, gadget("g1", 3)).await.ok();
    assert_eq!(api.get(&path).await.ok()["spec"], json!({}));
    let scaled = api.merge(&path, json!({"spec": {"replicas": 5}})).await.ok();
    assert_eq!((&scaled["kind"], &scaled["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    assert_eq!(api.get(&format!("{GADGETS}/g1")).await.ok()["spec"]["replicas"], 5);
    let refused = api.merge(&path, json!({"spec": {"replicas": -1}})).await;
    assert_eq!((refused.code, refused.reason()), (422, "Invalid"));
}
