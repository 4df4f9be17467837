//! Server-side apply: who owns which field, what conflicts, what goes when nobody wants it any more.

use serde_json::{Value, json};

use crate::fixtures::{GROUP, config_map, core, gadget, gadget_with, gadgets, namespaced};
use crate::scenario::{Scenario, apply, delete, get, json_patch, merge, post, put, scenario, steps};

fn applied(spec: Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}, "spec": spec})
}

fn by(manager: &str) -> String {
    gadgets(&format!("g1?fieldManager={manager}"))
}

fn forced(manager: &str) -> String {
    gadgets(&format!("g1?fieldManager={manager}&force=true"))
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = ownership();
    all.extend(lists());
    all.extend(limits());
    all
}

fn ownership() -> Vec<Scenario> {
    vec![
        scenario("apply creates", steps![
            apply(by("a"), applied(json!({"size": 2, "color": "red"}))).is(201),
            get(gadgets("g1")),
        ]),
        scenario("the same apply again changes nothing", steps![
            apply(by("a"), applied(json!({"size": 2}))).is(201),
            apply(by("a"), applied(json!({"size": 2}))),
        ]),
        scenario("a field that is applied no more is removed", steps![
            apply(by("a"), applied(json!({"size": 2, "color": "red", "title": "abc", "settings": {"x": "1", "y": "2"}}))).is(201),
            apply(by("a"), applied(json!({"size": 2, "settings": {"y": "2"}}))),
        ]),
        scenario("a removed field with a default gets the default", steps![
            apply(by("a"), applied(json!({"size": 7, "color": "red"}))).is(201),
            apply(by("a"), applied(json!({"color": "red"}))),
        ]),
        scenario("two managers own different fields", steps![
            apply(by("a"), applied(json!({"size": 2}))).is(201),
            apply(by("b"), applied(json!({"color": "blue"}))),
            apply(by("a"), applied(json!({}))),
        ]),
        scenario("a conflict names manager and field", steps![
            apply(by("a"), applied(json!({"size": 2, "color": "red"}))).is(201),
            apply(by("b"), applied(json!({"size": 3}))).is(409),
            apply(by("b"), applied(json!({"size": 3, "color": "blue"}))).is(409),
        ]),
        scenario("the same value is shared, not a conflict", steps![
            apply(by("a"), applied(json!({"size": 2}))).is(201),
            apply(by("b"), applied(json!({"size": 2}))),
            apply(by("a"), applied(json!({}))),
            apply(by("b"), applied(json!({"title": "abc"}))),
        ]),
        scenario("force takes the field over", steps![
            apply(by("a"), applied(json!({"size": 2, "color": "red"}))).is(201),
            apply(forced("b"), applied(json!({"size": 3}))),
            apply(by("a"), applied(json!({"size": 2, "color": "red"}))).is(409),
            apply(by("a"), applied(json!({"color": "red"}))),
        ]),
        scenario("apply conflicts with an update", steps![
            post(gadgets("?fieldManager=maker"), gadget("g1", json!({"size": 2, "color": "red"}))),
            apply(by("a"), applied(json!({"size": 3}))).is(409),
            apply(by("a"), applied(json!({"size": 2}))),
            merge(by("patcher"), json!({"spec": {"size": 9}})),
            apply(by("a"), applied(json!({"size": 2}))).is(409),
        ]),
        scenario("an update takes a field from an applier", steps![
            apply(by("a"), applied(json!({"size": 2, "title": "abc"}))).is(201),
            merge(by("patcher"), json!({"spec": {"size": 5, "title": null}})),
            apply(by("a"), applied(json!({"title": "abc"}))),
        ]),
        scenario("conflicts with several managers", steps![
            apply(by("a"), applied(json!({"size": 2}))).is(201),
            apply(by("b"), applied(json!({"color": "red"}))),
            merge(by("c"), json!({"spec": {"title": "abc"}})),
            apply(by("d"), applied(json!({"size": 1, "color": "blue", "title": "xyz"}))).is(409),
        ]),
        scenario("labels and annotations are owned one by one", steps![
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "labels": {"x": "1", "y": "2"}, "annotations": {"n": "1"}}})).is(201),
            apply(by("b"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "labels": {"z": "3"}}})),
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "labels": {"x": "1"}}})),
        ]),
        scenario("finalizers and owner references are lists by value and by uid", steps![
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "finalizers": ["midflight.dev/a"],
                "ownerReferences": [{"apiVersion": "nowhere.midflight.dev/v1", "kind": "Unknown", "name": "n", "uid": "u-1"}]}})).is(201),
            apply(by("b"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "finalizers": ["midflight.dev/b"]}})),
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}})),
            apply(by("b"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}})),
        ]),
        scenario("a manager with nothing left is forgotten", steps![
            apply(by("a"), applied(json!({"size": 2}))).is(201),
            apply(by("b"), applied(json!({"color": "red"}))),
            merge(by("c"), json!({"spec": {"color": null}})),
            get(gadgets("g1")),
        ]),
        scenario("managedFields can be reset", steps![
            apply(by("a"), applied(json!({"size": 2}))).is(201),
            json_patch(by("x"), json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}])),
            merge(by("y"), json!({"spec": {"size": 3}})),
        ]),
        scenario("status is owned apart from spec", steps![
            apply(by("a"), applied(json!({"size": 2}))).is(201),
            apply(gadgets("g1/status?fieldManager=a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}, "status": {"phase": "Up", "replicas": 1}})),
            apply(gadgets("g1/status?fieldManager=a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}, "status": {"replicas": 1}})),
            apply(gadgets("g1/status?fieldManager=b"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}, "status": {"replicas": 2}})).is(409),
        ]),
        scenario("an update by the User-Agent's name", steps![
            post(gadgets(""), gadget("g1", json!({"size": 2}))),
            merge(gadgets("g1"), json!({"spec": {"size": 3}})),
        ]),
        scenario("put tracks what it changed", steps![
            post(gadgets("?fieldManager=maker"), gadget("g1", json!({"size": 2, "title": "abc"}))).save("g"),
            put(by("putter"), gadget_with(json!({"name": "g1", "resourceVersion": "{g:/metadata/resourceVersion}"}), json!({"size": 3}))),
        ]),
    ]
}

fn lists() -> Vec<Scenario> {
    vec![
        scenario("a set is owned value by value", steps![
            apply(by("a"), applied(json!({"tags": ["ta", "tb"]}))).is(201),
            apply(by("b"), applied(json!({"tags": ["tb", "tc"]}))),
            apply(by("a"), applied(json!({"tags": ["ta"]}))),
            apply(by("b"), applied(json!({}))),
        ]),
        scenario("a map list is merged by its keys", steps![
            apply(by("a"), applied(json!({"ports": [{"port": 1, "name": "one"}, {"port": 2}]}))).is(201),
            apply(by("b"), applied(json!({"ports": [{"port": 3, "protocol": "UDP"}, {"port": 1, "protocol": "UDP"}]}))),
            apply(by("a"), applied(json!({"ports": [{"port": 1, "name": "uno"}]}))),
            apply(by("b"), applied(json!({"ports": [{"port": 1, "name": "eins"}]}))).is(409),
        ]),
        scenario("an atomic list has one owner", steps![
            apply(by("a"), applied(json!({"steps": [{"run": "x"}]}))).is(201),
            apply(by("b"), applied(json!({"steps": [{"run": "x"}, {"run": "y"}]}))).is(409),
            apply(forced("b"), applied(json!({"steps": [{"run": "y"}]}))),
        ]),
        scenario("an atomic map has one owner", steps![
            apply(by("a"), applied(json!({"point": {"x": 1, "y": 1}}))).is(201),
            apply(by("b"), applied(json!({"point": {"x": 1}}))).is(409),
            apply(by("a"), applied(json!({"point": {"x": 2}}))),
        ]),
        scenario("unknown fields under preserve are owned", steps![
            apply(by("a"), applied(json!({"free": {"any": {"deep": [1, 2]}, "known": 1}}))).is(201),
            apply(by("b"), applied(json!({"free": {"any": {"other": 1}}}))),
            apply(by("a"), applied(json!({"free": {"known": 1}}))),
        ]),
        scenario("duplicates in a set or map list", steps![
            apply(by("a"), applied(json!({"tags": ["ta", "ta"]}))).is(500).without(&["/reason"]),
            apply(by("a"), applied(json!({"ports": [{"port": 1}, {"port": 1}]}))).is(500).without(&["/reason"]),
        ]),
        scenario("apply of a config map", steps![
            apply(core("configmaps", "c1?fieldManager=a"), config_map("c1", json!({"x": "1", "y": "2"}))).is(201),
            apply(core("configmaps", "c1?fieldManager=b"), config_map("c1", json!({"x": "9"}))).is(409),
            apply(core("configmaps", "c1?fieldManager=a"), config_map("c1", json!({"y": "2"}))),
        ]),
        scenario("apply of a daemon set joins containers by name", steps![
            apply(namespaced("apps/v1", "daemonsets", "d1?fieldManager=a"), json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"},
                "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}}})).is(201)
                .focus(&["/spec/template/spec/containers/0/image"]),
            apply(namespaced("apps/v1", "daemonsets", "d1?fieldManager=b"), json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"},
                "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}})).is(409),
            apply(namespaced("apps/v1", "daemonsets", "d1?fieldManager=b"), json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"},
                "spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:1"}]}}}}))
                .focus(&["/spec/template/spec/containers/0/name", "/spec/template/spec/containers/1/name", "/spec/template/spec/containers/1/image"]),
        ]),
    ]
}

fn limits() -> Vec<Scenario> {
    vec![
        scenario("apply needs a field manager", steps![
            apply(gadgets("g1"), applied(json!({}))).is(422),
            apply(by(""), applied(json!({}))).is(422),
            apply(by(&"m".repeat(129)), applied(json!({}))).is(422),
        ]),
        scenario("apply must not carry managedFields", steps![
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1",
                "managedFields": [{"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]}})).is(400),
        ]),
        scenario("apply needs apiVersion, kind and the right name", steps![
            apply(by("a"), json!({"metadata": {"name": "g1"}, "spec": {}})).is(400),
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "other"}, "spec": {}})).is(400),
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "spec": {}})).is(400),
        ]),
        scenario("force is for apply alone", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(forced("a"), json!({})).is(422),
        ]),
        scenario("apply with a uid or version that is not there", steps![
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "uid": "00000000-0000-0000-0000-000000000000"}})).is(409),
            apply(by("a"), applied(json!({}))).is(201),
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "resourceVersion": "1"}, "spec": {"size": 3}})).is(409),
        ]),
        scenario("apply is validated", steps![
            apply(by("a"), applied(json!({"size": 1000}))).is(422),
            apply(by("a"), applied(json!({"size": "big"}))).is(500).without(&["/reason"]),
            apply(by("a"), applied(json!({"unknown": 1}))).is(500).without(&["/reason"]),
            apply(by("a"), json!("a: [")).is(400),
        ]),
        scenario("apply of an unknown field under strict validation", steps![
            apply(gadgets("g1?fieldManager=a&fieldValidation=Strict"), applied(json!({"siz": 1}))).is(500).without(&["/reason"]),
        ]),
        scenario("apply in YAML", steps![
            apply(by("a"), json!("apiVersion: conformance.midflight.dev/v1\nkind: Gadget\nmetadata:\n  name: g1\nspec:\n  # big\n  size: 5\n  tags: [ta]\n")).is(201),
        ]),
        scenario("apply to status of something missing", steps![
            apply(gadgets("g1/status?fieldManager=a"), applied(json!({}))).is(404),
        ]),
        scenario("apply does not restore what is being deleted", steps![
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "finalizers": ["midflight.dev/a"]}})).is(201),
            delete(gadgets("g1")),
            apply(by("a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}})),
            get(gadgets("g1")).is(404),
        ]),
    ]
}
