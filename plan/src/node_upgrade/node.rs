//! Decides the next step of the upgrade of one node.
//!
//! A step either changes what the status says, or does something that the status already says; never both. So
//! whoever comes next, after a crash at any point, finds in the status what was going on. The invariant: what is
//! done away from the node, or out of its engines, is named in the status before.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use midflight_api::longhorn::{NodeDataEngineUpgradeStatus, NodeUpgradeState, VolumeUpgradeStatus};
use midflight_api::{ImageRef, NodeName, ReplicaName, VolumeName};

use super::facts::{Nodes, Policy, Volume};
use super::place::Load;
use super::rebuilt::{self, Copied};
use super::wait::{Wait, message};
use super::words::fit_node;
use super::{back, forth};

/// Rebuilds take as many times longer as a step may.
const REBUILD_TAKES: u32 = 6;

/// Everything `decide` may look at.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub now: Timestamp,
    /// When this attempt began.
    pub began: Timestamp,
    pub node: NodeName,
    /// Image that the node is upgraded to.
    pub image: ImageRef,
    /// Image that is the default by now.
    pub default_image: ImageRef,
    pub policy: Policy,
    /// Whether somebody deleted the upgrade.
    pub deleting: bool,
    pub status: NodeDataEngineUpgradeStatus,
    pub nodes: Nodes,
    /// The v2 volumes that have something on the node, or that the status names.
    pub volumes: BTreeMap<VolumeName, Volume>,
    pub load: Load,
    /// The snapshots that this upgrade asked for.
    pub snapshots: BTreeMap<VolumeName, Taken>,
    pub copied: Copied,
}

/// A snapshot that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Taken {
    pub ready: bool,
    pub deleting: bool,
    /// Why it could not be taken.
    pub error: String,
}

/// Something the shell can do. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Set or clear `dataEngineUpgradeRequested` of the node.
    Request(bool),
    TakeSnapshot {
        volume: VolumeName,
    },
    RemoveSnapshot {
        volume: VolumeName,
    },
    /// Ask a replica to leave its engine, or to come back.
    Stop {
        volume: VolumeName,
        replica: ReplicaName,
    },
    Start {
        volume: VolumeName,
        replica: ReplicaName,
    },
    /// Ask for the engine of a volume on another node; an empty one is that of the volume.
    Move {
        volume: VolumeName,
        to: NodeName,
        image: ImageRef,
    },
    SetImage {
        volume: VolumeName,
        image: ImageRef,
    },
    DeleteManager {
        name: String,
    },
    /// Bring back the instance manager of an image on the node, in place of the one that does not start.
    ReinstateManager {
        image: ImageRef,
    },
    /// Nothing is left to be brought back.
    Release,
}

/// What is to be written down, and then what is to be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub status: NodeDataEngineUpgradeStatus,
    pub actions: Vec<Action>,
    /// When the deadline of the state has come, or something else is due that no watch tells of.
    pub until: Option<Timestamp>,
}

/// What the state of a node asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Enter(NodeUpgradeState),
    GoBack(String),
    /// Name volumes in the status.
    Enlist(Vec<VolumeName>),
    /// Note where engines go meanwhile.
    Assign(BTreeMap<VolumeName, NodeName>),
    Do(Vec<Action>),
    Wait(Vec<Wait>),
    Rest,
}

/// Things to do and things to wait for; what is to be done goes first.
#[derive(Debug, Default)]
pub(super) struct Todo {
    pub(super) actions: Vec<Action>,
    pub(super) waits: Vec<Wait>,
}

impl Todo {
    pub(super) fn step(self) -> Option<Step> {
        match self {
            Todo { actions, .. } if !actions.is_empty() => Some(Step::Do(actions)),
            Todo { waits, .. } if !waits.is_empty() => Some(Step::Wait(waits)),
            Todo { .. } => None,
        }
    }
}

/// Looks at a node and says what its upgrade is to say and do next.
pub fn decide(seen: &Observed) -> Decision {
    use NodeUpgradeState::{Completed, Error};
    let until = match seen.status.state {
        Completed | Error => None,
        state => seen.deadline(state),
    };
    let is_late = until.is_some_and(|until| until <= seen.now);
    let step = match step(seen) {
        Step::Do(_) if is_late => late(seen, &[]),
        Step::Wait(waits) if is_late => late(seen, &waits),
        step => step,
    };
    let mut status = seen.noted();
    let mut actions = Vec::new();
    let mut waits = Vec::new();
    match step {
        Step::Enter(state) => enter(&mut status, state, seen),
        Step::GoBack(why) => {
            status.failure = why.into();
            status.returned_from = seen.status.state;
            let next = if seen.status.state == NodeUpgradeState::Undefined {
                Error
            } else {
                NodeUpgradeState::SwitchingBack
            };
            enter(&mut status, next, seen);
        }
        Step::Enlist(volumes) => {
            for volume in volumes {
                let state = status.state;
                status
                    .volumes
                    .entry(volume)
                    .or_insert_with(|| VolumeUpgradeStatus { state, ..Default::default() });
            }
        }
        Step::Assign(chosen) => {
            for (volume, node) in chosen {
                status.volumes.entry(volume).or_default().temporary_node_id = node;
            }
        }
        Step::Do(these) => actions = these,
        Step::Wait(these) => waits = these,
        Step::Rest => {}
    }
    if status.state == seen.status.state {
        tell(&mut status, &waits, actions.is_empty());
    }
    fit_node(&mut status);
    let until = until.into_iter().chain(back::next_return(seen)).min();
    Decision { status, actions, until }
}

/// What becomes of a step that takes too long.
fn late(seen: &Observed, waits: &[Wait]) -> Step {
    let state = seen.status.state;
    let seconds = seen.allowed(state).as_secs();
    let what = if waits.is_empty() { String::new() } else { format!(": {}", message(waits)) };
    match seen.is_returning() {
        true => Step::Enter(NodeUpgradeState::Error),
        false => Step::GoBack(format!("{state} was not over within {seconds} s{what}")),
    }
}

fn enter(status: &mut NodeDataEngineUpgradeStatus, state: NodeUpgradeState, seen: &Observed) {
    status.state = state;
    status.since = seen.now.to_string().into();
    status.message = status.failure.clone();
    for volume in status.volumes.values_mut() {
        volume.state = state;
        volume.message = "".into();
    }
    if state == NodeUpgradeState::RebuildingReplica {
        rebuilt::begin(status, &seen.copied);
    }
    if state == NodeUpgradeState::UpgradingInstanceManager {
        let old = seen.here().and_then(|node| node.managers.iter().find(|one| one.image != seen.image));
        status.previous_image = old.map(|manager| manager.image.clone()).unwrap_or_default();
    }
}

/// Says of the node and of each volume what it waits for.
fn tell(status: &mut NodeDataEngineUpgradeStatus, waits: &[Wait], is_idle: bool) {
    let waiting = message(waits);
    status.message = match (status.failure.as_str(), waiting.as_str()) {
        ("", waiting) => waiting.into(),
        (failure, "") => failure.into(),
        (failure, waiting) => format!("{failure}; goes back: {waiting}").into(),
    };
    for (name, volume) in &mut status.volumes {
        let wait = waits.iter().find(|wait| wait.volume() == Some(name));
        volume.message = wait.map(ToString::to_string).unwrap_or_default().into();
        let is_through = is_idle && !waits.is_empty() && wait.is_none();
        volume.state = if is_through { after(status.state) } else { status.state };
    }
}

/// The state that follows on the way forth.
pub(super) fn after(state: NodeUpgradeState) -> NodeUpgradeState {
    use NodeUpgradeState::*;
    match state {
        Undefined => Initializing,
        Initializing => FailingReplicas,
        FailingReplicas => SwitchingOver,
        SwitchingOver => UpgradingInstanceManager,
        UpgradingInstanceManager => SwitchingBack,
        SwitchingBack => RebuildingReplica,
        RebuildingReplica => Finalizing,
        Finalizing | Completed => Completed,
        Error => Error,
    }
}

fn step(seen: &Observed) -> Step {
    use NodeUpgradeState::*;
    let state = seen.status.state;
    if let Some(why) = seen.given_up() {
        return Step::GoBack(why);
    }
    match state {
        Undefined if seen.is_there_already() => back::come_back(seen),
        Undefined => Step::Enter(Initializing),
        Initializing => forth::initialize(seen).unwrap_or(Step::Enter(after(state))),
        FailingReplicas => forth::leave(seen).unwrap_or(Step::Enter(after(state))),
        SwitchingOver => {
            forth::leave(seen).or_else(|| forth::keep_away(seen)).unwrap_or(Step::Enter(after(state)))
        }
        UpgradingInstanceManager if seen.has_old() => forth::leave(seen)
            .or_else(|| forth::keep_away(seen))
            .or_else(|| forth::replace(seen))
            .unwrap_or(Step::Enter(after(state))),
        // No engine can be moved before the new one runs.
        UpgradingInstanceManager => forth::replace(seen).unwrap_or(Step::Enter(after(state))),
        SwitchingBack => back::home(seen).step().unwrap_or(Step::Enter(after(state))),
        RebuildingReplica => back::rebuild(seen).step().unwrap_or(Step::Enter(after(state))),
        Finalizing => back::finish(seen).step().unwrap_or(Step::Enter(if seen.is_returning() {
            Error
        } else {
            Completed
        })),
        Completed => {
            if seen.deleting {
                Step::Do(vec![Action::Release])
            } else {
                Step::Rest
            }
        }
        Error => back::clean(seen),
    }
}

impl Observed {
    pub(super) fn here(&self) -> Option<&super::Node> {
        self.nodes.get(&self.node)
    }

    pub(super) fn is_ready(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|node| node.ready)
    }

    /// Whether an instance manager is there that is to be replaced.
    fn has_old(&self) -> bool {
        let managers = self.here().map_or(&[][..], |node| &node.managers);
        managers.iter().any(|manager| manager.image != self.image && !manager.deleting)
    }

    pub(super) fn is_returning(&self) -> bool {
        !self.status.failure.is_empty()
    }

    /// How long a state may take.
    fn allowed(&self, state: NodeUpgradeState) -> Duration {
        let times = if state == NodeUpgradeState::RebuildingReplica { REBUILD_TAKES } else { 1 };
        self.policy.deadline.saturating_mul(times)
    }

    fn deadline(&self, state: NodeUpgradeState) -> Option<Timestamp> {
        let since = self.status.since.as_str().parse::<Timestamp>().ok()?;
        since.checked_add(self.allowed(state)).ok()
    }

    /// Why the way forth is left, if somebody has asked for it or the image is another by now.
    fn given_up(&self) -> Option<String> {
        use NodeUpgradeState::*;
        let may_turn = match self.status.state {
            Undefined | Initializing | FailingReplicas | SwitchingOver | UpgradingInstanceManager => true,
            SwitchingBack | RebuildingReplica | Finalizing => self.deleting,
            Completed | Error => false,
        };
        if !may_turn || self.is_returning() {
            return None;
        }
        if self.deleting {
            return Some("aborted: the upgrade was deleted".into());
        }
        (self.default_image != self.image)
            .then(|| format!("default-instance-manager-image became {} meanwhile", self.default_image))
    }

    /// Whether the node runs the image, and nothing is left of an attempt before.
    fn is_there_already(&self) -> bool {
        let is_there = self.here().is_some_and(|node| node.runs_only(&self.image) && !node.requested);
        is_there && back::home(self).step().is_none() && back::replicas(self).next().is_none()
    }

    /// The volumes that the upgrade has to do with, up or not.
    pub(super) fn touched(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values().filter(|volume| volume.touches(&self.node))
    }

    /// The status, with what was seen since: pauses, and what was copied.
    fn noted(&self) -> NodeDataEngineUpgradeStatus {
        let mut status = self.status.clone();
        rebuilt::note(&mut status, &self.copied);
        status.owner_id = self.node.clone();
        let moves = matches!(
            status.state,
            NodeUpgradeState::SwitchingOver
                | NodeUpgradeState::UpgradingInstanceManager
                | NodeUpgradeState::SwitchingBack
                | NodeUpgradeState::RebuildingReplica
        );
        for (name, entry) in
            status.volumes.iter_mut().filter(|(_, entry)| moves && !entry.temporary_node_id.is_empty())
        {
            let Some(volume) = self.volumes.get(name) else { continue };
            // The last move may be of an upgrade before.
            if volume.moved.at.is_some_and(|at| at >= self.began) {
                entry.pause_us = entry.pause_us.max(volume.moved.pause_us);
                entry.longest_wait_us = entry.longest_wait_us.max(volume.moved.longest_wait_us);
            }
        }
        status
    }

    /// Volumes that the status does not name yet.
    pub(super) fn unnamed(&self) -> Vec<VolumeName> {
        let new = self.touched().filter(|volume| !self.status.volumes.contains_key(&volume.name));
        new.map(|volume| volume.name.clone()).collect()
    }
}
