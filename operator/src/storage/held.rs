//! Whether a node has an image that managers run from, and what can be known of it before it runs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use midflight_api::longhorn::Image;
use midflight_api::{ImageRef, NodeName, images_listed};
use midflight_plan::storage::engine_image::{ON_NODE, Ranges};
use midflight_plan::storage::held::{holders, speaks};

use crate::controller::{Key, Objects, Operator, Stale};

/// What says where images are: the Images that are brought to nodes, and the nodes themselves.
pub(crate) struct Held {
    pub(crate) images: Objects<Image>,
    pub(crate) machines: Objects<core::Node>,
}

impl Held {
    pub(crate) fn new(operator: &mut Operator) -> Held {
        Held { images: operator.objects(), machines: operator.objects() }
    }

    /// Whether the node has the image, as far as is known.
    pub(crate) fn has(&self, node: &NodeName, image: &ImageRef) -> Result<bool, Stale> {
        let mut objects = self.images.all()?.into_iter().filter(|one| one.spec.image() == image);
        let is_brought = objects.any(|one| {
            one.status.as_ref().is_some_and(|status| status.node_deployment_map.get(node) == Some(&true))
        });
        Ok(is_brought || self.lists(node, image)?)
    }

    /// All nodes that have the image, by its content.
    pub(crate) fn nodes_with(&self, image: &ImageRef) -> Result<BTreeSet<NodeName>, Stale> {
        let (images, machines) = (self.images.all()?, self.machines.all()?);
        let listed = machines.iter().map(|machine| (machine.name_any().into(), images_listed(machine)));
        Ok(holders(image, images.iter().map(|image| &**image), listed))
    }

    /// What the program of an image that is on the node speaks, if its labels say so and the node tells of them.
    pub(crate) fn speaks(&self, node: &NodeName, image: &ImageRef) -> Result<Option<Ranges>, Stale> {
        let Some(machine) = self.machines.get(&Key::new("", node.as_str()))? else { return Ok(None) };
        Ok(speaks(image, machine.annotations()))
    }

    /// Whether a node itself lists the image, which it need not.
    fn lists(&self, node: &NodeName, image: &ImageRef) -> Result<bool, Stale> {
        let Some(machine) = self.machines.get(&Key::new("", node.as_str()))? else { return Ok(false) };
        Ok(images_listed(&machine).flatten().any(|name| name == image.as_str()))
    }
}

/// Whether a node says something else of the programs of its images than before.
pub(crate) fn has_heard(old: Option<&core::Node>, new: Option<&core::Node>) -> bool {
    let said = |node: Option<&core::Node>| node.and_then(|node| node.annotations().get(ON_NODE).cloned());
    said(old) != said(new)
}

/// Whether an Image is on other nodes than before.
pub(crate) fn has_moved(old: Option<&Image>, new: Option<&Image>) -> bool {
    let on = |image: Option<&Image>| {
        let status = image.and_then(|image| image.status.as_ref());
        status.map(|status| status.node_deployment_map.clone()).unwrap_or_default()
    };
    on(old) != on(new) || old.map(ResourceExt::name_any) != new.map(ResourceExt::name_any)
}
