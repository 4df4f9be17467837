//! `dryRun=All`: everything is done except the writing.

use serde_json::json;

use crate::fixtures::{GROUP, gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, apply, delete, delete_with, get, json_patch, merge, post, put, scenario, steps};

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("create", steps![
            post(gadgets("?dryRun=All"), gadget("g1", json!({"color": "red"}))).without(&["/metadata/uid"]),
            get(gadgets("g1")).is(404),
            post(gadgets("?dryRun=All"), gadget("g1", json!({"size": 1000}))).is(422),
        ]),
        scenario("create of what is there", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            post(gadgets("?dryRun=All"), gadget("g1", json!({}))).is(409),
        ]),
        scenario("patches", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1}))),
            merge(gadgets("g1?dryRun=All"), json!({"spec": {"size": 2}})),
            json_patch(gadgets("g1?dryRun=All"), json!([{"op": "replace", "path": "/spec/size", "value": 3}])),
            apply(gadgets("g1?dryRun=All&fieldManager=a&force=true"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}, "spec": {"size": 4}})),
            apply(gadgets("g2?dryRun=All&fieldManager=a"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g2"}, "spec": {"size": 4}})).is(201),
            get(gadgets("")),
        ]),
        scenario("put", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1}))).save("g"),
            put(gadgets("g1?dryRun=All"), gadget_with(json!({"name": "g1", "resourceVersion": "{g:/metadata/resourceVersion}"}), json!({"size": 2}))),
            get(gadgets("g1")),
        ]),
        scenario("delete", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            delete(gadgets("g1?dryRun=All")),
            delete_with(gadgets("g1"), json!({"dryRun": ["All"]})),
            delete(gadgets("?dryRun=All")),
            get(gadgets("g1")),
        ]),
        scenario("status", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1/status?dryRun=All"), json!({"status": {"phase": "Up"}})),
            get(gadgets("g1")),
        ]),
        scenario("another word than All", steps![
            post(gadgets("?dryRun=Some"), gadget("g1", json!({}))).is(422),
            post(gadgets("?dryRun="), gadget("g1", json!({}))).is(422),
            get(gadgets("g1")).is(404),
        ]),
    ]
}
