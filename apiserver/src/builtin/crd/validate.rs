//! Judges a CustomResourceDefinition, in the words of the real server.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::conversion::conversion;
use super::{is_established, items, text, texts};
use crate::{
    builtin::{
        faults::{cause, duplicate, invalid, not_supported, required, too_many},
        names::{dns_subdomain, dns1035_label},
    },
    error::Cause,
    schema::{Schema, SchemaError},
};

/// Everything wrong with a CRD whose defaults are filled in. `old` is what it replaces.
pub fn validate(crd: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut faults = Vec::new();
    if old.is_none() {
        name(crd, &mut faults);
    }
    group(crd, &mut faults);
    match text(crd, "/spec/scope") {
        "" => faults.push(required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => faults.push(not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    versions(crd, &mut faults);
    stored_versions(crd, &mut faults);
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(crd, &format!("/spec/names/{field}")).is_empty() {
            faults.push(required(format!("spec.names.{field}"), ""));
        }
    }
    names(crd.pointer("/spec/names").unwrap_or(&Value::Null), &mut faults);
    conversion(crd, old, &mut faults);
    if crd.pointer("/spec/preserveUnknownFields") == Some(&json!(true)) {
        faults.push(invalid("spec.preserveUnknownFields", true, "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"));
    }
    if let Some(old) = old {
        changes(crd, old, &mut faults);
    }
    faults
}

fn name(crd: &Value, faults: &mut Vec<Cause>) {
    let name = text(crd, "/metadata/name");
    let wanted = format!("{}.{}", text(crd, "/spec/names/plural"), text(crd, "/spec/group"));
    if !name.is_empty() && name != wanted {
        faults.push(invalid("metadata.name", name, r#"must be spec.names.plural+"."+spec.group"#));
    }
}

fn group(crd: &Value, faults: &mut Vec<Cause>) {
    let group = text(crd, "/spec/group");
    let wrong = dns_subdomain(group);
    if group.is_empty() {
        faults.push(required("spec.group", ""));
    } else if !wrong.is_empty() {
        faults.push(invalid("spec.group", group, &wrong.join(",")));
    } else if !group.contains('.') {
        faults.push(invalid("spec.group", group, "should be a domain with at least one dot"));
    }
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|own| group == *own || group.strip_suffix(own).is_some_and(|rest| rest.ends_with('.')));
    const APPROVAL: &str = "api-approved.kubernetes.io";
    let approved = crd.pointer("/metadata/annotations").and_then(|annotations| annotations.get(APPROVAL));
    if protected && approved.is_none() {
        faults.push(required(
            format!("metadata.annotations[{APPROVAL}]"),
            &format!("protected groups must have approval annotation \"{APPROVAL}\", see https://github.com/kubernetes/enhancements/pull/1111"),
        ));
    }
}

/// What a version may define for itself, with the name it goes by when all
/// versions agree: the real server then speaks of it as defined once for all.
const PARTS: [(&str, &str); 4] = [
    ("schema", "validation"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

fn versions(crd: &Value, faults: &mut Vec<Cause>) {
    let all = crd.pointer("/spec/versions").cloned().unwrap_or(Value::Null);
    let mut seen = BTreeSet::new();
    let mut unique = true;
    for (index, version) in items(Some(&all)).enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = text(version, "/name");
        unique &= seen.insert(name.to_owned());
        let wrong = dns1035_label(name);
        if !wrong.is_empty() {
            faults.push(invalid(format!("{at}.name"), name, &wrong.join(",")));
        }
        if version.pointer("/schema/openAPIV3Schema").is_none_or(Value::is_null) {
            faults.push(required(format!("{at}.schema.openAPIV3Schema"), ""));
        }
        deprecation(version, &at, faults);
        for (part, _) in PARTS.iter().filter(|(part, _)| !agreed(&all, part)) {
            self::part(version, part, &format!("{at}.{part}"), faults);
        }
    }
    let storage = items(Some(&all)).filter(|version| version.get("storage") == Some(&json!(true))).count();
    if !unique {
        faults.push(invalid("spec.versions", all.clone(), "must contain unique version names"));
    }
    if storage != 1 {
        let detail = "must have exactly one version marked as storage version";
        faults.push(invalid("spec.versions", all.clone(), detail));
    }
    if let Some(first) = all.get(0) {
        for (part, name) in PARTS.iter().filter(|(part, _)| agreed(&all, part)) {
            self::part(first, part, &format!("spec.{name}"), faults);
        }
    }
}

/// Every version that objects were or will be stored in is there.
fn stored_versions(crd: &Value, faults: &mut Vec<Cause>) {
    const FIELD: &str = "status.storedVersions";
    let stored = texts(crd.pointer("/status/storedVersions"));
    if stored.is_empty() {
        return faults.push(invalid(FIELD, Value::Null, "must have at least one stored version"));
    }
    let mut present = Vec::new();
    for version in items(crd.pointer("/spec/versions")) {
        let name = text(version, "/name");
        present.push(name);
        if version.get("storage") == Some(&json!(true)) && !stored.iter().any(|one| one == name) {
            faults.push(invalid(FIELD, json!(stored), &format!("must have the storage version {name}")));
        }
    }
    for (index, stored) in stored.iter().enumerate().filter(|(_, one)| !present.contains(&one.as_str())) {
        faults.push(invalid(format!("{FIELD}[{index}]"), stored.as_str(), &format!("missing from spec.versions; {stored} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {stored} and removes {stored} from status.storedVersions")));
    }
}

fn agreed(versions: &Value, part: &str) -> bool {
    let mut parts = items(Some(versions)).map(|version| version.get(part));
    parts.next().is_some_and(|first| parts.all(|other| other == first))
}

fn deprecation(version: &Value, at: &str, faults: &mut Vec<Cause>) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    let field = format!("{at}.deprecationWarning");
    if version.get("deprecated") != Some(&json!(true)) {
        faults.push(invalid(field, warning, "can only be set for deprecated versions"));
    } else if warning.is_empty() {
        faults.push(invalid(field, warning, "must not be an empty string"));
    } else if warning.len() > 256 {
        faults.push(invalid(field, warning, "must be <= 256 characters long"));
    }
}

/// Judges one part of a version, which stands at `at`.
fn part(version: &Value, part: &str, at: &str, faults: &mut Vec<Cause>) {
    let schema = version.pointer("/schema/openAPIV3Schema").filter(|schema| !schema.is_null());
    match part {
        "schema" => {
            if let Some(Err(SchemaError(wrong))) = schema.map(Schema::compile) {
                faults.extend(wrong.into_iter().map(|mut error| {
                    error.field = format!("{at}.{}", error.field);
                    cause(&error)
                }));
            }
        }
        "subresources" => {
            if let Some(scale) = version.pointer("/subresources/scale") {
                self::scale(scale, &format!("{at}.scale"), faults);
            }
        }
        "additionalPrinterColumns" => {
            for (index, column) in items(version.get(part)).enumerate() {
                self::column(column, &format!("{at}[{index}]"), faults);
            }
        }
        _ => selectable(version, schema, at, faults),
    }
}

/// A path in the simple form: what is wrong with it, if anything.
fn simple_path(path: &str) -> Option<&'static str> {
    (!path.starts_with('.')).then_some("must be a simple json path starting with .")
}

fn scale(scale: &Value, at: &str, faults: &mut Vec<Cause>) {
    for (field, under, optional) in [
        ("specReplicasPath", ".spec.", false),
        ("statusReplicasPath", ".status.", false),
        ("labelSelectorPath", "", true),
    ] {
        let path = text(scale, &format!("/{field}"));
        let at = format!("{at}.{field}");
        if path.is_empty() {
            if !optional {
                faults.push(required(at, ""));
            }
        } else if let Some(wrong) = simple_path(path) {
            faults.push(invalid(at, path, wrong));
        } else if optional && !path.starts_with(".spec.") && !path.starts_with(".status.") {
            faults.push(invalid(at, path, "should be a json path under either .spec or .status"));
        } else if !path.starts_with(under) {
            let detail = format!("should be a json path under {}", under.trim_end_matches('.'));
            faults.push(invalid(at, path, &detail));
        }
    }
}

fn column(column: &Value, at: &str, faults: &mut Vec<Cause>) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    if text(column, "/name").is_empty() {
        faults.push(required(format!("{at}.name"), ""));
    }
    let one_of = format!("must be one of {}", TYPES.join(","));
    match text(column, "/type") {
        "" => faults.push(required(format!("{at}.type"), &one_of)),
        known if TYPES.contains(&known) => {}
        other => faults.push(invalid(format!("{at}.type"), other, &one_of)),
    }
    match text(column, "/format") {
        "" => {}
        known if FORMATS.contains(&known) => {}
        other => {
            faults.push(invalid(
                format!("{at}.format"),
                other,
                &format!("must be one of {}", FORMATS.join(",")),
            ));
        }
    }
    let path = text(column, "/jsonPath");
    if path.is_empty() {
        faults.push(required(format!("{at}.JSONPath"), ""));
    } else if let Some(wrong) = simple_path(path) {
        faults.push(invalid(format!("{at}.JSONPath"), path, wrong));
    }
}

fn selectable(version: &Value, schema: Option<&Value>, at: &str, faults: &mut Vec<Cause>) {
    const LIMIT: u64 = 8;
    let mut seen = BTreeSet::new();
    for (index, field) in items(version.get("selectableFields")).enumerate() {
        let path = text(field, "/jsonPath");
        let at = format!("{at}[{index}].jsonPath");
        if path.is_empty() {
            faults.push(required(at, ""));
            continue;
        }
        let Some(steps) = path.strip_prefix('.') else {
            faults.push(invalid(at, path, "is an invalid path: must be a simple json path starting with ."));
            continue;
        };
        let found =
            steps.split('.').try_fold(schema, |schema, step| Some(schema?.get("properties")?.get(step)));
        let Some(field) = found.flatten() else {
            faults.push(invalid(at, path, "is an invalid path: does not refer to a valid field"));
            continue;
        };
        if steps.split('.').next() == Some("metadata") {
            faults.push(invalid(at.clone(), path, "must not point to fields in metadata"));
        }
        match text(field, "/type") {
            "string" | "boolean" | "integer" => {}
            _ => faults.push(invalid(at.clone(), path, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.")),
        }
        if !seen.insert(path.to_owned()) {
            faults.push(duplicate(at, path));
        }
    }
    if seen.len() as u64 > LIMIT {
        faults.push(too_many(at, seen.len(), LIMIT));
    }
}

fn names(names: &Value, faults: &mut Vec<Cause>) {
    let mut check = |field: String, name: &str, mixed_case: bool| {
        let wrong = dns1035_label(&if mixed_case { name.to_lowercase() } else { name.to_owned() });
        if !name.is_empty() && !wrong.is_empty() {
            let prefix = if mixed_case { "may have mixed case, but should otherwise match: " } else { "" };
            faults.push(invalid(
                format!("spec.names.{field}"),
                name,
                &format!("{prefix}{}", wrong.join(",")),
            ));
        }
    };
    for (field, mixed_case) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        check(field.into(), text(names, &format!("/{field}")), mixed_case);
    }
    for field in ["shortNames", "categories"] {
        for (index, name) in texts(names.get(field)).iter().enumerate() {
            check(format!("{field}[{index}]"), name, false);
        }
    }
    let (kind, list_kind) = (text(names, "/kind"), text(names, "/listKind"));
    if !kind.is_empty() && kind == list_kind {
        faults.push(invalid("spec.names.listKind", list_kind, "kind and listKind may not be the same"));
    }
}

fn changes(crd: &Value, old: &Value, faults: &mut Vec<Cause>) {
    let mut fixed = vec![("spec.group", "/spec/group"), ("spec.names.plural", "/spec/names/plural")];
    if is_established(old) {
        fixed.extend([("spec.scope", "/spec/scope"), ("spec.names.kind", "/spec/names/kind")]);
    }
    for (field, path) in fixed {
        if text(crd, path) != text(old, path) {
            faults.push(invalid(field, text(crd, path), "field is immutable"));
        }
    }
}
