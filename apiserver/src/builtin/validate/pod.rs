//! Judges a pod's spec, alone or in a template.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{items, text};
use crate::{
    builtin::{
        faults::{duplicate, forbidden, invalid, not_found, not_supported, required},
        names::dns_label,
    },
    error::Cause,
};

pub(super) fn spec(spec: &Value, at: &str, faults: &mut Vec<Cause>) {
    let volumes = volumes(spec, at, faults);
    let mut names = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, &format!("/{list}")).enumerate() {
            let at = format!("{at}.{list}[{index}]");
            let name = text(container, "/name");
            if !name.is_empty() && !names.insert(name) {
                faults.push(duplicate(format!("{at}.name"), name));
            }
            self::container(container, &volumes, &at, faults);
        }
    }
    if items(spec, "/containers").next().is_none() {
        faults.push(required(format!("{at}.containers"), ""));
    }
    match text(spec, "/restartPolicy") {
        "Always" | "OnFailure" | "Never" => {}
        "" => faults.push(required(format!("{at}.restartPolicy"), "")),
        other => {
            let field = format!("{at}.restartPolicy");
            faults.push(not_supported(field, other, &["Always", "OnFailure", "Never"]));
        }
    }
}

fn volumes<'a>(spec: &'a Value, at: &str, faults: &mut Vec<Cause>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (index, volume) in items(spec, "/volumes").enumerate() {
        let field = format!("{at}.volumes[{index}].name");
        let name = text(volume, "/name");
        if name.is_empty() {
            faults.push(required(field, ""));
        } else if !names.insert(name) {
            faults.push(duplicate(field, name));
        } else {
            faults.extend(dns_label(name).iter().map(|wrong| invalid(field.clone(), name, wrong)));
        }
    }
    names
}

fn container(container: &Value, volumes: &BTreeSet<&str>, at: &str, faults: &mut Vec<Cause>) {
    let name = text(container, "/name");
    if name.is_empty() {
        faults.push(required(format!("{at}.name"), ""));
    } else {
        faults.extend(dns_label(name).iter().map(|wrong| invalid(format!("{at}.name"), name, wrong)));
    }
    let image = text(container, "/image");
    if image.is_empty() {
        faults.push(required(format!("{at}.image"), ""));
    } else if image.trim() != image {
        faults.push(invalid(format!("{at}.image"), image, "must not have leading or trailing whitespace"));
    }
    match text(container, "/imagePullPolicy") {
        "Always" | "IfNotPresent" | "Never" => {}
        "" => faults.push(required(format!("{at}.imagePullPolicy"), "")),
        other => {
            let field = format!("{at}.imagePullPolicy");
            faults.push(not_supported(field, other, &["Always", "IfNotPresent", "Never"]));
        }
    }
    let mut paths = BTreeSet::new();
    for (index, mount) in items(container, "/volumeMounts").enumerate() {
        let at = format!("{at}.volumeMounts[{index}]");
        let (name, path) = (text(mount, "/name"), text(mount, "/mountPath"));
        if name.is_empty() {
            faults.push(required(format!("{at}.name"), ""));
        } else if !volumes.contains(name) {
            faults.push(not_found(format!("{at}.name"), name));
        }
        if path.is_empty() {
            faults.push(required(format!("{at}.mountPath"), ""));
        } else if !paths.insert(path) {
            faults.push(invalid(format!("{at}.mountPath"), path, "must be unique"));
        }
    }
    for (index, variable) in items(container, "/env").enumerate() {
        if text(variable, "/name").is_empty() {
            faults.push(required(format!("{at}.env[{index}].name"), ""));
        }
    }
    for (index, port) in items(container, "/ports").enumerate() {
        self::port(port, &format!("{at}.ports[{index}]"), faults);
    }
}

fn port(port: &Value, at: &str, faults: &mut Vec<Cause>) {
    for field in ["containerPort", "hostPort"] {
        match port.get(field).and_then(Value::as_i64) {
            Some(number) if !(1..=65535).contains(&number) => {
                let detail = "must be between 1 and 65535, inclusive";
                faults.push(invalid(format!("{at}.{field}"), number, detail));
            }
            None if field == "containerPort" => faults.push(required(format!("{at}.{field}"), "")),
            _ => {}
        }
    }
    match text(port, "/protocol") {
        "" | "TCP" | "UDP" | "SCTP" => {}
        other => {
            faults.push(not_supported(format!("{at}.protocol"), other, &["SCTP", "TCP", "UDP"]));
        }
    }
}

/// Of a pod that exists, only a few fields of its spec may change.
pub(super) fn changes(new: &Value, old: &Value, faults: &mut Vec<Cause>) {
    let kept = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration.as_object_mut().and_then(|fields| fields.remove("tolerationSeconds"));
        toleration
    };
    let now: Vec<Value> = items(new, "/spec/tolerations").map(kept).collect();
    if items(old, "/spec/tolerations").any(|toleration| !now.contains(&kept(toleration))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        faults.push(forbidden("spec.tolerations", detail));
    }
    if fixed(new) != fixed(old) {
        faults.push(forbidden("spec", "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"));
    }
}

/// The spec without what may change. A pod gets its node once, through `binding`.
fn fixed(pod: &Value) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_else(|| json!({}));
    if let Value::Object(fields) = &mut spec {
        for field in
            ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"]
        {
            fields.remove(field);
        }
        for list in ["containers", "initContainers"] {
            for container in fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                container.as_object_mut().and_then(|container| container.remove("image"));
            }
        }
    }
    spec
}
