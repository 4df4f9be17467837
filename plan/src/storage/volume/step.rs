//! Chooses the one next step of a volume.
//!
//! The invariant: what is taken away goes before what is added, and a copy in service leaves only while
//! another is.

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{FINALIZER, Frontend, InstanceState, Replica};
use midflight_api::{Address, ImageRef, Member, MemberMode, NodeName, ReplicaName, Term};

use super::seen::{Instance, Manager, Observed, Reach};
use super::{Action, Wait, engine_name, leave, rebuild, replica_name, salvage, target, upgrade};
use crate::storage::schedule::schedule;

pub(super) type Step = Result<Action, Wait>;

pub(super) fn next(seen: &Observed) -> Step {
    if seen.deleting() {
        return delete(seen);
    }
    let asked = &seen.volume.spec.image;
    let image = if asked.is_empty() { &seen.default_image } else { asked };
    let is_protected = seen.volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if !is_protected || image != asked {
        return Ok(Action::Protect { image: image.clone() });
    }
    if seen.has_processes() && image.is_empty() {
        return Err(Wait::NoImage);
    }
    if seen.volume.spec.size.bytes() == 0 {
        return Err(Wait::NoSize);
    }
    if let Some(step) = make(seen) {
        return step;
    }
    match (seen.wanted_node(), seen.attached_node()) {
        (None, None) => detached(seen),
        (None, Some(node)) => detach(seen, node),
        (Some(wanted), Some(node)) if wanted != node => detach(seen, node),
        (Some(wanted), None) => attach(seen, wanted),
        (Some(wanted), Some(_)) => serve(seen, wanted),
    }
}

/// Makes the objects of a new volume.
fn make(seen: &Observed) -> Option<Step> {
    if seen.record.is_some() {
        return seen.engine.is_none().then(|| Ok(Action::MakeEngine { name: engine_name(&seen.name()) }));
    }
    let taken: Vec<&NodeName> = seen.kept().map(node_of).collect();
    let place = schedule(&seen.places, &taken, seen.volume.spec.size);
    Some(match place {
        Ok(node) if taken.len() < seen.wanted_replicas() => {
            Ok(make_replica(seen, &format!("first/{}", seen.replicas.len()), node))
        }
        Err(why) if taken.is_empty() => Err(Wait::NoPlace(why)),
        Ok(_) | Err(_) => {
            let member =
                |replica: &Replica| (ReplicaName::from(replica.name_any()), node_of(replica).clone());
            Ok(Action::MakeRecord { members: seen.kept().map(member).collect() })
        }
    })
}

fn make_replica(seen: &Observed, number: &str, node: NodeName) -> Action {
    let uid = seen.volume.uid().unwrap_or_default();
    Action::MakeReplica { name: replica_name(&seen.name(), &uid, number), node }
}

fn node_of(replica: &Replica) -> &NodeName {
    &replica.spec.instance.node_id
}

/// What can be done while nobody has the volume.
fn detached(seen: &Observed) -> Step {
    if !seen.volume.spec.target_node_id.is_empty() {
        return Ok(Action::ClearTarget);
    }
    stop_engine(seen)
        .or_else(|| stop_replicas(seen))
        .or_else(|| remove_going(seen))
        .or_else(|| enlist(seen))
        .or_else(|| trim(seen))
        .or_else(|| give_up(seen).filter(|_| seen.rebuilds_detached))
        .or_else(|| replenish(seen))
        .or_else(|| leave::wait(seen).map(Err))
        .or_else(|| keep_last(seen))
        .or_else(|| keep_evicted(seen))
        .unwrap_or(Err(Wait::Content))
}

/// Takes the volume from the node that has it.
fn detach(seen: &Observed, node: &NodeName) -> Step {
    if seen.endpoint().is_some() {
        return withdraw(seen, node);
    }
    stop_engine(seen).unwrap_or(Ok(Action::EndAttachment))
}

/// Takes the volume from the clients of its node. The frontend outlives an instance manager: it has to be told by the next one.
fn withdraw(seen: &Observed, node: &NodeName) -> Step {
    match seen.manager(node, "") {
        Some(manager) => Ok(Action::Withdraw { manager: Some(manager.name.clone()) }),
        None if seen.lost.contains(node) => Ok(Action::Withdraw { manager: None }),
        None => Err(Wait::NoManager(node.clone())),
    }
}

/// Gives the volume to a node that can serve it.
fn attach(seen: &Observed, node: &NodeName) -> Step {
    if let Some(stop) = stop_engine(seen) {
        return stop;
    }
    match seen.manager(node, "") {
        Some(_) => Ok(Action::TakeTerm { node: node.clone() }),
        None => Err(Wait::NoManager(node.clone())),
    }
}

/// Whether this is where clients reach a volume by its frontend.
fn is_of(frontend: Frontend, endpoint: &str) -> bool {
    match frontend {
        Frontend::None => false,
        Frontend::Nbd => endpoint.starts_with("nbd"),
        _ => !endpoint.starts_with("nbd"),
    }
}

/// Brings the volume up where it is attached, and keeps it whole.
fn serve(seen: &Observed, node: &NodeName) -> Step {
    if seen.endpoint().is_some_and(|endpoint| !is_of(seen.frontend(), endpoint)) {
        return withdraw(seen, node);
    }
    if let Some(wait) = salvage::hold(seen) {
        return Err(wait);
    }
    if let Some(step) = target::escape(seen) {
        return step;
    }
    let place = seen.seat().map_or(node, |seat| &seat.node_id);
    let Some(manager) = seen.manager(place, seen.engine_in_charge().as_str()) else {
        return Err(Wait::NoManager(place.clone()));
    };
    let manager = manager.name.clone();
    if let Some(step) = upgrade::switch(seen, &manager)
        .or_else(|| start_replicas(seen))
        .or_else(|| target::switch(seen, &manager))
    {
        return step;
    }
    let engine = match seen.running_engine().map(|(_, engine)| (engine.state, &engine.address)) {
        Some((InstanceState::Running | InstanceState::Suspended, address)) => address.clone(),
        Some((InstanceState::Starting, _)) => return Err(Wait::EngineStarts),
        Some(_) | None => {
            return upgrade::instead(seen).unwrap_or_else(|| start_engine(seen, manager, seen.image()));
        }
    };
    if seen.frontend() != Frontend::None && (seen.endpoint().is_none() || seen.is_forgotten()) {
        let Some(near) = seen.manager(node, seen.engine_in_charge().as_str()) else {
            return Err(Wait::NoManager(node.clone()));
        };
        return Ok(Action::Offer { manager: near.name.clone(), engine });
    }
    upgrade::back(seen)
        .or_else(|| stop_others(seen))
        .or_else(|| target::begin(seen))
        .or_else(|| remove_going(seen))
        .or_else(|| leave::leave(seen))
        .or_else(|| salvage::end(seen))
        .or_else(|| throttle(seen, &manager).or_else(|| bear(seen, &manager)))
        .or_else(|| rebuild::permit(seen, &manager))
        .or_else(|| start_failed(seen))
        .or_else(|| salvage::stranded(seen))
        .or_else(|| introduce(seen, &manager))
        .or_else(|| enlist(seen))
        .or_else(|| expand(seen, &manager).or_else(|| rouse(seen, &manager)))
        .or_else(|| trim(seen))
        .or_else(|| upgrade::begin(seen))
        .or_else(|| upgrade::follow(seen))
        .or_else(|| give_up(seen))
        .or_else(|| replenish(seen))
        .or_else(|| rebuild::is_off(seen).or_else(|| rebuild::wait(seen)).map(Err))
        .or_else(|| target::wait(seen).or_else(|| leave::wait(seen)).map(Err))
        .or_else(|| keep_last(seen))
        .or_else(|| evict(seen))
        .unwrap_or_else(|| Err(upgrade::rest(seen)))
}

/// Ends an engine of a volume that nobody has, or that has left its place.
pub(super) fn stop_engine(seen: &Observed) -> Option<Step> {
    seen.engines().next().map(stop)
}

/// Ends an engine that the volume has left behind.
fn stop_others(seen: &Observed) -> Option<Step> {
    let (manager, engine) = seen.running_engine()?;
    let other = |(at, one): &(&Manager, &Instance)| (&at.name, &one.name) != (&manager.name, &engine.name);
    seen.engines().find(other).map(stop)
}

fn stop((manager, engine): (&Manager, &Instance)) -> Step {
    Ok(Action::StopEngine { manager: manager.name.clone(), engine: engine.name.as_str().into() })
}

/// Ends the copies of a volume that nobody has.
fn stop_replicas(seen: &Observed) -> Option<Step> {
    let runs = |member: &Member| match seen.reach(&member.replica, &member.node_id) {
        Reach::Up(_) | Reach::Starting => seen.manager(&member.node_id, member.replica.as_str()),
        Reach::Down(_) | Reach::Failed(_) | Reach::Lost => None,
    };
    let (member, manager) = seen.members().iter().find_map(|member| Some((member, runs(member)?)))?;
    Some(Ok(Action::StopReplica { manager: manager.name.clone(), replica: member.replica.clone() }))
}

/// Copies that were not told to leave.
fn staying(seen: &Observed) -> impl Iterator<Item = &Member> {
    seen.members().iter().filter(|member| !seen.is_told_to_leave(&member.replica))
}

/// Starts every copy that can be; one that failed before waits until the volume serves, or until nothing else can.
fn start_replicas(seen: &Observed) -> Option<Step> {
    let engine_runs = seen.running_engine().is_some();
    staying(seen).find_map(|member| match seen.reach(&member.replica, &member.node_id) {
        Reach::Down(manager) => {
            let (manager, replica) = (manager.name.clone(), member.replica.clone());
            Some(Ok(Action::StartReplica {
                manager,
                replica,
                image: seen.image(),
                existing: seen.has_data(member),
            }))
        }
        Reach::Starting if !engine_runs => Some(Err(Wait::ReplicaStarts(member.replica.clone()))),
        Reach::Up(_) | Reach::Starting | Reach::Failed(_) | Reach::Lost => None,
    })
}

fn start_failed(seen: &Observed) -> Option<Step> {
    start_failed_of(seen, seen.members().iter())
}

/// Starts one of these copies again that has failed and was not told to leave.
fn start_failed_of<'a>(seen: &Observed, mut copies: impl Iterator<Item = &'a Member>) -> Option<Step> {
    copies.find_map(|member| match seen.reach(&member.replica, &member.node_id) {
        Reach::Failed(manager) if !seen.is_told_to_leave(&member.replica) => {
            let (manager, replica) = (manager.name.clone(), member.replica.clone());
            Some(Ok(Action::StartReplica {
                manager,
                replica,
                image: seen.image(),
                existing: seen.has_data(member),
            }))
        }
        Reach::Failed(_) | Reach::Up(_) | Reach::Starting | Reach::Down(_) | Reach::Lost => None,
    })
}

pub(super) fn start_engine(seen: &Observed, manager: String, image: ImageRef) -> Step {
    let up = |member: &Member| matches!(seen.reach(&member.replica, &member.node_id), Reach::Up(_));
    if !seen.in_service().any(up) {
        // Those that are on live nodes were started again and again by their instance managers before they are called failed.
        if let Some(step) = salvage::salvage(seen) {
            return step;
        }
        // Nothing serves without one of them.
        if let Some(again) = start_failed_of(seen, seen.in_service()) {
            return again;
        }
        return Err(Wait::NoCopy(salvage::whole(seen)));
    }
    let known = |member: &Member| Some((member.replica.clone(), address_of(seen, member)?));
    let members =
        staying(seen).filter(|member| rebuild::may_return(seen, member)).filter_map(known).collect();
    Ok(Action::StartEngine { manager, image, members })
}

/// Where a copy is, or was when it was last seen.
fn address_of(seen: &Observed, member: &Member) -> Option<Address> {
    if let Reach::Up(address) = seen.reach(&member.replica, &member.node_id) {
        return Some(address.clone());
    }
    let replica = seen.replicas.iter().find(|replica| replica.name_any() == member.replica.as_str())?;
    let status = &replica.status.as_ref()?.instance;
    (status.port > 0).then(|| format!("{}:{}", status.storage_ip, status.port).into())
}

/// Tells the engine of copies that it was not started with.
fn introduce(seen: &Observed, manager: &str) -> Option<Step> {
    let known = &seen.engine.as_ref()?.status.as_ref()?.current_replica_address_map;
    let (member, address) =
        staying(seen).filter(|member| rebuild::may_return(seen, member)).find_map(|member| {
            match seen.reach(&member.replica, &member.node_id) {
                Reach::Up(address) if known.get(&member.replica) != Some(address) => Some((member, address)),
                Reach::Up(_) | Reach::Starting | Reach::Down(_) | Reach::Failed(_) | Reach::Lost => None,
            }
        })?;
    let (replica, address) = (member.replica.clone(), address.clone());
    Some(Ok(Action::AddReplica { manager: manager.to_owned(), replica, address }))
}

/// Takes replicas that are to go out of the record, then away from their nodes.
fn remove_going(seen: &Observed) -> Option<Step> {
    let mut waits = None;
    for replica in seen.going() {
        let (name, node) = (ReplicaName::from(replica.name_any()), node_of(replica));
        if seen.member(name.as_str()).is_some() && !seen.deleting() {
            // Without an engine nobody has seen that they are whole: their nodes have to be there at least.
            let is_there = |member: &Member| {
                seen.running_engine().is_some()
                    || seen.manager(&member.node_id, member.replica.as_str()).is_some()
            };
            let others = seen.in_service().any(|member| member.replica != name && is_there(member));
            match seen.running_engine() {
                _ if !others => {}
                Some((manager, _)) => {
                    return Some(Ok(Action::RemoveReplica { manager: manager.name.clone(), replica: name }));
                }
                None => return Some(Ok(Action::Strike { replica: name })),
            }
            continue;
        }
        let was_used = seen.record.as_ref().is_some_and(|record| record.term > Term::default());
        let is_node_known = seen.places.iter().any(|place| place.node == *node);
        match seen.manager(node, name.as_str()) {
            Some(manager) if was_used => {
                return Some(Ok(Action::ForgetReplica {
                    manager: Some(manager.name.clone()),
                    replica: name,
                }));
            }
            None if was_used && is_node_known => {
                let (node, what) = (node.clone(), format!("replica {name}"));
                waits = Some(Err(Wait::CannotRemove { node, what }));
            }
            Some(_) | None => return Some(Ok(Action::ForgetReplica { manager: None, replica: name })),
        }
    }
    // A node that is away holds up the end of a volume, not its healing.
    waits.filter(|_| seen.deleting())
}

/// A replica that was deleted and stays, for want of another that has all data.
fn keep_last(seen: &Observed) -> Option<Step> {
    let going = seen.going().find(|replica| seen.member(&replica.name_any()).is_some())?;
    let others = seen.in_service().filter(|member| member.replica != going.name_any().as_str());
    let others: Vec<String> =
        others.map(|member| format!("{} on {}", member.replica, member.node_id)).collect();
    let others = if others.is_empty() { "there is none".to_owned() } else { others.join(", ") };
    let (replica, node) = (going.name_any().into(), node_of(going).clone());
    Some(Err(Wait::LastWhole { replica, node, others }))
}

/// Notes replicas in the record that were made since.
fn enlist(seen: &Observed) -> Option<Step> {
    let new = seen.kept().find(|replica| seen.member(&replica.name_any()).is_none())?;
    Some(Ok(Action::Enlist { replica: new.name_any().into(), node: node_of(new).clone() }))
}

/// Tells the engine how fast rebuilds may go, if it says that it keeps to something else.
fn throttle(seen: &Observed, manager: &str) -> Option<Step> {
    let known = seen.serving.as_ref().filter(|serving| serving.serving)?.rebuild_limit?;
    let bytes_per_second = seen.rebuild_limit;
    let order = || Ok(Action::Throttle { manager: manager.to_owned(), bytes_per_second });
    (known != bytes_per_second).then(order)
}

/// Tells the engine how long to wait for a copy, if it says that it waits for another time.
fn bear(seen: &Observed, manager: &str) -> Option<Step> {
    let known = seen.serving.as_ref().filter(|serving| serving.serving)?.patience?;
    let seconds = seen.patience;
    (known != seconds).then(|| Ok(Action::Bear { manager: manager.to_owned(), seconds }))
}

fn expand(seen: &Observed, manager: &str) -> Option<Step> {
    let serves = seen.serving.as_ref().is_some_and(|serving| serving.serving);
    // One that nobody has asked for serves nobody, and is let grow by its instance manager.
    let can_grow = serves || seen.asked_node().is_none();
    let size = seen.volume.spec.size;
    (can_grow && seen.is_to_grow()).then(|| Ok(Action::Expand { manager: manager.to_owned(), size }))
}

/// Lets an engine serve that has no frontend to tell it so: until then it makes no copy whole, and takes no snapshot. The order to grow
/// does that, here to the size that it has, which is not known before it has served for the first time. Whoever brings the volume to a
/// backup does it himself.
fn rouse(seen: &Observed, manager: &str) -> Option<Step> {
    let sleeps = seen.serving.as_ref().is_some_and(|serving| !serving.serving && !serving.attached);
    let is_alone = seen.frontend() == Frontend::None && !seen.follows_backup() && !seen.is_switching();
    let size = seen.known_size().unwrap_or(seen.volume.spec.size);
    (sleeps && is_alone).then(|| Ok(Action::Expand { manager: manager.to_owned(), size }))
}

/// Lets replicas leave a node that is emptied, each when there is another in its place.
fn evict(seen: &Observed) -> Option<Step> {
    let leaving = seen.evicted().next()?;
    let serves = |replica: &&Replica| {
        seen.member(&replica.name_any()).is_some_and(|member| member.mode == MemberMode::ReadWrite)
    };
    if seen.not_evicted().filter(serves).count() >= seen.wanted_replicas() {
        return Some(Ok(Action::DeleteReplica { replica: leaving.name_any().into() }));
    }
    if seen.not_evicted().count() >= seen.wanted_replicas() {
        return Some(Err(Wait::Rebuilding));
    }
    another(seen)
}

/// Nothing can be copied while nobody serves the volume.
fn keep_evicted(seen: &Observed) -> Option<Step> {
    let leaving = seen.evicted().next()?;
    let lacks_place = seen.not_evicted().count() < seen.wanted_replicas();
    if let Some(Err(no_place)) = another(seen).filter(|_| seen.rebuilds_detached && lacks_place) {
        return Some(Err(no_place));
    }
    let (replica, node) = (leaving.name_any().into(), node_of(leaving).clone());
    Some(Err(Wait::CannotLeave { replica, node }))
}

/// Lets one go of those that are too many: one that is not in service, else one whose node is away, else the last by name.
fn trim(seen: &Observed) -> Option<Step> {
    let kept: Vec<&Replica> = seen.not_evicted().collect();
    if kept.len() <= seen.wanted_replicas() || seen.is_upgraded() {
        return None;
    }
    let serves = |replica: &&&Replica| {
        seen.member(&replica.name_any()).is_some_and(|member| member.mode == MemberMode::ReadWrite)
    };
    let is_there = |replica: &&&Replica| seen.manager(node_of(replica), &replica.name_any()).is_some();
    let spare = kept.iter().rev().find(|replica| !serves(replica));
    let lost = || kept.iter().rev().find(|replica| !is_there(replica));
    let last =
        || kept.last().filter(|_| kept.iter().rev().skip(1).any(|other| serves(&other) && is_there(&other)));
    let choice = spare.or_else(lost).or_else(last)?;
    Some(Ok(Action::DeleteReplica { replica: choice.name_any().into() }))
}

/// Gives a copy up that has been away for too long, if there is a place for another.
fn give_up(seen: &Observed) -> Option<Step> {
    let mut waits: Option<(ReplicaName, Timestamp)> = None;
    for replica in seen.kept() {
        let name = ReplicaName::from(replica.name_any());
        let Some(member) = seen.member(name.as_str()) else { continue };
        let is_lost = match seen.reach(&name, &member.node_id) {
            _ if seen.is_upgraded() => false,
            Reach::Lost | Reach::Failed(_) => member.mode != MemberMode::ReadWrite,
            Reach::Up(_) | Reach::Starting | Reach::Down(_) => false,
        };
        let Ok(since) = replica.spec.failed_at.as_str().parse::<Timestamp>() else { continue };
        if !is_lost {
            continue;
        }
        let until = since.saturating_add(seen.replenish_after).unwrap_or(Timestamp::MAX);
        let taken: Vec<&NodeName> = seen.kept().map(node_of).collect();
        if until <= seen.now
            && seen.rebuilds_at_once > 0
            && schedule(&seen.places, &taken, seen.volume.spec.size).is_ok()
        {
            return Some(Ok(Action::DeleteReplica { replica: name }));
        }
        if until > seen.now && waits.as_ref().is_none_or(|(_, first)| until < *first) {
            waits = Some((name, until));
        }
    }
    waits.map(|(replica, until)| Err(Wait::Missing { replica, until }))
}

/// Makes another replica where one is missing.
fn replenish(seen: &Observed) -> Option<Step> {
    let taken: Vec<&NodeName> = seen.kept().map(node_of).collect();
    if taken.len() >= seen.wanted_replicas() || seen.is_upgraded() {
        let rebuilt = seen.members().iter().any(|member| member.mode == MemberMode::WriteOnly);
        return rebuilt.then_some(Err(Wait::Rebuilding));
    }
    another(seen)
}

/// Makes a replica on a node that has none.
fn another(seen: &Observed) -> Option<Step> {
    let taken: Vec<&NodeName> = seen.kept().map(node_of).collect();
    let version = seen.record.as_ref()?.member_version;
    if seen.rebuilds_at_once == 0 {
        return Some(Err(Wait::RebuildsOff));
    }
    Some(match schedule(&seen.places, &taken, seen.volume.spec.size) {
        Ok(node) => Ok(make_replica(seen, &format!("version/{version}"), node)),
        Err(why) => Err(Wait::NoPlace(why)),
    })
}

/// Takes everything down and away.
fn delete(seen: &Observed) -> Step {
    if let Some(node) = seen.attached_node() {
        return detach(seen, node);
    }
    stop_engine(seen)
        .or_else(|| remove_going(seen))
        .or_else(|| seen.engine.as_ref().map(|_| Ok(Action::DeleteEngine)))
        .or_else(|| seen.record.as_ref().map(|_| Ok(Action::DeleteRecord)))
        .unwrap_or(Ok(Action::Release))
}
