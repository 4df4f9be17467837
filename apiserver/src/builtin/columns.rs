//! The printer columns of built-in kinds, as `kubectl get` has shown them for years.
//!
//! Invariant: for every kind, as many columns as `present::rows` makes cells.

use crate::kind::Column;

/// Name, type and priority (1: only with `-o wide`).
type Definition = (&'static str, &'static str, i32);

const NAME: Definition = ("Name", "string", 0);
const AGE: Definition = ("Age", "string", 0);

#[rustfmt::skip]
fn definitions(kind: &str) -> &'static [Definition] {
    match kind {
        "Pod" => &[
            NAME, ("Ready", "string", 0), ("Status", "string", 0), ("Restarts", "string", 0), AGE, ("IP", "string", 1),
            ("Node", "string", 1), ("Nominated Node", "string", 1), ("Readiness Gates", "string", 1),
        ],
        "Node" => &[
            NAME, ("Status", "string", 0), ("Roles", "string", 0), AGE, ("Version", "string", 0),
            ("Internal-IP", "string", 1), ("External-IP", "string", 1), ("OS-Image", "string", 1),
            ("Kernel-Version", "string", 1), ("Container-Runtime", "string", 1),
        ],
        "DaemonSet" => &[
            NAME, ("Desired", "integer", 0), ("Current", "integer", 0), ("Ready", "integer", 0),
            ("Up-to-date", "integer", 0), ("Available", "integer", 0), ("Node Selector", "string", 0), AGE,
            ("Containers", "string", 1), ("Images", "string", 1), ("Selector", "string", 1),
        ],
        "Event" => &[
            ("Last Seen", "string", 0), ("Type", "string", 0), ("Reason", "string", 0), ("Object", "string", 0),
            ("Subobject", "string", 1), ("Source", "string", 1), ("Message", "string", 0), ("First Seen", "string", 1),
            ("Count", "string", 1), ("Name", "string", 1),
        ],
        "Namespace" => &[NAME, ("Status", "string", 0), AGE],
        "Secret" => &[NAME, ("Type", "string", 0), ("Data", "string", 0), AGE],
        "ConfigMap" => &[NAME, ("Data", "string", 0), AGE],
        "PersistentVolume" => &[
            NAME, ("Capacity", "string", 0), ("Access Modes", "string", 0), ("Reclaim Policy", "string", 0),
            ("Status", "string", 0), ("Claim", "string", 0), ("StorageClass", "string", 0),
            ("VolumeAttributesClass", "string", 0), ("Reason", "string", 0), AGE, ("VolumeMode", "string", 1),
        ],
        "PersistentVolumeClaim" => &[
            NAME, ("Status", "string", 0), ("Volume", "string", 0), ("Capacity", "string", 0),
            ("Access Modes", "string", 0), ("StorageClass", "string", 0), ("VolumeAttributesClass", "string", 0), AGE,
            ("VolumeMode", "string", 1),
        ],
        "ControllerRevision" => &[NAME, ("Controller", "string", 0), ("Revision", "string", 0), AGE],
        "Lease" => &[NAME, ("Holder", "string", 0), AGE],
        "StorageClass" => &[
            NAME, ("Provisioner", "string", 0), ("ReclaimPolicy", "string", 0), ("VolumeBindingMode", "string", 0),
            ("AllowVolumeExpansion", "string", 0), AGE,
        ],
        "CSINode" => &[NAME, ("Drivers", "integer", 0), AGE],
        "CSIDriver" => &[
            NAME, ("AttachRequired", "boolean", 0), ("PodInfoOnMount", "boolean", 0), ("StorageCapacity", "boolean", 0),
            ("TokenRequests", "string", 0), ("RequiresRepublish", "boolean", 0), ("Modes", "string", 0), AGE,
        ],
        "ValidatingWebhookConfiguration" => &[NAME, ("Webhooks", "integer", 0), AGE],
        "CustomResourceDefinition" => &[NAME, ("Created At", "date", 0)],
        _ => &[NAME, AGE],
    }
}

pub(super) fn columns(kind: &str) -> Vec<Column> {
    let column = |&(name, column_type, priority): &Definition| Column {
        name: name.into(),
        column_type: column_type.into(),
        format: if name == "Name" { "name".into() } else { String::new() },
        description: match name {
            "Name" => "Name of the object, unique among its kind and namespace.".into(),
            "Age" | "Created At" => "When the object was created.".into(),
            _ => String::new(),
        },
        priority,
        json_path: String::new(),
    };
    definitions(kind).iter().map(column).collect()
}
