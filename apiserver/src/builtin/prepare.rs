//! Fills in what the real server fills in before it stores an object of a built-in kind.
//!
//! Invariant: preparing an object twice is the same as preparing it once.

mod pod;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use crate::kind::Kind;

/// Puts defaults into an object that is about to be created or replaced.
pub fn prepare(kind: &Kind, object: &mut Value) {
    if !kind.built_in {
        return;
    }
    match kind.kind.as_str() {
        "Namespace" => namespace(object),
        "Pod" => pod::pod(object),
        "DaemonSet" => daemon_set(object),
        "Secret" => secret(object),
        "PersistentVolume" => {
            default(field(object, "spec"), "persistentVolumeReclaimPolicy", json!("Retain"));
            default(field(object, "spec"), "volumeMode", json!("Filesystem"));
            quantities(object.pointer_mut("/spec/capacity"));
            host_path(object.pointer_mut("/spec/hostPath"));
            default(field(object, "status"), "phase", json!("Pending"));
        }
        "PersistentVolumeClaim" => {
            default(field(object, "spec"), "volumeMode", json!("Filesystem"));
            quantities(object.pointer_mut("/spec/resources/requests"));
            quantities(object.pointer_mut("/spec/resources/limits"));
            default(field(object, "status"), "phase", json!("Pending"));
        }
        "Node" => node(object),
        "Event" if kind.view_of.is_none() => event(object),
        "StorageClass" => {
            default(object, "reclaimPolicy", json!("Delete"));
            default(object, "volumeBindingMode", json!("Immediate"));
        }
        "CSIDriver" => csi_driver(field(object, "spec")),
        "ValidatingWebhookConfiguration" => each(object.get_mut("webhooks"), webhook),
        "CustomResourceDefinition" => custom_resource_definition(object),
        _ => {}
    }
}

/// Sets a field that is absent or null.
fn default(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = object {
        let slot = fields.entry(name).or_insert(Value::Null);
        if slot.is_null() {
            *slot = value;
        }
    }
}

/// An object field, made empty when it is absent.
fn field<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    default(object, name, json!({}));
    &mut object[name]
}

fn each(list: Option<&mut Value>, mut prepare: impl FnMut(&mut Value)) {
    for item in list.and_then(Value::as_array_mut).into_iter().flatten() {
        prepare(item);
    }
}

/// Quantities may be written as numbers; they are kept as text.
fn quantities(resources: Option<&mut Value>) {
    for quantity in resources.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        match quantity {
            Value::Number(number) if number.is_f64() => {
                let thousandths = (number.as_f64().unwrap_or_default() * 1000.0).ceil();
                *quantity = json!(format!("{thousandths}m"));
            }
            Value::Number(number) => *quantity = json!(number.to_string()),
            _ => {}
        }
    }
}

fn namespace(object: &mut Value) {
    let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
    if object.pointer("/metadata/deletionTimestamp").is_none() {
        default(field(object, "spec"), "finalizers", json!(["kubernetes"]));
    }
    default(field(object, "status"), "phase", json!("Active"));
    field(field(object, "metadata"), "labels")["kubernetes.io/metadata.name"] = name;
}

fn node(object: &mut Value) {
    const INFO: [&str; 10] = [
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ];
    if let Some(range) = object.pointer("/spec/podCIDR").cloned() {
        default(field(object, "spec"), "podCIDRs", json!([range]));
    }
    let status = field(object, "status");
    quantities(status.get_mut("capacity"));
    quantities(status.get_mut("allocatable"));
    if let Some(capacity) = status.get("capacity").cloned() {
        default(status, "allocatable", capacity);
    }
    default(field(field(status, "daemonEndpoints"), "kubeletEndpoint"), "Port", json!(0));
    let info = field(status, "nodeInfo");
    INFO.iter().for_each(|name| default(info, name, json!("")));
}

fn event(object: &mut Value) {
    default(object, "source", json!({}));
    default(object, "reportingComponent", json!(""));
    default(object, "reportingInstance", json!(""));
}

fn host_path(source: Option<&mut Value>) {
    if let Some(path @ Value::Object(_)) = source {
        default(path, "type", json!(""));
    }
}

fn daemon_set(object: &mut Value) {
    let spec = field(object, "spec");
    default(spec, "revisionHistoryLimit", json!(10));
    let strategy = field(spec, "updateStrategy");
    default(strategy, "type", json!("RollingUpdate"));
    if strategy["type"] == "RollingUpdate" {
        let rolling = field(strategy, "rollingUpdate");
        default(rolling, "maxUnavailable", json!(1));
        default(rolling, "maxSurge", json!(0));
    }
    pod::spec(field(field(spec, "template"), "spec"));
    let status = field(object, "status");
    for count in ["currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady"] {
        default(status, count, json!(0));
    }
}

/// What was given as text is kept as data, over what was given as data.
fn secret(object: &mut Value) {
    default(object, "type", json!("Opaque"));
    let Some(Value::Object(text)) = object.as_object_mut().and_then(|object| object.remove("stringData"))
    else {
        return;
    };
    let data = field(object, "data");
    for (key, value) in text {
        data[&key] = json!(BASE64_STANDARD.encode(value.as_str().unwrap_or_default()));
    }
}

fn csi_driver(spec: &mut Value) {
    default(spec, "attachRequired", json!(true));
    default(spec, "fsGroupPolicy", json!("ReadWriteOnceWithFSType"));
    default(spec, "podInfoOnMount", json!(false));
    default(spec, "requiresRepublish", json!(false));
    default(spec, "seLinuxMount", json!(false));
    default(spec, "storageCapacity", json!(false));
    default(spec, "volumeLifecycleModes", json!(["Persistent"]));
}

fn webhook(webhook: &mut Value) {
    default(webhook, "failurePolicy", json!("Fail"));
    default(webhook, "matchPolicy", json!("Equivalent"));
    default(webhook, "namespaceSelector", json!({}));
    default(webhook, "objectSelector", json!({}));
    default(webhook, "timeoutSeconds", json!(10));
    each(webhook.get_mut("rules"), |rule| default(rule, "scope", json!("*")));
    if let Some(service @ Value::Object(_)) = webhook.pointer_mut("/clientConfig/service") {
        default(service, "port", json!(443));
    }
}

fn custom_resource_definition(object: &mut Value) {
    let kind = object.pointer("/spec/names/kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let spec = field(object, "spec");
    if !kind.is_empty() {
        let names = field(spec, "names");
        default(names, "singular", json!(kind.to_lowercase()));
        default(names, "listKind", json!(format!("{kind}List")));
    }
    default(spec, "conversion", json!({"strategy": "None"}));
    if let Some(service @ Value::Object(_)) = spec.pointer_mut("/conversion/webhook/clientConfig/service") {
        default(service, "port", json!(443));
    }
    let versions = spec.get("versions").and_then(Value::as_array).into_iter().flatten();
    let storage =
        versions.filter(|version| version["storage"] == true).map(|version| version["name"].clone()).next();
    let status = field(object, "status");
    let accepted = field(status, "acceptedNames");
    default(accepted, "plural", json!(""));
    default(accepted, "kind", json!(""));
    default(status, "storedVersions", json!([]));
    if let (Some(name), Some(stored)) = (storage, status["storedVersions"].as_array_mut())
        && !stored.contains(&name)
    {
        stored.push(name);
    }
}

#[cfg(test)]
mod tests;
