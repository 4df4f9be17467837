//! Holds every schema to the rules of the house: documented, bounded, explained.
//!
//! The invariant: no field is without a description, no text, list or map
//! without a bound, and no rule without a sentence that says what to do.

use crate::support;
use std::collections::BTreeSet;

use serde_json::Value;

#[test]
fn every_field_is_documented_and_bounded() {
    let mut missing = Vec::new();
    for definition in support::ours() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        describe(kind, schema, &mut missing);
        for (name, field) in schema["properties"].as_object().unwrap() {
            if !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                visit(&format!("{kind}.{name}"), field, &mut missing);
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_rule_says_what_to_do() {
    let mut mute = Vec::new();
    for definition in support::ours() {
        each_rule(definition, &mut |rule| {
            if rule["message"].as_str().is_none_or(|message| message.split(' ').count() < 4) {
                mute.push(rule["rule"].to_string());
            }
        });
    }
    assert!(mute.is_empty(), "{}", mute.join("\n"));
}

#[test]
fn every_list_of_conditions_has_one_of_each_type() {
    for definition in support::ours() {
        each_schema(definition, &mut |name, schema| {
            if name == "conditions" && schema["type"] == "array" {
                assert_eq!(schema["x-kubernetes-list-type"], "map", "{}", definition["metadata"]["name"]);
                assert_eq!(schema["x-kubernetes-list-map-keys"], serde_json::json!(["type"]));
            }
        });
    }
}

#[test]
fn the_order_of_definitions_is_stable_and_their_names_unique() {
    let names =
        || -> Vec<String> { midflight_api::crds().into_iter().filter_map(|crd| crd.metadata.name).collect() };
    assert_eq!(names(), names());
    let unique: BTreeSet<String> = names().into_iter().collect();
    assert_eq!(unique.len(), names().len());
}

fn visit(path: &str, schema: &Value, missing: &mut Vec<String>) {
    describe(path, schema, missing);
    bound(path, schema, missing);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        visit(&format!("{path}.{name}"), field, missing);
    }
    for (step, inner) in [("items", "[]"), ("additionalProperties", "*")] {
        let element = &schema[step];
        if element.is_null() {
            continue;
        }
        bound(&format!("{path}.{inner}"), element, missing);
        for (name, field) in element["properties"].as_object().into_iter().flatten() {
            visit(&format!("{path}.{inner}.{name}"), field, missing);
        }
    }
}

fn describe(path: &str, schema: &Value, missing: &mut Vec<String>) {
    if schema["description"].as_str().is_none_or(|text| !text.ends_with('.')) {
        missing.push(format!("{path}: no description that is a sentence"));
    }
}

fn bound(path: &str, schema: &Value, missing: &mut Vec<String>) {
    let (needed, alternative) = match schema["type"].as_str() {
        Some("string") => ("maxLength", "enum"),
        Some("array") => ("maxItems", "maxItems"),
        Some("object") if !schema["additionalProperties"].is_null() => ("maxProperties", "maxProperties"),
        _ => return,
    };
    if schema[needed].is_null() && schema[alternative].is_null() {
        missing.push(format!("{path}: no {needed}"));
    }
}

fn each_rule(value: &Value, act: &mut impl FnMut(&Value)) {
    each_schema(value, &mut |_, schema| {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            act(rule);
        }
    });
}

fn each_schema(value: &Value, act: &mut impl FnMut(&str, &Value)) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        act(name, inner);
        each_schema(inner, act);
    }
    for inner in value.as_array().into_iter().flatten() {
        each_schema(inner, act);
    }
}
