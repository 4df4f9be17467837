//! What an upgrade of nodes will do: the same planner, with upgrades that are thought to succeed.
//!
//! The invariant: nodes begin in the order, and in the company, in which the controller would begin them if nothing
//! else changed.

use std::time::Duration;

use jiff::Timestamp;
use midflight_api::longhorn::{DataEngineUpgradeManager, NodeUpgradeState, UpgradeState};
use midflight_api::{ImageRef, NodeName, VolumeName};

use super::attempts::Child;
use super::facts::{Image, Volume};
use super::obstacle::Obstacle;
use super::place::{Load, choose};
use super::preflight::{marked, nodes_of_run, preflight};
use super::run::{Observed, decide, rebuilds_off};
use super::versions::caveat;
use crate::storage::engine_image::Ranges;

/// Nodes that took less had nothing to do.
const AT_ONCE: Duration = Duration::from_millis(500);

/// How long a node is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub node: Duration,
    /// Nodes of this cluster that it was learnt from; with none it is assumed.
    pub learnt_from: usize,
}

impl Pace {
    /// Taken where no node was seen yet.
    pub const ASSUMED: Pace = Pace { node: Duration::from_secs(60), learnt_from: 0 };

    /// The median of the nodes that upgrades remember.
    pub fn learn<'a>(upgrades: impl IntoIterator<Item = &'a DataEngineUpgradeManager>) -> Pace {
        let entries = upgrades.into_iter().filter_map(|upgrade| upgrade.status.as_ref());
        let took = entries.flat_map(|status| status.upgrade_nodes.values()).filter_map(|entry| {
            let began: Timestamp = entry.started_at.as_str().parse().ok()?;
            let ended: Timestamp = entry.completed_at.as_str().parse().ok()?;
            Some(ended.duration_since(began).unsigned_abs())
        });
        // A node that ran the image already is done at once, and says nothing of others.
        let took = took.filter(|took| *took >= AT_ONCE);
        let mut took: Vec<Duration> = took.collect();
        took.sort();
        match took.get(took.len() / 2) {
            Some(median) => Pace { node: *median, learnt_from: took.len() },
            None => Pace::ASSUMED,
        }
    }
}

/// What happens to a volume while one of its nodes is upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub volume: VolumeName,
    pub node: NodeName,
    /// Where its engine goes meanwhile; nothing if it stays.
    pub moves_to: Option<NodeName>,
    /// Whether a replica of it leaves and comes back.
    pub replica_leaves: bool,
}

/// Nodes that are upgraded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub after: Duration,
    pub nodes: Vec<NodeName>,
    pub volumes: Vec<Target>,
}

/// All that will happen, and what stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    pub image: ImageRef,
    pub pace: Pace,
    pub obstacles: Vec<Obstacle>,
    /// What is not known and may be found out on the way.
    pub caveat: Option<String>,
    pub stages: Vec<Stage>,
    /// Nodes that run the image already.
    pub there: Vec<NodeName>,
    /// Nodes that get the image first, from whoever makes it the default.
    pub lacking: Vec<NodeName>,
    pub duration: Duration,
}

/// Works out what an upgrade would do from now on, as if what is in the way had been taken away.
pub fn forecast(seen: &Observed, pace: Pace) -> Forecast {
    let run = nodes_of_run(&seen.spec.nodes, &seen.nodes);
    let image = seen.default_image.clone();
    let mut obstacles = preflight(&run, &image, &seen.nodes, &seen.volumes);
    obstacles.extend(rebuilds_off(seen, &run, &image));
    let nobodys = marked(&seen.nodes, &seen.children);
    let is_nobodys =
        |name: &NodeName| nobodys.iter().any(|one| matches!(one, Obstacle::Marked(node) if node == name));
    let is_there = |node: &NodeName| seen.nodes.get(node).is_some_and(|node| node.runs_only(&image));
    let (there, todo): (Vec<NodeName>, Vec<NodeName>) = run.into_iter().partition(is_there);
    let todo = todo.into_iter().filter(|node| seen.nodes.contains_key(node));
    let mut thought = Observed { protected: true, rival: None, children: Vec::new(), ..seen.clone() };
    thought.spec.paused = false;
    thought.policy.rebuilds = true;
    for (name, node) in &mut thought.nodes {
        node.requested &= !is_nobodys(name);
        (node.ready, node.image, node.labels) = (true, Image::There, Ranges::default());
        node.managers.iter_mut().for_each(|manager| manager.versions = Ranges::default());
    }
    thought.status.state = UpgradeState::Upgrading;
    thought.status.instance_manager_image = image.clone();
    thought.status.upgrade_nodes = todo.map(|node| (node, Default::default())).collect();
    let mut stages = Vec::new();
    loop {
        let decision = decide(&thought);
        let begins = |(_, entry): &(&NodeName, &midflight_api::longhorn::UpgradeNodeStatus)| {
            entry.state == NodeUpgradeState::Initializing
        };
        let nodes: Vec<NodeName> =
            decision.status.upgrade_nodes.iter().filter(begins).map(|(node, _)| node.clone()).collect();
        if nodes.is_empty() {
            break;
        }
        let after = pace.node * u32::try_from(stages.len()).unwrap_or(u32::MAX);
        let volumes = nodes.iter().flat_map(|node| targets(seen, node)).collect();
        thought.children.extend(nodes.iter().map(|node| done(&thought.name, node)));
        thought.status = decision.status;
        stages.push(Stage { after, nodes, volumes });
    }
    let duration = pace.node * u32::try_from(stages.len()).unwrap_or(u32::MAX);
    obstacles.extend(nobodys);
    let caveat = if stages.is_empty() { None } else { caveat(&image, &seen.nodes) };
    Forecast { image, pace, obstacles, caveat, stages, there, lacking: Vec::new(), duration }
}

impl Forecast {
    /// Judges an image that nodes lack by what is published; that of another registry may be. One that is the default is waited for, and
    /// another is brought to the nodes when it becomes so.
    pub fn judge_image(&mut self, is_published: Option<bool>, is_default: bool) {
        let is_lack = |one: &mut Obstacle| matches!(one, Obstacle::ImageMissing { .. });
        let missing = self.obstacles.extract_if(.., is_lack).next();
        let Some(Obstacle::ImageMissing { image, nodes }) = missing else { return };
        match is_published {
            Some(false) => {
                // What nobody has says nothing.
                self.caveat = None;
                self.obstacles.insert(0, Obstacle::Unpublished { image, nodes });
            }
            Some(true) | None if is_default => {
                self.obstacles.insert(0, Obstacle::ImageMissing { image, nodes });
            }
            Some(true) | None => self.lacking = nodes,
        }
    }
}

fn done(manager: &str, node: &NodeName) -> Child {
    Child {
        name: format!("{manager}-{node}"),
        node: node.clone(),
        manager: manager.to_owned(),
        state: NodeUpgradeState::Completed,
        message: String::new(),
        failure: String::new(),
        returned_from: NodeUpgradeState::Undefined,
        deleting: false,
        waits: false,
        longest_pause_us: 0,
    }
}

/// What happens to the volumes of a node.
fn targets(seen: &Observed, node: &NodeName) -> Vec<Target> {
    let touched: Vec<&Volume> = seen.volumes.iter().filter(|volume| volume.touches(node)).collect();
    let moving: Vec<&Volume> = touched.iter().copied().filter(|volume| volume.engine_is_on(node)).collect();
    let mut load = Load::new();
    for volume in seen.volumes.iter().filter(|volume| volume.is_up()) {
        *load.entry(volume.target().clone()).or_default() += 1;
    }
    let chosen = choose(&moving, node, &seen.nodes, &load);
    let target = |volume: &&Volume| Target {
        volume: volume.name.clone(),
        node: node.clone(),
        moves_to: chosen.get(&volume.name).cloned(),
        replica_leaves: volume.replica_on(node).is_some(),
    };
    touched.iter().map(target).collect()
}
