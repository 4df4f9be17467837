//! Create, read, update, delete.

use serde_json::{Value, json};

use crate::testing::{Api, GADGETS, gadget};

#[tokio::test]
async fn an_object_lives_from_create_to_delete() {
    let api = Api::with_gadgets().await;
    let made = api.post(GADGETS, gadget("g1", 3)).await;
    assert_eq!(made.code, 201);
    let made = made.ok();
    assert_eq!(made["spec"], json!({"size": 3, "color": "red"}), "defaults are stored");
    assert_eq!(made["metadata"]["generation"], 1);
    assert!(made["metadata"]["uid"].is_string() && made["metadata"]["creationTimestamp"].is_string());
    assert_eq!(made["metadata"]["managedFields"][0]["operation"], "Update");

    let path = format!("{GADGETS}/g1");
    assert_eq!(api.get(&path).await.ok(), made);
    let again = api.post(GADGETS, gadget("g1", 3)).await;
    assert_eq!((again.code, again.reason()), (409, "AlreadyExists"));
    assert_eq!(again.message(), r#"gadgets.example.com "g1" already exists"#);

    let gone = api.delete(&path, Value::Null).await.ok();
    assert_eq!((&gone["status"], &gone["details"]["kind"]), (&json!("Success"), &json!("gadgets")));
    let missing = api.get(&path).await;
    assert_eq!((missing.code, missing.message()), (404, r#"gadgets.example.com "g1" not found"#));
    assert_eq!(missing.body["details"], json!({"name": "g1", "group": "example.com", "kind": "gadgets"}));
}

#[tokio::test]
async fn bad_objects_are_refused_in_the_words_of_kubernetes() {
    let api = Api::with_gadgets().await;
    let with = |field: &str, value: Value| {
        let mut object = gadget("g1", 3);
        *object.pointer_mut(field).unwrap() = value;
        object
    };
    #[rustfmt::skip]
    let cases = [
        ("wrong kind",       with("/kind", json!("Toy")),              422, "Invalid",    "kind: Invalid value: \"Toy\": must be Gadget"),
        ("wrong version",    with("/apiVersion", json!("a.b/v2")),     400, "BadRequest", "does not match the expected API version"),
        ("no name",          with("/metadata", json!({})),             422, "Invalid",    "name or generateName is required"),
        ("bad name",         with("/metadata/name", json!("G_1")),     422, "Invalid",    "a lowercase RFC 1123 subdomain must consist of"),
        ("other namespace",  with("/metadata", json!({"name": "g", "namespace": "kube-system"})), 400, "BadRequest", "does not match the namespace sent on the request"),
        ("too small",        with("/spec/size", json!(-1)),            422, "Invalid",    "should be greater than or equal to 0"),
        ("wrong type",       with("/spec/size", json!("x")),           422, "Invalid",    "spec.size in body must be of type integer"),
        ("rule",             with("/spec/size", json!(11)),            422, "Invalid",    "size too big"),
        ("with a version",   with("/metadata", json!({"name": "g", "resourceVersion": "7"})), 400, "BadRequest", "resourceVersion should not be set on objects to be created"),
        ("labels",           with("/metadata", json!({"name": "g", "labels": {"a": "b c"}})), 422, "Invalid", "metadata.labels: Invalid value"),
        ("labels of numbers", with("/metadata", json!({"name": "g", "labels": [1]})), 400, "BadRequest", "ObjectMeta.labels"),
        ("no object",        json!([1]),                               400, "BadRequest", "cannot unmarshal array"),
    ];
    for (name, body, code, reason, message) in cases {
        let answer = api.post(GADGETS, body).await;
        assert_eq!((answer.code, answer.reason()), (code, reason), "{name}: {}", answer.body);
        assert!(answer.message().contains(message), "{name}: {}", answer.message());
    }
}

#[tokio::test]
async fn unknown_fields_are_pruned_warned_of_or_refused() {
    let api = Api::with_gadgets().await;
    let mut object = gadget("g1", 3);
    object["spec"]["siz"] = json!(1);
    let strict = api.post(&format!("{GADGETS}?fieldValidation=Strict"), object.clone()).await;
    assert_eq!(strict.code, 400);
    assert!(
        strict.message().ends_with(r#"strict decoding error: unknown field "spec.siz""#),
        "{}",
        strict.message()
    );

    let warned = api.post(&format!("{GADGETS}?fieldValidation=Warn&dryRun=All"), object.clone()).await;
    assert_eq!(warned.headers["warning"], r#"299 - "unknown field \"spec.siz\"""#);
    let ignored = api.post(&format!("{GADGETS}?fieldValidation=Ignore"), object).await;
    assert!(ignored.headers.get("warning").is_none());
    assert_eq!(ignored.ok()["spec"].get("siz"), None);
}

#[tokio::test]
async fn names_are_generated_and_never_collide() {
    let api = Api::with_gadgets().await;
    let mut object = gadget("", 1);
    object["metadata"] = json!({"generateName": "g-"});
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let made = api.post(GADGETS, object.clone()).await.ok();
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(name.starts_with("g-") && name.len() == 7, "{name}");
        names.insert(name);
    }
    assert_eq!(names.len(), 20);
}

#[tokio::test]
async fn updates_need_the_current_version_and_keep_what_is_not_theirs() {
    let api = Api::with_gadgets().await;
    let path = format!("{GADGETS}/g1");
    let first = api.post(GADGETS, gadget("g1", 3)).await.ok();

    let blind = api.put(&path, gadget("g1", 4)).await;
    assert_eq!(blind.code, 422);
    assert!(
        blind
            .message()
            .contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update")
    );

    let mut wanted = first.clone();
    wanted["spec"]["size"] = json!(4);
    wanted["status"] = json!({"phase": "Faked"});
    wanted["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    let second = api.put(&path, wanted.clone()).await.ok();
    assert_eq!(second["metadata"]["generation"], 2);
    assert_eq!(second.get("status"), None, "status has its own endpoint");
    assert_eq!(second["metadata"]["creationTimestamp"], first["metadata"]["creationTimestamp"]);

    let stale = api.put(&path, wanted).await;
    assert_eq!((stale.code, stale.reason()), (409, "Conflict"));
    assert_eq!(
        stale.message(),
        r#"Operation cannot be fulfilled on gadgets.example.com "g1": the object has been modified; please apply your changes to the latest version and try again"#
    );

    let same = api.put(&path, second.clone()).await.ok();
    assert_eq!(same["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"], "nothing changed");

    let mut status = second.clone();
    status["status"] = json!({"phase": "Up"});
    status["spec"]["size"] = json!(9);
    status["metadata"]["labels"] = json!({"a": "b"});
    let third = api.put(&format!("{path}/status"), status).await.ok();
    assert_eq!((&third["status"]["phase"], &third["spec"]["size"]), (&json!("Up"), &json!(4)));
    assert_eq!(third["metadata"]["generation"], 2, "status does not count as content");
    assert_eq!(third["metadata"].get("labels"), None);
    assert_eq!(api.put(&format!("{GADGETS}/none"), gadget("none", 1)).await.code, 422);
    let mut absent = second;
    absent["metadata"]["name"] = json!("none");
    assert_eq!(api.put(&format!("{GADGETS}/none"), absent).await.code, 404);
}

#[tokio::test]
async fn finalizers_hold_an_object_until_they_are_removed() {
    let api = Api::with_gadgets().await;
    let path = format!("{GADGETS}/g1");
    let mut object = gadget("g1", 3);
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(GADGETS, object).await.ok();

    let marked = api.delete(&path, Value::Null).await.ok();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["generation"], 2);
    let version = marked["metadata"]["resourceVersion"].clone();
    assert_eq!(
        api.delete(&path, Value::Null).await.ok()["metadata"]["resourceVersion"],
        version,
        "once is enough"
    );

    let added =
        api.merge(&path, json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}})).await;
    assert_eq!(added.code, 422);
    assert!(added.message().contains("no new finalizers can be added if the object is being deleted"));
    let last = api.merge(&path, json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(last["metadata"].get("finalizers"), None);
    assert_eq!(api.get(&path).await.code, 404);
}

#[tokio::test]
async fn deletes_respect_preconditions() {
    let api = Api::with_gadgets().await;
    let path = format!("{GADGETS}/g1");
    let made = api.post(GADGETS, gadget("g1", 3)).await.ok();
    for wrong in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let answer = api.delete(&path, json!({"kind": "DeleteOptions", "preconditions": wrong})).await;
        assert_eq!((answer.code, answer.reason()), (409, "Conflict"), "{}", answer.body);
        assert!(answer.message().contains("in the precondition"), "{}", answer.message());
    }
    assert_eq!(api.delete(&format!("{path}?dryRun=All"), Value::Null).await.code, 200);
    assert_eq!(api.delete(&path, json!({"dryRun": ["some"]})).await.code, 422);
    let right = json!({"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}});
    api.delete(&path, right).await.ok();
    assert_eq!(api.get(&path).await.code, 404);
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let api = Api::with_gadgets().await;
    let dry = api.post(&format!("{GADGETS}?dryRun=All"), gadget("g1", 3)).await;
    assert_eq!(dry.code, 201);
    assert_eq!(dry.ok()["metadata"].get("resourceVersion"), None);
    assert_eq!(api.get(&format!("{GADGETS}/g1")).await.code, 404);
    let made = api.post(GADGETS, gadget("g1", 3)).await.ok();
    let patched = api.merge(&format!("{GADGETS}/g1?dryRun=All"), json!({"spec": {"size": 5}})).await.ok();
    assert_eq!(patched["spec"]["size"], 5);
    assert_eq!(api.get(&format!("{GADGETS}/g1")).await.ok(), made);
}

#[tokio::test]
async fn concurrent_compare_and_swap_loses_no_increment() {
    let api = std::sync::Arc::new(Api::with_gadgets().await);
    let path = format!("{GADGETS}/g1");
    api.post(GADGETS, gadget("g1", 0)).await.ok();
    let increment = |api: std::sync::Arc<Api>, path: String| async move {
        loop {
            let mut object = api.get(&path).await.ok();
            let count = object["metadata"]["labels"]["count"].as_str().unwrap_or("0").parse::<u32>().unwrap();
            object["metadata"]["labels"] = json!({"count": (count + 1).to_string()});
            match api.put(&path, object).await.code {
                200 => return,
                409 => {}
                other => panic!("{other}"),
            }
        }
    };
    let tasks: Vec<_> = (0..20).map(|_| tokio::spawn(increment(api.clone(), path.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(api.get(&path).await.ok()["metadata"]["labels"]["count"], "20");
}
