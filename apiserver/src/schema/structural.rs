//! What makes a schema structural, so that pruning and defaulting are well
//! defined: every field has a type, and combinations only narrow what the
//! fields already say.
//!
//! Faults are found on the schema as written, all at once, sorted by path.

use serde_json::{Map, Value};

use super::error::FieldError;
use super::lists;
use super::node::Node;
use super::path::Path;
use super::{prune, validate};

/// How deep a schema may nest.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

type Schema = Map<String, Value>;

/// Everything that keeps a schema from being used, named by path from `openAPIV3Schema`.
pub(crate) fn faults(openapi: &Value) -> Vec<FieldError> {
    let path = "openAPIV3Schema";
    if super::nests_deeper_than(openapi, 2 * MAX_DEPTH) {
        return vec![FieldError::forbidden(path, format!("must not nest deeper than {MAX_DEPTH} levels"))];
    }
    let Some(schema) = openapi.as_object() else {
        return vec![FieldError::invalid(path, openapi, "must be an object")];
    };
    let mut faults = Faults::default();
    check(schema, Level::Root, path, &mut faults);
    let mut faults = if faults.keywords.is_empty() { faults.structure } else { faults.keywords };
    faults.sort_by_cached_key(ToString::to_string);
    faults.dedup();
    faults
}

/// What was found: misused keywords, and places that are not structural, which
/// are told only when there is nothing wrong with the keywords.
#[derive(Default)]
struct Faults {
    keywords: Vec<FieldError>,
    structure: Vec<FieldError>,
}

fn text<'a>(schema: &'a Schema, name: &str) -> &'a str {
    schema.get(name).and_then(Value::as_str).unwrap_or("")
}

fn flag(schema: &Schema, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn object<'a>(schema: &'a Schema, name: &str) -> Option<&'a Schema> {
    schema.get(name).and_then(Value::as_object)
}

fn check(schema: &Schema, level: Level, path: &str, faults: &mut Faults) {
    check_keywords(schema, path, &mut faults.keywords);
    lists::check(schema, path, &mut faults.keywords);
    check_rules(schema, path, &mut faults.keywords);
    check_type(schema, level, path, faults);
    check_combinations(schema, path, &mut faults.structure);
    check_pattern(schema, path, &mut faults.structure);
    check_metadata(schema, level, path, faults);
    check_default(schema, path, &mut faults.structure);

    if text(schema, "type") == "array" && !schema.contains_key("items") {
        faults.structure.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    if let Some(items) = object(schema, "items") {
        check(items, Level::Item, &format!("{path}.items"), faults);
    }
    for (name, property) in object(schema, "properties").into_iter().flatten() {
        if let Some(property) = property.as_object() {
            check(property, Level::Field, &format!("{path}.properties[{name}]"), faults);
        }
    }
    let additional = schema.get("additionalProperties").filter(|value| !value.is_null());
    if let Some(additional) = additional {
        let at = format!("{path}.additionalProperties");
        if level == Level::Root {
            faults.structure.push(FieldError::forbidden(&at, "must not be used at the root"));
        }
        if object(schema, "properties").is_some_and(|p| !p.is_empty()) && *additional != Value::Bool(true) {
            let detail = "additionalProperties and properties are mutual exclusive";
            faults.keywords.push(FieldError::forbidden(&at, detail));
        }
        if flag(schema, "x-kubernetes-embedded-resource") {
            let detail = "must not be used if x-kubernetes-embedded-resource is set";
            faults.structure.push(FieldError::forbidden(&at, detail));
        }
        if let Some(additional) = additional.as_object() {
            check(additional, Level::Field, &at, faults);
        }
    }
}

/// A default must be what the schema itself would accept unchanged.
fn check_default(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let Some(default) = schema.get("default").filter(|default| !default.is_null()) else { return };
    let node = Node::compile(&Value::Object(schema.clone()));
    let at = format!("{path}.default");
    let mut pruned = default.clone();
    if !prune::prune_value(&mut pruned, &node).is_empty() {
        faults.push(FieldError::invalid(&at, default, "must not have unknown fields"));
        return;
    }
    let mut findings = validate::Findings::default();
    validate::check(default, None, &node, &Path::Root, &mut findings);
    faults.extend(findings.errors.into_iter().map(|mut error| {
        error.field = if error.field.is_empty() { at.clone() } else { format!("{at}.{}", error.field) };
        error
    }));
}

/// Keywords of JSON schema that CRDs do not have.
fn check_keywords(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if schema.contains_key(name) {
            faults.push(FieldError::forbidden(format!("{path}.{name}"), format!("{name} is not supported")));
        }
    }
    if flag(schema, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        faults.push(FieldError::forbidden(format!("{path}.uniqueItems"), detail));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        faults.push(FieldError::forbidden(format!("{path}.items"), detail));
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let at = format!("{path}.x-kubernetes-preserve-unknown-fields");
        faults.push(FieldError::invalid(at, &Value::Bool(false), "must be true or undefined"));
    }
    if flag(schema, "x-kubernetes-int-or-string") {
        for name in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if flag(schema, name) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                faults.push(FieldError::invalid(format!("{path}.{name}"), &Value::Bool(true), detail));
            }
        }
    }
}

fn check_type(schema: &Schema, level: Level, path: &str, faults: &mut Faults) {
    let Faults { keywords, structure } = faults;
    const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
    let at = format!("{path}.type");
    let kind = text(schema, "type");
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let free =
        flag(schema, "x-kubernetes-int-or-string") || flag(schema, "x-kubernetes-preserve-unknown-fields");
    let shown = Value::from(kind);
    if kind == "null" {
        keywords
            .push(FieldError::forbidden(&at, "type cannot be set to null, use nullable as an alternative"));
    }
    if !kind.is_empty() && !TYPES.contains(&kind) {
        keywords.push(FieldError::not_supported(&at, &shown, &TYPES.map(str::to_owned)));
    }
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        structure.push(match kind {
            "" => FieldError::required(&at, detail),
            _ => FieldError::invalid(&at, &shown, detail),
        });
    } else if kind.is_empty() && !free {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        structure.push(FieldError::required(&at, detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        structure.push(FieldError::invalid(&at, &shown, "must be object at the root"));
    }
    let open = flag(schema, "x-kubernetes-preserve-unknown-fields");
    if embedded && !open && object(schema, "properties").is_none_or(Map::is_empty) {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without \
                      x-kubernetes-preserve-unknown-fields";
        structure.push(FieldError::required(format!("{path}.properties"), detail));
    }
}

/// A schema may say nothing of metadata but how names look.
fn check_metadata(schema: &Schema, level: Level, path: &str, faults: &mut Faults) {
    let Faults { keywords, structure } = faults;
    let checked = level == Level::Root || flag(schema, "x-kubernetes-embedded-resource");
    let property = |name: &str| object(schema, "properties").and_then(|all| object(all, name));
    for name in ["apiVersion", "kind"] {
        if let Some(kind) =
            property(name).map(|p| text(p, "type")).filter(|kind| checked && *kind != "string")
        {
            let at = format!("{path}.properties[{name}].type");
            structure.push(FieldError::invalid(at, &Value::from(kind), "must be string"));
        }
    }
    for name in ["apiVersion", "kind", "metadata"] {
        if level == Level::Root && property(name).is_some_and(|p| p.contains_key("default")) {
            let at = format!("{path}.properties[{name}].default");
            keywords.push(FieldError::forbidden(at, format!("must not be set in top-level {name}")));
        }
    }
    let Some(metadata) = property("metadata").filter(|_| checked) else { return };
    let at = format!("{path}.properties[metadata]");
    if text(metadata, "type") != "object" {
        let kind = Value::from(text(metadata, "type"));
        structure.push(FieldError::invalid(format!("{at}.type"), &kind, "must be object"));
    }
    let only_names = object(metadata, "properties").is_none_or(|properties| {
        properties.keys().all(|name| matches!(name.as_str(), "name" | "generateName"))
    });
    let plain = metadata.keys().all(|key| matches!(key.as_str(), "type" | "properties" | "default"));
    if level == Level::Root && !(only_names && plain) {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        structure.push(FieldError::forbidden(at, detail));
    }
}

fn check_pattern(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let pattern = text(schema, "pattern");
    if let Err(error) = regex::Regex::new(pattern) {
        let reason = show_regex_error(&error.to_string(), pattern);
        let detail = format!("must be a valid regular expression, but isn't: error parsing regexp: {reason}");
        faults.push(FieldError::invalid(format!("{path}.pattern"), &Value::from(pattern), detail));
    }
}

/// What is wrong with a pattern, in the words of the real server where it has a word for it.
fn show_regex_error(error: &str, pattern: &str) -> String {
    let reason = error.lines().last().unwrap_or("").trim_start_matches("error: ");
    match reason {
        "unclosed group" => format!("missing closing ): `{pattern}`"),
        "unopened group" => format!("unexpected ): `{pattern}`"),
        "unclosed character class" => {
            format!("missing closing ]: `{}`", &pattern[pattern.rfind('[').unwrap_or(0)..])
        }
        other => format!("{other}: `{pattern}`"),
    }
}

fn check_combinations(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let int_or_string = flag(schema, "x-kubernetes-int-or-string");
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in schema.get(name).and_then(Value::as_array).into_iter().flatten().enumerate() {
            let typed = int_or_string && says_int_or_string(schema.get(name), name, branch);
            if let Some(branch) = branch.as_object().filter(|_| !typed) {
                check_narrowing(branch, &format!("{path}.{name}[{index}]"), faults);
            }
        }
    }
    if let Some(not) = object(schema, "not") {
        check_narrowing(not, &format!("{path}.not"), faults);
    }
}

/// The two ways in which an int-or-string may spell its types out.
fn says_int_or_string(branches: Option<&Value>, name: &str, branch: &Value) -> bool {
    let pair = serde_json::json!([{"type": "integer"}, {"type": "string"}]);
    match name {
        "anyOf" => branches == Some(&pair),
        "allOf" => branch.get("anyOf") == Some(&pair),
        _ => false,
    }
}

/// A branch may say what values are allowed, never what fields there are.
fn check_narrowing(branch: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let mut forbid =
        |name: &str, detail: &str| faults.push(FieldError::forbidden(format!("{path}.{name}"), detail));
    for name in ["type", "title", "description", "x-kubernetes-list-map-keys", "x-kubernetes-validations"] {
        if branch.contains_key(name) {
            forbid(name, "must be empty to be structural");
        }
    }
    for name in ["additionalProperties", "default", "x-kubernetes-list-type", "x-kubernetes-map-type"] {
        if branch.contains_key(name) {
            forbid(name, "must be undefined to be structural");
        }
    }
    let flags = [
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ];
    for name in flags {
        if flag(branch, name) {
            forbid(name, "must be false to be structural");
        }
    }
    check_pattern(branch, path, faults);
    check_combinations(branch, path, faults);
    for (name, property) in object(branch, "properties").into_iter().flatten() {
        let at = format!("{path}.properties[{name}]");
        if name == "metadata" {
            faults.push(FieldError::forbidden(&at, "must not be specified in a nested context"));
        }
        if let Some(property) = property.as_object() {
            check_narrowing(property, &at, faults);
        }
    }
    if let Some(items) = object(branch, "items") {
        check_narrowing(items, &format!("{path}.items"), faults);
    }
}

fn check_rules(schema: &Schema, path: &str, faults: &mut Vec<FieldError>) {
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        let at = |name: &str| format!("{path}.x-kubernetes-validations[{index}].{name}");
        let raw = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or("");
        let (source, message) = (raw("rule").trim(), raw("message").trim());
        let shown = Value::from(raw("message"));
        if source.is_empty() {
            faults.push(FieldError::required(at("rule"), "rule is not specified"));
        } else if !raw("message").is_empty() && message.is_empty() {
            faults.push(FieldError::invalid(at("message"), &shown, "must be non-empty if specified"));
        } else if message.contains('\n') {
            faults.push(FieldError::invalid(at("message"), &shown, "must not contain line breaks"));
        } else if source.contains('\n') && message.is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            faults.push(FieldError::required(at("message"), detail));
        }
        if !raw("messageExpression").is_empty() && raw("messageExpression").trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            faults.push(FieldError::required(at("messageExpression"), detail));
        }
        const REASONS: [&str; 4] =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        if rule.get("reason").is_some() && !REASONS.contains(&raw("reason")) {
            let shown = Value::from(raw("reason"));
            faults.push(FieldError::not_supported(at("reason"), &shown, &REASONS.map(str::to_owned)));
        }
    }
}
