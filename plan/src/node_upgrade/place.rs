//! Finds nodes: which serves a volume meanwhile, and which may be upgraded together.
//!
//! The invariant: a temporary engine comes only to a node that has a healthy copy of the volume, serves, and is not
//! upgraded itself.

use std::collections::BTreeMap;

use midflight_api::{NodeName, VolumeName};

use super::facts::{Nodes, Volume};

/// How many engines each node serves.
pub(super) type Load = BTreeMap<NodeName, usize>;

/// Whether another copy than that on the node serves on, on a node that is not upgraded.
pub(super) fn has_copy_elsewhere(volume: &Volume, node: &NodeName, nodes: &Nodes) -> bool {
    hosts(volume, node, nodes).next().is_some()
}

/// Nodes other than this one that may serve the volume and were not tried in vain, in the order of its replicas.
pub(super) fn hosts<'a>(
    volume: &'a Volume,
    node: &'a NodeName,
    nodes: &'a Nodes,
) -> impl Iterator<Item = &'a NodeName> {
    let others = volume.replicas.iter().filter(move |replica| replica.node != *node && replica.is_healthy());
    others
        .map(|replica| &replica.node)
        .filter(|other| nodes.get(*other).is_some_and(|there| there.may_host()))
        .filter(|other| volume.failure_on(other).is_none())
}

/// Whether an engine that was sent there can stay there.
pub(super) fn is_good(volume: &Volume, there: &NodeName, node: &NodeName, nodes: &Nodes) -> bool {
    let serves = volume.serves_on == *there && volume.seat == *there;
    let can_host = there != node && nodes.get(there).is_some_and(|there| there.may_host());
    let may_host = can_host && volume.failure_on(there).is_none();
    may_host && (serves || hosts(volume, node, nodes).any(|host| host == there))
}

/// Chooses a node for each of these volumes: where its engine is already, else the one that serves the fewest.
pub(super) fn choose(
    volumes: &[&Volume],
    node: &NodeName,
    nodes: &Nodes,
    load: &Load,
) -> BTreeMap<VolumeName, NodeName> {
    let mut load = load.clone();
    let mut chosen = BTreeMap::new();
    for volume in volumes {
        let stays = Some(&volume.serves_on).filter(|there| is_good(volume, there, node, nodes));
        let count = |host: &NodeName| load.get(host).copied().unwrap_or_default();
        let host = stays.or_else(|| hosts(volume, node, nodes).min_by_key(|host| (count(host), *host)));
        if let Some(host) = host {
            *load.entry(host.clone()).or_default() += 1;
            chosen.insert(volume.name.clone(), host.clone());
        }
    }
    chosen
}

/// Whether two nodes may be upgraded at the same time: no volume has anything on both.
pub(super) fn are_disjoint<'a>(
    one: &NodeName,
    other: &NodeName,
    volumes: impl IntoIterator<Item = &'a Volume>,
) -> bool {
    volumes.into_iter().all(|volume| {
        let places = volume.places();
        !(places.contains(one) && places.contains(other))
    })
}
