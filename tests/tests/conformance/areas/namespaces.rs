//! Namespaces: born active, the way they go, and what they do not let in.

use serde_json::json;

use crate::fixtures::{GROUP, config_map, gadget, gadget_with};
use crate::scenario::{Scenario, delete, get, merge, post, put, scenario, steps};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let inside = |rest: &str| crate::fixtures::under(&format!("/apis/{GROUP}/v1/namespaces/{{ns}}-x/gadgets"), rest);
    vec![
        scenario("a namespace is active and carries its name as a label", steps![
            post("/api/v1/namespaces", namespace("{ns}-x")),
            get("/api/v1/namespaces/{ns}-x"),
        ]),
        scenario("the default namespaces exist", steps![
            get("/api/v1/namespaces/default").focus(&["/status/phase", "/metadata/name", "/spec/finalizers"]),
            get("/api/v1/namespaces/kube-system").focus(&["/status/phase"]),
        ]),
        scenario("nothing is created in a namespace that is not there", steps![
            post("/apis/conformance.midflight.dev/v1/namespaces/{ns}-none/gadgets", gadget("g1", json!({}))).is(404),
            post("/api/v1/namespaces/{ns}-none/configmaps", config_map("c1", json!({}))).is(404),
            get("/api/v1/namespaces/{ns}-none/configmaps"),
            get("/api/v1/namespaces/{ns}-none").is(404),
        ]),
        scenario("names of namespaces are labels", steps![
            post("/api/v1/namespaces", namespace("Bad.Name")).is(422),
            post("/api/v1/namespaces", namespace(&"n".repeat(64))).is(422),
        ]),
        scenario("deletion empties it and then it is gone", steps![
            post("/api/v1/namespaces", namespace("{ns}-x")).status_only(),
            post(inside(""), gadget("g1", json!({}))).status_only(),
            post("/api/v1/namespaces/{ns}-x/configmaps", config_map("c1", json!({}))).status_only(),
            delete("/api/v1/namespaces/{ns}-x").focus(&["/kind", "/status/phase", "/spec/finalizers"]),
            get("/api/v1/namespaces/{ns}-x").is(404).eventually(),
            get(inside("g1")).is(404),
        ]),
        scenario("an object with a finalizer holds its namespace", steps![
            post("/api/v1/namespaces", namespace("{ns}-x")).status_only(),
            post(inside(""), gadget_with(json!({"name": "g1", "finalizers": ["midflight.dev/hold"]}), json!({}))).status_only(),
            delete("/api/v1/namespaces/{ns}-x").status_only(),
            get(inside("g1")).until("/metadata/deletionGracePeriodSeconds", 0).focus(&["/metadata/finalizers"]),
            get("/api/v1/namespaces/{ns}-x").focus(&["/status/phase"]),
            post(inside(""), gadget("g2", json!({}))).is(403),
            post("/api/v1/namespaces/{ns}-x/configmaps", config_map("c1", json!({}))).is(403),
            merge(inside("g1"), json!({"metadata": {"finalizers": null}})).status_only(),
            get("/api/v1/namespaces/{ns}-x").is(404).eventually(),
        ]),
        scenario("a finalizer of the spec is taken away by finalize", steps![
            post("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}-x"}, "spec": {"finalizers": ["midflight.dev/hold"]}})).focus(&["/spec/finalizers"]),
            delete("/api/v1/namespaces/{ns}-x").status_only(),
            get("/api/v1/namespaces/{ns}-x").until("/spec/finalizers", json!(["midflight.dev/hold"])).focus(&["/spec/finalizers", "/status/phase"]),
            put("/api/v1/namespaces/{ns}-x/finalize", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}-x"}, "spec": {"finalizers": []}})).focus(&["/spec"]),
            get("/api/v1/namespaces/{ns}-x").is(404).eventually(),
        ]),
        scenario("some namespaces stay", steps![
            delete("/api/v1/namespaces/kube-system?dryRun=All").is(403),
            delete("/api/v1/namespaces/default?dryRun=All").is(403),
        ]),
    ]
}
