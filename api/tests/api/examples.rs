//! The YAML in `examples/`, the seeds' own and that of the guides, against our schemas.
//!
//! The invariant: what a user is shown can be applied as it stands.

use crate::support;
use serde_json::Value;

/// Examples and where each is shown.
const EXAMPLES: &[(&str, &str)] = &[
    ("examples/node-upgrade.yaml", "seed 004"),
    ("examples/fuse-runtime.yaml", "seed 003"),
    ("examples/pre-pull-setting.yaml", "seed 001"),
    ("examples/dataset.yaml", "guide of datasets"),
];

#[test]
fn every_example_is_accepted() {
    for (path, seed) in EXAMPLES {
        for object in support::documents(&support::read(path)) {
            let schema = support::schema_of(object["kind"].as_str().unwrap());
            let mut wrong = Vec::new();
            shape("", schema, &object, &mut wrong);
            wrong.extend(support::refusals(schema, &object, None));
            assert!(wrong.is_empty(), "{path} ({seed}): {wrong:#?}");
        }
    }
}

#[test]
fn a_wrong_object_is_not() {
    let schema = support::schema_of("JuiceFSRuntime");
    for (yaml, expected) in [
        ("spec: {fuse: {updateStrategy: OnTuesday}}", "spec.fuse.updateStrategy: not one of"),
        ("spec: {fuse: {updateStrtegy: OnIdle}}", "spec.fuse.updateStrtegy: no such field"),
        ("spec: {fuse: {image: 5}}", "spec.fuse.image: not a string"),
        ("{}", "spec: missing"),
    ] {
        let mut wrong = Vec::new();
        shape("", schema, &support::documents(yaml)[0], &mut wrong);
        assert!(wrong.iter().any(|one| one.starts_with(expected)), "{yaml}: {wrong:?}");
    }
}

/// The part of a structural schema that an example can break: names, types, enums and what is required.
fn shape(path: &str, schema: &Value, value: &Value, wrong: &mut Vec<String>) {
    let fits = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    if !fits {
        wrong.push(format!("{path}: not a {}", schema["type"].as_str().unwrap()));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        wrong.push(format!("{path}: not one of {}", schema["enum"]));
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(name).is_none() {
            wrong.push(format!("{}: missing", join(path, name)));
        }
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            continue;
        }
        let field = schema["properties"].get(name).or(schema.get("additionalProperties"));
        match field {
            Some(field) => shape(&join(path, name), field, inner, wrong),
            None => wrong.push(format!("{}: no such field", join(path, name))),
        }
    }
    for inner in value.as_array().into_iter().flatten() {
        shape(&join(path, "[]"), &schema["items"], inner, wrong);
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}
