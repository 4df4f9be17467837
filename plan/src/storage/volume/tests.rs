//! A volume is driven through its life in a small world that does what it is told.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use midflight_api::longhorn::{
    DataEngine, Engine, EngineChangeState, FINALIZER, Frontend, InstanceState, Replica, Robustness, Volume,
    VolumeState,
};
use midflight_api::{
    EngineSeat, FrontendSeat, Member, MemberMode, Operation, OperationPhase, ReplicaName, Size,
    VolumeRecordSpec,
};
use proptest::prelude::*;

use super::*;
use crate::storage::engine_image::binary;
use crate::storage::schedule::{Closed, Place};

const NODES: [&str; 4] = ["n-1", "n-2", "n-3", "n-4"];
/// More steps than any change of a volume takes.
const MOST_STEPS: usize = 60;
const OLD: &str = "midflight.local/engine:old";
const NEW: &str = "midflight.local/engine:new";

/// What is wrong with the new image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    DoesNotStart,
    HangsInTheSwitch,
    CrashesAfterIt,
    ReplicasDoNotFollow,
}

struct World {
    seen: Observed,
    released: bool,
    fault: Option<Fault>,
}

fn start() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

impl World {
    fn new(nodes: usize, replicas: i32) -> World {
        let mut volume = Volume::new("vol-1", Default::default());
        volume.metadata.uid = Some("uid-1".into());
        volume.spec.size = Size::from_bytes(1 << 20);
        volume.spec.number_of_replicas = replicas;
        volume.spec.frontend = Frontend::Nbd;
        volume.spec.data_engine = DataEngine::V2;
        let manager = |node: &&str| Manager {
            name: format!("im-{node}"),
            node: (*node).into(),
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
            serving: None,
            default_image: OLD.into(),
            replenish_after: SignedDuration::from_secs(600),
        };
        World { seen, released: false, fault: None }
    }

    fn attached() -> World {
        let mut world = World::new(4, 3);
        world.settle();
        world.attach("n-1");
        world.settle();
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        world
    }

    /// The same with processes, of the old image.
    fn attached_v1() -> World {
        let mut world = World::new(4, 3);
        world.seen.volume.spec.data_engine = DataEngine::V1;
        world.settle();
        world.attach("n-1");
        world.settle();
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        assert_eq!(world.image(), OLD);
        world
    }

    fn image(&self) -> String {
        decide(&self.seen).standing.image.to_string()
    }

    /// The programs of all instances of the volume, each once.
    fn programs(&self) -> Vec<String> {
        let instances = self.seen.managers.iter().flat_map(|manager| &manager.instances);
        let mut all: Vec<String> = instances.map(|instance| instance.binary.clone()).collect();
        all.sort();
        all.dedup();
        all
    }

    fn attach(&mut self, node: &str) {
        self.seen.volume.spec.node_id = node.into();
    }

    fn standing(&self) -> (VolumeState, Robustness) {
        let standing = decide(&self.seen).standing;
        (standing.state, standing.robustness)
    }

    /// Takes steps until there is none; says why.
    fn settle(&mut self) -> Option<Wait> {
        for _ in 0..MOST_STEPS {
            let Decision { standing, next } = decide(&self.seen);
            let status = self.seen.volume.status.get_or_insert_default();
            (status.current_image, status.engine_change) = (standing.image, standing.change);
            match next {
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

    /// A node's processes are gone.
    fn lose(&mut self, node: &str) {
        for manager in self.seen.managers.iter_mut().filter(|manager| manager.node == node) {
            manager.running = false;
            manager.instances.iter_mut().for_each(|instance| instance.state = InstanceState::Stopped);
        }
        for place in self.seen.places.iter_mut().filter(|place| place.node == node) {
            place.closed = Some(Closed::NotReady);
        }
        self.engine_works();
        self.note_failures();
    }

    fn return_of(&mut self, node: &str) {
        self.seen
            .managers
            .iter_mut()
            .filter(|manager| manager.node == node)
            .for_each(|manager| manager.running = true);
        self.seen.places.iter_mut().filter(|place| place.node == node).for_each(|place| place.closed = None);
    }

    fn note_failures(&mut self) {
        let members: Vec<Member> = self.seen.members().to_vec();
        for replica in &mut self.seen.replicas {
            let member = members.iter().find(|member| member.replica == replica.name_any().as_str());
            let failed = member.is_some_and(|member| member.mode != MemberMode::ReadWrite);
            replica.spec.failed_at = if failed { self.seen.now.to_string().into() } else { "".into() };
        }
    }

    fn manager(&mut self, name: &str) -> &mut Manager {
        let manager =
            self.seen.managers.iter_mut().find(|manager| manager.name == name).expect("it is known");
        assert!(manager.running, "an order to {name}, which is away");
        manager
    }

    fn record(&mut self) -> &mut VolumeRecordSpec {
        self.seen.record.as_mut().expect("there is a record")
    }

    fn change_members(&mut self, change: impl FnOnce(&mut Vec<Member>)) {
        let before = self.seen.in_service().count();
        let record = self.record();
        record.member_version += 1;
        change(&mut record.members);
        assert!(before == 0 || self.seen.in_service().count() > 0, "the last copy in service left");
    }

    /// Drops copies that are gone and builds those that it knows.
    fn engine_works(&mut self) {
        let Some((_, engine)) = self.seen.running_engine() else { return };
        if engine.state != InstanceState::Running {
            return;
        }
        let known = self.seen.engine.as_ref().unwrap().status.clone().unwrap().current_replica_address_map;
        let reached: Vec<(ReplicaName, bool)> = self
            .seen
            .members()
            .iter()
            .map(|member| {
                let up = matches!(self.seen.reach(&member.replica, &member.node_id), seen::Reach::Up(_));
                (member.replica.clone(), up && known.contains_key(&member.replica))
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

    fn status(&mut self) -> &mut midflight_api::longhorn::EngineStatus {
        self.seen.engine.as_mut().expect("there is an engine").status.get_or_insert_default()
    }

    fn apply(&mut self, action: Action) {
        let size = self.seen.volume.spec.size;
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
            Action::StartReplica { manager, replica, image } => {
                let node = self.manager(&manager).node.clone();
                let follows = matches!(self.seen.reach(&replica, &node), seen::Reach::Up(_));
                if follows && image == NEW && self.fault == Some(Fault::ReplicasDoNotFollow) {
                    self.seen.now += SignedDuration::from_mins(1);
                } else {
                    self.run(&manager, replica.as_str(), &image);
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
                self.status().current_replica_address_map = members.into_iter().collect();
                let serving = !self.seen.is_switching();
                self.seen.serving = Some(Serving { serving, size });
            }
            Action::StopEngine { manager, engine } => self.stop(&manager, engine.as_str()),
            Action::ChangeEngine { .. } => {
                let node = self.seen.attached_node().cloned().expect("it is attached");
                let record = self.record();
                record.term = record.term.next();
                let to = EngineSeat { name: next_engine_name("vol-1", record.term), node_id: node };
                let from = record.engine.replace(to.clone());
                let id = record.term.to_string().into();
                record.operation =
                    Some(Operation { id, phase: OperationPhase::Switching, from, to: Some(to) });
                self.seen.serving = None;
            }
            Action::SwitchOver { .. } => {
                let is_new = self.in_charge().binary == binary(&NEW.into());
                let now = self.seen.now.to_string();
                let change = &mut self.seen.volume.status.get_or_insert_default().engine_change;
                match self.fault.filter(|_| is_new) {
                    Some(Fault::HangsInTheSwitch) => change.state = EngineChangeState::Failed,
                    other => {
                        change.at = now.into();
                        self.seen.serving = Some(Serving { serving: true, size });
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
                self.status().current_replica_address_map.insert(replica, address);
            }
            Action::RemoveReplica { replica, .. } => {
                self.change_members(|members| members.retain(|member| member.replica != replica));
                self.status().current_replica_address_map.remove(&replica);
            }
            Action::Expand { size, .. } => self.seen.serving = Some(Serving { serving: true, size }),
            Action::Offer { .. } => self.status().endpoint = "nbd+unix:///vol-1?socket=s".into(),
            Action::Withdraw { manager } => {
                if let Some(manager) = manager {
                    self.manager(&manager);
                }
                self.status().endpoint = "".into();
            }
            Action::DeleteReplica { replica } => self.mark(&replica),
            Action::ForgetReplica { manager, replica } => {
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

    fn mark(&mut self, replica: &ReplicaName) {
        let replica =
            self.seen.replicas.iter_mut().find(|other| other.name_any() == replica.as_str()).unwrap();
        replica.metadata.deletion_timestamp = Some(Time(start()));
    }

    fn run(&mut self, manager: &str, name: &str, image: &ImageRef) {
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
    fn in_charge(&mut self) -> &mut Instance {
        let name = self.seen.engine_in_charge();
        let instances = self.seen.managers.iter_mut().flat_map(|manager| &mut manager.instances);
        instances.into_iter().find(|instance| instance.name == name.as_str()).expect("it was started")
    }

    fn stop(&mut self, manager: &str, name: &str) {
        self.manager(manager).instances.retain(|instance| instance.name != name);
    }

    fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> =
            self.seen.kept().map(|one| one.spec.instance.node_id.to_string()).collect();
        nodes.sort();
        nodes
    }
}

#[test]
fn lives_from_its_making_to_its_end() {
    let mut world = World::new(3, 3);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Detached, Robustness::Unknown));
    assert_eq!(world.nodes(), ["n-1", "n-2", "n-3"]);

    world.attach("n-2");
    assert_eq!(world.standing().0, VolumeState::Attaching);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));

    world.attach("n-3");
    assert_eq!(world.standing().0, VolumeState::Detaching);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(decide(&world.seen).standing.node, "n-3");
    assert_eq!(world.record().term.number(), 2);

    world.attach("");
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!(world.standing(), (VolumeState::Detached, Robustness::Unknown));
    assert!(world.seen.managers.iter().all(|manager| manager.instances.is_empty()), "nothing runs");

    world.seen.volume.metadata.deletion_timestamp = Some(Time(start()));
    assert_eq!(world.settle(), None);
    assert!(world.seen.replicas.is_empty() && world.seen.record.is_none() && world.seen.engine.is_none());
}

#[test]
fn more_replicas_than_nodes_leave_it_degraded() {
    let mut world = World::new(2, 3);
    assert!(matches!(world.settle(), Some(Wait::NoPlace(_))));
    world.attach("n-1");
    assert!(matches!(world.settle(), Some(Wait::NoPlace(_))));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
    assert!(decide(&world.seen).standing.scheduled.is_err());
}

#[test]
fn a_copy_that_returns_is_used_again_and_one_that_does_not_is_replaced() {
    let mut world = World::attached();
    let lost = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    world.lose(&lost);
    assert!(matches!(world.settle(), Some(Wait::Missing { .. })));
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
    world.return_of(&lost);
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    world.note_failures();

    world.lose(&lost);
    world.seen.now = start() + SignedDuration::from_secs(601);
    assert!(world.settle().is_some());
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    assert!(!world.nodes().contains(&lost), "{:?}", world.nodes());
    assert_eq!(world.seen.replicas.len(), 4, "what is on the lost node is removed when that is back");
    world.return_of(&lost);
    world.settle();
    assert_eq!(world.seen.replicas.len(), 3);
}

#[test]
fn the_number_of_replicas_follows_the_spec() {
    for attached in [true, false] {
        let mut world = World::attached();
        if !attached {
            world.attach("");
            world.settle();
        }
        for wanted in [4, 1, 2] {
            world.seen.volume.spec.number_of_replicas = wanted;
            world.settle();
            assert_eq!(world.nodes().len(), usize::try_from(wanted).unwrap(), "attached: {attached}");
            assert_eq!(world.seen.members().len(), world.nodes().len(), "attached: {attached}");
        }
        world.attach("n-1");
        world.settle();
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
    }
}

#[test]
fn grows_once_it_serves() {
    let mut world = World::attached();
    world.seen.volume.spec.size = Size::from_bytes(2 << 20);
    world.settle();
    assert_eq!(world.seen.serving.unwrap().size, Size::from_bytes(2 << 20));
}

#[test]
fn waits_for_the_copies_that_have_all_data() {
    let mut world = World::new(3, 2);
    world.settle();
    let nodes = world.nodes();
    nodes.iter().for_each(|node| world.lose(node));
    let third = NODES.iter().find(|node| !nodes.contains(&(**node).to_owned())).unwrap();
    world.attach(third);
    assert!(matches!(world.settle(), Some(Wait::NoCopy(_))));
    world.return_of(&nodes[0]);
    world.settle();
    assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Degraded));
}

#[test]
fn a_node_that_is_lost_with_its_clients_gives_the_volume_up() {
    let mut world = World::attached();
    world.lose("n-1");
    world.attach("n-2");
    world.settle();
    assert_eq!(decide(&world.seen).standing.node, "n-2");
    assert_eq!(world.record().term.number(), 2, "whoever is left on n-1 is fenced out");
}

#[test]
fn an_attached_volume_follows_its_image_forth_and_back() {
    let mut world = World::attached_v1();
    for (image, other) in [(NEW, OLD), (OLD, NEW)] {
        world.seen.volume.spec.image = image.into();
        assert_eq!(world.image(), other, "it is upgrading");
        assert_eq!(world.settle(), Some(Wait::Content));
        assert_eq!((world.image().as_str(), world.programs()), (image, vec![binary(&image.into())]));
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        assert_eq!(world.seen.change().state, EngineChangeState::Done);
    }
    assert_eq!(world.record().term.number(), 3);
}

#[test]
fn a_detached_volume_changes_its_image_at_once() {
    let mut world = World::attached_v1();
    world.attach("");
    world.settle();
    world.seen.volume.spec.image = NEW.into();
    world.settle();
    assert_eq!(world.image(), NEW);
    world.attach("n-2");
    world.settle();
    assert_eq!(world.programs(), [binary(&NEW.into())]);
    assert_eq!(world.seen.change().state, EngineChangeState::None, "nothing changed under clients");
}

#[test]
fn an_image_that_does_not_serve_leaves_the_old_one_serving() {
    use Fault::{CrashesAfterIt, DoesNotStart, HangsInTheSwitch, ReplicasDoNotFollow};
    for fault in [DoesNotStart, HangsInTheSwitch, CrashesAfterIt, ReplicasDoNotFollow] {
        let mut world = World::attached_v1();
        world.fault = Some(fault);
        world.seen.volume.spec.image = NEW.into();
        assert_eq!(world.settle(), Some(Wait::Content), "{fault:?}");
        assert_eq!((world.image().as_str(), world.programs()), (OLD, vec![binary(&OLD.into())]), "{fault:?}");
        assert_eq!(world.seen.change().state, EngineChangeState::Failed, "{fault:?}");
        assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy), "{fault:?}");
        // It is tried again only when somebody asks again.
        world.seen.volume.spec.image = OLD.into();
        world.settle();
        assert_eq!(world.seen.change().state, EngineChangeState::TakenBack, "{fault:?}");
        world.fault = None;
        world.seen.volume.spec.image = NEW.into();
        assert_eq!(world.settle(), Some(Wait::Content), "{fault:?}");
        assert_eq!((world.image().as_str(), world.programs()), (NEW, vec![binary(&NEW.into())]), "{fault:?}");
    }
}

#[test]
fn a_volume_that_is_not_whole_keeps_its_engine_until_it_is() {
    let mut world = World::attached_v1();
    let lost = world.nodes().into_iter().find(|node| node != "n-1").unwrap();
    world.lose(&lost);
    world.seen.volume.spec.image = NEW.into();
    assert!(matches!(world.settle(), Some(Wait::Missing { .. })));
    assert_eq!(world.image(), OLD);
    world.return_of(&lost);
    assert_eq!(world.settle(), Some(Wait::Content));
    assert_eq!((world.image().as_str(), world.programs()), (NEW, vec![binary(&NEW.into())]));
}

#[test]
fn a_volume_that_is_detached_in_the_middle_has_its_new_image_afterwards() {
    for steps in 0..12 {
        let mut world = World::attached_v1();
        world.seen.volume.spec.image = NEW.into();
        for _ in 0..steps {
            let Decision { standing, next } = decide(&world.seen);
            let status = world.seen.volume.status.get_or_insert_default();
            (status.current_image, status.engine_change) = (standing.image, standing.change);
            match next {
                Ok(action) => world.apply(action),
                Err(_) => world.seen.now += SignedDuration::from_secs(5),
            }
        }
        world.attach("");
        world.settle();
        assert_eq!(
            (world.standing().0, world.image().as_str()),
            (VolumeState::Detached, NEW),
            "{steps} steps"
        );
        assert!(world.programs().is_empty(), "{steps} steps");
        world.attach("n-1");
        assert_eq!(world.settle(), Some(Wait::Content), "{steps} steps");
        assert_eq!(
            (world.image().as_str(), world.programs()),
            (NEW, vec![binary(&NEW.into())]),
            "{steps} steps"
        );
    }
}

#[test]
fn engines_of_a_volume_are_known_by_their_names() {
    assert!(is_engine_of("vol-1", "vol-1-e-0") && is_engine_of("vol-1", "vol-1-e-12"));
    assert!(!is_engine_of("vol-1", "vol-1-r-0") && !is_engine_of("vol-1", "vol-1-e-1-e-0"));
    assert!(!is_engine_of("vol-1", "vol-10-e-0") && !is_engine_of("vol-1", "vol-1-e-"));
}

proptest! {
    #[test]
    fn whatever_happens_it_settles_and_keeps_a_copy(
        processes: bool,
        events in prop::collection::vec((0..6u8, 0..4usize), 1..12),
    ) {
        let mut world = if processes { World::attached_v1() } else { World::attached() };
        let mut away: Vec<usize> = Vec::new();
        for (event, number) in events {
            match event {
                0 if away.len() < 2 && !away.contains(&number) => {
                    away.push(number);
                    world.lose(NODES[number]);
                }
                1 => {
                    away.retain(|node| *node != number);
                    world.return_of(NODES[number]);
                }
                2 => world.attach(NODES[number]),
                3 => world.attach(""),
                4 => world.seen.volume.spec.image = if number < 2 { OLD } else { NEW }.into(),
                _ => world.seen.volume.spec.number_of_replicas = i32::try_from(number).unwrap() + 1,
            }
            world.seen.now += SignedDuration::from_secs(400);
            world.settle();
            world.note_failures();
        }
        NODES.iter().for_each(|node| world.return_of(node));
        world.attach("n-1");
        world.settle();
        prop_assert_eq!(world.standing(), (VolumeState::Attached, Robustness::Healthy));
        world.seen.volume.metadata.deletion_timestamp = Some(Time(start()));
        prop_assert_eq!(world.settle(), None);
        prop_assert!(world.seen.managers.iter().all(|manager| manager.instances.is_empty()));
    }
}

#[test]
fn names_do_not_come_again() {
    assert_ne!(attachment("a", midflight_api::Term::FIRST), attachment("b", midflight_api::Term::FIRST));
    assert_ne!(replica_name("v", "a", "first/0"), replica_name("v", "a", "version/0"));
}
