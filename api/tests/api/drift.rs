//! Holds the committed files to what the crate generates.
//!
//! The invariant: a change of a kind is not complete without its files.

use crate::support;

const COMMAND: &str = "cargo run -p midflight-api --example generate";

#[test]
fn definitions_are_as_generated() {
    let fresh = midflight_api::render(&midflight_api::crds());
    assert!(support::read("deploy/crds.yaml") == fresh, "deploy/crds.yaml is stale; run: {COMMAND}");
}

#[test]
fn the_reference_is_as_generated() {
    let fresh = midflight_api::reference(&midflight_api::crds());
    assert!(
        support::read("docs/reference/api.md") == fresh,
        "docs/reference/api.md is stale; run: {COMMAND}"
    );
}

#[test]
fn yaml_and_json_hold_the_same_definitions() {
    let json: Vec<serde_json::Value> =
        midflight_api::crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    assert_eq!(support::ours(), json);
}
