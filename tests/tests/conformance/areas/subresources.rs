//! `status` and `scale`: who may change what, and what raises the generation.

use serde_json::json;

use crate::fixtures::{GROUP, beacons, gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, apply, delete, get, json_patch, merge, post, put, scenario, steps};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scale = |spec: serde_json::Value| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "g1", "namespace": "{ns}"}, "spec": spec});
    vec![
        scenario("a status write changes status alone", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1}))),
            merge(gadgets("g1/status"), json!({"spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}, "status": {"phase": "Up"}})),
            get(gadgets("g1/status")),
        ]),
        scenario("put of status", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1}))).save("old"),
            put(gadgets("g1/status"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget",
                "metadata": {"name": "g1", "resourceVersion": "{old:/metadata/resourceVersion}"},
                "spec": {"size": 50}, "status": {"phase": "Up", "replicas": 2}})),
            put(gadgets("g1/status"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget",
                "metadata": {"name": "g1", "resourceVersion": "{old:/metadata/resourceVersion}"},
                "status": {"phase": "Down"}})).is(409),
        ]),
        scenario("status has a schema too", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1/status"), json!({"status": {"observedGeneration": "many"}})).is(422),
            merge(gadgets("g1/status"), json!({"status": {"unknown": 1, "phase": "Up"}})),
            json_patch(gadgets("g1/status"), json!([{"op": "replace", "path": "/status/phase", "value": "Down"}])),
        ]),
        scenario("a status write that changes nothing keeps the resourceVersion", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1/status"), json!({"status": {"phase": "Up"}})),
            merge(gadgets("g1/status"), json!({"status": {"phase": "Up"}})),
        ]),
        scenario("a patch of the object cannot reach status", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1/status"), json!({"status": {"phase": "Up"}})),
            merge(gadgets("g1"), json!({"status": {"phase": "Down"}})),
            merge(gadgets("g1"), json!({"status": null})),
        ]),
        scenario("status cannot be created or deleted", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            post(gadgets("g1/status"), gadget("g1", json!({}))).is(405).focus(&["/reason"]),
            delete(gadgets("g1/status")).is(405).focus(&["/reason"]),
            get(gadgets("g1/nonsense")).is(404),
            get(gadgets("g9/status")).is(404),
        ]),
        scenario("conditions merge by type under server-side apply", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            apply(gadgets("g1/status?fieldManager=a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}})),
            apply(gadgets("g1/status?fieldManager=b"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"},
                "status": {"conditions": [{"type": "Synced", "status": "False"}]}})),
        ]),
        scenario("scale is read", steps![
            post(gadgets(""), gadget("g1", json!({"replicas": 3}))),
            get(gadgets("g1/scale")),
            merge(gadgets("g1/status"), json!({"status": {"replicas": 2, "selector": "app=x"}})),
            get(gadgets("g1/scale")),
        ]),
        scenario("scale of an object without replicas", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            get(gadgets("g1/scale")).is(500).embedded(200, "no number is none; kubectl can still scale it"),
        ]),
        scenario("scale is written", steps![
            post(gadgets(""), gadget("g1", json!({"replicas": 3}))),
            put(gadgets("g1/scale"), scale(json!({"replicas": 5}))),
            merge(gadgets("g1/scale"), json!({"spec": {"replicas": 7}})),
            get(gadgets("g1")),
        ]),
        scenario("a stale or negative scale is refused", steps![
            post(gadgets(""), gadget("g1", json!({"replicas": 3}))).save("old"),
            merge(gadgets("g1"), json!({"spec": {"size": 4}})),
            put(gadgets("g1/scale"), json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 5},
                "metadata": {"name": "g1", "namespace": "{ns}", "resourceVersion": "{old:/metadata/resourceVersion}"}})).is(409),
            put(gadgets("g1/scale"), scale(json!({"replicas": -1}))).is(422).focus(&["/reason"]),
        ]),
        scenario("a kind without subresources has none", steps![
            post(beacons(""), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Beacon", "metadata": {"name": "{ns}"}})),
            get(beacons("{ns}/scale")).is(404).focus(&["/reason"]),
            merge(beacons("{ns}/status"), json!({})).is(404).focus(&["/reason"]),
            delete(beacons("{ns}")),
        ]),
        scenario("generation counts changes of the spec", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "labels": {"a": "1"}}), json!({"size": 1}))),
            merge(gadgets("g1"), json!({"metadata": {"labels": {"a": "2"}}})).focus(&["/metadata/generation"]),
            merge(gadgets("g1"), json!({"spec": {"size": 2}})).focus(&["/metadata/generation"]),
            merge(gadgets("g1"), json!({"spec": {"size": 2}})).focus(&["/metadata/generation"]),
            merge(gadgets("g1/status"), json!({"status": {"phase": "Up"}})).focus(&["/metadata/generation"]),
            merge(gadgets("g1/scale"), json!({"spec": {"replicas": 7}})).focus(&["/spec"]),
            get(gadgets("g1")).focus(&["/metadata/generation"]),
        ]),
    ]
}
