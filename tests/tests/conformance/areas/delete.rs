//! Deletion: finalizers, preconditions, collections, and what is answered.

use serde_json::json;

use crate::fixtures::{config_map, core, gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, delete, delete_with, get, json_patch, merge, post, put, scenario, steps};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let held = |name: &str| gadget_with(json!({"name": name, "finalizers": ["midflight.dev/hold"]}), json!({}));
    vec![
        scenario("delete answers with a Status", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            delete(gadgets("g1")),
            get(gadgets("g1")).is(404),
            delete(gadgets("g1")).is(404),
        ]),
        scenario("delete of a config map", steps![
            post(core("configmaps", ""), config_map("c1", json!({}))),
            delete(core("configmaps", "c1")),
        ]),
        scenario("a finalizer keeps the object until it is gone", steps![
            post(gadgets(""), held("g1")),
            delete(gadgets("g1")),
            get(gadgets("g1")),
            delete(gadgets("g1")),
            json_patch(gadgets("g1"), json!([{"op": "remove", "path": "/metadata/finalizers/0"}])),
            get(gadgets("g1")).is(404),
        ]),
        scenario("no finalizer may be added once deletion has begun", steps![
            post(gadgets(""), held("g1")),
            delete(gadgets("g1")),
            merge(gadgets("g1"), json!({"metadata": {"finalizers": ["midflight.dev/hold", "midflight.dev/more"]}})).is(422),
            merge(gadgets("g1"), json!({"spec": {"size": 8}})),
            merge(gadgets("g1"), json!({"metadata": {"finalizers": null}})),
            get(gadgets("g1")).is(404),
        ]),
        scenario("deletionTimestamp cannot be set or taken away", steps![
            post(gadgets(""), held("g1")),
            merge(gadgets("g1"), json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}})).is(422),
            delete(gadgets("g1")),
            merge(gadgets("g1"), json!({"metadata": {"deletionTimestamp": null}})),
            merge(gadgets("g1"), json!({"metadata": {"finalizers": []}})),
        ]),
        scenario("a put without finalizers completes the deletion", steps![
            post(gadgets(""), held("g1")),
            delete(gadgets("g1")).save("dying"),
            put(gadgets("g1"), gadget_with(json!({"name": "g1", "resourceVersion": "{dying:/metadata/resourceVersion}"}), json!({"size": 1}))),
            get(gadgets("g1")).is(404),
        ]),
        scenario("uid as precondition", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("g"),
            delete_with(gadgets("g1"), json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})).is(409),
            delete_with(gadgets("g1"), json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "{g:/metadata/uid}"}})),
        ]),
        scenario("resourceVersion as precondition", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("g"),
            merge(gadgets("g1"), json!({"spec": {"size": 2}})).save("h"),
            delete_with(gadgets("g1"), json!({"preconditions": {"resourceVersion": "{g:/metadata/resourceVersion}"}})).is(409),
            delete_with(gadgets("g1"), json!({"preconditions": {"resourceVersion": "{h:/metadata/resourceVersion}"}})),
        ]),
        scenario("delete options are checked", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            delete_with(gadgets("g1"), json!({"propagationPolicy": "Sideways"})).is(422),
            delete(gadgets("g1?propagationPolicy=Sideways")).is(422),
            delete_with(gadgets("g1"), json!({"propagationPolicy": "Orphan", "orphanDependents": true})).is(422),
            delete_with(gadgets("g1"), json!({"gracePeriodSeconds": "soon"})).is(400),
            delete_with(gadgets("g1"), json!("{")).is(400),
            delete(gadgets("g1?gracePeriodSeconds=0")),
        ]),
        scenario("a collection is deleted", steps![
            post(gadgets(""), gadget("a", json!({}))),
            post(gadgets(""), gadget("b", json!({}))),
            post(gadgets(""), held("c")),
            delete(gadgets("")),
            get(gadgets("")),
            merge(gadgets("c"), json!({"metadata": {"finalizers": null}})),
        ]),
        scenario("a selected part of a collection is deleted", steps![
            post(gadgets(""), gadget_with(json!({"name": "a", "labels": {"tier": "x"}}), json!({}))),
            post(gadgets(""), gadget_with(json!({"name": "b", "labels": {"tier": "y"}}), json!({}))),
            delete(gadgets("?labelSelector=tier%3Dx")),
            get(gadgets("")),
            delete(gadgets("?fieldSelector=metadata.name%3Dnone")),
            delete(gadgets("?fieldSelector=metadata.name%3Db")),
            get(gadgets("")),
        ]),
        scenario("the collection of all namespaces cannot be deleted", steps![
            delete("/apis/conformance.midflight.dev/v1/gadgets").is(404),
        ]),
    ]
}
