//! A small world that does what a volume's plan says.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use midflight_api::longhorn::{
    DataEngine, Engine, EngineChangeState, FINALIZER, Frontend, InstanceState, Replica, Robustness,
    TargetMoveReason, TargetMoveState, Volume, VolumeState,
};
use midflight_api::{
    EngineSeat, FrontendSeat, Member, MemberMode, Operation, OperationPhase, ReplicaName, Size,
    VolumeRecordSpec,
};

use super::super::*;
use crate::storage::engine_image::binary;
use crate::storage::schedule::{Closed, Place};

pub(super) const NODES: [&str; 4] = ["n-1", "n-2", "n-3", "n-4"];
/// More steps than any change of a volume takes.
pub(super) const MOST_STEPS: usize = 60;
pub(super) const OLD: &str = "midflight.local/engine:old";
pub(super) const NEW: &str = "midflight.local/engine:new";

/// What is wrong with the new image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    DoesNotStart,
    HangsInTheSwitch,
    CrashesAfterIt,
    ReplicasDoNotFollow,
}

/// What is wrong with an engine on another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    DoesNotStart,
    DoesNotTakeOver,
    NeverServes,
    NodeDies,
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) seen: Observed,
    pub(super) released: bool,
    pub(super) fault: Option<Fault>,
    /// On which node an engine does not do well, and how.
    pub(super) trouble: Option<(&'static str, Trouble)>,
    /// Whether the engine lets copies go only when nobody waits for that any more.
    pub(super) is_slow: bool,
    /// Whether other volumes have all turns to rebuild something.
    pub(super) is_busy: bool,
    /// Copies that the engine has let go: it does not ask them to return.
    let_go: BTreeSet<ReplicaName>,
    /// Copies that have data on their disk.
    data: BTreeSet<ReplicaName>,
}

fn serving_with(serving: bool, size: Size) -> Serving {
    Serving {
        serving,
        attached: true,
        size,
        snapshots: Vec::new(),
        rebuilt_bytes: 0,
        rebuild_limit: Some(0),
        patience: Some(8),
        permitted: Some(BTreeSet::new()),
        trouble: None,
        flaws: Vec::new(),
    }
}

fn on_every_node(image: &str) -> Deployed {
    let nodes = NODES.iter().map(|node| NodeName::from(*node)).collect();
    Deployed { image: image.into(), nodes, complaint: String::new() }
}

pub(super) fn start() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

impl World {
    pub(super) fn new(nodes: usize, replicas: i32) -> World {
        let mut volume = Volume::new("vol-1", Default::default());
        volume.metadata.uid = Some("uid-1".into());
        volume.spec.size = Size::from_bytes(1 << 20);
        volume.spec.number_of_replicas = replicas;
        volume.spec.frontend = Frontend::Nbd;
        volume.spec.data_engine = DataEngine::V2;
        let manager = |node: &&str| Manager {
            name: format!("im-{node}"),
            node: (*node).into(),
            image: OLD.into(),
            address: format!("{node}:9").into(),
            running: true,
            instances: Vec::new(),
        };
        let place = |node: &&str| Place { node: (*node).into(), closed: None, free: 1 << 30 };
        let seen = Observed {
            now: start(),
            volume,
            record: None,
            engine: None,
            replicas: Vec::new(),
            managers: NODES[..nodes].iter().map(manager).collect(),
            places: NODES[..nodes].iter().map(place).collect(),
            lost: Default::default(),
            serving: None,
            default_image: OLD.into(),
            images: [OLD, NEW].map(on_every_node).into(),
            replenish_after: SignedDuration::from_secs(600),
            rebuild_limit: 0,
            patience: 8,
            rebuilds_detached: false,
            rebuilds_at_once: 5,
            auto_salvage: true,
        };
        World {
            seen,
            released: false,
            fault: None,
            trouble: None,
            is_slow: false,
            is_busy: false,
            let_go: BTreeSet::new(),
            data: BTreeSet::new(),
        }
    }

    pub(super) fn attached() -> World {
        let mut world = World::new(4, 3);
        world.settle();
        world.attach("n-1");
        world.settle();
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        world
    }

    /// The same with processes, of the old image.
    pub(super) fn attached_v1() -> World {
        let mut world = World::new(4, 3);
        world.seen.volume.spec.data_engine = DataEngine::V1;
        world.settle();
        world.attach("n-1");
        world.settle();
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        assert_eq!(world.image(), OLD);
        world
    }

    pub(super) fn image(&self) -> String {
        decide(&self.seen).standing.image.to_string()
    }

    /// The programs of all instances of the volume, each once.
    pub(super) fn programs(&self) -> Vec<String> {
        let instances = self.seen.managers.iter().flat_map(|manager| &manager.instances);
        let mut all: Vec<String> = instances.map(|instance| instance.binary.clone()).collect();
        all.sort();
        all.dedup();
        all
    }

    pub(super) fn attach(&mut self, node: &str) {
        self.seen.volume.spec.node_id = node.into();
    }

    pub(super) fn standing(&self) -> (VolumeState, Robustness) {
        let standing = decide(&self.seen).standing;
        (standing.state, standing.robustness)
    }

    /// Takes steps until there is none; says why.
    pub(super) fn settle(&mut self) -> Option<Wait> {
        for _ in 0..MOST_STEPS {
            match self.look() {
                Err(Wait::Proving { until, .. }) => self.seen.now = until,
                Err(wait) => return Some(wait),
                Ok(action) => self.apply(action),
            }
            self.engine_works();
            if self.released {
                return None;
            }
        }
        panic!("still busy after {MOST_STEPS} steps: {:?}", decide(&self.seen).next);
    }

    /// Decides, and writes down where the volume stands.
    pub(super) fn look(&mut self) -> Result<Action, Wait> {
        self.take_turns();
        let Decision { standing, next } = decide(&self.seen);
        let status = self.seen.volume.status.get_or_insert_default();
        (status.current_image, status.engine_change) = (standing.image, standing.change);
        (status.target_move, status.current_target_node_id) = (standing.moved, standing.target);
        status.robustness = standing.robustness;
        if let (Some(size), Some(engine)) = (self.seen.known_size(), self.seen.engine.as_mut()) {
            engine.status.get_or_insert_default().current_size = size;
        }
        next
    }

    /// Where the target was seen to serve, and how its last move stands.
    pub(super) fn target(&self) -> (String, TargetMoveState) {
        let standing = decide(&self.seen).standing;
        (standing.target.to_string(), standing.moved.state)
    }

    /// Tells the copy on a node to leave, or to run.
    pub(super) fn tell(&mut self, node: &str, state: InstanceState) {
        let there = self.seen.replicas.iter_mut().find(|replica| replica.spec.instance.node_id == node);
        there.expect("a copy is there").spec.instance.desire_state = state;
    }

    /// The disk of a node comes back without what it held.
    pub(super) fn wipe(&mut self, node: &str) {
        let there = self.seen.members().iter().filter(|member| member.node_id == node);
        let there: Vec<ReplicaName> = there.map(|member| member.replica.clone()).collect();
        self.data.retain(|replica| !there.contains(replica));
    }

    pub(super) fn with_data(&self) -> BTreeSet<ReplicaName> {
        self.data.clone()
    }

    /// A node is gone with all that runs there.
    pub(super) fn lose(&mut self, node: &str) {
        self.seen.lost.insert(node.into());
        self.lose_manager(node);
    }

    /// A node's instance manager is gone with all that it hosts; its frontend is still there.
    pub(super) fn lose_manager(&mut self, node: &str) {
        for manager in self.seen.managers.iter_mut().filter(|manager| manager.node == node) {
            manager.running = false;
            manager.instances.iter_mut().for_each(|instance| instance.state = InstanceState::Stopped);
        }
        for place in self.seen.places.iter_mut().filter(|place| place.node == node) {
            place.closed = Some(Closed::NoManager);
        }
        let seat = self.seen.seat().map(|seat| seat.node_id.clone());
        if seat.is_some_and(|seat| seat == node) {
            self.seen.serving = None;
        }
        self.engine_works();
        self.note_failures();
    }

    pub(super) fn return_of(&mut self, node: &str) {
        self.seen.lost.remove(&NodeName::from(node));
        self.seen
            .managers
            .iter_mut()
            .filter(|manager| manager.node == node)
            .for_each(|manager| manager.running = true);
        self.seen.places.iter_mut().filter(|place| place.node == node).for_each(|place| place.closed = None);
    }

    pub(super) fn note_failures(&mut self) {
        let members: Vec<Member> = self.seen.members().to_vec();
        for replica in &mut self.seen.replicas {
            let member = members.iter().find(|member| member.replica == replica.name_any().as_str());
            let failed =
                member.is_some_and(|member| member.mode != MemberMode::ReadWrite) && !is_leaving(replica);
            replica.spec.failed_at = if failed { self.seen.now.to_string().into() } else { "".into() };
        }
    }

    pub(super) fn manager(&mut self, name: &str) -> &mut Manager {
        let manager =
            self.seen.managers.iter_mut().find(|manager| manager.name == name).expect("it is known");
        assert!(manager.running, "an order to {name}, which is away");
        manager
    }

    pub(super) fn record(&mut self) -> &mut VolumeRecordSpec {
        self.seen.record.as_mut().expect("there is a record")
    }

    pub(super) fn change_members(&mut self, change: impl FnOnce(&mut Vec<Member>)) {
        let before = self.seen.in_service().count();
        let record = self.record();
        record.member_version += 1;
        change(&mut record.members);
        assert!(before == 0 || self.seen.in_service().count() > 0, "the last copy in service left");
    }

    /// Drops copies that are gone and builds those that it knows. Whoever brings the volume to its backup lets it serve.
    pub(super) fn engine_works(&mut self) {
        let Some((_, engine)) = self.seen.running_engine() else { return };
        if engine.state != InstanceState::Running {
            return;
        }
        if self.seen.follows_backup() && !self.seen.is_switching() {
            self.serve_on(self.size());
        }
        if !self.seen.serving.as_ref().is_some_and(|serving| serving.serving) {
            return;
        }
        let known = self.seen.engine.as_ref().unwrap().status.clone().unwrap().current_replica_address_map;
        let reached: Vec<(ReplicaName, bool)> = self
            .seen
            .members()
            .iter()
            .map(|member| {
                let up = matches!(self.seen.reach(&member.replica, &member.node_id), seen::Reach::Up(_));
                let is_let_go = self.let_go.contains(&member.replica);
                let may_stay = member.mode == MemberMode::ReadWrite || self.rebuilds(&member.replica);
                (member.replica.clone(), up && known.contains_key(&member.replica) && !is_let_go && may_stay)
            })
            .collect();
        if !reached.iter().any(|(_, up)| *up) {
            return;
        }
        for member in &mut self.record().members {
            let up = reached.iter().any(|(name, up)| *name == member.replica && *up);
            member.mode = if up { MemberMode::ReadWrite } else { MemberMode::Error };
        }
    }

    /// Whether the engine has the word of nobody against rebuilding a copy.
    fn rebuilds(&self, replica: &ReplicaName) -> bool {
        let permitted = self.seen.serving.as_ref().and_then(|serving| serving.permitted.as_ref());
        permitted.is_none_or(|replicas| replicas.contains(replica))
    }

    /// The engine serves with this size, and keeps to what it was told.
    fn serve_on(&mut self, size: Size) {
        let permitted = self.seen.serving.take().map(|before| before.permitted);
        let now = serving_with(true, size);
        self.seen.serving = Some(Serving { permitted: permitted.unwrap_or(now.permitted.clone()), ..now });
    }

    pub(super) fn status(&mut self) -> &mut midflight_api::longhorn::EngineStatus {
        self.seen.engine.as_mut().expect("there is an engine").status.get_or_insert_default()
    }

    /// The size of the copies.
    fn size(&self) -> Size {
        self.seen.known_size().unwrap_or(self.seen.volume.spec.size)
    }

    pub(super) fn apply(&mut self, action: Action) {
        let size = self.size();
        match action {
            Action::Protect { image } => {
                self.seen.volume.spec.image = image;
                self.seen.volume.finalizers_mut().push(FINALIZER.into());
            }
            Action::MakeReplica { name, node } => {
                let mut replica = Replica::new(name.as_str(), Default::default());
                replica.spec.instance.node_id = node;
                assert!(
                    self.seen.replicas.iter().all(|other| other.name_any() != name.as_str()),
                    "{name} twice"
                );
                self.seen.replicas.push(replica);
                self.seen.replicas.sort_by_key(|replica| replica.name_any());
            }
            Action::MakeRecord { members } => {
                let member = |(replica, node_id)| Member { replica, node_id, mode: MemberMode::ReadWrite };
                let members = members.into_iter().map(member).collect();
                self.seen.record =
                    Some(VolumeRecordSpec { members, member_version: 1, ..Default::default() });
            }
            Action::MakeEngine { name } => {
                self.seen.engine = Some(Engine::new(name.as_str(), Default::default()));
            }
            Action::TakeTerm { node } => {
                let name = engine_name("vol-1");
                let record = self.record();
                record.term = record.term.next();
                record.engine = Some(EngineSeat { name, node_id: node.clone() });
                record.operation = None;
                record.frontend =
                    Some(FrontendSeat { attach_id: record.term.to_string().into(), node_id: node });
            }
            Action::EndAttachment => self.record().frontend = None,
            Action::Enlist { replica, node } => self.change_members(|members| {
                members.push(Member { replica, node_id: node, mode: MemberMode::Error });
            }),
            Action::Strike { replica } => {
                self.change_members(|members| members.retain(|member| member.replica != replica));
            }
            Action::Salvage { replica } => {
                self.record().term = self.record().term.next();
                let salvaged = replica.clone();
                self.change_members(|members| {
                    members.retain(|member| member.replica == salvaged);
                    members.iter_mut().for_each(|member| member.mode = MemberMode::ReadWrite);
                });
                self.record().salvaged = replica;
            }
            Action::StartReplica { manager, replica, image, existing } => {
                let node = self.manager(&manager).node.clone();
                let follows = matches!(self.seen.reach(&replica, &node), seen::Reach::Up(_));
                if follows && image == NEW && self.fault == Some(Fault::ReplicasDoNotFollow) {
                    self.seen.now += SignedDuration::from_mins(1);
                    return;
                }
                self.run(&manager, replica.as_str(), &image);
                if existing && !self.data.contains(&replica) {
                    let instances = &mut self.manager(&manager).instances;
                    instances.last_mut().expect("it was just begun").state = InstanceState::Error;
                } else {
                    self.data.insert(replica);
                }
            }
            Action::StopReplica { manager, replica } => self.stop(&manager, replica.as_str()),
            Action::StartEngine { manager, image, members } => {
                let name = self.seen.engine_in_charge();
                self.run(&manager, name.as_str(), &image);
                if image == NEW && self.fault == Some(Fault::DoesNotStart) {
                    self.in_charge().state = InstanceState::Error;
                    return;
                }
                if self.trouble_here() == Some(Trouble::DoesNotStart) {
                    self.in_charge().state = InstanceState::Error;
                    return;
                }
                self.status().current_replica_address_map = members.into_iter().collect();
                self.let_go.clear();
                // It serves when a frontend tells it to: one that has had the volume, or the one that it is offered to.
                let attached = self.seen.endpoint().is_some();
                let serving = attached && !self.seen.is_switching();
                let told = if serving { size } else { Size::default() };
                self.seen.serving = Some(Serving { attached, ..serving_with(serving, told) });
            }
            Action::StopEngine { manager, engine } => self.stop(&manager, engine.as_str()),
            Action::ChangeEngine { .. } => {
                let node = self.seen.attached_node().cloned().expect("it is attached");
                self.hand_over(node);
            }
            Action::MoveEngine { node } => {
                assert!(!self.seen.has_processes(), "only v2 engines move");
                self.hand_over(node);
            }
            Action::ClearTarget => self.seen.volume.spec.target_node_id = "".into(),
            Action::DoubtReplica { replica } => {
                self.status().current_replica_address_map.insert(replica, Address::default());
            }
            Action::ReleaseReplica { manager, replica } => {
                self.manager(&manager);
                assert!(self.seen.is_told_to_leave(&replica), "{replica} was not told to leave");
                self.let_go.insert(replica.clone());
                if self.is_slow {
                    return;
                }
                self.change_members(|members| {
                    members.iter_mut().filter(|member| member.replica == replica).for_each(|member| {
                        member.mode = MemberMode::Error;
                    });
                });
                self.status().current_replica_address_map.remove(&replica);
            }
            Action::SwitchOver { manager, .. } if !self.seen.has_processes() => self.go_over(&manager),
            Action::SwitchOver { .. } => {
                let is_new = self.in_charge().binary == binary(&NEW.into());
                let now = self.seen.now.to_string();
                let change = &mut self.seen.volume.status.get_or_insert_default().engine_change;
                match self.fault.filter(|_| is_new) {
                    Some(Fault::HangsInTheSwitch) => change.state = EngineChangeState::Failed,
                    other => {
                        change.at = now.into();
                        self.seen.serving = Some(serving_with(true, size));
                        if other == Some(Fault::CrashesAfterIt) {
                            self.in_charge().restarts = 3;
                        }
                    }
                }
            }
            Action::EndSwitch => {
                let operation = self.record().operation.as_mut().expect("it is under way");
                operation.phase = OperationPhase::Done;
            }
            Action::AddReplica { replica, address, .. } => {
                self.let_go.remove(&replica);
                self.status().current_replica_address_map.insert(replica, address);
            }
            Action::RemoveReplica { replica, .. } => {
                self.change_members(|members| members.retain(|member| member.replica != replica));
                self.status().current_replica_address_map.remove(&replica);
            }
            Action::Bear { seconds, .. } => {
                self.seen.serving.as_mut().expect("it serves").patience = Some(seconds);
            }
            Action::Throttle { bytes_per_second, .. } => {
                self.seen.serving.as_mut().expect("it serves").rebuild_limit = Some(bytes_per_second);
            }
            Action::Permit { manager, replicas } => {
                self.manager(&manager);
                self.seen.serving.as_mut().expect("it was asked").permitted = Some(replicas);
            }
            Action::EndSalvage => self.record().salvaged = ReplicaName::default(),
            Action::Expand { size, .. } => self.serve_on(size),
            Action::Offer { .. } => {
                self.status().endpoint = "nbd+unix:///vol-1?socket=s".into();
                self.seen.serving = Some(serving_with(true, size));
            }
            Action::Withdraw { manager } => {
                if let Some(manager) = manager {
                    self.manager(&manager);
                }
                self.status().endpoint = "".into();
            }
            Action::DeleteReplica { replica } => self.mark(&replica),
            Action::ForgetReplica { manager, replica } => {
                self.data.remove(&replica);
                manager.iter().for_each(|manager| self.stop(manager, replica.as_str()));
                let there =
                    self.seen.replicas.iter().find(|other| other.name_any() == replica.as_str()).unwrap();
                match there.metadata.deletion_timestamp {
                    None => self.mark(&replica),
                    Some(_) => self.seen.replicas.retain(|other| other.name_any() != replica.as_str()),
                }
            }
            Action::DeleteEngine => self.seen.engine = None,
            Action::DeleteRecord => self.seen.record = None,
            Action::Release => self.released = true,
        }
    }

    /// The next term goes to an engine on this node.
    fn hand_over(&mut self, node: NodeName) {
        let record = self.record();
        record.term = record.term.next();
        let to = EngineSeat { name: next_engine_name("vol-1", record.term), node_id: node };
        let from = record.engine.replace(to.clone());
        let id = record.term.to_string().into();
        record.operation = Some(Operation { id, phase: OperationPhase::Switching, from, to: Some(to) });
        self.seen.serving = None;
    }

    /// What is wrong with the engine in charge.
    fn trouble_here(&self) -> Option<Trouble> {
        let node = self.seen.seat()?.node_id.clone();
        self.trouble
            .filter(|(there, _)| node == *there && !self.seen.has_processes())
            .map(|(_, trouble)| trouble)
    }

    /// The frontend goes over to the engine that has the term, as far as that lets it.
    fn go_over(&mut self, manager: &str) {
        assert_eq!(
            Some(&self.manager(manager).node.clone()),
            self.seen.attached_node(),
            "it guides the frontend"
        );
        let (now, size) = (self.seen.now, self.size());
        let node = self.seen.seat().expect("it has the term").node_id.to_string();
        let trouble = self.trouble_here();
        let known = &mut self.seen.volume.status.get_or_insert_default().target_move;
        match trouble {
            Some(Trouble::DoesNotTakeOver) => {
                if known.state == TargetMoveState::Moving {
                    (known.state, known.at) = (TargetMoveState::Failed, now.to_string().into());
                    known.reason = TargetMoveReason::SwitchFailed;
                }
            }
            Some(Trouble::NeverServes) => self.seen.now += SignedDuration::from_secs(7),
            Some(Trouble::NodeDies) => self.lose(&node),
            Some(Trouble::DoesNotStart) | None => {
                known.pause_us = 1;
                self.seen.serving = Some(serving_with(true, size));
            }
        }
    }

    pub(super) fn mark(&mut self, replica: &ReplicaName) {
        let replica =
            self.seen.replicas.iter_mut().find(|other| other.name_any() == replica.as_str()).unwrap();
        replica.metadata.deletion_timestamp = Some(Time(start()));
    }

    pub(super) fn run(&mut self, manager: &str, name: &str, image: &ImageRef) {
        let binary = if self.seen.has_processes() { binary(image) } else { String::new() };
        let manager = self.manager(manager);
        manager.instances.retain(|instance| instance.name != name);
        manager.instances.push(Instance {
            name: name.into(),
            state: InstanceState::Running,
            address: format!("{}:1", manager.node).into(),
            binary,
            restarts: 0,
            why: String::new(),
        });
    }

    /// The engine that has the term.
    pub(super) fn in_charge(&mut self) -> &mut Instance {
        let name = self.seen.engine_in_charge();
        let instances = self.seen.managers.iter_mut().flat_map(|manager| &mut manager.instances);
        instances.into_iter().find(|instance| instance.name == name.as_str()).expect("it was started")
    }

    pub(super) fn stop(&mut self, manager: &str, name: &str) {
        self.manager(manager).instances.retain(|instance| instance.name != name);
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> =
            self.seen.kept().map(|one| one.spec.instance.node_id.to_string()).collect();
        nodes.sort();
        nodes
    }
}
