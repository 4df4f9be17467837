//! A cluster that is thought up: nodes, volumes and what becomes of them, with the real planners.
//!
//! What the planners decide goes over a wire, one write at a time, so that the world can change in between and
//! a crash can lose the rest. The invariant: the data plane of this world keeps the promises of the real one: the last
//! copy in service never leaves, and an engine moves only to a node that serves and reaches a copy.

use std::collections::{BTreeMap, BTreeSet};

use midflight_api::longhorn::{
    DataEngineUpgradeManagerSpec, DataEngineUpgradeManagerStatus, InstanceManagerState,
    NodeDataEngineUpgradeStatus, NodeUpgradeState, UpgradeNodeStatus, UpgradeState, VolumeState,
    VolumeUpgradeStatus,
};
use midflight_api::{ImageRef, NodeName, VolumeName};

use super::super::facts::{Copy, Manager, MoveFailure, Nodes, Volume};
use super::super::{Action, Child, Observed, Order, Run, Taken, decide, decide_run};
use super::{NEW, OLD, at, manager, policy};

const NAME: &str = "run";

/// What is kept of an upgrade of all nodes between two looks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Whole {
    pub(super) state: UpgradeState,
    since: i64,
    /// State, failures and when the next attempt comes.
    pub(super) nodes: BTreeMap<NodeName, (NodeUpgradeState, i32, Option<i64>)>,
}

/// What is kept of the upgrade of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct One {
    pub(super) state: NodeUpgradeState,
    since: i64,
    pub(super) failed: bool,
    pub(super) volumes: BTreeMap<VolumeName, NodeName>,
    previous: ImageRef,
    pub(super) deleting: bool,
    /// Whether it has failed, and waits for something on its way back.
    waits: bool,
}

/// A write on its way to the API.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Write {
    Node(NodeName, Action),
    Run(Order),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now: i64,
    pub(super) parallel: i32,
    pub(super) nodes: Nodes,
    pub(super) volumes: BTreeMap<VolumeName, Volume>,
    pub(super) whole: Whole,
    pub(super) ones: BTreeMap<NodeName, One>,
    pub(super) snapshots: BTreeSet<(NodeName, VolumeName)>,
    pub(super) wire: Vec<Write>,
    /// The engines that there are, with the term under which the record named each: one on a node that is lost may write on.
    writers: BTreeMap<(VolumeName, NodeName), u32>,
    /// Whether instance managers of the new image start.
    pub(super) starts: bool,
    /// Whether engines that come to one of the new image serve there.
    pub(super) serves: bool,
    /// What must never happen, if it did.
    pub(super) broken: Option<&'static str>,
}

/// Something that the data plane or the nodes do by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Leaves(VolumeName, usize),
    Starts(VolumeName, usize),
    Rebuilt(VolumeName, usize),
    Moves(VolumeName),
    DoesNotServe(VolumeName),
    ManagerGoes(NodeName),
    ManagerStarts(NodeName),
}

fn seconds(timestamp: &str) -> i64 {
    timestamp.parse::<jiff::Timestamp>().map_or(0, |time| time.as_second() - 1_000_000)
}

impl World {
    pub(super) fn new(nodes: Nodes, volumes: BTreeMap<VolumeName, Volume>, parallel: i32) -> World {
        let served = volumes.values().filter(|volume| !volume.seat.is_empty());
        World {
            now: 0,
            parallel,
            writers: served.map(|volume| ((volume.name.clone(), volume.seat.clone()), 1)).collect(),
            nodes,
            volumes,
            whole: Whole { state: UpgradeState::Undefined, since: 0, nodes: BTreeMap::new() },
            ones: BTreeMap::new(),
            snapshots: BTreeSet::new(),
            wire: Vec::new(),
            starts: true,
            serves: true,
            broken: None,
        }
    }

    /// The upgrade of a node is in this state, and has named all volumes.
    pub(super) fn begin(&mut self, node: &NodeName, state: NodeUpgradeState) {
        let volumes = self.volumes.keys().map(|name| (name.clone(), NodeName::default())).collect();
        let failed = state == NodeUpgradeState::Error;
        let (previous, deleting, waits) = Default::default();
        let one = One { state, since: 0, failed, volumes, previous, deleting, waits };
        self.ones.insert(node.clone(), one);
        self.nodes.get_mut(node).unwrap().requested = true;
    }

    fn run(&self) -> Run {
        let entry = |(state, failures, retry): &(NodeUpgradeState, i32, Option<i64>)| UpgradeNodeStatus {
            state: *state,
            failures: *failures,
            retry_at: retry.map(|second| at(second).to_string()).unwrap_or_default().into(),
            ..UpgradeNodeStatus::default()
        };
        let child = |(node, one): (&NodeName, &One)| Child {
            name: node.to_string(),
            node: node.clone(),
            manager: NAME.into(),
            state: one.state,
            message: String::new(),
            failure: if one.failed { "failed".into() } else { String::new() },
            returned_from: NodeUpgradeState::Undefined,
            deleting: one.deleting,
            waits: one.waits,
            longest_pause_us: 0,
        };
        Run {
            now: at(self.now),
            name: NAME.into(),
            generation: 1,
            deleting: false,
            protected: true,
            spec: DataEngineUpgradeManagerSpec { max_parallel_nodes: self.parallel, ..Default::default() },
            status: DataEngineUpgradeManagerStatus {
                state: self.whole.state,
                since: at(self.whole.since).to_string().into(),
                instance_manager_image: NEW.into(),
                observed_generation: 1,
                upgrade_nodes: self
                    .whole
                    .nodes
                    .iter()
                    .map(|(node, one)| (node.clone(), entry(one)))
                    .collect(),
                ..Default::default()
            },
            default_image: NEW.into(),
            policy: policy(),
            nodes: self.nodes.clone(),
            volumes: self.volumes.values().cloned().collect(),
            children: self.ones.iter().map(child).collect(),
            rival: None,
        }
    }

    pub(super) fn of_node(&self, node: &NodeName) -> Observed {
        let one = &self.ones[node];
        let entry =
            |to: &NodeName| VolumeUpgradeStatus { temporary_node_id: to.clone(), ..Default::default() };
        let mut load = BTreeMap::new();
        for volume in self.volumes.values().filter(|volume| volume.is_up()) {
            *load.entry(volume.target().clone()).or_default() += 1;
        }
        let taken = self.snapshots.iter().filter(|(of, _)| of == node);
        Observed {
            now: at(self.now),
            began: at(0),
            node: node.clone(),
            image: NEW.into(),
            default_image: NEW.into(),
            policy: policy(),
            deleting: one.deleting,
            status: NodeDataEngineUpgradeStatus {
                state: one.state,
                since: at(one.since).to_string().into(),
                failure: if one.failed { "failed".into() } else { "".into() },
                previous_image: one.previous.clone(),
                volumes: one.volumes.iter().map(|(name, to)| (name.clone(), entry(to))).collect(),
                ..Default::default()
            },
            nodes: self.nodes.clone(),
            volumes: self.volumes.clone(),
            load,
            snapshots: taken
                .map(|(_, volume)| (volume.clone(), Taken { ready: true, ..Taken::default() }))
                .collect(),
            copied: Default::default(),
        }
    }

    /// A turn of the controller of all nodes: what it decides is written down, and what is to be done put on the wire.
    fn turn(&mut self) {
        let decision = decide_run(&self.run());
        let retry = |entry: &UpgradeNodeStatus| {
            Some(entry.retry_at.as_str()).filter(|at| !at.is_empty()).map(seconds)
        };
        let nodes = decision.status.upgrade_nodes.iter();
        self.whole.nodes =
            nodes.map(|(node, entry)| (node.clone(), (entry.state, entry.failures, retry(entry)))).collect();
        self.whole.state = decision.status.state;
        self.whole.since = seconds(decision.status.since.as_str());
        self.wire.extend(decision.orders.into_iter().map(Write::Run));
    }

    fn turn_of(&mut self, node: &NodeName) {
        let decision = decide(&self.of_node(node));
        let one = self.ones.get_mut(node).unwrap();
        let status = decision.status;
        *one = One {
            state: status.state,
            since: seconds(status.since.as_str()),
            failed: !status.failure.is_empty(),
            volumes: status
                .volumes
                .into_iter()
                .map(|(name, entry)| (name, entry.temporary_node_id))
                .collect(),
            previous: status.previous_image,
            deleting: one.deleting,
            waits: status.state == NodeUpgradeState::Error && status.message != status.failure,
        };
        self.wire.extend(decision.actions.into_iter().map(|action| Write::Node(node.clone(), action)));
    }

    /// The controllers: that of all nodes, and that of each node that is begun.
    pub(super) fn controllers(&self) -> impl Iterator<Item = Option<&NodeName>> {
        std::iter::once(None).chain(self.ones.keys().map(Some))
    }

    /// What comes of a turn of one of them, if it would write something.
    pub(super) fn after_turn(&self, controller: Option<&NodeName>) -> Option<World> {
        let mut next = self.clone();
        match controller {
            None => next.turn(),
            Some(node) => next.turn_of(node),
        }
        (next != *self).then_some(next)
    }

    /// What comes of the first turn that would write something.
    fn next_turn(&self) -> Option<World> {
        self.controllers().find_map(|controller| self.after_turn(controller))
    }

    /// The API takes the oldest write.
    pub(super) fn serve(&mut self) {
        match self.wire.remove(0) {
            Write::Run(Order::Begin { node, .. }) => {
                let since = self.now;
                let state = NodeUpgradeState::Undefined;
                let (failed, volumes, previous, deleting, waits) = Default::default();
                let new = One { state, since, failed, volumes, previous, deleting, waits };
                self.ones.entry(node).or_insert(new);
            }
            Write::Run(Order::Remove { child }) => {
                if let Some(one) = self.ones.get_mut(child.as_str()) {
                    one.deleting = true;
                }
            }
            Write::Run(Order::Protect | Order::Release) => {}
            Write::Node(node, action) => self.carry_out(&node, action),
        }
    }

    fn carry_out(&mut self, node: &NodeName, action: Action) {
        match action {
            Action::Request(on) => self.nodes.get_mut(node).unwrap().requested = on,
            Action::TakeSnapshot { volume } => drop(self.snapshots.insert((node.clone(), volume))),
            Action::RemoveSnapshot { volume } => drop(self.snapshots.remove(&(node.clone(), volume))),
            Action::Stop { volume, replica } => self.told(&volume, replica.as_str(), true),
            Action::Start { volume, replica } => self.told(&volume, replica.as_str(), false),
            Action::Move { volume, to, image } => {
                let volume = self.volumes.get_mut(&volume).unwrap();
                (volume.asked, volume.image) = (to, image);
            }
            Action::SetImage { volume, image } => self.volumes.get_mut(&volume).unwrap().image = image,
            Action::DeleteManager { name } => {
                let is_used = self.volumes.values().any(|volume| {
                    let copy = volume.replica_on(node);
                    volume.is_up()
                        && (volume.seat == *node || copy.is_some_and(|copy| copy.copy == Copy::InService))
                });
                // One that does not run holds nothing, whatever the other one of its node does.
                let runs =
                    self.nodes[node].managers.iter().any(|manager| manager.name == name && manager.runs());
                if is_used && runs {
                    self.broken = Some("an instance manager that is used was deleted");
                }
                for manager in &mut self.nodes.get_mut(node).unwrap().managers {
                    manager.deleting |= manager.name == name;
                }
            }
            Action::ReinstateManager { image } => {
                let state = InstanceManagerState::Stopped;
                let manager = Manager { state, ..manager(node.as_str(), image.as_str(), 0) };
                self.nodes.get_mut(node).unwrap().managers.push(manager);
            }
            Action::Release => drop(self.ones.remove(node)),
        }
    }

    fn told(&mut self, volume: &VolumeName, replica: &str, stop: bool) {
        let volume = self.volumes.get_mut(volume).unwrap();
        for one in volume.replicas.iter_mut().filter(|one| one.name == *replica) {
            one.told_to_stop = stop;
        }
    }

    /// What can happen by itself now.
    pub(super) fn events(&self) -> Vec<Event> {
        let serves = |node: &NodeName| self.nodes.get(node).is_some_and(|node| node.serving().is_some());
        let mut events = Vec::new();
        for (name, volume) in self.volumes.iter().filter(|(_, volume)| volume.is_up()) {
            let healthy = |replica: &&super::Replica| replica.is_healthy() && serves(&replica.node);
            for (number, replica) in volume.replicas.iter().enumerate() {
                let others = volume.replicas.iter().filter(healthy).any(|other| other.name != replica.name);
                let engine = serves(&volume.seat);
                if replica.told_to_stop && replica.runs && others && engine {
                    events.push(Event::Leaves(name.clone(), number));
                }
                if !replica.told_to_stop && !replica.runs && serves(&replica.node) && engine {
                    events.push(Event::Starts(name.clone(), number));
                }
                if replica.runs && replica.copy != Copy::InService && others && engine {
                    events.push(Event::Rebuilt(name.clone(), number));
                }
            }
            let target = volume.target();
            if volume.serves_on != *target
                && serves(target)
                && volume.replicas.iter().any(|one| healthy(&one))
            {
                let manager = self.nodes[target].serving().map(|manager| manager.image.as_str());
                match self.serves || manager != Some(NEW) {
                    true => events.push(Event::Moves(name.clone())),
                    false if volume.failure_on(target).is_none() => {
                        events.push(Event::DoesNotServe(name.clone()));
                    }
                    false => {}
                }
            }
        }
        for (name, node) in self.nodes.iter().filter(|(_, node)| node.ready) {
            if node.managers.iter().any(|manager| manager.deleting) {
                events.push(Event::ManagerGoes(name.clone()));
            } else if !node.managers.iter().any(Manager::runs)
                && (self.starts || node.managers.iter().any(|manager| manager.image == OLD))
            {
                events.push(Event::ManagerStarts(name.clone()));
            }
        }
        events
    }

    pub(super) fn happens(&mut self, event: &Event) {
        match event {
            Event::Leaves(volume, replica) => {
                let replica = &mut self.volumes.get_mut(volume).unwrap().replicas[*replica];
                (replica.runs, replica.copy) = (false, Copy::Out);
            }
            Event::Starts(volume, replica) => {
                let volume = self.volumes.get_mut(volume).unwrap();
                volume.replicas[*replica].runs = true;
            }
            Event::Rebuilt(volume, replica) => {
                self.volumes.get_mut(volume).unwrap().replicas[*replica].copy = Copy::InService;
            }
            Event::Moves(volume) => {
                let volume = self.volumes.get_mut(volume).unwrap();
                let (to, from) = (volume.target().clone(), volume.seat.clone());
                (volume.serves_on, volume.seat) = (to.clone(), to.clone());
                volume.moved.failure = None;
                let name = volume.name.clone();
                let term = self.terms(&name).max().unwrap_or_default() + 1;
                // Nobody can end what is on a node that is lost.
                if self.nodes[&from].ready {
                    self.writers.remove(&(name.clone(), from));
                }
                self.writers.insert((name, to), term);
            }
            Event::DoesNotServe(volume) => {
                let volume = self.volumes.get_mut(volume).unwrap();
                let node = volume.target().clone();
                volume.moved.failure = Some(MoveFailure { node, is_lost: false, why: "it was so".into() });
            }
            Event::ManagerGoes(node) => {
                self.writers.retain(|(_, on), _| on != node);
                let managers = &mut self.nodes.get_mut(node).unwrap().managers;
                managers.retain(|manager| !manager.deleting);
                // The default one has an object again, which waits if another is there.
                if !managers.iter().any(|manager| manager.image == NEW) {
                    let state = InstanceManagerState::Stopped;
                    managers.push(Manager { state, ..manager(node.as_str(), NEW, 0) });
                }
            }
            Event::ManagerStarts(node) => {
                // One that stands in goes before that of the default image.
                let managers = &mut self.nodes.get_mut(node).unwrap().managers;
                let first = managers.iter().position(|manager| manager.image == OLD).unwrap_or(0);
                managers[first].state = InstanceManagerState::Running;
            }
        }
    }

    /// A node is gone, with all that runs on it. Engines elsewhere put its copies out of service, if they have others.
    pub(super) fn lose(&mut self, node: &NodeName) {
        let lost = self.nodes.get_mut(node).unwrap();
        lost.ready = false;
        for volume in self.volumes.values_mut() {
            let has_engine = volume.seat != *node;
            let others = volume.replicas.iter().any(|one| one.node != *node && one.is_healthy());
            for replica in volume.replicas.iter_mut().filter(|replica| replica.node == *node) {
                replica.runs = false;
                if has_engine && others && replica.copy == Copy::InService {
                    replica.copy = Copy::Out;
                }
            }
        }
    }

    pub(super) fn bring_back(&mut self, node: &NodeName) {
        self.nodes.get_mut(node).unwrap().ready = true;
        // Engines that another has followed are ended now.
        self.writers.retain(|(volume, on), _| on != node || self.volumes[volume].seat == *node);
    }

    fn terms(&self, volume: &VolumeName) -> impl Iterator<Item = u32> {
        self.writers.iter().filter(move |((of, _), _)| of == volume).map(|(_, term)| *term)
    }

    /// Whether no two engines of a volume write under the same term, and the newest is the one that the record names.
    pub(super) fn writers_are_alone(&self) -> bool {
        self.volumes.values().filter(|volume| !volume.seat.is_empty()).all(|volume| {
            let all: BTreeSet<u32> = self.terms(&volume.name).collect();
            let named = self.writers.get(&(volume.name.clone(), volume.seat.clone()));
            all.len() == self.terms(&volume.name).count() && named == all.last()
        })
    }

    pub(super) fn crash(&mut self) {
        self.wire.clear();
    }

    /// Time passes until the first of these: a deadline, a back-off.
    pub(super) fn wait(&mut self) {
        let mut moments: Vec<i64> = self.whole.nodes.values().filter_map(|(_, _, retry)| *retry).collect();
        let run = decide_run(&self.run()).until.map(|until| seconds(&until.to_string()));
        let deadlines = self.ones.keys().filter_map(|node| decide(&self.of_node(node)).until);
        moments.extend(deadlines.map(|until| seconds(&until.to_string())).chain(run));
        self.now = moments.into_iter().filter(|moment| *moment > self.now).min().unwrap_or(self.now + 600);
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.whole.state, UpgradeState::Completed | UpgradeState::Error)
    }

    /// Whether everything serves as it did before, on whichever image.
    pub(super) fn is_whole(&self) -> bool {
        let marked = self.nodes.values().any(|node| node.requested);
        let away = |volume: &Volume| {
            let moved = volume.is_up() && (volume.serves_on != volume.node || volume.seat != volume.node);
            moved
                || volume
                    .replicas
                    .iter()
                    .any(|replica| replica.told_to_stop || (volume.is_up() && !replica.is_healthy()))
        };
        !marked && !self.volumes.values().any(away) && self.snapshots.is_empty()
    }

    /// How many nodes are under way.
    pub(super) fn under_way(&self) -> usize {
        let active = |one: &&One| !matches!(one.state, NodeUpgradeState::Completed | NodeUpgradeState::Error);
        self.ones.values().filter(active).count()
    }

    /// Goes on as a world does in which nothing fails; says whether it comes to an end.
    pub(super) fn goes_on(&mut self, bound: usize) -> bool {
        (0..bound).any(|_| !self.goes_one_step())
    }

    /// The next step of such a world, if it is not at its end.
    pub(super) fn goes_one_step(&mut self) -> bool {
        if !self.wire.is_empty() {
            self.serve();
        } else if let Some(next) = self.next_turn() {
            *self = next;
        } else if let Some(event) = self.events().first().cloned() {
            self.happens(&event);
        } else if self.is_over() {
            return false;
        } else {
            self.wait();
        }
        true
    }

    pub(super) fn runs_everywhere(&self, image: &str) -> bool {
        self.nodes.values().all(|node| node.runs_only(&image.into()))
    }

    pub(super) fn runs_old(&self, node: &NodeName) -> bool {
        self.nodes[node].serving().is_some_and(|manager| manager.image == OLD)
    }

    /// The attached volumes that have a healthy replica on a node that serves.
    pub(super) fn served(&self) -> BTreeSet<VolumeName> {
        let attached = self.volumes.values().filter(|volume| volume.state == VolumeState::Attached);
        let served = attached.filter(|volume| {
            volume.replicas.iter().any(|one| one.is_healthy() && self.nodes[&one.node].serving().is_some())
        });
        served.map(|volume| volume.name.clone()).collect()
    }
}
