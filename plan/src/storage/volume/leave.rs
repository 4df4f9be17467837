//! Lets copies leave that are told to, and come back when they are told to run.
//!
//! ```text
//! in service ─ release: the record has it out, the others note what it misses ─▶ out ─ its process ends ─▶ away
//!      └──────── copies what it missed ◀── its process starts, the engine is told ◀── told to run ────────────┘
//! ```
//!
//! Before the engine is told to let one go, what it was told of its address is taken back: the order may be carried out when
//! nobody waits for it any more, and one that is told to run by then is made known to the engine again.
//!
//! The invariant: the last copy in service stays, and nobody takes the place of one that is to come back.

use kube::ResourceExt;
use midflight_api::longhorn::{Frontend, Replica};
use midflight_api::{Address, Member, MemberMode, ReplicaName};

use super::seen::{Observed, Reach};
use super::step::Step;
use super::{Action, Wait};

/// Takes the next step of one that is to leave, if it can be taken.
pub(super) fn leave(seen: &Observed) -> Option<Step> {
    seen.leaving().find_map(|replica| leave_with(seen, replica))
}

fn leave_with(seen: &Observed, replica: &Replica) -> Option<Step> {
    let name = ReplicaName::from(replica.name_any());
    let member = seen.member(name.as_str())?;
    let others = others_serve(seen, &name);
    let is_open = seen.volume.spec.frontend != Frontend::None;
    // An engine without clients finds out by itself when it is to serve.
    if is_open && (member.mode != MemberMode::Error || is_known(seen, &name)) {
        let (manager, _) = seen.running_engine().filter(|_| seen.serves())?;
        let may_go = member.mode != MemberMode::ReadWrite || others;
        return may_go.then(|| match is_certain(seen, &name) {
            true => Ok(Action::DoubtReplica { replica: name }),
            false => Ok(Action::ReleaseReplica { manager: manager.name.clone(), replica: name }),
        });
    }
    if member.mode == MemberMode::ReadWrite && !others {
        return None;
    }
    match seen.reach(&name, &member.node_id) {
        Reach::Up(_) | Reach::Starting | Reach::Failed(_) => {
            let manager = seen.manager(&member.node_id, name.as_str())?.name.clone();
            Some(Ok(Action::StopReplica { manager, replica: name }))
        }
        Reach::Down(_) | Reach::Lost => None,
    }
}

/// Whether another copy is in service and can be reached.
fn others_serve(seen: &Observed, replica: &ReplicaName) -> bool {
    let is_up = |member: &Member| matches!(seen.reach(&member.replica, &member.node_id), Reach::Up(_));
    seen.in_service().any(|member| member.replica != *replica && is_up(member))
}

/// Whether the engine was told where it is.
fn is_known(seen: &Observed, replica: &ReplicaName) -> bool {
    known_address(seen, replica).is_some()
}

/// Whether it was, and was not told to let it go since.
fn is_certain(seen: &Observed, replica: &ReplicaName) -> bool {
    known_address(seen, replica).is_some_and(|address| !address.is_empty())
}

fn known_address<'a>(seen: &'a Observed, replica: &ReplicaName) -> Option<&'a Address> {
    seen.engine.as_ref()?.status.as_ref()?.current_replica_address_map.get(replica)
}

/// Why a volume is not whole, if copies were told to leave or the node of its engine is upgraded.
pub(super) fn wait(seen: &Observed) -> Option<Wait> {
    let node = |replica: &Replica| replica.spec.instance.node_id.clone();
    let is_last = |replica: &&Replica| {
        let name = ReplicaName::from(replica.name_any());
        seen.in_service().any(|member| member.replica == name) && !others_serve(seen, &name)
    };
    let last = seen.leaving().find(is_last).filter(|_| seen.attached_node().is_some());
    if let Some(last) = last {
        let others: Vec<String> = seen
            .members()
            .iter()
            .filter(|member| member.replica != last.name_any().as_str())
            .map(|member| format!("{} on {} is {}", member.replica, member.node_id, member.mode))
            .collect();
        let others = if others.is_empty() { "there is no other".to_owned() } else { others.join(", ") };
        return Some(Wait::LastCopy { replica: last.name_any().into(), node: node(last), others });
    }
    let left: Vec<_> =
        seen.leaving().map(|replica| (ReplicaName::from(replica.name_any()), node(replica))).collect();
    let lacks = seen.members().iter().any(|member| member.mode != MemberMode::ReadWrite)
        || seen.kept().count() < seen.wanted_replicas();
    match left.is_empty() {
        false => Some(Wait::Left(left)),
        true => (lacks && seen.is_upgraded()).then(|| Wait::NodeUpgraded(seen.volume.spec.node_id.clone())),
    }
}
