//! Says which copies of a volume are to be rebuilt, and lets the engine rebuild those that have their turn.
//!
//! ```text
//! back, not whole ─ asks ─▶ waits ─ its node has room ─▶ permitted ─ the engine is told ─▶ rebuilt ─▶ asks no more
//! ```
//!
//! The invariant: the engine is told of no copy that has to be rebuilt before that is permitted, and rebuilds none by itself.

use std::collections::BTreeSet;

use kube::ResourceExt;
use midflight_api::longhorn::{InstanceState, Replica};
use midflight_api::{Member, MemberMode, ReplicaName};

use super::seen::{Observed, Reach};
use super::step::Step;
use super::{Action, Wait};
use crate::storage::rebuilds::{self, REBUILD};

/// What a volume wants for a copy that is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuild {
    Asks,
    UnderWay,
}

/// Whether a copy is to be rebuilt. Only an engine does that, and only of copies that it can reach.
pub fn wanted(seen: &Observed, replica: &Replica) -> Option<Rebuild> {
    let member = seen.member(&replica.name_any())?;
    let (_, engine) = seen.running_engine()?;
    let has_engine = matches!(engine.state, InstanceState::Running | InstanceState::Suspended);
    let is_kept = replica.metadata.deletion_timestamp.is_none() && !seen.deleting();
    if !has_engine || !is_kept || seen.is_told_to_leave(&member.replica) {
        return None;
    }
    match (member.mode, seen.reach(&member.replica, &member.node_id)) {
        (MemberMode::WriteOnly, _) => Some(Rebuild::UnderWay),
        (MemberMode::Error, Reach::Up(_)) => Some(Rebuild::Asks),
        (MemberMode::Error, Reach::Starting | Reach::Down(_) | Reach::Failed(_) | Reach::Lost)
        | (MemberMode::ReadWrite, _) => None,
    }
}

/// Whether the engine may be told where a copy is: one that is whole, or has its turn.
pub(super) fn may_return(seen: &Observed, member: &Member) -> bool {
    member.mode == MemberMode::ReadWrite || has_turn(seen, &member.replica)
}

fn has_turn(seen: &Observed, replica: &ReplicaName) -> bool {
    seen.kept().any(|known| known.name_any() == replica.as_str() && rebuilds::is_permitted(known))
}

/// Tells the engine whom to rebuild, if it says that it keeps to something else.
pub(super) fn permit(seen: &Observed, manager: &str) -> Option<Step> {
    let known = seen.serving.as_ref()?.permitted.as_ref()?;
    let lacking = seen.members().iter().filter(|member| member.mode != MemberMode::ReadWrite);
    let replicas: BTreeSet<ReplicaName> =
        lacking.map(|member| member.replica.clone()).filter(|replica| has_turn(seen, replica)).collect();
    (*known != replicas).then(|| Ok(Action::Permit { manager: manager.to_owned(), replicas }))
}

/// Why a copy that is back is not rebuilt.
pub(super) fn wait(seen: &Observed) -> Option<Wait> {
    let waiting = seen
        .kept()
        .find(|replica| wanted(seen, replica) == Some(Rebuild::Asks) && !rebuilds::is_permitted(replica))?;
    let condition = waiting.status.as_ref().and_then(|status| status.instance.conditions.get(REBUILD));
    let why = condition.map(|condition| condition.message.to_string()).filter(|why| !why.is_empty());
    Some(Wait::Turn {
        replica: waiting.name_any().into(),
        why: why.unwrap_or_else(|| "it has asked for its turn".to_owned()),
    })
}

/// Whether a copy is missing that nobody may replace.
pub(super) fn is_off(seen: &Observed) -> Option<Wait> {
    let lacks = |replica: &Replica| {
        let member = seen.member(&replica.name_any());
        member.is_some_and(|member| member.mode == MemberMode::Error) && !super::is_leaving(replica)
    };
    (seen.rebuilds_at_once == 0 && seen.kept().any(lacks)).then_some(Wait::RebuildsOff)
}
