//! A runtime whose FUSE pods serve the dataset of the same name.
//!
//! The invariant: a FUSE pod with workloads on it is never replaced by us.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::longhorn::ConditionStatus;
use crate::names::{ImageRef, Location, Message, Timestamp, Word};
use crate::wire::{is_default, kind, wire, words};

words! {
    /// When FUSE pods of an old image are replaced.
    pub enum UpdateStrategy {
        /// Nothing was said; `cleanPolicy` decides.
        #[default]
        Undefined = "",
        /// When the user deletes them.
        OnDelete = "OnDelete",
        /// When no workload on their node uses them.
        OnIdle = "OnIdle",
    } or Unrecognised
}

words! {
    /// When FUSE pods go away; upstream's field.
    pub enum CleanPolicy {
        #[default]
        Undefined = "",
        /// When no workload on their node uses them.
        OnDemand = "OnDemand",
        /// With the runtime.
        OnRuntimeDeleted = "OnRuntimeDeleted",
        /// When no workload uses them and their image is old: upstream's name for `updateStrategy: OnIdle`.
        OnFuseChanged = "OnFuseChanged",
    } or Unrecognised
}

words! {
    /// Whose network a pod uses.
    pub enum NetworkMode {
        #[default]
        Undefined = "",
        HostNetwork = "HostNetwork",
        ContainerNetwork = "ContainerNetwork",
    } or Unrecognised
}

words! {
    /// Where the pods of a runtime stand.
    pub enum RuntimePhase {
        #[default]
        None = "",
        NotReady = "NotReady",
        PartialReady = "PartialReady",
        Ready = "Ready",
    } or Unrecognised
}

kind! {
    /// Serves the dataset of the same name through FUSE pods.
    #[kube(
        group = "data.fluid.io", version = "v1alpha1", kind = "JuiceFSRuntime", plural = "juicefsruntimes",
        shortname = "juicefs", category = "fluid", status = "JuiceFSRuntimeStatus",
        doc = "Serves the dataset of the same name through FUSE pods.",
        scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.currentWorkerNumberScheduled", label_selector_path = ".status.selector"),
        printcolumn(name = "Ready Workers", type_ = "integer", priority = 10, json_path = ".status.workerNumberReady"),
        printcolumn(name = "Desired Workers", type_ = "integer", priority = 10, json_path = ".status.desiredWorkerNumberScheduled"),
        printcolumn(name = "Worker Phase", type_ = "string", json_path = ".status.workerPhase"),
        printcolumn(name = "Ready Fuses", type_ = "integer", priority = 10, json_path = ".status.fuseNumberReady"),
        printcolumn(name = "Desired Fuses", type_ = "integer", priority = 10, json_path = ".status.desiredFuseNumberScheduled"),
        printcolumn(name = "Fuse Phase", type_ = "string", json_path = ".status.fusePhase"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    pub struct JuiceFSRuntimeSpec {
        /// How many cache workers to run.
        #[schemars(range(min = 0, max = 10000))]
        pub replicas: i32,
        /// The FUSE pods.
        pub fuse: FuseSpec,
    }
}

wire! {
    /// How the FUSE pods of a runtime should be.
    pub struct FuseSpec {
        /// Repository of their image.
        pub image: ImageRef,
        /// Tag of their image.
        pub image_tag: Word,
        /// `Always`, `IfNotPresent` or `Never`.
        pub image_pull_policy: Word,
        /// When pods of an old image are replaced; absent is OnDelete, unless `cleanPolicy` is `OnFuseChanged`.
        pub update_strategy: UpdateStrategy,
        /// When pods go away; `OnFuseChanged` means the same as `updateStrategy: OnIdle`, where that says nothing.
        pub clean_policy: CleanPolicy,
        /// Their environment.
        #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
        pub env: Vec<EnvironmentVariable>,
        /// Options of the mount.
        #[schemars(extend("maxProperties" = 128))]
        pub options: BTreeMap<String, Word>,
        /// What they need of the node.
        pub resources: ResourceNeeds,
        /// Nodes they may run on, beside those that a workload chose.
        #[schemars(extend("maxProperties" = 64))]
        pub node_selector: BTreeMap<String, Word>,
        /// Labels and annotations to put on them.
        pub pod_metadata: PodMetadata,
        /// Whose network they use.
        pub network_mode: NetworkMode,
    }
}

/// A variable of a pod's environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentVariable {
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: Word,
    /// Its value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub value: Message,
}

wire! {
    /// What a pod needs of its node.
    pub struct ResourceNeeds {
        /// The most it may use, by resource.
        #[schemars(extend("maxProperties" = 64))]
        pub limits: BTreeMap<String, Quantity>,
        /// What is set aside for it, by resource.
        #[schemars(extend("maxProperties" = 64))]
        pub requests: BTreeMap<String, Quantity>,
    }
}

wire! {
    /// Labels and annotations of a pod.
    pub struct PodMetadata {
        /// Labels.
        #[schemars(extend("maxProperties" = 64))]
        pub labels: BTreeMap<String, Word>,
        /// Annotations.
        #[schemars(extend("maxProperties" = 64))]
        pub annotations: BTreeMap<String, Message>,
    }
}

/// An amount of a resource, such as `500m` or `2Gi`; a bare number is also accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    Number(i64),
    Text(Word),
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "maxLength": 64,
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        })
    }
}

/// What was seen of a runtime. All counts are written, also those of nothing:
/// upstream requires them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JuiceFSRuntimeStatus {
    /// Where the FUSE pods stand.
    pub fuse_phase: RuntimePhase,
    /// Why they are not further.
    pub fuse_reason: Message,
    /// Nodes that should have a FUSE pod.
    #[schemars(range(min = 0))]
    pub desired_fuse_number_scheduled: i32,
    /// Nodes that have one.
    #[schemars(range(min = 0))]
    pub current_fuse_number_scheduled: i32,
    /// Those that are ready.
    #[schemars(range(min = 0))]
    pub fuse_number_ready: i32,
    /// Those that are available.
    #[schemars(range(min = 0))]
    pub fuse_number_available: i32,
    /// Those that are missing.
    #[schemars(range(min = 0))]
    pub fuse_number_unavailable: i32,
    /// Where the cache workers stand.
    pub worker_phase: RuntimePhase,
    /// Workers that should run.
    #[schemars(range(min = 0))]
    pub desired_worker_number_scheduled: i32,
    /// Workers that run.
    #[schemars(range(min = 0))]
    pub current_worker_number_scheduled: i32,
    /// Workers that are ready.
    #[schemars(range(min = 0))]
    pub worker_number_ready: i32,
    /// Where the cache masters stand.
    pub master_phase: RuntimePhase,
    /// Masters that should run.
    #[schemars(range(min = 0))]
    pub desired_master_number_scheduled: i32,
    /// Masters that run.
    #[schemars(range(min = 0))]
    pub current_master_number_scheduled: i32,
    /// Masters that are ready.
    #[schemars(range(min = 0))]
    pub master_number_ready: i32,
    /// Selector of the worker pods.
    pub selector: Message,
    /// ConfigMap that holds what the pods were made from.
    pub value_file: Location,
    /// What can be said about the runtime.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<RuntimeCondition>,
}

/// One thing that can be said about a runtime.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeCondition {
    /// What the condition is about.
    #[serde(rename = "type")]
    pub kind: Word,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reason: Word,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "is_default")]
    pub message: Message,
    /// When it was last looked at.
    #[schemars(extend("format" = "date-time"))]
    #[serde(default, skip_serializing_if = "is_default")]
    pub last_probe_time: Timestamp,
    /// When `status` last changed.
    #[schemars(extend("format" = "date-time"))]
    #[serde(default, skip_serializing_if = "is_default")]
    pub last_transition_time: Timestamp,
}

impl FuseSpec {
    /// Whether pods of an old image are to be replaced as soon as nobody uses them.
    pub fn replaces_idle_pods(&self) -> bool {
        match self.update_strategy {
            UpdateStrategy::OnIdle => true,
            UpdateStrategy::OnDelete => false,
            UpdateStrategy::Undefined | UpdateStrategy::Unrecognised => {
                self.clean_policy == CleanPolicy::OnFuseChanged
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_stay_unless_idle_replacement_was_asked_for() {
        #[rustfmt::skip]
        let cases = [
            ("{}",                                                         false),
            (r#"{"updateStrategy":"OnDelete"}"#,                           false),
            (r#"{"updateStrategy":"OnIdle"}"#,                             true),
            (r#"{"cleanPolicy":"OnFuseChanged"}"#,                         true),
            (r#"{"cleanPolicy":"OnFuseChanged","updateStrategy":"OnDelete"}"#, false),
            (r#"{"cleanPolicy":"OnDemand"}"#,                              false),
            (r#"{"cleanPolicy":"SomethingNew","updateStrategy":null}"#,    false),
        ];
        for (json, expected) in cases {
            let fuse: FuseSpec = serde_json::from_str(json).unwrap();
            assert_eq!(fuse.replaces_idle_pods(), expected, "{json}");
        }
    }
}
