//! Says where a volume stands.
//!
//! The invariant: nothing is claimed that was not seen.

use midflight_api::longhorn::{
    EngineChange, Frontend, InstanceState, Robustness, SwitchoverState, TargetMove, VolumeState,
};
use midflight_api::{ImageRef, Member, NodeName};

use super::seen::{Observed, Reach};
use super::step::Step;
use super::{Integrity, Unsettled, Wait, integrity, salvage, target, unsettled, upgrade};

/// What the status of a volume is to say.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    pub state: VolumeState,
    pub robustness: Robustness,
    pub node: NodeName,
    pub owner: NodeName,
    pub image: ImageRef,
    /// The last change of the image under clients.
    pub change: EngineChange,
    /// The last move of the target under clients.
    pub moved: TargetMove,
    /// Where the target was seen to serve.
    pub target: NodeName,
    pub switchover: SwitchoverState,
    /// Whether it is attached where clients do not reach it.
    pub frontend_disabled: bool,
    /// Whether every replica has a node.
    pub scheduled: Result<(), String>,
    /// Why it is not at rest, if that is not as it should be.
    pub waiting: Option<Unsettled>,
    /// What became of data that was found damaged, if any was.
    pub integrity: Option<Integrity>,
}

pub(super) fn standing(seen: &Observed, next: &Step) -> Standing {
    let state = state(seen);
    let status = seen.volume.status.clone().unwrap_or_default();
    let node = match state {
        VolumeState::Attached => seen.attached_node().cloned().unwrap_or_default(),
        VolumeState::Undefined
        | VolumeState::Creating
        | VolumeState::Attaching
        | VolumeState::Detaching
        | VolumeState::Detached
        | VolumeState::Deleting
        | VolumeState::Unrecognised => NodeName::default(),
    };
    let first = || seen.kept().next().map(|replica| replica.spec.instance.node_id.clone());
    let owner = [node.clone(), status.owner_id].into_iter().find(|owner| !owner.is_empty()).or_else(first);
    let is_moving = matches!(state, VolumeState::Attached | VolumeState::Attaching | VolumeState::Detaching);
    let image = upgrade::image(seen, is_moving);
    let change = upgrade::change(seen, next, &image);
    let (scheduled, waiting) = match next {
        Err(Wait::NoPlace(why)) => (Err(why.to_string()), Some(Unsettled::Waiting(why.to_string()))),
        Err(Wait::Content) => (Ok(()), None),
        Ok(action) => (Ok(()), unsettled::of_step(seen, action)),
        Err(wait) => (Ok(()), Some(unsettled::of_wait(wait))),
    };
    // Whatever else is waited for is not what keeps it from its clients.
    let lost = seen.lost_home().filter(|_| matches!(next, Err(Wait::NoManager(_) | Wait::Content)));
    let waiting = lost.map(|node| Unsettled::NodeLost(node.clone())).or(waiting);
    Standing {
        state,
        robustness: robustness(seen, state),
        node,
        owner: owner.unwrap_or_default(),
        image,
        change,
        moved: target::moved(seen, next),
        target: target::current(seen),
        switchover: target::switchover(seen),
        frontend_disabled: state == VolumeState::Attached && seen.frontend() == Frontend::None,
        scheduled,
        waiting,
        integrity: integrity::of_volume(seen),
    }
}

fn state(seen: &Observed) -> VolumeState {
    if seen.deleting() {
        return VolumeState::Deleting;
    }
    if seen.record.is_none() || seen.engine.is_none() {
        return VolumeState::Creating;
    }
    let engine = seen.running_engine().map(|(_, engine)| engine.state);
    // Whoever asked for the volume has to wait until it holds what it should.
    let is_awaited = seen.follows_backup() && seen.asked_node().is_some() && !seen.volume.spec.standby;
    let is_open = match seen.frontend() {
        Frontend::None => engine == Some(InstanceState::Running) && !is_awaited,
        Frontend::Blockdev
        | Frontend::Iscsi
        | Frontend::Nvmf
        | Frontend::Ublk
        | Frontend::Nbd
        | Frontend::Unrecognised => seen.endpoint().is_some(),
    };
    match (seen.wanted_node(), seen.attached_node()) {
        (Some(wanted), Some(node)) if wanted == node && is_open => VolumeState::Attached,
        (None, None) if engine.is_none() => VolumeState::Detached,
        (None, _) => VolumeState::Detaching,
        (Some(wanted), Some(node)) if wanted != node => VolumeState::Detaching,
        (Some(_), _) => VolumeState::Attaching,
    }
}

fn robustness(seen: &Observed, state: VolumeState) -> Robustness {
    if salvage::is_held(seen) && state != VolumeState::Deleting {
        return Robustness::Faulted;
    }
    if !matches!(state, VolumeState::Attached | VolumeState::Attaching) {
        return Robustness::Unknown;
    }
    // A process that follows another is starting only to us: the engine keeps its connection.
    let up = |member: &&Member| {
        matches!(seen.reach(&member.replica, &member.node_id), Reach::Up(_) | Reach::Starting)
    };
    match seen.in_service().filter(up).count() {
        0 if state == VolumeState::Attached => Robustness::Faulted,
        // As upstream: nobody is left who could say how the copies are.
        _ if state == VolumeState::Attaching || seen.lost_home().is_some() => Robustness::Unknown,
        count if count >= seen.wanted_replicas() => Robustness::Healthy,
        _ => Robustness::Degraded,
    }
}
