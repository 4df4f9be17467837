//! The reference of the API as a page, written from the definitions.
//!
//! The invariant: a field that an API server accepts has a line, and no other.

use std::fmt::Write;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::settings;

const INTRODUCTION: &str = "\
# API reference

Generated from `api/` with `cargo run -p midflight-api --example generate`. `kubectl explain` says the same.
Sizes are bytes in a string, times are RFC 3339. `[]` is an element of a list, `*` an entry of a map. Conditions
have a `type`, a `status` (`True`, `False` or `Unknown`), a `reason` for programs, a `message` that says what would
help, and the time of the last change.
";

/// The page: every kind with its fields, bounds and rules, then the settings.
pub fn reference(crds: &[CustomResourceDefinition]) -> String {
    let mut page = String::from(INTRODUCTION);
    for crd in crds {
        kind(&mut page, &serde_json::to_value(crd).expect("a definition is JSON"));
    }
    settings(&mut page);
    page
}

fn kind(page: &mut String, crd: &Value) {
    let (spec, version) = (&crd["spec"], &crd["spec"]["versions"][0]);
    let schema = &version["schema"]["openAPIV3Schema"];
    let names = |field: &str| -> String {
        let all: Vec<&str> =
            spec["names"][field].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        all.join("`, `")
    };
    line(page, &format!("\n## {}\n", text(&spec["names"]["kind"])));
    line(page, &format!("{}\n", text(&schema["description"])));
    line(
        page,
        &format!(
            "`{}/{}`, short name `{}`, namespaced.\n",
            text(&spec["group"]),
            text(&version["name"]),
            names("shortNames")
        ),
    );
    line(page, "| field | type | what it is |\n| --- | --- | --- |");
    fields(page, "", schema);
    page.push('\n');
    if spec["names"]["kind"] == "Setting" {
        line(page, "Rules: the name and value must be as in [Settings](#settings).");
        return;
    }
    rules(page, "the object", schema);
    each_rule(page, "", schema);
}

fn fields(page: &mut String, path: &str, schema: &Value) {
    let required = schema["required"].as_array();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            continue;
        }
        let path = join(path, name);
        let needed = required.is_some_and(|required| required.iter().any(|one| one == name));
        let needed = if needed { " Required." } else { "" };
        line(page, &format!("| `{path}` | {} | {}{needed} |", type_of(field), text(&field["description"])));
        inside(page, &path, field);
    }
}

/// What is in a field. The fields of conditions are the same everywhere and stand in the introduction.
fn inside(page: &mut String, path: &str, schema: &Value) {
    if path.ends_with(".conditions") {
        return;
    }
    fields(page, path, schema);
    for (step, inner) in [("items", "[]"), ("additionalProperties", "*")] {
        if schema[step].is_object() {
            fields(page, &join(path, inner), &schema[step]);
        }
    }
}

/// The type of a field in a few words, with its bounds and default.
fn type_of(schema: &Value) -> String {
    let mut words = match (text(&schema["type"]), &schema["enum"]) {
        (_, Value::Array(values)) => {
            let values: Vec<String> = values.iter().map(|value| format!("`{}`", text(value))).collect();
            values.join(", ").replace("``", "empty")
        }
        ("array", _) => format!("list of {}", element(&schema["items"])),
        ("object", _) if schema["additionalProperties"].is_object() => {
            format!("map of {}", element(&schema["additionalProperties"]))
        }
        ("", _) => "quantity".into(),
        (plain, _) => plain.into(),
    };
    for (bound, word) in [
        ("maxLength", "at most"),
        ("maxItems", "at most"),
        ("maxProperties", "at most"),
        ("minimum", "from"),
        ("maximum", "to"),
    ] {
        if let Some(number) = schema[bound].as_f64() {
            let _ = write!(words, ", {word} {number}");
        }
    }
    if !schema["default"].is_null() {
        let _ = write!(words, ", default `{}`", schema["default"].to_string().trim_matches('"'));
    }
    words
}

fn element(schema: &Value) -> &str {
    match text(&schema["type"]) {
        "" => "quantity",
        plain => plain,
    }
}

fn each_rule(page: &mut String, path: &str, schema: &Value) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = join(path, name);
        rules(page, &format!("`{path}`"), field);
        each_rule(page, &path, field);
        for (step, inner) in [("items", "[]"), ("additionalProperties", "*")] {
            if field[step].is_object() {
                each_rule(page, &join(&path, inner), &field[step]);
            }
        }
    }
}

fn rules(page: &mut String, place: &str, schema: &Value) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        line(page, &format!("- {place}: {}.", text(&rule["message"])));
    }
}

fn settings(page: &mut String) {
    line(page, "\n## Settings\n\nSetting objects in the namespace `longhorn-system`.\n");
    line(page, "| name | value | default | what it does |\n| --- | --- | --- | --- |");
    for setting in settings::TABLE {
        let fixed = if setting.read_only_with_longhorn { " Read-only where Longhorn runs." } else { "" };
        let kept = if setting.acted_on { "" } else { " Kept for Longhorn's tools, without effect here." };
        line(
            page,
            &format!(
                "| `{}` | {} | `{}` | {}{kept}{fixed} |",
                setting.name, setting.format, setting.default, setting.description
            ),
        );
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn line(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}
