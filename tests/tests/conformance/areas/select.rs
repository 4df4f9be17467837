//! Label and field selectors.

use serde_json::json;

use crate::fixtures::{gadget_with, gadgets};
use crate::scenario::{Scenario, Step, get, post, scenario, steps};

/// Four gadgets that differ in labels and spec.
fn four() -> Vec<Step> {
    steps![
        post(gadgets(""), gadget_with(json!({"name": "a", "labels": {"tier": "front", "env": "prod"}}), json!({"color": "red", "size": 1}))),
        post(gadgets(""), gadget_with(json!({"name": "b", "labels": {"tier": "back", "env": "prod"}}), json!({"color": "blue", "size": 2}))),
        post(gadgets(""), gadget_with(json!({"name": "c", "labels": {"tier": "back", "env": ""}}), json!({"size": 2}))),
        post(gadgets(""), gadget_with(json!({"name": "d"}), json!({"color": "red"}))),
    ]
}

/// Lists the four with a selector; names tell who matched.
fn picks(name: &'static str, queries: &[&str]) -> Scenario {
    let mut steps = four();
    let names = &["/items/0/metadata/name", "/items/1/metadata/name", "/items/2/metadata/name", "/items/3/metadata/name"];
    steps.extend(queries.iter().map(|query| get(gadgets(&format!("?{query}"))).focus(names).into()));
    scenario(name, steps)
}

fn refuses(name: &'static str, queries: &[&str]) -> Scenario {
    scenario(name, queries.iter().map(|query| get(gadgets(&format!("?{query}"))).is(400).into()).collect())
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        picks("labels: equality", &["labelSelector=tier%3Dback", "labelSelector=tier%3D%3Dback", "labelSelector=tier!%3Dback", "labelSelector=env%3D", "labelSelector=env%21%3D"]),
        picks("labels: sets", &["labelSelector=tier%20in%20(front,back)", "labelSelector=tier%20notin%20(front)", "labelSelector=tier%20in%20(front)", "labelSelector=tier+in+(+back+,x)"]),
        picks("labels: existence", &["labelSelector=tier", "labelSelector=!tier", "labelSelector=tier,env%3Dprod", "labelSelector="]),
        picks("labels: all must hold", &["labelSelector=tier%3Dback,env%3Dprod", "labelSelector=tier%3Dback,env!%3Dprod", "labelSelector=tier,!env"]),
        refuses("labels: unreadable", &["labelSelector=a%20b", "labelSelector=%3Dx", "labelSelector=a%20in%20b", "labelSelector=a%3Db%3Dc", "labelSelector=a%20in%20(b", "labelSelector=-bad-%3Dx"]),
        picks("labels: comparison", &["labelSelector=tier%3E5", "labelSelector=tier%3C5"]),
        picks("fields: name and namespace", &["fieldSelector=metadata.name%3Db", "fieldSelector=metadata.name!%3Db", "fieldSelector=metadata.namespace%3Dnone", "fieldSelector=metadata.name%3Db,metadata.name%3Dc"]),
        picks("fields: selectable ones", &["fieldSelector=spec.color%3Dred", "fieldSelector=spec.color!%3Dred", "fieldSelector=spec.size%3D2", "fieldSelector=spec.color%3D", "fieldSelector=spec.color%3Dred,spec.size%3D1"]),
        refuses("fields: unknown or unreadable", &["fieldSelector=spec.title%3Dx", "fieldSelector=metadata.name", "fieldSelector=metadata.name%3Ea", "fieldSelector=metadata.labels%3Dx"]),
        picks("labels and fields together", &["labelSelector=tier%3Dback&fieldSelector=spec.color%3Dblue"]),
    ]
}
