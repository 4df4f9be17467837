//! Checks values against the schema: types, sizes, patterns, formats, choices
//! and combinations.
//!
//! What did not change in an update is not held against it: an error inside a
//! field that equals its old value is dropped, so that a schema may become
//! stricter without breaking stored objects.

use serde_json::{Map, Value};

use super::error::FieldError;
use super::node::{Additional, ListType, Node};
use super::path::Path;
use super::scalar;

/// What a walk found. `matches` counts checks that were done, by which the
/// best of several failed alternatives is chosen, as the real server does.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) errors: Vec<FieldError>,
    pub(crate) matches: u32,
}

impl Findings {
    fn absorb(&mut self, other: Findings) {
        self.errors.extend(other.errors);
        self.matches += other.matches;
    }
}

/// Checks one value; `old` is what stood in its place before, if that is known.
pub(crate) fn check(
    value: &Value,
    old: Option<&Value>,
    node: &Node,
    path: &Path<'_>,
    findings: &mut Findings,
) {
    let before = findings.errors.len();
    check_here(value, old, node, path, findings);
    if findings.errors.len() > before && old == Some(value) {
        findings.errors.truncate(before);
    }
}

fn check_here(value: &Value, old: Option<&Value>, node: &Node, path: &Path<'_>, findings: &mut Findings) {
    if !node.types.is_any() || node.format.is_some() {
        let fits = scalar::check_type(value, node, path, &mut findings.errors);
        findings.matches += u32::from(fits) + 1;
    }
    if value.is_null() {
        scalar::check_choices(value, node, path, &mut findings.errors);
        return;
    }
    check_combinations(value, old, node, path, findings);
    match value {
        Value::String(text) => {
            scalar::check_string(text, node, path, &mut findings.errors);
            findings.matches += 1 + u32::from(node.format.is_some());
        }
        Value::Number(number) => {
            scalar::check_number(number, node, path, &mut findings.errors);
            findings.matches += 2;
        }
        Value::Array(items) => {
            check_items(items, old, node, path, findings);
            findings.matches += 2;
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => {}
    }
    scalar::check_choices(value, node, path, &mut findings.errors);
    findings.matches += 1;
    if let Value::Object(map) = value {
        check_fields(map, old, node, path, findings);
        findings.matches += 1;
    }
    findings.matches += 1;
}

fn check_items(items: &[Value], old: Option<&Value>, node: &Node, path: &Path<'_>, findings: &mut Findings) {
    if let Some(schema) = node.items.as_deref() {
        for (index, item) in items.iter().enumerate() {
            let old_item = correlate(item, old, node);
            check(item, old_item, schema, &path.index(index), findings);
        }
    }
    let Some(bounds) = &node.bounds else { return };
    if bounds.min_items.is_some_and(|min| (items.len() as u64) < min) {
        let field = path.dotted();
        let min = bounds.min_items.unwrap_or_default();
        let detail = format!("{field} in body should have at least {min} items");
        findings.errors.push(FieldError::invalid(field, &items.len().into(), detail));
    }
    if let Some(max) = bounds.max_items
        && items.len() as u64 > max
    {
        findings.errors.push(FieldError::too_many(path.dotted(), items.len(), max));
    }
}

fn check_fields(
    map: &Map<String, Value>,
    old: Option<&Value>,
    node: &Node,
    path: &Path<'_>,
    findings: &mut Findings,
) {
    check_size(map, node, path, findings);
    let old = old.and_then(Value::as_object);
    for (key, value) in map {
        if let Some(property) = node.properties.get(key) {
            // Old and new were brought to one version, so a change of these cannot be seen.
            let hidden = path.is_root() && matches!(key.as_str(), "apiVersion" | "kind");
            let old_value = old.and_then(|old| old.get(key)).filter(|_| !hidden);
            check(value, old_value, property, &path.field(key), findings);
            continue;
        }
        match &node.additional {
            Additional::Each(each) => {
                let old_value = old.and_then(|old| old.get(key));
                check(value, old_value, each, &path.key(key), findings);
            }
            Additional::Forbidden => {
                let field = path.dotted();
                let detail = format!("{field}.{key} in body is a forbidden property");
                findings.errors.push(FieldError::invalid(field, &Value::from(key.as_str()), detail));
            }
            Additional::Unsaid | Additional::Anything => {}
        }
    }
    for name in node.required.iter().filter(|name| !map.contains_key(*name)) {
        findings.errors.push(FieldError::required(path.field(name).dotted(), ""));
    }
}

fn check_size(map: &Map<String, Value>, node: &Node, path: &Path<'_>, findings: &mut Findings) {
    let Some(bounds) = &node.bounds else { return };
    let size = map.len() as u64;
    if let Some(min) = bounds.min_properties
        && size < min
    {
        let field = path.dotted();
        let detail = format!("{field} in body should have at least {min} properties");
        findings.errors.push(FieldError::invalid(field, &size.into(), detail));
    }
    if let Some(max) = bounds.max_properties
        && size > max
    {
        findings.errors.push(FieldError::too_many(path.dotted(), map.len(), max));
    }
}

/// The old item that a new one replaces; only lists of type map can tell.
pub(crate) fn correlate<'a>(item: &Value, old: Option<&'a Value>, node: &Node) -> Option<&'a Value> {
    let ListType::Map(keys) = &node.list else { return None };
    old?.as_array()?.iter().find(|old| keys.iter().all(|key| old.get(key) == item.get(key)))
}

fn check_combinations(
    value: &Value,
    old: Option<&Value>,
    node: &Node,
    path: &Path<'_>,
    findings: &mut Findings,
) {
    findings.matches += 2;
    if node.any_of.is_empty() && node.one_of.is_empty() && node.all_of.is_empty() && node.not.is_none() {
        return;
    }
    let attempt = |branch: &Node| {
        let mut found = Findings::default();
        check_here(value, old, branch, path, &mut found);
        found
    };
    if !node.any_of.is_empty() {
        check_any(&node.any_of, attempt, path, findings);
    }
    if !node.one_of.is_empty() {
        check_one(&node.one_of, attempt, path, findings);
    }
    if !node.all_of.is_empty() {
        check_all(&node.all_of, attempt, path, findings);
    }
    if node.not.as_deref().is_some_and(|not| attempt(not).errors.is_empty()) {
        complain(findings, path, "must not validate the schema (not)");
    }
}

fn check_any(
    branches: &[Node],
    attempt: impl Fn(&Node) -> Findings,
    path: &Path<'_>,
    findings: &mut Findings,
) {
    let mut best: Option<Findings> = None;
    for branch in branches {
        let found = attempt(branch);
        if found.errors.is_empty() {
            findings.matches += found.matches;
            return;
        }
        if best.as_ref().is_none_or(|best| found.matches > best.matches) {
            best = Some(found);
        }
    }
    complain(findings, path, "must validate at least one schema (anyOf)");
    findings.absorb(best.unwrap_or_default());
}

fn check_one(
    branches: &[Node],
    attempt: impl Fn(&Node) -> Findings,
    path: &Path<'_>,
    findings: &mut Findings,
) {
    let mut valid = 0;
    let mut first_matches = 0;
    let mut best: Option<Findings> = None;
    for branch in branches {
        let found = attempt(branch);
        if found.errors.is_empty() {
            if valid == 0 {
                first_matches = found.matches;
            }
            valid += 1;
            best = None;
        } else if valid == 0 && best.as_ref().is_none_or(|best| found.matches > best.matches) {
            best = Some(found);
        }
    }
    match valid {
        1 => findings.matches += first_matches,
        0 => {
            complain(findings, path, "must validate one and only one schema (oneOf). Found none valid");
            findings.absorb(best.unwrap_or_default());
        }
        many => {
            let text =
                format!("must validate one and only one schema (oneOf). Found {many} valid alternatives");
            complain(findings, path, &text);
        }
    }
}

fn check_all(
    branches: &[Node],
    attempt: impl Fn(&Node) -> Findings,
    path: &Path<'_>,
    findings: &mut Findings,
) {
    let mut valid = 0;
    for branch in branches {
        let found = attempt(branch);
        valid += usize::from(found.errors.is_empty());
        findings.absorb(found);
    }
    if valid != branches.len() {
        let none = if valid == 0 { ". None validated" } else { "" };
        complain(findings, path, &format!("must validate all the schemas (allOf){none}"));
    }
}

/// Combinations are not blamed on a field; the real server names it in the text only.
fn complain(findings: &mut Findings, path: &Path<'_>, text: &str) {
    let detail = format!("{} {text}", super::error::quote(&path.dotted()));
    findings.errors.push(FieldError::invalid("<nil>", &Value::from(""), detail));
}
