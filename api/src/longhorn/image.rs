//! Seed 001: an image that is pulled on every node before it is needed.
//!
//! The invariant: a node stands in `nodeDeploymentMap` as true only while the
//! container that holds the image there is ready.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::condition::Conditions;
use crate::names::{IMAGE, ImageRef, NodeName};
use crate::wire::{kind, rule, wire, words};

words! {
    /// Whether the image is on every node.
    ///
    /// ```text
    ///            ┌── a pull fails ──▶ error ──┐
    /// deploying ─┤                            ├─▶ deploying        any ──▶ unknown  (setting is false)
    ///            └── all ready ──▶ deployed ──┘
    /// ```
    pub enum ImageState {
        /// No controller has seen it yet.
        #[default]
        Undefined = "",
        Deploying = "deploying",
        Deployed = "deployed",
        /// A pull fails on at least one node.
        Error = "error",
        /// The setting `start-pre-pull-manager-images` is false.
        Unknown = "unknown",
    } or Unrecognised
}

fn spelling() -> Value {
    rule(
        &format!("self == '' || self.matches('{IMAGE}')"),
        "an image is named by letters, digits and the signs . _ : / @ -, such as registry.example:5000/engine:v2",
    )
}

kind! {
    /// An image that is pulled on every node before it is needed.
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Image", plural = "images", shortname = "lhi",
        status = "ImageStatus", doc = "An image that is pulled on every node before it is needed.",
        printcolumn(name = "State", type_ = "string", description = "Whether the image is on every node", json_path = ".status.state"),
        printcolumn(name = "Image", type_ = "string", description = "The image", json_path = ".spec.instanceManagerImage"),
        printcolumn(name = "ImageURL", type_ = "string", description = "The image, where it was given by its other name", priority = 1, json_path = ".spec.imageURL"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    )]
    #[schemars(extend("x-kubernetes-validations" = [
        rule("(has(self.instanceManagerImage) && self.instanceManagerImage != '') != (has(self.imageURL) && self.imageURL != '')",
             "name the image in exactly one of instanceManagerImage and imageURL"),
        rule("self == oldSelf", "an Image cannot change; delete it and create one for the new image"),
    ]))]
    pub struct ImageSpec {
        /// Reference of the image; the seed's name for the field, whatever image it is.
        #[schemars(extend("x-kubernetes-validations" = [spelling()]))]
        pub instance_manager_image: ImageRef,
        /// Reference of the image, by its other name.
        #[serde(rename = "imageURL")]
        #[schemars(extend("x-kubernetes-validations" = [spelling()]))]
        pub image_url: ImageRef,
    }
}

wire! {
    /// What was seen of an image.
    pub struct ImageStatus {
        /// Node whose controller looks after this object.
        #[serde(rename = "ownerID")]
        pub owner_id: NodeName,
        /// Whether the image is on every node.
        pub state: ImageState,
        /// Which nodes have the image.
        #[schemars(extend("nullable" = true, "maxProperties" = 5000))]
        pub node_deployment_map: BTreeMap<NodeName, bool>,
        /// What can be said about the image, and which node and cause are in the way.
        pub conditions: Conditions,
    }
}

impl ImageSpec {
    /// The image, by whichever of its two names it was given.
    pub fn image(&self) -> &ImageRef {
        if self.instance_manager_image.is_empty() { &self.image_url } else { &self.instance_manager_image }
    }
}
