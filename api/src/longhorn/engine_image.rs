//! An engine image: which nodes have it and what its binary can do.
//!
//! The invariant: versions are what the binary itself answered.

use std::collections::BTreeMap;

use super::Conditions;
use crate::names::{ImageRef, NodeName, Timestamp, Word};
use crate::wire::{kind, rule, wire, words};

words! {
    /// Whether the image is on every node.
    pub enum EngineImageState {
        #[default]
        Undefined = "",
        Deploying = "deploying",
        Deployed = "deployed",
        /// Something is in the way on a node: a pull that fails, a binary that does not start. It is tried again.
        Error = "error",
    } or Unrecognised
}

kind! {
    /// An image that v1 engines and replicas run from.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "EngineImage", plural = "engineimages", shortname = "lhei",
        status = "EngineImageStatus", doc = "An image that v1 engines and replicas run from.",
        printcolumn(name = "Incompatible", type_ = "boolean", description = "Compatibility of the engine image", json_path = ".status.incompatible"),
        printcolumn(name = "State", type_ = "string", description = "State of the engine image", json_path = ".status.state"),
        printcolumn(name = "Image", type_ = "string", description = "The Longhorn engine image", json_path = ".spec.image"),
        printcolumn(name = "RefCount", type_ = "integer", description = "Number of resources using the engine image", json_path = ".status.refCount"),
        printcolumn(name = "BuildDate", type_ = "date", description = "The build date of the engine image", json_path = ".status.buildDate"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    #[schemars(extend("required" = ["image"]))]
    pub struct EngineImageSpec {
        /// Reference of the image.
        #[schemars(length(min = 1), extend("x-kubernetes-validations" = [
            rule("self == oldSelf", "the image of an EngineImage cannot change; create another EngineImage"),
        ]))]
        pub image: ImageRef,
    }
}

wire! {
    /// What was seen of an engine image.
    pub struct EngineImageStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Whether the image is on every node.
        pub state: EngineImageState,
        /// Volumes, engines and replicas that want or run this image.
        #[schemars(extend("default" = 0))]
        pub ref_count: i32,
        /// Since when nothing refers to it, RFC 3339.
        pub no_ref_since: Timestamp,
        /// Whether this version of Midflight cannot work with the image.
        #[schemars(extend("default" = false))]
        pub incompatible: bool,
        /// What can be said about the image; type `ready`.
        pub conditions: Conditions,
        /// Which nodes have the image.
        #[schemars(extend("nullable" = true, "maxProperties" = 5000))]
        pub node_deployment_map: BTreeMap<NodeName, bool>,
        /// Version of the binary.
        pub version: Word,
        /// Commit the binary was built from.
        pub git_commit: Word,
        /// When the binary was built, RFC 3339.
        pub build_date: Timestamp,
        /// Newest command line it answers to.
        #[serde(rename = "cliAPIVersion")]
        pub cli_api_version: i32,
        /// Oldest command line it answers to.
        #[serde(rename = "cliAPIMinVersion")]
        pub cli_api_min_version: i32,
        /// Newest interface of the engine it speaks.
        #[serde(rename = "controllerAPIVersion")]
        pub controller_api_version: i32,
        /// Oldest interface of the engine it speaks.
        #[serde(rename = "controllerAPIMinVersion")]
        pub controller_api_min_version: i32,
        /// Newest format on disk it reads.
        pub data_format_version: i32,
        /// Oldest format on disk it reads.
        pub data_format_min_version: i32,
    }
}

impl EngineImageStatus {
    /// Whether an engine of this image and one of the other have a version of the interface in common.
    pub fn speaks_with(&self, other: &EngineImageStatus) -> bool {
        self.controller_api_min_version <= other.controller_api_version
            && other.controller_api_min_version <= self.controller_api_version
    }

    /// Whether a running engine of the old image can hand its volume to one of this image, as Longhorn's engines do: only forth.
    pub fn takes_over_from(&self, old: &EngineImageStatus) -> bool {
        (self.controller_api_min_version..=self.controller_api_version).contains(&old.controller_api_version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speaks_with_engines_of_which_it_knows_a_version() {
        let of = |min, newest| EngineImageStatus {
            controller_api_version: newest,
            controller_api_min_version: min,
            ..Default::default()
        };
        for (other, expected) in
            [((1, 4), false), ((1, 5), true), ((6, 6), true), ((7, 9), true), ((8, 9), false)]
        {
            assert_eq!(of(5, 7).speaks_with(&of(other.0, other.1)), expected, "{other:?}");
            assert_eq!(
                of(other.0, other.1).speaks_with(&of(5, 7)),
                expected,
                "{other:?}, the other way round"
            );
        }
    }

    #[test]
    fn takes_over_from_engines_within_its_range() {
        let new = EngineImageStatus {
            controller_api_version: 7,
            controller_api_min_version: 5,
            ..Default::default()
        };
        for (version, expected) in [(4, false), (5, true), (7, true), (8, false)] {
            let old = EngineImageStatus { controller_api_version: version, ..Default::default() };
            assert_eq!(new.takes_over_from(&old), expected, "{version}");
        }
    }
}
