//! Looks at the whole of an upgrade before the first change.
//!
//! The invariant: whatever could be known to stop a node half way is told before any node begins.

use std::collections::BTreeSet;

use midflight_api::longhorn::{NodeUpgradeState, VolumeState};
use midflight_api::{ImageRef, NodeName};

use super::attempts::Child;
use super::facts::{Copy, Image, Nodes, Volume};
use super::obstacle::Obstacle;
use super::place::{has_copy_elsewhere, hosts};
use super::versions::apart;

/// The nodes of an upgrade: those that are named, or all.
pub fn nodes_of_run(named: &[NodeName], nodes: &Nodes) -> BTreeSet<NodeName> {
    if named.is_empty() { nodes.keys().cloned().collect() } else { named.iter().cloned().collect() }
}

/// All that stands in the way of upgrading these nodes, what lasts first. Nothing happens to the volumes of a node that is upgraded
/// already; only one whose copy there is not in service is waited for, and so is told.
pub fn preflight<'a>(
    run: &BTreeSet<NodeName>,
    image: &ImageRef,
    nodes: &Nodes,
    volumes: impl IntoIterator<Item = &'a Volume>,
) -> Vec<Obstacle> {
    let volumes: Vec<&Volume> = volumes.into_iter().collect();
    let todo: Vec<&NodeName> = run.iter().filter(|node| !is_done(node, image, nodes, &volumes)).collect();
    let mut found = cluster(run, image, nodes);
    for volume in volumes {
        let concerned =
            run.iter().filter(|node| volume.misses(node) || todo.contains(node) && volume.touches(node));
        found.extend(concerned.filter_map(|node| fit(volume, node, nodes).err()));
    }
    found.sort_by_key(Obstacle::passes);
    found.dedup();
    found
}

/// Whether a node runs the image, and nothing is left of an attempt before: it is not marked, and no engine or replica of it is away.
fn is_done(name: &NodeName, image: &ImageRef, nodes: &Nodes, volumes: &[&Volume]) -> bool {
    let is_away = |volume: &&Volume| {
        let was_sent = volume.node == *name && !volume.asked.is_empty() && volume.asked != volume.node;
        was_sent || volume.replica_on(name).is_some_and(|replica| replica.told_to_stop)
    };
    nodes.get(name).is_some_and(|node| node.runs_only(image) && !node.requested)
        && !volumes.iter().any(is_away)
}

/// What stands in the way, whatever the volumes are.
pub(super) fn cluster(run: &BTreeSet<NodeName>, image: &ImageRef, nodes: &Nodes) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if image.is_empty() {
        found.push(Obstacle::NoImage);
    }
    let unknown: Vec<NodeName> = run.iter().filter(|node| !nodes.contains_key(*node)).cloned().collect();
    if !unknown.is_empty() {
        found.push(Obstacle::UnknownNodes { nodes: unknown });
    }
    if nodes.len() < 2 {
        found.push(Obstacle::SingleNode);
    }
    found.extend(missing(run, image, nodes));
    found.extend(apart(image, nodes));
    let of_run = run.iter().filter_map(|name| Some((name, nodes.get(name)?)));
    found
        .extend(of_run.filter(|(_, node)| !node.ready).map(|(name, _)| Obstacle::NodeNotReady(name.clone())));
    found
}

/// Nodes that are marked as under upgrade, and of which there is none that would take the mark away: each takes the place of one that could
/// begin. One that is completed is done with its node.
pub(super) fn marked(nodes: &Nodes, upgrades: &[Child]) -> Vec<Obstacle> {
    let is_at_it =
        |one: &Child, name: &NodeName| one.node == *name && one.state != NodeUpgradeState::Completed;
    let has_none = |name: &NodeName| !upgrades.iter().any(|one| is_at_it(one, name));
    let marked = nodes.iter().filter(|(name, node)| node.requested && has_none(name));
    marked.map(|(name, _)| Obstacle::Marked(name.clone())).collect()
}

/// Nodes of the upgrade that lack its image.
pub(super) fn missing(run: &BTreeSet<NodeName>, image: &ImageRef, nodes: &Nodes) -> Option<Obstacle> {
    let lacks = |name: &&NodeName| {
        nodes.get(*name).is_some_and(|node| node.image == Image::Missing && !node.runs_only(image))
    };
    let nodes: Vec<NodeName> = run.iter().filter(lacks).cloned().collect();
    (!nodes.is_empty()).then(|| Obstacle::ImageMissing { image: image.clone(), nodes })
}

/// Whether the volume can do without the node for a while. A replica there that was told to leave is not missed.
pub(super) fn fit(volume: &Volume, node: &NodeName, nodes: &Nodes) -> Result<(), Obstacle> {
    let name = || volume.name.clone();
    if volume.deleting {
        return Ok(());
    }
    if volume.replicas.len() == 1 || volume.wanted_replicas == 1 {
        return Err(Obstacle::SingleReplica(name()));
    }
    match volume.state {
        VolumeState::Attached => {}
        VolumeState::Undefined
        | VolumeState::Creating
        | VolumeState::Detached
        | VolumeState::Attaching
        | VolumeState::Detaching
        | VolumeState::Deleting
        | VolumeState::Unrecognised => {
            return Err(Obstacle::Unsettled { volume: name(), state: volume.state });
        }
    }
    if !volume.replicas.iter().any(|replica| replica.copy == Copy::InService) {
        return Err(Obstacle::Faulted(name()));
    }
    let is_missed =
        |replica: &&super::Replica| !(replica.is_healthy() || replica.node == *node && replica.told_to_stop);
    if let Some(missed) = volume.replicas.iter().find(is_missed) {
        let (volume, node) = (name(), missed.node.clone());
        return Err(match missed.copy {
            Copy::Rebuilding => Obstacle::Rebuilding { volume, node },
            Copy::InService | Copy::Out => Obstacle::Degraded { volume, node },
        });
    }
    if volume.replicas.len() < volume.wanted_replicas {
        let (count, wanted) = (volume.replicas.len(), volume.wanted_replicas);
        return Err(Obstacle::TooFew { volume: name(), count, wanted });
    }
    if volume.expanding {
        return Err(Obstacle::Expanding(name()));
    }
    if volume.restoring {
        return Err(Obstacle::Restoring(name()));
    }
    if volume.migrating {
        return Err(Obstacle::Migrating(name()));
    }
    if volume.engine_is_on(node) && hosts(volume, node, nodes).next().is_none() {
        return Err(Obstacle::NoTarget { volume: name(), node: node.clone() });
    }
    if !has_copy_elsewhere(volume, node, nodes) {
        return Err(Obstacle::NoCopyElsewhere { volume: name(), node: node.clone() });
    }
    Ok(())
}
