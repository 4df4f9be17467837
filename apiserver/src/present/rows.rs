//! The cells of built-in kinds' tables, as kubectl users know them.
//!
//! Invariant: one cell per column of `builtin::columns`, whatever the object holds.

mod pod;

pub(super) use pod::row_conditions as pod_row_conditions;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::since;
use crate::{builtin::event, kind::Kind, select::LabelSelector};

/// The cells of one object of a built-in kind.
pub(super) fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let object = Look(object);
    let name = json!(object.text("metadata.name"));
    let age = json!(since(object.at("metadata.creationTimestamp"), now));
    match kind.kind.as_str() {
        "Pod" => pod::cells(&object, now),
        "Node" => node(&object, name, age),
        "DaemonSet" => daemon_set(&object, name, age),
        "Event" if kind.view_of.is_some() => event_cells(&Look(&event::to_core(object.0)), now),
        "Event" => event_cells(&object, now),
        "Namespace" => vec![name, json!(object.text("status.phase")), age],
        "Secret" => vec![name, json!(object.text("type")), json!(object.size("data")), age],
        "ConfigMap" => vec![name, json!(object.size("data") + object.size("binaryData")), age],
        "PersistentVolume" => persistent_volume(&object, name, age),
        "PersistentVolumeClaim" => persistent_volume_claim(&object, name, age),
        "ControllerRevision" => {
            let revision = object.at("revision").cloned().unwrap_or(json!(0));
            vec![name, json!(controller(&object)), revision, age]
        }
        "Lease" => vec![name, json!(object.text("spec.holderIdentity")), age],
        "StorageClass" => storage_class(&object, age),
        "CSINode" => vec![name, json!(object.size("spec.drivers")), age],
        "CSIDriver" => csi_driver(&object, name, age),
        "ValidatingWebhookConfiguration" => vec![name, json!(object.size("webhooks")), age],
        "CustomResourceDefinition" => vec![name, json!(object.text("metadata.creationTimestamp"))],
        _ => vec![name, age],
    }
}

/// Reads an object by dotted paths; what is absent is empty.
struct Look<'a>(&'a Value);

impl<'a> Look<'a> {
    fn at(&self, path: &str) -> Option<&'a Value> {
        path.split('.').try_fold(self.0, |value, step| value.get(step)).filter(|value| !value.is_null())
    }

    fn text(&self, path: &str) -> &'a str {
        self.at(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn text_or(&self, path: &str, absent: &'a str) -> &'a str {
        Some(self.text(path)).filter(|text| !text.is_empty()).unwrap_or(absent)
    }

    fn number(&self, path: &str) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or_default()
    }

    fn flag(&self, path: &str) -> Option<bool> {
        self.at(path).and_then(Value::as_bool)
    }

    fn items(&self, path: &str) -> impl DoubleEndedIterator<Item = Look<'a>> + ExactSizeIterator + use<'a> {
        let items: &[Value] = self.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice);
        items.iter().map(Look)
    }

    fn size(&self, path: &str) -> usize {
        match self.at(path) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(fields)) => fields.len(),
            _ => 0,
        }
    }

    /// The status of a condition, `None` when the object has no such condition.
    fn condition(&self, name: &str) -> Option<&'a str> {
        self.items("status.conditions")
            .find(|condition| condition.text("type") == name)
            .map(|condition| condition.text("status"))
    }
}

fn node(object: &Look<'_>, name: Value, age: Value) -> Vec<Value> {
    let mut status = vec![match object.condition("Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if object.flag("spec.unschedulable") == Some(true) {
        status.push("SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = object.items("status.addresses").find(|address| address.text("type") == kind);
        found.map_or("<none>", |address| address.text("address"))
    };
    let info = |field: &str| object.text_or(&format!("status.nodeInfo.{field}"), "<unknown>");
    let mut kernel = info("kernelVersion").to_owned();
    let architecture = object.text("status.nodeInfo.architecture");
    if !architecture.is_empty() {
        kernel = format!("{kernel} ({architecture})");
    }
    vec![
        name,
        json!(status.join(",")),
        json!(roles(object)),
        age,
        json!(object.text("status.nodeInfo.kubeletVersion")),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(info("osImage")),
        json!(kernel),
        json!(info("containerRuntimeVersion")),
    ]
}

fn roles(object: &Look<'_>) -> String {
    let labels = object.at("metadata.labels").and_then(Value::as_object).into_iter().flatten();
    let role = |(key, value): (&'_ String, &'_ Value)| match key.strip_prefix("node-role.kubernetes.io/") {
        Some(role) => Some(role.to_owned()),
        None if key == "kubernetes.io/role" => value.as_str().map(str::to_owned),
        None => None,
    };
    let mut roles: Vec<String> = labels.filter_map(role).filter(|role| !role.is_empty()).collect();
    roles.sort();
    roles.dedup();
    if roles.is_empty() { "<none>".into() } else { roles.join(",") }
}

fn daemon_set(object: &Look<'_>, name: Value, age: Value) -> Vec<Value> {
    let containers = || object.items("spec.template.spec.containers");
    let join = |field: &str| containers().map(|one| one.text(field)).collect::<Vec<_>>().join(",");
    let node_selector = object.at("spec.template.spec.nodeSelector").and_then(Value::as_object);
    let mut labels: Vec<String> = node_selector
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    labels.sort();
    let labels = if labels.is_empty() { "<none>".into() } else { labels.join(",") };
    let selector = match LabelSelector::from_object(object.at("spec.selector")) {
        Ok(selector) if selector.is_empty() => "<none>".to_owned(),
        Ok(selector) => selector.to_string(),
        Err(_) => "<error>".to_owned(),
    };
    vec![
        name,
        json!(object.number("status.desiredNumberScheduled")),
        json!(object.number("status.currentNumberScheduled")),
        json!(object.number("status.numberReady")),
        json!(object.number("status.updatedNumberScheduled")),
        json!(object.number("status.numberAvailable")),
        json!(labels),
        age,
        json!(join("name")),
        json!(join("image")),
        json!(selector),
    ]
}

fn event_cells(object: &Look<'_>, now: Timestamp) -> Vec<Value> {
    let first_time = object.at("firstTimestamp").or_else(|| object.at("eventTime"));
    let last_time =
        object.at("series.lastObservedTime").or_else(|| object.at("lastTimestamp")).or(first_time);
    let count = match object.at("series") {
        Some(_) => object.number("series.count"),
        None => object.number("count").max(1),
    };
    let kind = object.text("involvedObject.kind").to_lowercase();
    let target = match object.text("involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = object.text_or("source.component", object.text("reportingComponent"));
    let instance = object.text_or("source.host", object.text("reportingInstance"));
    let source = if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") };
    vec![
        json!(since(last_time, now)),
        json!(object.text("type")),
        json!(object.text("reason")),
        json!(target),
        json!(object.text("involvedObject.fieldPath")),
        json!(source),
        json!(object.text("message").trim()),
        json!(since(first_time, now)),
        json!(count),
        json!(object.text("metadata.name")),
    ]
}

fn access_modes(object: &Look<'_>, path: &str) -> String {
    const MODES: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| object.items(path).any(|item| item.0.as_str() == Some(mode));
    let short: Vec<&str> = MODES.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    short.join(",")
}

fn phase<'a>(object: &Look<'a>) -> &'a str {
    if object.at("metadata.deletionTimestamp").is_some() {
        "Terminating"
    } else {
        object.text("status.phase")
    }
}

/// The class by the old annotation or the field.
fn storage_class_name<'a>(object: &Look<'a>) -> &'a str {
    let annotations = object.at("metadata.annotations");
    let annotation = annotations.and_then(|all| all.get("volume.beta.kubernetes.io/storage-class"));
    annotation.and_then(Value::as_str).unwrap_or_else(|| object.text("spec.storageClassName"))
}

fn persistent_volume(object: &Look<'_>, name: Value, age: Value) -> Vec<Value> {
    let claim = match object.at("spec.claimRef") {
        Some(_) => {
            format!("{}/{}", object.text("spec.claimRef.namespace"), object.text("spec.claimRef.name"))
        }
        None => String::new(),
    };
    vec![
        name,
        json!(object.text_or("spec.capacity.storage", "0")),
        json!(access_modes(object, "spec.accessModes")),
        json!(object.text("spec.persistentVolumeReclaimPolicy")),
        json!(phase(object)),
        json!(claim),
        json!(storage_class_name(object)),
        json!(object.text_or("spec.volumeAttributesClassName", "<unset>")),
        json!(object.text("status.reason")),
        age,
        json!(object.text_or("spec.volumeMode", "<unset>")),
    ]
}

fn persistent_volume_claim(object: &Look<'_>, name: Value, age: Value) -> Vec<Value> {
    let volume = object.text("spec.volumeName");
    let (capacity, modes) = if volume.is_empty() {
        ("", String::new())
    } else {
        (object.text_or("status.capacity.storage", "0"), access_modes(object, "status.accessModes"))
    };
    vec![
        name,
        json!(phase(object)),
        json!(volume),
        json!(capacity),
        json!(modes),
        json!(storage_class_name(object)),
        json!(object.text_or("spec.volumeAttributesClassName", "<unset>")),
        age,
        json!(object.text_or("spec.volumeMode", "<unset>")),
    ]
}

fn controller(object: &Look<'_>) -> String {
    let owner = object.items("metadata.ownerReferences").find(|owner| owner.flag("controller") == Some(true));
    let Some(owner) = owner else { return "<none>".into() };
    let kind = owner.text("kind").to_lowercase();
    match owner.text("apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", owner.text("name")),
        None => format!("{kind}/{}", owner.text("name")),
    }
}

fn storage_class(object: &Look<'_>, age: Value) -> Vec<Value> {
    let annotations = object.at("metadata.annotations");
    let default =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
            .iter()
            .any(|key| annotations.and_then(|all| all.get(*key)) == Some(&json!("true")));
    let name = object.text("metadata.name");
    vec![
        if default { json!(format!("{name} (default)")) } else { json!(name) },
        json!(object.text("provisioner")),
        json!(object.text_or("reclaimPolicy", "Delete")),
        json!(object.text_or("volumeBindingMode", "Immediate")),
        json!(object.flag("allowVolumeExpansion").unwrap_or(false)),
        age,
    ]
}

fn csi_driver(object: &Look<'_>, name: Value, age: Value) -> Vec<Value> {
    let flag = |field: &str, absent: bool| json!(object.flag(&format!("spec.{field}")).unwrap_or(absent));
    let audiences: Vec<&str> = object.items("spec.tokenRequests").map(|one| one.text("audience")).collect();
    let modes: Vec<&str> =
        object.items("spec.volumeLifecycleModes").filter_map(|mode| mode.0.as_str()).collect();
    let tokens = match object.at("spec.tokenRequests") {
        Some(_) => audiences.join(","),
        None => "<unset>".into(),
    };
    vec![
        name,
        flag("attachRequired", true),
        flag("podInfoOnMount", false),
        flag("storageCapacity", false),
        json!(tokens),
        flag("requiresRepublish", false),
        json!(if modes.is_empty() { "<none>".into() } else { modes.join(",") }),
        age,
    ]
}
