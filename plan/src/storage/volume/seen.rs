//! All that a decision about a volume may look at.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use midflight_api::longhorn::{
    DataEngine, Engine, EngineChange, EngineChangeState, Frontend, InstanceState, Replica, TargetMove, Volume,
};
use midflight_api::{
    Address, EngineName, EngineSeat, ImageRef, Member, MemberMode, NodeName, OperationPhase, ReplicaName,
    Size, VolumeRecordSpec,
};

use super::{salvage, upgrade};
use crate::storage::engine_image;
use crate::storage::schedule::{Closed, Place, schedule};

/// A volume and all that belongs to it.
#[derive(Debug, Clone)]
pub struct Observed {
    pub now: Timestamp,
    pub volume: Volume,
    pub record: Option<VolumeRecordSpec>,
    pub engine: Option<Engine>,
    /// In the order of their names.
    pub replicas: Vec<Replica>,
    /// Instance managers of the nodes that the volume touches, those for new instances first.
    pub managers: Vec<Manager>,
    /// Nodes that may get replicas.
    pub places: Vec<Place>,
    /// The node that it is attached to, if that is lost with all that runs there: it is not Ready, or there is none of its name. One
    /// that only lacks an instance manager has its frontend still.
    pub lost: BTreeSet<NodeName>,
    /// What the engine said of itself, if it was reached.
    pub serving: Option<Serving>,
    /// Image of volumes that ask for none: of engines, or of instance managers for v2.
    pub default_image: ImageRef,
    /// Those of the volume's engine images that have an EngineImage.
    pub images: Vec<Deployed>,
    /// How long a copy that is lost may take to come back.
    pub replenish_after: SignedDuration,
    /// Bytes per second that its rebuilds may copy; 0 is no limit.
    pub rebuild_limit: u64,
    /// Seconds that its engine lets a copy be silent.
    pub patience: u32,
    /// Whether it is brought up while nobody has asked for it, to build the copies that it lacks.
    pub rebuilds_detached: bool,
    /// How many replicas of a node may be rebuilt at once; with 0 none is rebuilt or added.
    pub rebuilds_at_once: usize,
    /// Whether it serves again by itself after all its copies failed.
    pub auto_salvage: bool,
}

/// Where an engine image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployed {
    pub image: ImageRef,
    pub nodes: BTreeSet<NodeName>,
    /// What keeps it from the other nodes, in words.
    pub complaint: String,
}

/// An instance manager of the volume's data engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    pub name: String,
    pub node: NodeName,
    pub image: ImageRef,
    /// Where it listens.
    pub address: Address,
    pub running: bool,
    /// Those of its instances that are the volume's, by name.
    pub instances: Vec<Instance>,
}

/// An engine or replica as its instance manager tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    pub name: String,
    pub state: InstanceState,
    pub address: Address,
    /// Program that it is a process of; empty inside the instance manager.
    pub binary: String,
    /// How often it ended and was started again.
    pub restarts: i64,
    /// Why it is in its state, in words.
    pub why: String,
}

/// What an engine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    pub serving: bool,
    /// Whether a frontend is connected to it.
    pub attached: bool,
    pub size: Size,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<String>,
    /// Bytes that it has copied to replicas that came back.
    pub rebuilt_bytes: u64,
    /// Bytes per second that its rebuilds copy at most, 0 for no limit; not known of older builds.
    pub rebuild_limit: Option<u64>,
    /// Seconds that it lets a copy be silent; not known of older builds.
    pub patience: Option<u32>,
    /// Which copies it rebuilds; not known of older builds.
    pub permitted: Option<BTreeSet<ReplicaName>>,
    /// What its only copy in service could not do, in words; clients were told of errors.
    pub trouble: Option<String>,
    /// What it has found damaged in copies.
    pub flaws: Vec<Flaw>,
}

/// Something in a copy that was found damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    pub replica: ReplicaName,
    /// In words.
    pub what: String,
    /// Whether it was copied anew from another copy.
    pub repaired: bool,
}

/// Whether a copy can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reach<'a> {
    Up(&'a Address),
    Starting,
    /// It can be started there.
    Down(&'a Manager),
    /// It was started there, and failed.
    Failed(&'a Manager),
    /// Its node has no instance manager that answers.
    Lost,
}

impl Observed {
    pub(super) fn name(&self) -> String {
        self.volume.name_any()
    }

    pub(super) fn deleting(&self) -> bool {
        self.volume.metadata.deletion_timestamp.is_some()
    }

    /// The node that the volume should be attached to: where it is asked for, else where it is brought to its backup, to
    /// its size or to its number of copies.
    pub(super) fn wanted_node(&self) -> Option<&NodeName> {
        if self.deleting() {
            return None;
        }
        let has_work = self.follows_backup() || self.is_to_grow() || self.is_to_rebuild();
        let has_work = has_work && !salvage::is_held(self);
        self.asked_node().or_else(|| self.node_for_work().filter(|_| has_work))
    }

    /// The node that somebody wants the volume on.
    pub(super) fn asked_node(&self) -> Option<&NodeName> {
        Some(&self.volume.spec.node_id).filter(|node| !node.is_empty())
    }

    /// Where it is, as long as that serves; else a node of one of its replicas.
    fn node_for_work(&self) -> Option<&NodeName> {
        let can_serve = |node: &&NodeName| self.manager(node, "").is_some();
        let there = self.attached_node().filter(can_serve);
        let replicas = || self.kept().map(|replica| &replica.spec.instance.node_id).find(can_serve);
        there.or_else(replicas).or_else(|| self.attached_node())
    }

    /// Whether the volume is still to be brought to a backup, or follows one: clients have to wait.
    pub(super) fn follows_backup(&self) -> bool {
        let spec = &self.volume.spec;
        let is_restored =
            self.volume.status.as_ref().is_some_and(|status| {
                status.restore_initiated && !status.restore_required && !status.is_standby
            });
        !spec.from_backup.is_empty() && (spec.standby || !is_restored)
    }

    /// The size that the copies have, as the engine says or said last; nothing before the volume was first attached.
    pub fn known_size(&self) -> Option<Size> {
        let said = self.engine.as_ref().and_then(|engine| Some(engine.status.as_ref()?.current_size));
        let size = self.serving.as_ref().map(|serving| serving.size).filter(|size| size.bytes() > 0);
        size.or(said).filter(|size| size.bytes() > 0)
    }

    /// Whether a copy has to have data: those in service do once an engine has served, since it puts out of service whatever does not
    /// answer before it does. Before, a copy may still be begun anew, and one out of service always.
    pub(super) fn has_data(&self, member: &Member) -> bool {
        member.mode == MemberMode::ReadWrite && self.known_size().is_some()
    }

    /// Whether the copies are smaller than the volume is to be.
    pub(super) fn is_to_grow(&self) -> bool {
        self.known_size().is_some_and(|size| size < self.volume.spec.size)
    }

    /// Whether copies can be built while nobody has asked for the volume. Those on nodes that are away, or that were told
    /// to leave, are waited for where that is shown: with the volume detached.
    fn is_to_rebuild(&self) -> bool {
        let on_upgraded = |replica: &Replica| self.is_upgrading(&replica.spec.instance.node_id);
        if !self.rebuilds_detached
            || self.rebuilds_at_once == 0
            || self.is_upgraded()
            || self.kept().any(on_upgraded)
        {
            return false;
        }
        let is_there = |member: &Member| self.is_there(member);
        let lacks = |member: &&Member| member.mode != MemberMode::ReadWrite;
        let is_kept =
            |member: &&Member| self.kept().any(|replica| member.replica == replica.name_any().as_str());
        let is_lacking = || self.members().iter().filter(lacks).filter(is_kept).any(is_there);
        self.in_service().any(is_there) && (is_lacking() || self.can_be_emptied())
    }

    /// Whether a copy is to leave its node, and another is there for it or has a place to be.
    fn can_be_emptied(&self) -> bool {
        let taken: Vec<&NodeName> = self.kept().map(|replica| &replica.spec.instance.node_id).collect();
        let has_place = || schedule(&self.places, &taken, self.volume.spec.size).is_ok();
        let are_there = || {
            let replaced: Vec<&Member> =
                self.not_evicted().filter_map(|replica| self.member(&replica.name_any())).collect();
            replaced.iter().all(|member| member.mode == MemberMode::ReadWrite || self.is_there(member))
        };
        self.evicted().next().is_some()
            && are_there()
            && (self.not_evicted().count() >= self.wanted_replicas() || has_place())
    }

    /// Whether the node of a copy has an instance manager that answers.
    fn is_there(&self, member: &Member) -> bool {
        self.manager(&member.node_id, member.replica.as_str()).is_some()
    }

    /// How clients are to reach the volume now: not at all while nobody has asked for it.
    pub(super) fn frontend(&self) -> Frontend {
        let spec = &self.volume.spec;
        let is_hidden = spec.disable_frontend || self.follows_backup() || self.asked_node().is_none();
        if is_hidden { Frontend::None } else { spec.frontend }
    }

    /// The node that the record gives the volume to.
    pub(super) fn attached_node(&self) -> Option<&NodeName> {
        self.record.as_ref()?.frontend.as_ref().map(|frontend| &frontend.node_id)
    }

    /// The same, if that is lost with the clients.
    pub(super) fn lost_home(&self) -> Option<&NodeName> {
        let is_lost = |node: &&NodeName| self.lost.contains(*node) && self.manager(node, "").is_none();
        self.attached_node().filter(|node| self.asked_node() == Some(node)).filter(is_lost)
    }

    pub(super) fn members(&self) -> &[Member] {
        self.record.as_ref().map_or(&[], |record| &record.members)
    }

    pub(super) fn member(&self, replica: &str) -> Option<&Member> {
        self.members().iter().find(|member| member.replica == replica)
    }

    /// Whether the data engine of a node is being upgraded, as far as places were looked at.
    fn is_upgrading(&self, node: &NodeName) -> bool {
        self.places.iter().any(|place| place.node == *node && place.closed == Some(Closed::Upgrading))
    }

    /// Whether it does without something for a while that comes back: a copy that was told to leave, or its v2 engine, whose node is
    /// upgraded. Nothing takes the place of a copy meanwhile.
    pub(super) fn is_upgraded(&self) -> bool {
        let spec = &self.volume.spec;
        let is_engine_away = spec.data_engine == DataEngine::V2 && self.is_upgrading(&spec.node_id);
        self.leaving().next().is_some() || is_engine_away
    }

    /// Replicas that were told to leave and to keep what they have.
    pub(super) fn leaving(&self) -> impl Iterator<Item = &Replica> {
        self.kept().filter(|replica| is_leaving(replica))
    }

    /// Whether a copy was told to leave.
    pub(super) fn is_told_to_leave(&self, replica: &ReplicaName) -> bool {
        self.leaving().any(|leaving| leaving.name_any() == replica.as_str())
    }

    /// Replicas that are to stay.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| !is_going(replica))
    }

    /// Of those, the ones whose node is emptied.
    pub(super) fn evicted(&self) -> impl Iterator<Item = &Replica> {
        self.kept().filter(|replica| replica.spec.eviction_requested)
    }

    pub(super) fn not_evicted(&self) -> impl Iterator<Item = &Replica> {
        self.kept().filter(|replica| !replica.spec.eviction_requested)
    }

    pub(super) fn going(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| is_going(replica) || self.deleting())
    }

    /// The running instance manager that has an instance, else the one for new ones on that node.
    pub(super) fn manager(&self, node: &NodeName, instance: &str) -> Option<&Manager> {
        let there: Vec<&Manager> =
            self.managers.iter().filter(|manager| manager.node == *node && manager.running).collect();
        let with = there.iter().find(|manager| manager.find(instance).is_some());
        with.or_else(|| there.first()).copied()
    }

    pub(super) fn reach(&self, replica: &ReplicaName, node: &NodeName) -> Reach<'_> {
        let Some(manager) = self.manager(node, replica.as_str()) else { return Reach::Lost };
        match manager.find(replica.as_str()).map(|instance| (instance.state, &instance.address)) {
            Some((InstanceState::Running | InstanceState::Suspended, address)) => Reach::Up(address),
            Some((InstanceState::Starting, _)) => Reach::Starting,
            Some((InstanceState::Error, _)) => Reach::Failed(manager),
            Some(_) | None => Reach::Down(manager),
        }
    }

    /// What the process of the volume's engine is called.
    pub fn engine_in_charge(&self) -> EngineName {
        self.seat().map_or_else(|| super::engine_name(&self.name()), |seat| seat.name.clone())
    }

    /// The engine that has the volume, and its node, by the record.
    pub(super) fn seat(&self) -> Option<&EngineSeat> {
        self.record.as_ref()?.engine.as_ref()
    }

    /// The engine where the record has it.
    pub fn running_engine(&self) -> Option<(&Manager, &Instance)> {
        let seat = self.seat()?;
        let manager = self.manager(&seat.node_id, seat.name.as_str())?;
        Some((manager, manager.find(seat.name.as_str())?))
    }

    /// Engines of the volume, whichever has it, that can be told to end.
    pub(super) fn engines(&self) -> impl Iterator<Item = (&Manager, &Instance)> {
        let name = self.name();
        let there = self.managers.iter().filter(|manager| manager.running);
        let all = there.flat_map(|manager| manager.instances.iter().map(move |instance| (manager, instance)));
        all.filter(move |(_, instance)| super::is_engine_of(&name, &instance.name))
    }

    /// Whether the volume is changing hands from one engine to another.
    pub(super) fn is_switching(&self) -> bool {
        let operation = self.record.as_ref().and_then(|record| record.operation.as_ref());
        operation.is_some_and(|operation| operation.phase == OperationPhase::Switching)
    }

    pub(super) fn has_processes(&self) -> bool {
        self.volume.spec.data_engine == DataEngine::V1
    }

    /// The image that the volume runs, as far as its status says.
    pub(super) fn current_image(&self) -> &ImageRef {
        let current = self.volume.status.as_ref().map(|status| &status.current_image);
        current.filter(|image| !image.is_empty()).unwrap_or(&self.volume.spec.image)
    }

    pub(super) fn change(&self) -> EngineChange {
        self.volume.status.as_ref().map(|status| status.engine_change.clone()).unwrap_or_default()
    }

    pub(super) fn target_move(&self) -> TargetMove {
        self.volume.status.as_ref().map(|status| status.target_move.clone()).unwrap_or_default()
    }

    /// Whether clients are served, as far as the engine says; one without a frontend has none.
    pub(super) fn serves(&self) -> bool {
        match self.volume.spec.frontend {
            Frontend::None => {
                self.running_engine().is_some_and(|(_, engine)| engine.state == InstanceState::Running)
            }
            _ => self.serving.as_ref().is_some_and(|serving| serving.serving),
        }
    }

    /// The image of an instance, if it is one that the volume has to do with.
    pub fn image_of(&self, instance: &Instance) -> Option<ImageRef> {
        let change = self.change().image;
        let known = [self.volume.spec.image.clone(), self.current_image().clone(), change];
        known.into_iter().find(|image| !image.is_empty() && instance.binary == engine_image::binary(image))
    }

    /// The image that new processes of the volume are of: that of its engine, or what it ran last. Where nothing of it runs, there is
    /// nothing to change under anybody.
    pub(super) fn image(&self) -> ImageRef {
        let engine = self.running_engine().and_then(|(_, engine)| self.image_of(engine));
        let rests = || if self.is_down() { upgrade::wanted(self) } else { self.current_image().clone() };
        engine.unwrap_or_else(rests)
    }

    /// Whether the volume has processes and none of them is there, no client was told of it since it was attached, and no change that
    /// might fail is under way.
    pub(super) fn is_down(&self) -> bool {
        let is_off = |member: &Member| match self.reach(&member.replica, &member.node_id) {
            Reach::Up(_) | Reach::Starting => false,
            Reach::Down(_) | Reach::Failed(_) | Reach::Lost => true,
        };
        self.has_processes()
            && self.endpoint().is_none()
            && !self.is_switching()
            && self.change().state != EngineChangeState::Moving
            && self.engines().next().is_none()
            && self.members().iter().all(is_off)
    }

    /// Where clients find the volume, if it was offered.
    pub(super) fn endpoint(&self) -> Option<&str> {
        let status = self.engine.as_ref()?.status.as_ref()?;
        Some(status.endpoint.as_str()).filter(|endpoint| !endpoint.is_empty())
    }

    /// Whether the volume was offered and its engine runs, but no frontend is there: one that was started again, and whose keeper
    /// was too, knows of no volume until it is told.
    pub(super) fn is_forgotten(&self) -> bool {
        let alone = self.serving.as_ref().is_some_and(|serving| !serving.attached);
        alone && self.endpoint().is_some() && !self.is_switching()
    }

    pub(super) fn in_service(&self) -> impl Iterator<Item = &Member> {
        self.members().iter().filter(|member| member.mode == MemberMode::ReadWrite)
    }

    pub(super) fn wanted_replicas(&self) -> usize {
        usize::try_from(self.volume.spec.number_of_replicas).unwrap_or(1).max(1)
    }
}

impl Manager {
    pub(super) fn find(&self, instance: &str) -> Option<&Instance> {
        self.instances.iter().find(|known| known.name == instance)
    }
}

fn is_going(replica: &Replica) -> bool {
    replica.metadata.deletion_timestamp.is_some()
}

/// Whether a replica was told to leave and to keep what it has.
pub fn is_leaving(replica: &Replica) -> bool {
    replica.spec.instance.desire_state == InstanceState::Stopped
}
