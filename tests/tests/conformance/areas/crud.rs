//! Objects are created, read, replaced and listed; what the server fills in and what it refuses.

use serde_json::json;

use crate::fixtures::{beacon, beacons, config_map, core, gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, delete, get, merge, post, put, scenario, steps};

const OTHER_METHOD: &str = "the real server takes the collection for an object without a name";
const MISTAKE: &str = "a mistake of the client is not an error of the server";

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = create();
    all.extend(replace());
    all.extend(read());
    all
}

fn create() -> Vec<Scenario> {
    vec![
        scenario("create fills in metadata and defaults", steps![
            post(gadgets(""), gadget("g1", json!({"color": "red"}))),
            get(gadgets("g1")),
        ]),
        scenario("a name is taken only once", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            post(gadgets(""), gadget("g1", json!({"size": 2}))).is(409),
        ]),
        scenario("a name is free again after delete", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            delete(gadgets("g1")),
            post(gadgets(""), gadget("g1", json!({}))),
        ]),
        scenario("generateName makes a name", steps![
            post(gadgets(""), gadget_with(json!({"generateName": "gen-"}), json!({}))).save("one"),
            get(gadgets("{one:/metadata/name}")),
            post(gadgets(""), gadget_with(json!({"generateName": "gen-", "name": "exact"}), json!({}))),
        ]),
        scenario("create needs a name", steps![
            post(gadgets(""), gadget_with(json!({}), json!({}))).is(422),
        ]),
        scenario("names are DNS subdomains", steps![
            post(gadgets(""), gadget("Upper_Case", json!({}))).is(422),
            post(gadgets(""), gadget("a..b", json!({}))).is(422),
            post(gadgets(""), gadget("-a", json!({}))).is(422),
            post(gadgets(""), gadget("a.b-c.1", json!({}))),
        ]),
        scenario("a name of 253 characters is the longest", steps![
            post(gadgets(""), gadget(&"a".repeat(253), json!({}))).focus(&["/metadata/name"]),
            post(gadgets(""), gadget(&"a".repeat(254), json!({}))).is(422),
        ]),
        scenario("namespace of body and path must agree", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "namespace": "elsewhere"}), json!({}))).is(400),
            post(gadgets(""), gadget_with(json!({"name": "g1", "namespace": "{ns}"}), json!({}))),
        ]),
        scenario("apiVersion and kind must fit the path", steps![
            post(gadgets(""), json!({"apiVersion": "v1", "kind": "Gadget", "metadata": {"name": "g1"}})).is(400),
            post(gadgets(""), json!({"apiVersion": "conformance.midflight.dev/v1", "kind": "Widget", "metadata": {"name": "g1"}})).is(422),
            post(gadgets(""), json!({"metadata": {"name": "g1"}, "spec": {}})).is(400),
            post(gadgets(""), json!({"apiVersion": "conformance.midflight.dev/v9", "kind": "Gadget", "metadata": {"name": "g1"}})).is(400),
        ]),
        scenario("resourceVersion must not be set on create", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "resourceVersion": "5"}), json!({}))).is(500).embedded(400, MISTAKE),
            post(core("configmaps", ""), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "resourceVersion": "5"}})).is(500).embedded(400, MISTAKE),
        ]),
        scenario("what the server owns in metadata is not taken from the client", steps![
            post(gadgets(""), gadget_with(json!({
                "name": "g1", "uid": "00000000-0000-0000-0000-000000000000", "generation": 7,
                "creationTimestamp": "2020-01-01T00:00:00Z", "deletionTimestamp": "2020-01-01T00:00:00Z", "selfLink": "/x"}), json!({}))),
        ]),
        scenario("labels and annotations are checked", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "labels": {"bad key!": "x"}}), json!({}))).is(422),
            post(gadgets(""), gadget_with(json!({"name": "g1", "labels": {"ok": "bad value!"}}), json!({}))).is(422),
            post(gadgets(""), gadget_with(json!({"name": "g1", "annotations": {"bad key!": "x"}}), json!({}))).is(422),
            post(gadgets(""), gadget_with(json!({"name": "g1", "labels": {"a.b/c": "d_e.f"}, "annotations": {"a.b/c": "anything goes!"}}), json!({}))),
        ]),
        scenario("label values must be strings", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "labels": {"a": 1}}), json!({}))).is(400),
        ]),
        scenario("finalizers are checked", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "finalizers": ["no spaces"]}), json!({}))).is(422),
        ]),
        scenario("owner references are checked", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": ""}]}), json!({}))).is(422),
            post(gadgets(""), gadget_with(json!({"name": "g1", "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "d", "uid": "2", "controller": true}]}), json!({}))).is(422).focus(&["/reason", "/details/causes/0/field"]),
        ]),
        scenario("status is dropped on create of a kind with a status subresource", steps![
            post(gadgets(""), json!({"apiVersion": "conformance.midflight.dev/v1", "kind": "Gadget", "metadata": {"name": "g1"},
                "spec": {"size": 3}, "status": {"phase": "Sneaky"}})),
        ]),
        scenario("a kind without status subresource keeps its status", steps![
            post(beacons(""), json!({"apiVersion": "conformance.midflight.dev/v1", "kind": "Beacon", "metadata": {"name": "{ns}"},
                "spec": {"lamp": 1}, "status": {"phase": "Lit"}})),
            merge(beacons("{ns}"), json!({"status": {"phase": "Dark"}})),
            get(beacons("{ns}/status")).is(404).focus(&["/reason"]),
            delete(beacons("{ns}")),
        ]),
        scenario("a cluster-wide kind has no namespace", steps![
            post(beacons(""), beacon("{ns}", json!({"a": [1, null, {"b": 1.5}]}))),
            get(beacons("{ns}")),
            get("/apis/conformance.midflight.dev/v1/namespaces/{ns}/beacons/{ns}").is(404),
            delete(beacons("{ns}")),
        ]),
        scenario("both versions of a kind show the same object", steps![
            post(gadgets(""), gadget("g1", json!({"size": 4}))),
            get("/apis/conformance.midflight.dev/v1beta1/namespaces/{ns}/gadgets/g1"),
            get("/apis/conformance.midflight.dev/v2/namespaces/{ns}/gadgets/g1").is(404),
        ]),
        scenario("a built-in object is created and read", steps![
            post(core("configmaps", ""), config_map("c1", json!({"a": "1"}))),
            get(core("configmaps", "c1")),
        ]),
    ]
}

fn replace() -> Vec<Scenario> {
    vec![
        scenario("put replaces the spec and raises the generation", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1, "title": "abc"}))).save("old"),
            put(gadgets("g1"), gadget_with(json!({"name": "g1", "resourceVersion": "{old:/metadata/resourceVersion}"}), json!({"size": 2}))),
        ]),
        scenario("a stale put is a conflict", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("old"),
            merge(gadgets("g1"), json!({"spec": {"size": 5}})),
            put(gadgets("g1"), gadget_with(json!({"name": "g1", "resourceVersion": "{old:/metadata/resourceVersion}"}), json!({"size": 6}))).is(409),
        ]),
        scenario("put of a custom resource needs a resourceVersion", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            put(gadgets("g1"), gadget("g1", json!({"size": 6}))).is(422),
        ]),
        scenario("put of a config map needs none", steps![
            post(core("configmaps", ""), config_map("c1", json!({"a": "1"}))),
            put(core("configmaps", "c1"), config_map("c1", json!({"a": "2"}))),
        ]),
        scenario("a put that changes nothing keeps the resourceVersion", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1}))).save("old"),
            put(gadgets("g1"), gadget_with(json!({"name": "g1", "resourceVersion": "{old:/metadata/resourceVersion}"}), json!({"size": 1}))),
        ]),
        scenario("put of a missing custom resource is not found", steps![
            put(gadgets("g9"), gadget_with(json!({"name": "g9", "resourceVersion": "1"}), json!({}))).is(404),
        ]),
        scenario("put of a missing config map is not found", steps![
            put(core("configmaps", "c9"), config_map("c9", json!({}))).is(404),
        ]),
        scenario("name of body and path must agree", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("old"),
            put(gadgets("g1"), gadget_with(json!({"name": "g2", "resourceVersion": "{old:/metadata/resourceVersion}"}), json!({}))).is(400),
            put(gadgets("g1"), gadget_with(json!({"resourceVersion": "{old:/metadata/resourceVersion}"}), json!({}))).is(400),
        ]),
        scenario("uid in a put is a precondition", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("old"),
            put(gadgets("g1"), gadget_with(json!({"name": "g1", "uid": "00000000-0000-0000-0000-000000000000",
                "resourceVersion": "{old:/metadata/resourceVersion}"}), json!({}))).is(409),
        ]),
        scenario("an unreadable resourceVersion", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            put(gadgets("g1"), gadget_with(json!({"name": "g1", "resourceVersion": "abc"}), json!({}))).is(500).embedded(422, MISTAKE),
            merge(gadgets("g1"), json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 9}})).is(409),
        ]),
        scenario("labels change without a new generation", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1"), json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})),
        ]),
        scenario("status in a put of the object is ignored", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("old"),
            merge(gadgets("g1/status"), json!({"status": {"phase": "Up"}})).save("now"),
            put(gadgets("g1"), json!({"apiVersion": "conformance.midflight.dev/v1", "kind": "Gadget",
                "metadata": {"name": "g1", "resourceVersion": "{now:/metadata/resourceVersion}"},
                "spec": {"size": 7}, "status": {"phase": "Down"}})),
        ]),
        scenario("creationTimestamp and generation cannot be changed", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1"), json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 99}})),
            merge(gadgets("g1"), json!({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}})).is(422),
        ]),
    ]
}

fn read() -> Vec<Scenario> {
    vec![
        scenario("a missing object, kind, group", steps![
            get(gadgets("none")).is(404),
            get(core("configmaps", "none")).is(404),
            get("/apis/conformance.midflight.dev/v1/namespaces/{ns}/widgets").is(404),
            get("/apis/nowhere.midflight.dev/v1/things").is(404),
            get("/nowhere").is(404),
        ]),
        scenario("an empty list", steps![
            get(gadgets("")),
            get(core("configmaps", "?labelSelector=none%3Dsuch")),
        ]),
        scenario("a list is sorted by name", steps![
            post(gadgets(""), gadget("b", json!({}))),
            post(gadgets(""), gadget("a", json!({}))),
            post(gadgets(""), gadget("a-1", json!({}))),
            post(gadgets(""), gadget("c", json!({}))),
            get(gadgets("")),
        ]),
        scenario("list items of a built-in kind carry no apiVersion and kind", steps![
            post(core("configmaps", ""), config_map("c1", json!({"a": "1"}))),
            get(core("configmaps", "?fieldSelector=metadata.name%3Dc1")).embedded(200, "items say what they are: objects are kept ready to send"),
        ]),
        scenario("get at a resourceVersion", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            get(gadgets("g1?resourceVersion=0")).eventually(),
        ]),
        scenario("list at a resourceVersion", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("g"),
            get(gadgets("?resourceVersion={g:/metadata/resourceVersion}&resourceVersionMatch=NotOlderThan")),
            get(gadgets("?resourceVersionMatch=Exact")).is(422),
            get(gadgets("?resourceVersion=0&resourceVersionMatch=Exact")).is(422),
            get(gadgets("?resourceVersion=1&resourceVersionMatch=Sometimes")).is(422),
            get(gadgets("?resourceVersion=abc")).is(400),
        ]),
        scenario("methods that a path does not have", steps![
            put(gadgets(""), gadget("g1", json!({}))).is(400).embedded(405, OTHER_METHOD),
            merge(gadgets(""), json!({})).is(400).embedded(405, OTHER_METHOD),
            post("/version", json!({})).is(405),
        ]),
        scenario("empty pairs in a query are ignored", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            get(gadgets("?&limit=1&")),
        ]),
        scenario("an unreadable body", steps![
            post(gadgets(""), json!("{\"apiVersion\": ")).is(400),
            post(gadgets(""), json!("")).is(400),
            post(gadgets(""), json!("[]")).is(400),
            post(gadgets(""), json!("a: b: c")).content_type("application/yaml").is(400),
        ]),
        scenario("YAML is understood", steps![
            post(gadgets(""), json!("apiVersion: conformance.midflight.dev/v1\nkind: Gadget\nmetadata: {name: g1}\nspec: {size: 3}\n")).content_type("application/yaml"),
        ]),
        scenario("other media types are refused", steps![
            post(gadgets(""), json!("x")).content_type("text/plain").is(415),
            get(gadgets("")).accept("text/html").is(406),
        ]),
        scenario("metadata is judged again with every write", steps![
            post(gadgets(""), gadget("g1", json!({}))).status_only(),
            merge(gadgets("g1"), json!({"metadata": {"labels": {"a": "no spaces"}}})).is(422),
            merge(gadgets("g1"), json!({"metadata": {"annotations": {"no spaces": "a"}}})).is(422),
            merge(gadgets("g1"), json!({"metadata": {"finalizers": ["no spaces"]}})).is(422),
            merge(gadgets("g1"), json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": ""}]}})).is(422),
        ]),
        scenario("what is left to its default has not changed", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("g"),
            put(gadgets("g1"), gadget_with(json!({"name": "g1", "resourceVersion": "{g:/metadata/resourceVersion}"}), json!({}))),
        ]),
    ]
}
