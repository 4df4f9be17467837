//! Whether the program of an image can take the place of those that run.
//!
//! What runs is asked; what does not run yet is known by the labels of its image, or not at all. The invariant: an image is in the way
//! only for what was said, never for what nobody said.

use std::fmt;

use midflight_api::{ImageRef, NodeName};

use super::facts::{Image, Manager, Nodes};
use super::obstacle::Obstacle;
use crate::storage::engine_image::{Range, Ranges, SPOKEN};

/// What two programs must have a version of in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// What engines, replicas and frontends say to each other.
    Wire,
    /// The folders of replicas.
    Disk,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Interface::Wire => "the interface between engines and replicas",
            Interface::Disk => "the folders of replicas",
        })
    }
}

impl Interface {
    const ALL: [Interface; 2] = [Interface::Wire, Interface::Disk];

    fn of(self, ranges: &Ranges) -> Range {
        match self {
            Interface::Wire => ranges.wire,
            Interface::Disk => ranges.disk,
        }
    }
}

fn managers(nodes: &Nodes) -> impl Iterator<Item = (&NodeName, &Manager)> {
    nodes.iter().flat_map(|(name, node)| node.managers.iter().map(move |one| (name, one)))
}

/// What the program of an image speaks: what one that runs has answered, else what the image is labelled with.
fn spoken(image: &ImageRef, nodes: &Nodes) -> Option<Ranges> {
    let known = managers(nodes).filter(|(_, one)| one.image == *image && one.versions.api.is_known());
    let told = known.map(|(_, one)| one).max_by_key(|one| one.runs()).map(|one| one.versions);
    told.or_else(|| nodes.values().map(|node| node.labels).find(|labels| labels.api.is_known()))
}

/// What keeps the image from taking the place of another, or from serving beside those of other nodes: they speak with each other, whether
/// they are upgraded or not.
pub(super) fn apart(image: &ImageRef, nodes: &Nodes) -> Vec<Obstacle> {
    let Some(new) = spoken(image, nodes) else { return Vec::new() };
    let mut found = Vec::new();
    if !new.api.meets(SPOKEN) {
        found.push(Obstacle::Unspoken { image: image.clone(), its: new.api, ours: SPOKEN });
    }
    let old = || managers(nodes).filter(|(_, one)| one.runs() && one.image != *image);
    for what in Interface::ALL {
        let its = what.of(&new);
        let is_apart = |(_, one): &(&NodeName, &Manager)| {
            let theirs = what.of(&one.versions);
            theirs.is_known() && its.is_known() && !its.meets(theirs)
        };
        found.extend(old().find(is_apart).map(|(node, one)| Obstacle::Versions {
            image: image.clone(),
            what,
            its,
            node: node.clone(),
            theirs: what.of(&one.versions),
        }));
    }
    found
}

/// Says so if an image is gone to of which nothing is known, and when it will be.
pub(super) fn caveat(image: &ImageRef, nodes: &Nodes) -> Option<String> {
    let is_to_come = managers(nodes).any(|(_, one)| one.runs() && one.image != *image);
    let is_on_a_node = nodes.values().any(|node| node.image == Image::There);
    (is_to_come && spoken(image, nodes).is_none()).then(|| match is_on_a_node {
        true => format!(
            "nobody has said which versions {image} speaks; whether it fits is found out on the first node, \
             which goes back if it does not (an image of `midflight image pack` says it)"
        ),
        false => format!(
            "no node has {image} yet, and nothing that can be asked from here says which versions it speaks; if its labels do, that is \
             known when the first node has it, and compared before any node begins"
        ),
    })
}
