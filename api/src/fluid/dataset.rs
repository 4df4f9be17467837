//! A dataset: where the data is, and under which name workloads mount it.
//!
//! The invariant: `status.runtimes` names the runtime that serves it, or is empty.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::longhorn::ConditionStatus;
use crate::names::{Location, Message, ObjectName, Timestamp, Word};
use crate::wire::{is_default, kind, rule, wire, words};

words! {
    /// Whether a dataset shares nodes with others.
    pub enum Placement {
        #[default]
        Undefined = "",
        Exclusive = "Exclusive",
        Shared = "Shared",
    } or Unrecognised
}

words! {
    /// Where a dataset stands.
    pub enum DatasetPhase {
        #[default]
        None = "",
        Pending = "Pending",
        /// A runtime serves it.
        Bound = "Bound",
        NotBound = "NotBound",
        Updating = "Updating",
        DataMigrating = "DataMigrating",
        Failed = "Failed",
    } or Unrecognised
}

kind! {
    /// Data that workloads mount under one name.
    #[kube(
        group = "data.fluid.io", version = "v1alpha1", kind = "Dataset", plural = "datasets", shortname = "dataset",
        category = "fluid", status = "DatasetStatus", doc = "Data that workloads mount under one name.",
        printcolumn(name = "Ufs Total Size", type_ = "string", json_path = ".status.ufsTotal"),
        printcolumn(name = "Cached", type_ = "string", json_path = ".status.cacheStates.cached"),
        printcolumn(name = "Cache Capacity", type_ = "string", json_path = ".status.cacheStates.cacheCapacity"),
        printcolumn(name = "Cached Percentage", type_ = "string", json_path = ".status.cacheStates.cachedPercentage"),
        printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
        printcolumn(name = "HCFS URL", type_ = "string", priority = 10, json_path = ".status.hcfs.endpoint"),
        printcolumn(name = "TOTAL FILES", type_ = "string", priority = 11, json_path = ".status.fileNum"),
        printcolumn(name = "CACHE HIT RATIO", type_ = "string", priority = 10, json_path = ".status.cacheStates.cacheHitRatio"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    pub struct DatasetSpec {
        /// What is mounted where.
        #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
        pub mounts: Vec<DatasetMount>,
        /// How workloads may use it; absent is ReadOnlyMany.
        #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "atomic"))]
        pub access_modes: Vec<Word>,
        /// Whether the dataset shares nodes with others.
        pub placement: Placement,
        /// Options of all mounts.
        #[schemars(extend("maxProperties" = 128))]
        pub shared_options: BTreeMap<String, Word>,
    }
}

/// The rules of a whole Dataset.
pub(crate) fn rules() -> Vec<Value> {
    vec![rule(
        "size(self.metadata.name) <= 63",
        "the name of a dataset becomes a label of its pods, and labels have at most 63 characters; choose a shorter one",
    )]
}

/// Why the data of a dataset is no folder that nodes can show. For people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoFolder {
    #[error("spec.mounts is empty: name a folder of the nodes there, such as mountPoint: local:///data")]
    NoMount,
    #[error(
        "nobody serves spec.mounts[0].mountPoint {0}: this runtime serves folders of the nodes, local:///PATH"
    )]
    Scheme(String),
    #[error(
        "spec.mounts[0].mountPoint {0} names no folder of the nodes: that is local:// and a path that begins with / and \
         goes straight down, such as local:///data"
    )]
    Path(String),
}

/// What the URL of a folder of the nodes begins with.
const FOLDER: &str = "local://";

impl Dataset {
    /// The folder of the nodes that holds the data.
    pub fn folder(&self) -> Result<&str, NoFolder> {
        let place = self.spec.mounts.first().ok_or(NoFolder::NoMount)?.mount_point.as_str();
        let Some(path) = place.strip_prefix(FOLDER) else { return Err(NoFolder::Scheme(place.to_owned())) };
        let leads_down = |part: &str| {
            // Nothing is decoded here; whoever does so elsewhere must not be led up.
            let part = part.to_ascii_lowercase().replace("%2e", ".");
            !matches!(part.as_str(), "" | "." | "..") && !part.contains("%2f")
        };
        let below = path.strip_prefix('/').map(|below| below.strip_suffix('/').unwrap_or(below));
        match below.is_some_and(|below| below.split('/').all(leads_down)) {
            true => Ok(path),
            false => Err(NoFolder::Path(place.to_owned())),
        }
    }

    /// Whether nothing of it can be written.
    pub fn is_read_only(&self) -> bool {
        self.spec.mounts.iter().all(|mount| mount.read_only)
    }
}

/// One place whose data belongs to a dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetMount {
    /// Where the data is, such as `local:///data` or `s3://bucket/path`.
    #[schemars(length(min = 5), extend("x-kubernetes-validations" = [
        rule("self.matches('^[a-z0-9]+://')", "mountPoint is a URL, such as local:///data"),
        rule(
            "!self.startsWith('local://') || (self.matches('^local://(/[^/]+)+/?$') && !self.matches('/([.]|%2[eE]){1,2}(/|$)') && !self.matches('%2[fF]'))",
            "mountPoint of a folder is local:// and a path that begins with / and goes straight down, such as local:///data",
        ),
    ]))]
    pub mount_point: Location,
    /// Name of the mount, unique in its dataset.
    #[serde(default, skip_serializing_if = "is_default")]
    pub name: ObjectName,
    /// Folder of the dataset that shows it; absent is `/NAME`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub path: Location,
    /// Whether it cannot be written.
    #[serde(default, skip_serializing_if = "is_default")]
    pub read_only: bool,
    /// Whether workloads of other namespaces may use it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shared: bool,
    /// Options of this mount.
    #[schemars(extend("maxProperties" = 128))]
    #[serde(default, skip_serializing_if = "is_default")]
    pub options: BTreeMap<String, Word>,
}

wire! {
    /// What was seen of a dataset.
    pub struct DatasetStatus {
        /// Where it stands.
        pub phase: DatasetPhase,
        /// Runtimes that serve it; the first counts.
        #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
        pub runtimes: Vec<DatasetRuntime>,
        /// What is mounted.
        #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
        pub mounts: Vec<DatasetMount>,
        /// What can be said about it.
        #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions: Vec<DatasetCondition>,
        /// Size of the data, for people.
        pub ufs_total: Word,
        /// Number of files, for people.
        pub file_num: Word,
        /// Figures of the cache, for people.
        #[schemars(extend("maxProperties" = 64))]
        pub cache_states: BTreeMap<String, Word>,
        /// Where Hadoop finds the data.
        pub hcfs: HcfsStatus,
    }
}

wire! {
    /// A runtime that serves a dataset.
    pub struct DatasetRuntime {
        /// Name of the runtime object.
        pub name: ObjectName,
        /// Its namespace.
        pub namespace: ObjectName,
        /// Kind of runtime, such as `juicefs`.
        #[serde(rename = "type")]
        pub kind: Word,
        /// What it does, such as `Accelerate`.
        pub category: Word,
    }
}

wire! {
    /// Where Hadoop finds a dataset.
    pub struct HcfsStatus {
        /// Its URL.
        pub endpoint: Location,
        /// Version of the file system behind it.
        pub underlayer_file_system_version: Word,
    }
}

/// One thing that can be said about a dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetCondition {
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
    pub last_update_time: Timestamp,
    /// When `status` last changed.
    #[schemars(extend("format" = "date-time"))]
    #[serde(default, skip_serializing_if = "is_default")]
    pub last_transition_time: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mounts: &[&str]) -> Dataset {
        let mount = |place: &&str| DatasetMount { mount_point: (*place).into(), ..DatasetMount::default() };
        let spec = DatasetSpec { mounts: mounts.iter().map(mount).collect(), ..DatasetSpec::default() };
        Dataset::new("data", spec)
    }

    #[test]
    fn only_folders_that_lie_below_the_top_are_served() {
        let path = |place: &str| Err(NoFolder::Path(place.into()));
        #[rustfmt::skip]
        let cases: [(&str, &[&str], Result<String, NoFolder>); 17] = [
            ("a folder",        &["local:///data"],                 Ok("/data".to_owned())),
            ("the first of two", &["local:///a/b.c", "s3://b"],     Ok("/a/b.c".to_owned())),
            ("ends in a slash", &["local:///data/"],                Ok("/data/".to_owned())),
            ("dots in a name",  &["local:///..data/..."],           Ok("/..data/...".to_owned())),
            ("no mount",        &[],                                Err(NoFolder::NoMount)),
            ("another scheme",  &["s3://bucket/path"],              Err(NoFolder::Scheme("s3://bucket/path".into()))),
            ("leads out",       &["local:///../../etc"],            path("local:///../../etc")),
            ("leads out later", &["local:///data/.."],              path("local:///data/..")),
            ("goes round",      &["local:///data/./set"],           path("local:///data/./set")),
            ("leads out, encoded", &["local:///%2e%2e/etc"],        path("local:///%2e%2e/etc")),
            ("encoded in part", &["local:///data/.%2E/etc"],        path("local:///data/.%2E/etc")),
            ("an encoded slash", &["local:///..%2fetc"],            path("local:///..%2fetc")),
            ("goes round, encoded", &["local:///data/%2e/set"],     path("local:///data/%2e/set")),
            ("dots in a name, encoded", &["local:///a%2eb%20c"],    Ok("/a%2eb%20c".to_owned())),
            ("not absolute",    &["local://data"],                  path("local://data")),
            ("the top",         &["local:///"],                     path("local:///")),
            ("nothing between", &["local:///data//set"],            path("local:///data//set")),
        ];
        for (name, mounts, expected) in cases {
            assert_eq!(at(mounts).folder().map(str::to_owned), expected, "{name}");
        }
    }
}
