//! Kinds with rules of their own: definitions, namespaces, pods, events.

use http::Method;
use serde_json::{Value, json};

use crate::testing::{Api, GADGETS, JSON, MERGE, gadget, gadget_definition};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[tokio::test]
async fn a_definition_is_in_force_at_once_and_over_a_restart() {
    let api = Api::with_gadgets().await;
    let stored = api.get(&format!("{DEFINITIONS}/gadgets.example.com")).await.ok();
    let conditions = stored["status"]["conditions"].as_array().unwrap();
    for kind in ["NamesAccepted", "Established"] {
        assert!(conditions.iter().any(|one| one["type"] == kind && one["status"] == "True"), "{kind}");
    }
    api.post(GADGETS, gadget("g1", 1)).await.ok();
    let api = api.reopen().await;
    assert_eq!(api.get(&format!("{GADGETS}/g1")).await.ok()["spec"]["size"], 1);
}

#[tokio::test]
async fn a_changed_definition_shows_its_defaults_on_old_objects() {
    let api = Api::with_gadgets().await;
    let old = api.post(GADGETS, gadget("g1", 1)).await.ok();
    let mut definition = api.get(&format!("{DEFINITIONS}/gadgets.example.com")).await.ok();
    let spec = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["shape"] = json!({"type": "string", "default": "round"});
    api.put(&format!("{DEFINITIONS}/gadgets.example.com"), definition).await.ok();
    let shown = api.get(&format!("{GADGETS}/g1")).await.ok();
    assert_eq!(shown["spec"]["shape"], "round");
    assert_eq!(shown["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"]);
    let listed = api.get(GADGETS).await.ok();
    assert_eq!(listed["items"][0]["spec"]["shape"], "round");
}

#[tokio::test]
async fn a_kind_whose_definition_is_being_deleted_takes_nothing_new_and_says_so() {
    let api = Api::with_gadgets().await;
    let mut held = gadget("held", 1);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(GADGETS, held).await.ok();
    let verbs = async || {
        let list = api.get("/apis/example.com/v1").await.ok();
        list["resources"][0]["verbs"].clone()
    };
    assert!(verbs().await.as_array().unwrap().contains(&json!("create")));
    api.ask(Method::DELETE, &format!("{DEFINITIONS}/gadgets.example.com"), JSON, Value::Null).await.ok();
    assert_eq!(verbs().await, json!(["delete", "deletecollection", "get", "list", "watch"]));
    let refused = api.post(GADGETS, gadget("late", 1)).await;
    assert_eq!((refused.code, refused.reason()), (403, "Forbidden"));
    let why = "is forbidden: create not allowed while custom resource definition is terminating";
    assert_eq!(refused.message(), format!("gadgets.example.com \"late\" {why}"));

    // What is there can be read and let go.
    api.get(&format!("{GADGETS}/held")).await.ok();
    let free = json!({"metadata": {"finalizers": null}});
    api.ask(Method::PATCH, &format!("{GADGETS}/held"), MERGE, free).await.ok();
    let gone = async {
        while api.get(&format!("{DEFINITIONS}/gadgets.example.com")).await.code != 404 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(150), gone).await.expect("the definition goes");
    let unknown = async {
        while api.get("/apis/example.com/v1").await.code != 404 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(150), unknown).await.expect("its kind goes with it");
}

#[tokio::test]
async fn a_deleted_definition_takes_its_objects_along() {
    let api = Api::with_gadgets().await;
    api.post(GADGETS, gadget("g1", 1)).await.ok();
    let path = format!("{DEFINITIONS}/gadgets.example.com");
    let marked = api.delete(&path, Value::Null).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    api.until(&path, |answer| answer.code == 404).await;
    api.until(GADGETS, |answer| answer.code == 404).await;
    api.post(DEFINITIONS, gadget_definition()).await.ok();
    assert_eq!(api.get(GADGETS).await.ok()["items"], json!([]), "nothing comes back");
}

#[tokio::test]
async fn bad_definitions_are_refused() {
    let api = Api::open().await;
    let mut wrong = gadget_definition();
    wrong["metadata"]["name"] = json!("toys.example.com");
    let answer = api.post(DEFINITIONS, wrong).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    let mut shapeless = gadget_definition();
    shapeless["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] =
        json!({});
    assert_eq!(api.post(DEFINITIONS, shapeless).await.code, 422);
    assert_eq!(api.get("/apis/example.com/v1").await.code, 404);
}

#[tokio::test]
async fn namespaces_must_exist_and_are_emptied() {
    let api = Api::with_gadgets().await;
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        assert_eq!(api.get(&format!("/api/v1/namespaces/{name}")).await.ok()["status"]["phase"], "Active");
    }
    let inside = "/apis/example.com/v1/namespaces/mine/gadgets";
    let missing = api.post(inside, gadget("g1", 1)).await;
    assert_eq!((missing.code, missing.message()), (404, r#"namespaces "mine" not found"#));
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "mine"}})).await.ok();
    let mut held = gadget("g1", 1);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(inside, held).await.ok();
    api.post(inside, gadget("g2", 1)).await.ok();

    let marked = api.delete("/api/v1/namespaces/mine", Value::Null).await.ok();
    assert_eq!(marked["status"]["phase"], "Terminating");
    let late = api.post(inside, gadget("g3", 1)).await;
    assert_eq!((late.code, late.reason()), (403, "Forbidden"));
    assert!(late.message().contains("because it is being terminated"), "{}", late.message());
    assert_eq!(late.body["details"]["causes"][0]["reason"], "NamespaceTerminating");

    let remaining = |answer: &crate::testing::Answer| {
        let conditions = answer.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "NamespaceFinalizersRemaining" && one["status"] == "True")
    };
    api.until("/api/v1/namespaces/mine", remaining).await;
    assert_eq!(api.get(&format!("{inside}/g2")).await.code, 404);
    api.merge(&format!("{inside}/g1"), json!({"metadata": {"finalizers": null}})).await.ok();
    api.until("/api/v1/namespaces/mine", |answer| answer.code == 404).await;
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn pods_are_bound_once_and_stop_gracefully() {
    let api = Api::open().await;
    let pods = "/api/v1/namespaces/default/pods";
    let made = api.post(pods, pod("p")).await.ok();
    assert_eq!(
        (&made["status"]["phase"], &made["status"]["qosClass"]),
        (&json!("Pending"), &json!("BestEffort"))
    );
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    assert_eq!(api.post(&format!("{pods}/p/binding"), binding.clone()).await.code, 201);
    let again = api.post(&format!("{pods}/p/binding"), binding).await;
    assert_eq!((again.code, again.reason()), (409, "Conflict"));
    assert!(again.message().contains(r#"is already assigned to node "n1""#), "{}", again.message());

    let stopping = api.delete(&format!("{pods}/p"), Value::Null).await.ok();
    assert_eq!(stopping["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(api.get(&format!("{pods}/p")).await.code, 200, "its node has not stopped it yet");
    let stopped = api.delete(&format!("{pods}/p"), json!({"gracePeriodSeconds": 0})).await.ok();
    assert_eq!(stopped["kind"], "Pod");
    assert_eq!(api.get(&format!("{pods}/p")).await.code, 404);

    api.post(pods, pod("unbound")).await.ok();
    api.delete(&format!("{pods}/unbound"), Value::Null).await.ok();
    assert_eq!(api.get(&format!("{pods}/unbound")).await.code, 404);
}

#[tokio::test]
async fn built_in_kinds_take_strategic_patches() {
    let api = Api::open().await;
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("p")).await.ok();
    let strategic = "application/strategic-merge-patch+json";
    let patch =
        json!({"spec": {"containers": [{"name": "c", "image": "j"}]}, "metadata": {"labels": {"a": "b"}}});
    let patched = api.ask(Method::PATCH, &format!("{pods}/p"), strategic, patch).await.ok();
    assert_eq!(patched["spec"]["containers"].as_array().unwrap().len(), 1, "merged by name");
    assert_eq!(patched["spec"]["containers"][0]["image"], "j");
}

#[tokio::test]
async fn events_have_two_views_of_one_object() {
    let api = Api::open().await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "me", "reportingInstance": "me-1",
        "action": "Look", "reason": "Looked", "note": "all is well", "type": "Normal",
        "regarding": {"kind": "Node", "name": "n1", "namespace": "default"},
    });
    api.post("/apis/events.k8s.io/v1/namespaces/default/events", event).await.ok();
    let core = api.get("/api/v1/namespaces/default/events/e").await.ok();
    assert_eq!((&core["message"], &core["involvedObject"]["name"]), (&json!("all is well"), &json!("n1")));
    let selected = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dn1";
    assert_eq!(api.get(selected).await.ok()["items"].as_array().unwrap().len(), 1);
    let view =
        api.merge("/apis/events.k8s.io/v1/namespaces/default/events/e", json!({"note": "still"})).await.ok();
    assert_eq!(view["note"], "still");
}
