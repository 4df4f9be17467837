//! Says which copies of a volume are to be rebuilt, and lets the engine rebuild those that have their turn.
//!
//! ```text
//! back, not whole ─ asks ─▶ waits ─ its node has room ─▶ permitted ─ the engine is told ─▶ rebuilt, or lost ─▶ ends
//!        asks no more, or anew ◀─ the engine is told that it is over ────────────────────────────────────────────┘
//! ```
//!
//! The invariant: the engine is told of no copy that has to be rebuilt before that is permitted, rebuilds none by itself, and a turn
//! lasts until it may not rebuild that copy any more.

use std::collections::BTreeSet;

use kube::ResourceExt;
use midflight_api::longhorn::{Conditions, InstanceState, Replica};
use midflight_api::{EngineSeat, Member, MemberMode, ReplicaName};

use super::seen::{Observed, Reach};
use super::step::Step;
use super::{Action, Wait};
use crate::storage::rebuilds::{self, Candidate, REBUILD, Turn};

/// What a volume wants for a copy that is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuild {
    Asks,
    UnderWay,
    /// Nothing any more, and its engine may rebuild it still.
    Ends,
}

/// Whether a copy is to be rebuilt. Only an engine does that, and only of copies that it can reach.
pub fn wanted(seen: &Observed, replica: &Replica) -> Option<Rebuild> {
    let member = seen.member(&replica.name_any())?;
    let Some((_, engine)) = seen.running_engine() else {
        return (lives_unseen(seen) && engine_may(seen, replica)).then_some(Rebuild::Ends);
    };
    // One that is started again knows what it was told before.
    if !matches!(engine.state, InstanceState::Running | InstanceState::Suspended | InstanceState::Starting) {
        return None;
    }
    if member.mode == MemberMode::WriteOnly {
        return Some(Rebuild::UnderWay);
    }
    let is_kept = replica.metadata.deletion_timestamp.is_none() && !seen.deleting();
    let is_up = matches!(seen.reach(&member.replica, &member.node_id), Reach::Up(_));
    let is_back =
        member.mode == MemberMode::Error && is_kept && is_up && !seen.is_told_to_leave(&member.replica);
    match (is_back, engine_may(seen, replica)) {
        (true, true) if !rebuilds::is_permitted(replica) => Some(Rebuild::Ends),
        (true, _) => Some(Rebuild::Asks),
        (false, true) => Some(Rebuild::Ends),
        (false, false) => None,
    }
}

/// Whether the engine may go on without its instance manager, as processes do.
fn lives_unseen(seen: &Observed) -> bool {
    let is_unseen = |seat: &EngineSeat| seen.manager(&seat.node_id, seat.name.as_str()).is_none();
    seen.has_processes() && seen.seat().is_some_and(is_unseen)
}

/// Whether the engine may rebuild a copy, as far as is known. One of an older build rebuilds what it knows of.
fn engine_may(seen: &Observed, replica: &Replica) -> bool {
    let name = ReplicaName::from(replica.name_any());
    match &seen.serving {
        Some(serving) => serving.permitted.as_ref().is_some_and(|permitted| permitted.contains(&name)),
        None => Candidate::of(replica).is_some_and(|known| known.turn != Turn::Asks),
    }
}

/// Writes down what is wanted for a copy. Whoever gives turns has the word on one that asks.
pub fn note(wanted: Option<Rebuild>, conditions: &mut Conditions, now: &str) {
    let known = conditions.get(REBUILD).map(Turn::of);
    match (wanted, known) {
        (None, _) => conditions.clear(REBUILD),
        (Some(Rebuild::UnderWay), _) => conditions.set(Turn::UnderWay.condition(now)),
        (Some(Rebuild::Ends), Some(Turn::Ends)) => {}
        (Some(Rebuild::Ends), _) => {
            // It ends from now on, also where it was not given before.
            conditions.clear(REBUILD);
            conditions.set(Turn::Ends.condition(now));
        }
        (Some(Rebuild::Asks), None | Some(Turn::Ends)) => conditions.set(Turn::Asks.condition(now)),
        (Some(Rebuild::Asks), Some(Turn::Asks | Turn::Given | Turn::UnderWay)) => {}
    }
}

/// Whether the turn of some copy ends as soon as the engine is heard.
pub fn ends_a_turn(seen: &Observed) -> bool {
    seen.kept().any(|replica| wanted(seen, replica) == Some(Rebuild::Ends))
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
