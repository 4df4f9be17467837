//! How lists of built-in kinds merge, for server-side apply and strategic merge patch.
//!
//! The schemas that the types generate do not say it, so it is said here.

use serde_json::{Map, Value, json};

/// How the items of a list are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    /// Items are objects identified by these fields; strategic merge patch uses
    /// the first of them unless another key is named.
    Map(&'static [&'static str]),
    /// As `Map`, but strategic merge patch replaces the list.
    MapReplace(&'static [&'static str]),
    /// Strategic merge patch merges by this key; apply treats the list as one value.
    AtomicMerge(&'static str),
    /// Items are scalars, each at most once; strategic merge patch adds to it.
    Set,
    /// As `Set`, but strategic merge patch replaces the list.
    SetReplace,
}

use ListKind::{AtomicMerge, Map as ByKey, MapReplace, Set, SetReplace};

/// Type (without its package), field, and how the list merges. What is not here is atomic.
#[rustfmt::skip]
const LISTS: &[(&str, &str, ListKind)] = &[
    ("ObjectMeta", "finalizers", Set),
    ("ObjectMeta", "ownerReferences", ByKey(&["uid"])),
    ("PodSpec", "containers", ByKey(&["name"])),
    ("PodSpec", "initContainers", ByKey(&["name"])),
    ("PodSpec", "ephemeralContainers", ByKey(&["name"])),
    ("PodSpec", "volumes", ByKey(&["name"])),
    ("PodSpec", "imagePullSecrets", ByKey(&["name"])),
    ("PodSpec", "hostAliases", ByKey(&["ip"])),
    ("PodSpec", "resourceClaims", ByKey(&["name"])),
    ("PodSpec", "schedulingGates", ByKey(&["name"])),
    ("PodSpec", "topologySpreadConstraints", ByKey(&["topologyKey", "whenUnsatisfiable"])),
    ("Container", "env", ByKey(&["name"])),
    ("Container", "ports", ByKey(&["containerPort", "protocol"])),
    ("Container", "volumeMounts", ByKey(&["mountPath"])),
    ("Container", "volumeDevices", ByKey(&["devicePath"])),
    ("EphemeralContainer", "env", ByKey(&["name"])),
    ("EphemeralContainer", "ports", ByKey(&["containerPort", "protocol"])),
    ("EphemeralContainer", "volumeMounts", ByKey(&["mountPath"])),
    ("EphemeralContainer", "volumeDevices", ByKey(&["devicePath"])),
    ("ResourceRequirements", "claims", MapReplace(&["name"])),
    ("ContainerStatus", "allocatedResourcesStatus", ByKey(&["name"])),
    ("ResourceStatus", "resources", MapReplace(&["resourceID"])),
    ("ContainerStatus", "volumeMounts", ByKey(&["mountPath"])),
    ("PodStatus", "conditions", ByKey(&["type"])),
    ("PodStatus", "podIPs", ByKey(&["ip"])),
    ("PodStatus", "hostIPs", AtomicMerge("ip")),
    ("PodStatus", "resourceClaimStatuses", ByKey(&["name"])),
    ("NodeSpec", "podCIDRs", Set),
    ("NodeStatus", "addresses", ByKey(&["type"])),
    ("NodeStatus", "conditions", ByKey(&["type"])),
    ("NamespaceStatus", "conditions", ByKey(&["type"])),
    ("DaemonSetStatus", "conditions", ByKey(&["type"])),
    ("PersistentVolumeClaimStatus", "conditions", ByKey(&["type"])),
    ("ServiceAccount", "secrets", ByKey(&["name"])),
    ("ValidatingWebhookConfiguration", "webhooks", ByKey(&["name"])),
    ("ValidatingWebhook", "matchConditions", ByKey(&["name"])),
    ("CSIDriverSpec", "volumeLifecycleModes", SetReplace),
    ("CSINodeSpec", "drivers", ByKey(&["name"])),
    ("CustomResourceDefinitionStatus", "conditions", MapReplace(&["type"])),
];

/// Objects that apply treats as one value.
const ATOMIC_OBJECTS: &[&str] = &[
    "LabelSelector",
    "NodeSelector",
    "NodeSelectorTerm",
    "ObjectReference",
    "OwnerReference",
    "LocalObjectReference",
    "SecretReference",
    "TypedLocalObjectReference",
    "ConfigMapKeySelector",
    "SecretKeySelector",
    "ObjectFieldSelector",
    "ResourceFieldSelector",
    "TopologySelectorTerm",
];

/// Fields that differ from their type: the map of a pod's node labels is one
/// value, and the claim of a volume is not.
const FIELDS: &[(&str, &str, &str)] =
    &[("PodSpec", "nodeSelector", "atomic"), ("PersistentVolumeSpec", "claimRef", "granular")];

/// Lists whose items keep, in a strategic merge patch, only the fields the patch names:
/// a volume has one source, and a new one takes the place of the old.
const RETAINING: &[&str] = &["volumes", "resourceClaims", "resourceClaimStatuses"];

/// Values filled in where the list keys need them.
const KEY_DEFAULTS: &[(&str, &str, &str)] = &[("ContainerPort", "protocol", "TCP")];

/// Writes the extensions into one definition, `name` being its type without package.
pub(super) fn annotate(name: &str, definition: &mut Map<String, Value>) {
    if ATOMIC_OBJECTS.contains(&name) {
        definition.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    let Some(Value::Object(properties)) = definition.get_mut("properties") else { return };
    for (field, property) in properties.iter_mut() {
        let Value::Object(property) = property else { continue };
        if property.get("type").and_then(Value::as_str) == Some("array") {
            let list =
                LISTS.iter().find(|(of, own, _)| of == &name && own == field).map(|(_, _, list)| *list);
            describe(list, RETAINING.contains(&field.as_str()), property);
        }
    }
    for (_, field, map_type) in FIELDS.iter().filter(|(of, _, _)| of == &name) {
        if let Some(Value::Object(property)) = properties.get_mut(*field) {
            property.insert("x-kubernetes-map-type".into(), (*map_type).into());
        }
    }
    for (_, field, value) in KEY_DEFAULTS.iter().filter(|(of, _, _)| of == &name) {
        if let Some(Value::Object(property)) = properties.get_mut(*field) {
            property.insert("default".into(), (*value).into());
        }
    }
}

fn describe(list: Option<ListKind>, retains_keys: bool, property: &mut Map<String, Value>) {
    let (list_type, keys, merge_key): (_, &[&str], _) = match list {
        None => ("atomic", &[], None),
        Some(ByKey(keys)) => ("map", keys, keys.first().copied()),
        Some(MapReplace(keys)) => ("map", keys, None),
        Some(AtomicMerge(key)) => ("atomic", &[], Some(key)),
        Some(Set) => ("set", &[], Some("")),
        Some(SetReplace) => ("set", &[], None),
    };
    property.insert("x-kubernetes-list-type".into(), list_type.into());
    if !keys.is_empty() {
        property.insert("x-kubernetes-list-map-keys".into(), json!(keys));
    }
    if let Some(key) = merge_key {
        let strategy = if retains_keys { "merge,retainKeys" } else { "merge" };
        property.insert("x-kubernetes-patch-strategy".into(), strategy.into());
        if !key.is_empty() {
            property.insert("x-kubernetes-patch-merge-key".into(), key.into());
        }
    }
}

/// Type and field of every row.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    LISTS.iter().map(|(of, field, _)| (*of, *field))
}
