//! Judges objects beyond what their schema can say, in the words of the real server.
//!
//! Invariant: an object that was accepted is accepted again unchanged.

mod event;
mod pod;
mod secret;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    client_config, crd,
    faults::{cause, forbidden, invalid, not_supported, required, too_long},
    metadata,
    names::dns_subdomain,
};
use crate::{error::Cause, kind::Kind, present::JsonPath, schema::FieldError, select::LabelSelector};

/// Everything wrong with a prepared object of any kind. `old` is what it replaces.
pub fn validate(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut faults = metadata::validate(kind, new, old);
    if !kind.built_in {
        scale(kind, new, &mut faults);
        return faults;
    }
    match kind.kind.as_str() {
        "Pod" => {
            pod::spec(new.get("spec").unwrap_or(&Value::Null), "spec", &mut faults);
            if let Some(old) = old {
                pod::changes(new, old, &mut faults);
            }
        }
        "DaemonSet" => daemon_set(new, old, &mut faults),
        "ConfigMap" => config_map(new, old, &mut faults),
        "Secret" => secret::validate(new, old, &mut faults),
        "Event" => event::validate(kind, new, old, &mut faults),
        "Lease" => lease(new, &mut faults),
        "PersistentVolumeClaim" => claim(new, &mut faults),
        "PersistentVolume" => volume(new, &mut faults),
        "StorageClass" if text(new, "/provisioner").is_empty() => faults.push(required("provisioner", "")),
        "ValidatingWebhookConfiguration" => webhooks(new, &mut faults),
        "CustomResourceDefinition" => faults.extend(crd::validate(new, old)),
        _ => {}
    }
    faults
}

/// The number that `scale` shows must make sense, whatever the schema says of it.
fn scale(kind: &Kind, new: &Value, faults: &mut Vec<Cause>) {
    let version = text(new, "/apiVersion").rsplit('/').next().unwrap_or_default();
    let Some(paths) = kind.version(version).and_then(|version| version.scale_subresource.as_ref()) else {
        return;
    };
    let replicas = JsonPath::parse(&paths.spec_replicas).ok().and_then(|path| path.first(new)?.as_i64());
    if let Some(negative) = replicas.filter(|replicas| *replicas < 0) {
        faults.push(invalid(paths.spec_replicas.as_str(), negative, "should be a non-negative integer"));
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn immutable(field: &str, pointer: &str, new: &Value, old: Option<&Value>, faults: &mut Vec<Cause>) {
    if old.is_some_and(|old| old.pointer(pointer) != new.pointer(pointer)) {
        faults.push(invalid(field, new.pointer(pointer).cloned().unwrap_or_default(), "field is immutable"));
    }
}

fn daemon_set(new: &Value, old: Option<&Value>, faults: &mut Vec<Cause>) {
    let selector = new.pointer("/spec/selector");
    let labels = new.pointer("/spec/template/metadata/labels");
    let selector = selector.filter(|selector| !selector.is_null());
    match LabelSelector::from_object(selector) {
        Err(error) => {
            faults.push(invalid("spec.selector", selector.cloned().unwrap_or_default(), &error.message));
        }
        Ok(parsed) if selector.is_none() || !parsed.matches(labels) => {
            let detail = "`selector` does not match template `labels`";
            let labels = labels.cloned().unwrap_or_default();
            faults.push(invalid("spec.template.metadata.labels", labels, detail));
        }
        Ok(parsed) if parsed.is_empty() => {
            faults.push(invalid("spec.selector", json!({}), "empty selector is invalid for daemonset"));
        }
        Ok(_) => {}
    }
    metadata::labels(labels, "spec.template.labels", faults);
    let template = new.pointer("/spec/template/spec").unwrap_or(&Value::Null);
    pod::spec(template, "spec.template.spec", faults);
    if !matches!(text(template, "/restartPolicy"), "" | "Always") {
        let policy = text(template, "/restartPolicy");
        faults.push(not_supported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    match text(new, "/spec/updateStrategy/type") {
        "RollingUpdate" | "OnDelete" => {}
        other => faults.push(not_supported("spec.updateStrategy", other, &["RollingUpdate", "OnDelete"])),
    }
    immutable("spec.selector", "/spec/selector", new, old, faults);
}

/// Keys of the data of config maps and secrets. A key of the first field may
/// not be in the others too.
fn data_keys(new: &Value, fields: &[&str], faults: &mut Vec<Cause>) {
    const LIMIT: u64 = 1024 * 1024;
    let mut size = 0_u64;
    for (position, field) in fields.iter().enumerate() {
        for (key, value) in new.get(*field).and_then(Value::as_object).into_iter().flatten() {
            let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if key.is_empty() || !key.chars().all(word) {
                faults.push(invalid(format!("{field}[{key}]"), key.as_str(), "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"));
            }
            for other in &fields[position + 1..] {
                if new.get(*other).is_some_and(|other| other.get(key).is_some()) {
                    let detail = format!("duplicate of key present in {other}");
                    faults.push(invalid(format!("{field}[{key}]"), key.as_str(), &detail));
                }
            }
            size += value.as_str().map_or(0, str::len) as u64;
        }
    }
    if size > LIMIT {
        faults.push(too_long("", LIMIT));
    }
}

/// Once marked immutable, data does not change and the mark stays.
fn immutable_data(new: &Value, old: Option<&Value>, fields: &[&str], faults: &mut Vec<Cause>) {
    let Some(old) = old.filter(|old| old.get("immutable") == Some(&json!(true))) else { return };
    let detail = "field is immutable when `immutable` is set";
    if new.get("immutable") != Some(&json!(true)) {
        faults.push(forbidden("immutable", detail));
    }
    for field in fields {
        if new.get(*field) != old.get(*field) {
            faults.push(forbidden(*field, detail));
        }
    }
}

fn config_map(new: &Value, old: Option<&Value>, faults: &mut Vec<Cause>) {
    data_keys(new, &["data", "binaryData"], faults);
    immutable_data(new, old, &["data", "binaryData"], faults);
}

fn lease(new: &Value, faults: &mut Vec<Cause>) {
    let number = |pointer: &str| new.pointer(pointer).and_then(Value::as_i64);
    if let Some(seconds) = number("/spec/leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        faults.push(invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
    if let Some(count) = number("/spec/leaseTransitions").filter(|count| *count < 0) {
        faults.push(invalid("spec.leaseTransitions", count, "must be greater than or equal to 0"));
    }
}

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(new: &Value, faults: &mut Vec<Cause>) {
    let mut any = false;
    for mode in items(new, "/spec/accessModes") {
        any = true;
        let mode = mode.as_str().unwrap_or_default();
        if !ACCESS_MODES.contains(&mode) {
            faults.push(not_supported("spec.accessModes", mode, &ACCESS_MODES));
        }
    }
    if !any {
        faults.push(required("spec.accessModes", "at least 1 access mode is required"));
    }
}

fn claim(new: &Value, faults: &mut Vec<Cause>) {
    access_modes(new, faults);
    if new.pointer("/spec/resources/requests/storage").is_none() {
        faults.push(required("spec.resources[storage]", ""));
    }
}

fn volume(new: &Value, faults: &mut Vec<Cause>) {
    access_modes(new, faults);
    match new.pointer("/spec/capacity").filter(|capacity| !capacity.is_null()) {
        Some(capacity) if capacity.get("storage").is_some() => {}
        capacity => {
            let only = ["storage".to_owned()];
            faults.push(required("spec.capacity", ""));
            let wrong = FieldError::not_supported("spec.capacity", capacity.unwrap_or(&Value::Null), &only);
            faults.push(cause(&wrong));
        }
    }
    match text(new, "/spec/persistentVolumeReclaimPolicy") {
        "Retain" | "Recycle" | "Delete" => {}
        other => {
            let field = "spec.persistentVolumeReclaimPolicy";
            faults.push(not_supported(field, other, &["Delete", "Recycle", "Retain"]));
        }
    }
}

fn webhooks(new: &Value, faults: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, webhook) in items(new, "/webhooks").enumerate() {
        let at = format!("webhooks[{index}]");
        let name = text(webhook, "/name");
        if !seen.insert(name) {
            faults.push(super::faults::duplicate(format!("{at}.name"), name));
        }
        self::webhook(webhook, &at, faults);
    }
}

fn webhook(webhook: &Value, at: &str, faults: &mut Vec<Cause>) {
    let name = text(webhook, "/name");
    let wrong = dns_subdomain(name);
    if name.is_empty() {
        faults.push(required(format!("{at}.name"), ""));
    } else if !wrong.is_empty() {
        faults.push(invalid(format!("{at}.name"), name, &wrong.join(",")));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        faults.push(invalid(format!("{at}.name"), name, detail));
    }
    let versions: Vec<&str> = items(webhook, "/admissionReviewVersions").filter_map(Value::as_str).collect();
    if versions.is_empty() {
        faults.push(required(format!("{at}.admissionReviewVersions"), "must specify one of v1, v1beta1"));
    } else if !versions.iter().any(|version| ["v1", "v1beta1"].contains(version)) {
        faults.push(invalid(
            format!("{at}.admissionReviewVersions"),
            json!(versions),
            "must include at least one of v1, v1beta1",
        ));
    }
    match text(webhook, "/sideEffects") {
        "None" | "NoneOnDryRun" => {}
        "" => faults.push(required(format!("{at}.sideEffects"), "must specify one of None, NoneOnDryRun")),
        other => {
            faults.push(not_supported(format!("{at}.sideEffects"), other, &["None", "NoneOnDryRun"]));
        }
    }
    for (field, allowed) in [("failurePolicy", ["Fail", "Ignore"]), ("matchPolicy", ["Equivalent", "Exact"])]
    {
        let value = text(webhook, &format!("/{field}"));
        if !value.is_empty() && !allowed.contains(&value) {
            faults.push(not_supported(format!("{at}.{field}"), value, &allowed));
        }
    }
    let timeout = webhook.get("timeoutSeconds").and_then(Value::as_i64);
    if let Some(seconds) = timeout.filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        faults.push(invalid(format!("{at}.timeoutSeconds"), seconds, detail));
    }
    client_config::validate(&webhook["clientConfig"], &format!("{at}.clientConfig"), faults);
    for (index, rule) in items(webhook, "/rules").enumerate() {
        self::rule(rule, &format!("{at}.rules[{index}]"), faults);
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        if let Err(error) = LabelSelector::from_object(webhook.get(selector)) {
            let value = webhook.get(selector).cloned().unwrap_or_default();
            faults.push(invalid(format!("{at}.{selector}"), value, &error.message));
        }
    }
}

fn rule(rule: &Value, at: &str, faults: &mut Vec<Cause>) {
    const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for field in ["operations", "apiGroups", "apiVersions", "resources"] {
        if items(rule, &format!("/{field}")).next().is_none() {
            faults.push(required(format!("{at}.{field}"), ""));
        }
    }
    for (index, operation) in items(rule, "/operations").enumerate() {
        let operation = operation.as_str().unwrap_or_default();
        if !OPERATIONS.contains(&operation) {
            faults.push(not_supported(format!("{at}.operations[{index}]"), operation, &OPERATIONS));
        }
    }
    match text(rule, "/scope") {
        "" | "*" | "Cluster" | "Namespaced" => {}
        other => faults.push(not_supported(format!("{at}.scope"), other, &["*", "Cluster", "Namespaced"])),
    }
}

#[cfg(test)]
mod tests;
