//! Lists in pages: every page shows the same moment.

use serde_json::json;

use crate::fixtures::{gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, Step, delete, get, post, scenario, steps};

fn five() -> Vec<Step> {
    ["a", "b", "c", "d", "e"].map(|name| post(gadgets(""), gadget_with(json!({"name": name, "labels": {"odd": if "ace".contains(name) { "yes" } else { "no" }}}), json!({}))).focus(&["/metadata/name"]).into()).into()
}

fn with_five(more: Vec<Step>) -> Vec<Step> {
    let mut steps = five();
    steps.extend(more);
    steps
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let page = &["/metadata", "/items/0/metadata/name", "/items/1/metadata/name", "/items/2"];
    vec![
        scenario("pages of two", with_five(steps![
            get(gadgets("?limit=2")).focus(page).save("one"),
            get(gadgets("?limit=2&continue={one:/metadata/continue}")).focus(page).save("two"),
            get(gadgets("?limit=2&continue={two:/metadata/continue}")).focus(page),
        ])),
        scenario("a page shows the moment of the first", with_five(steps![
            get(gadgets("?limit=2")).focus(page).save("one"),
            delete(gadgets("c")).status_only(),
            post(gadgets(""), gadget("bb", json!({}))).status_only(),
            get(gadgets("?limit=5&continue={one:/metadata/continue}")).focus(&["/items/0/metadata/name", "/items/1/metadata/name", "/items/2/metadata/name", "/items/3"]),
        ])),
        scenario("a limit that is enough has no continue", with_five(steps![
            get(gadgets("?limit=5")).focus(&["/metadata"]),
            get(gadgets("?limit=500")).focus(&["/metadata"]),
            get(gadgets("?limit=0")).focus(&["/metadata"]),
        ])),
        scenario("pages of a selection do not say how many remain", with_five(steps![
            get(gadgets("?limit=2&labelSelector=odd%3Dyes")).focus(page).save("one"),
            get(gadgets("?limit=2&labelSelector=odd%3Dyes&continue={one:/metadata/continue}")).focus(page),
        ])),
        scenario("a token that is none", with_five(steps![
            get(gadgets("?limit=2&continue=nonsense")).is(400),
            get(gadgets("?limit=abc")).is(400),
            get(gadgets("?limit=2&resourceVersion=0")).focus(page),
        ])),
        scenario("a token excludes a resourceVersion", with_five(steps![
            get(gadgets("?limit=2")).focus(page).save("one"),
            get(gadgets("?limit=2&resourceVersion=1&continue={one:/metadata/continue}")).is(400),
        ])),
    ]
}
