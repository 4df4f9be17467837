//! Watches: from where, what, in which order, and how they end.

use serde_json::json;

use crate::fixtures::{config_map, core, gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, Step, delete, ends, events, events_with_bookmarks, get, merge, post, put, scenario, steps, watch, watch_as};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = basics();
    all.extend(starts());
    all.extend(views());
    all
}

/// An object to begin with; its version is where watches start.
fn begin() -> Step {
    post(gadgets(""), gadget("first", json!({}))).save("first").into()
}

const SINCE: &str = "watch=1&resourceVersion={first:/metadata/resourceVersion}";

fn since(more: &str) -> String {
    gadgets(&format!("?{SINCE}{more}"))
}

fn basics() -> Vec<Scenario> {
    vec![
        scenario("every change is one event, in order", steps![
            begin(),
            watch("w", since("")),
            post(gadgets(""), gadget("g1", json!({"size": 1}))),
            merge(gadgets("g1"), json!({"spec": {"size": 2}})),
            merge(gadgets("g1/status"), json!({"status": {"phase": "Up"}})),
            delete(gadgets("g1")),
            events("w", 4),
        ]),
        scenario("a change that changes nothing is no event", steps![
            begin(),
            watch("w", since("")),
            post(gadgets(""), gadget("g1", json!({"size": 1}))),
            merge(gadgets("g1"), json!({"spec": {"size": 1}})),
            delete(gadgets("g1")),
            events("w", 2),
        ]),
        scenario("the past is told first", steps![
            begin(),
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1"), json!({"spec": {"size": 2}})),
            delete(gadgets("g1")),
            watch("w", since("")),
            events("w", 3),
        ]),
        scenario("deletion with finalizers is a change, then an end", steps![
            begin(),
            watch("w", since("")),
            post(gadgets(""), gadget_with(json!({"name": "g1", "finalizers": ["midflight.dev/hold"]}), json!({}))),
            delete(gadgets("g1")),
            merge(gadgets("g1"), json!({"metadata": {"finalizers": null}})),
            events("w", 3),
        ]),
        scenario("one object is watched by name", steps![
            begin(),
            watch("w", since("&fieldSelector=metadata.name%3Dg1")),
            post(gadgets(""), gadget("g0", json!({}))),
            post(gadgets(""), gadget("g1", json!({}))),
            delete(gadgets("g0")),
            delete(gadgets("g1")),
            events("w", 2),
        ]),
        scenario("an object enters and leaves a selection", steps![
            begin(),
            watch("w", since("&labelSelector=on%3Dyes")),
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1"), json!({"metadata": {"labels": {"on": "yes"}}})),
            merge(gadgets("g1"), json!({"spec": {"size": 2}})),
            merge(gadgets("g1"), json!({"metadata": {"labels": {"on": "no"}}})),
            merge(gadgets("g1"), json!({"spec": {"size": 3}})),
            merge(gadgets("g1"), json!({"metadata": {"labels": {"on": "yes"}}})),
            delete(gadgets("g1")),
            events("w", 5),
        ]),
        scenario("an object leaves a selection by field", steps![
            begin(),
            watch("w", since("&fieldSelector=spec.color%3Dred")),
            post(gadgets(""), gadget("g1", json!({"color": "red"}))),
            merge(gadgets("g1"), json!({"spec": {"color": "blue"}})),
            delete(gadgets("g1")),
            post(gadgets(""), gadget("g2", json!({"color": "red"}))),
            events("w", 3),
        ]),
        scenario("a namespace does not hear of others", steps![
            begin(),
            watch("w", since("")),
            post("/apis/conformance.midflight.dev/v1/namespaces/default/gadgets", gadget("{ns}", json!({}))).status_only(),
            delete("/apis/conformance.midflight.dev/v1/namespaces/default/gadgets/{ns}").status_only(),
            post(gadgets(""), gadget("mine", json!({}))),
            events("w", 1),
        ]),
        scenario("a watch over all namespaces", steps![
            begin(),
            watch("w", "/apis/conformance.midflight.dev/v1/gadgets?watch=1&resourceVersion={first:/metadata/resourceVersion}&fieldSelector=metadata.namespace%3D{ns}"),
            post(gadgets(""), gadget("mine", json!({}))),
            events("w", 1),
        ]),
        scenario("a built-in kind is watched", steps![
            post(core("configmaps", ""), config_map("c0", json!({}))).save("first"),
            watch("w", core("configmaps", "?watch=1&resourceVersion={first:/metadata/resourceVersion}&fieldSelector=metadata.name%3Dc1")),
            post(core("configmaps", ""), config_map("c1", json!({"a": "1"}))),
            delete(core("configmaps", "c1")),
            events("w", 2),
        ]),
        scenario("put is a change too", steps![
            begin(),
            watch("w", since("")),
            put(gadgets("first"), gadget_with(json!({"name": "first", "resourceVersion": "{first:/metadata/resourceVersion}"}), json!({"size": 5}))),
            events("w", 1),
        ]),
    ]
}

fn starts() -> Vec<Scenario> {
    vec![
        scenario("without a resourceVersion the present comes first", steps![
            begin(),
            post(gadgets(""), gadget("g1", json!({}))),
            watch("w", gadgets("?watch=true")),
            events("w", 2),
            delete(gadgets("g1")),
            events("w", 1),
        ]),
        scenario("resourceVersion 0 is the present too", steps![
            begin(),
            get(gadgets("first")).status_only(),
            watch("w", gadgets("?watch=true&resourceVersion=0")),
            events("w", 1),
        ]),
        scenario("a version too old is told in the stream", steps![
            begin(),
            watch("w", gadgets("?watch=1&resourceVersion=1")),
            ends("w"),
        ]),
        scenario("a version that is no number", steps![
            get(gadgets("?watch=1&resourceVersion=abc")).is(500).embedded(422, "a mistake of the client is not an error of the server"),
            get(gadgets("?watch=1&timeoutSeconds=abc")).is(400),
        ]),
        scenario("a version of the future waits", steps![
            watch("w", gadgets("?watch=1&resourceVersion=999999999&timeoutSeconds=1")),
            ends("w"),
        ]),
        scenario("a watch ends when its time is up", steps![
            begin(),
            watch("w", since("&timeoutSeconds=1")),
            ends("w"),
        ]),
        scenario("bookmarks before the end", steps![
            begin(),
            watch("w", since("&timeoutSeconds=3&allowWatchBookmarks=true")),
            events_with_bookmarks("w", 1),
            ends("w"),
        ]),
        scenario("a list as a stream", steps![
            begin(),
            post(gadgets(""), gadget("g1", json!({}))).save("g1"),
            watch("w", gadgets("?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={g1:/metadata/resourceVersion}&allowWatchBookmarks=true")),
            events_with_bookmarks("w", 3),
            delete(gadgets("g1")),
            events("w", 1),
        ]),
        scenario("a list as a stream without a version", steps![
            begin(),
            watch("w", gadgets("?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")),
            events_with_bookmarks("w", 2),
        ]),
        scenario("a list as a stream of nothing", steps![
            watch("w", gadgets("?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=none%3Dsuch")),
            events_with_bookmarks("w", 1),
        ]),
        scenario("a stream without initial events", steps![
            begin(),
            watch("w", gadgets("?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion={first:/metadata/resourceVersion}")),
            post(gadgets(""), gadget("g1", json!({}))),
            events("w", 1),
        ]),
        scenario("initial events need a match", steps![
            get(gadgets("?watch=1&sendInitialEvents=true")).is(422),
            get(gadgets("?watch=1&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1")).is(422),
            get(gadgets("?watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1")).is(422),
            get(gadgets("?sendInitialEvents=true")).is(422),
        ]),
        scenario("selectors of a watch are checked", steps![
            get(gadgets("?watch=1&labelSelector=a%20b")).is(400),
            get(gadgets("?watch=1&fieldSelector=spec.title%3Dx")).is(400),
        ]),
    ]
}

fn views() -> Vec<Scenario> {
    vec![
        scenario("events as metadata alone", steps![
            begin(),
            watch_as("w", since(""), "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
            post(gadgets(""), gadget("g1", json!({"size": 1}))),
            events("w", 1),
        ]),
        scenario("events as table rows", steps![
            begin(),
            watch_as("w", since(""), "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            post(gadgets(""), gadget("g1", json!({"size": 1, "color": "red"}))),
            delete(gadgets("g1")),
            events("w", 2),
        ]),
    ]
}
