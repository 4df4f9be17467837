//! Which values the fields of built-in kinds may have, for `kubectl explain`.
//!
//! Only documents say so; whether a value is accepted is decided by `builtin::validate`.

use serde_json::{Map, Value, json};

const ACCESS_MODES: &str = "ReadOnlyMany|ReadWriteMany|ReadWriteOnce|ReadWriteOncePod";
const PULL_POLICIES: &str = "Always|IfNotPresent|Never";
const MESSAGE_POLICIES: &str = "FallbackToLogsOnError|File";
const TAINT_EFFECTS: &str = "NoExecute|NoSchedule|PreferNoSchedule";

/// Type (without its package), field, and its values.
#[rustfmt::skip]
const CHOICES: &[(&str, &str, &str)] = &[
    ("AppArmorProfile", "type", "Localhost|RuntimeDefault|Unconfined"),
    ("Container", "imagePullPolicy", PULL_POLICIES),
    ("Container", "terminationMessagePolicy", MESSAGE_POLICIES),
    ("ContainerPort", "protocol", "SCTP|TCP|UDP"),
    ("DaemonSetUpdateStrategy", "type", "OnDelete|RollingUpdate"),
    ("EphemeralContainer", "imagePullPolicy", PULL_POLICIES),
    ("EphemeralContainer", "terminationMessagePolicy", MESSAGE_POLICIES),
    ("HTTPGetAction", "scheme", "HTTP|HTTPS"),
    ("HostPathVolumeSource", "type", "|BlockDevice|CharDevice|Directory|DirectoryOrCreate|File|FileOrCreate|Socket"),
    ("ImageVolumeSource", "pullPolicy", PULL_POLICIES),
    ("NamespaceStatus", "phase", "Active|Terminating"),
    ("NodeSelectorRequirement", "operator", "DoesNotExist|Exists|Gt|In|Lt|NotIn"),
    ("PersistentVolumeClaimSpec", "accessModes", ACCESS_MODES),
    ("PersistentVolumeClaimSpec", "volumeMode", "Block|Filesystem"),
    ("PersistentVolumeClaimStatus", "accessModes", ACCESS_MODES),
    ("PersistentVolumeClaimStatus", "phase", "Bound|Lost|Pending"),
    ("PersistentVolumeSpec", "accessModes", ACCESS_MODES),
    ("PersistentVolumeSpec", "persistentVolumeReclaimPolicy", "Delete|Recycle|Retain"),
    ("PersistentVolumeSpec", "volumeMode", "Block|Filesystem"),
    ("PersistentVolumeStatus", "phase", "Available|Bound|Failed|Pending|Released"),
    ("PodSecurityContext", "fsGroupChangePolicy", "Always|OnRootMismatch"),
    ("PodSpec", "dnsPolicy", "ClusterFirst|ClusterFirstWithHostNet|Default|None"),
    ("PodSpec", "preemptionPolicy", "Never|PreemptLowerPriority"),
    ("PodSpec", "restartPolicy", "Always|Never|OnFailure"),
    ("PodStatus", "phase", "Failed|Pending|Running|Succeeded|Unknown"),
    ("PodStatus", "qosClass", "BestEffort|Burstable|Guaranteed"),
    ("RuleWithOperations", "operations", "*|CONNECT|CREATE|DELETE|UPDATE"),
    ("RuleWithOperations", "scope", "*|Cluster|Namespaced"),
    ("SeccompProfile", "type", "Localhost|RuntimeDefault|Unconfined"),
    ("SecurityContext", "procMount", "Default|Unmasked"),
    ("StorageClass", "reclaimPolicy", "Delete|Recycle|Retain"),
    ("StorageClass", "volumeBindingMode", "Immediate|WaitForFirstConsumer"),
    ("Taint", "effect", TAINT_EFFECTS),
    ("Toleration", "effect", TAINT_EFFECTS),
    ("Toleration", "operator", "Equal|Exists"),
    ("TopologySpreadConstraint", "whenUnsatisfiable", "DoNotSchedule|ScheduleAnyway"),
    ("ValidatingWebhook", "failurePolicy", "Fail|Ignore"),
    ("ValidatingWebhook", "matchPolicy", "Equivalent|Exact"),
    ("ValidatingWebhook", "sideEffects", "None|NoneOnDryRun|Some|Unknown"),
    ("VolumeMount", "mountPropagation", "Bidirectional|HostToContainer|None"),
];

/// Names the choices in the definition of one type.
pub(super) fn add(name: &str, definition: &mut Value) {
    for (_, field, values) in CHOICES.iter().filter(|(of, _, _)| *of == name) {
        let Some(Value::Object(property)) = definition["properties"].get_mut(*field) else { continue };
        let values: Vec<&str> = values.split('|').collect();
        let place: Option<&mut Map<String, Value>> = match property.get("type").and_then(Value::as_str) {
            Some("array") => property.get_mut("items").and_then(Value::as_object_mut),
            _ => Some(property),
        };
        if let Some(place) = place {
            place.insert("enum".into(), json!(values));
        }
    }
}

/// Type and field of every row.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    CHOICES.iter().map(|(of, field, _)| (*of, *field))
}
