//! Decides what becomes of a volume that has lost all copies with its data.
//!
//! As soon as one of them is back it serves again: by itself, or where `auto-salvage` is off when somebody asks for it. An older copy
//! takes their place only if somebody asks for that one.
//!
//! The invariant: no write is lost that a copy has which can be used, unless somebody has asked for an older one.

use kube::ResourceExt;
use midflight_api::longhorn::{Replica, Robustness};
use midflight_api::{Member, MemberMode, ReplicaName};

use super::seen::{Observed, Reach};
use super::step::{Step, stop_engine};
use super::{Action, Wait};

/// Whether all copies failed, and nobody has asked yet for the volume to serve again.
pub(super) fn is_held(seen: &Observed) -> bool {
    let is_asked = |replica: &Replica| replica.spec.instance.salvage_requested;
    !seen.auto_salvage
        && was_faulted(seen)
        && !seen.kept().any(is_asked)
        && !seen.in_service().any(|member| is_up(seen, member))
}

/// What a volume waits for that is held.
pub(super) fn hold(seen: &Observed) -> Option<Wait> {
    is_held(seen).then(|| Wait::NotSalvaged(whole(seen)))
}

/// The copies that have all data, and where.
pub(super) fn whole(seen: &Observed) -> String {
    let named = |member: &Member| format!("{} on {}", member.replica, member.node_id);
    seen.in_service().map(named).collect::<Vec<_>>().join(", ")
}

/// What becomes of an engine that serves nothing because it reaches no copy with all data: it ends if another copy is to be salvaged,
/// and waits for one of these otherwise.
pub(super) fn stranded(seen: &Observed) -> Option<Step> {
    let is_idle = seen.serving.as_ref().is_some_and(|serving| !serving.serving);
    if !is_idle || seen.in_service().any(|member| is_up(seen, member)) {
        return None;
    }
    salvage(seen).and_then(|_| stop_engine(seen)).or_else(|| Some(Err(Wait::NoCopy(whole(seen)))))
}

fn was_faulted(seen: &Observed) -> bool {
    seen.volume.status.as_ref().is_some_and(|status| status.robustness == Robustness::Faulted)
}

fn is_up(seen: &Observed, member: &Member) -> bool {
    matches!(seen.reach(&member.replica, &member.node_id), Reach::Up(_))
}

/// Whether the wish that a replica be salvaged has come true, or has no meaning any more: nothing is to be salvaged of a volume that
/// is served, and the wish must not come true at a later loss.
pub fn is_over(seen: &Observed, replica: &Replica) -> bool {
    let is_served = seen.serving.as_ref().is_some_and(|serving| serving.serving);
    let has_data = seen.member(&replica.name_any()).is_some_and(|member| member.mode != MemberMode::Error);
    is_served || has_data && (seen.auto_salvage || !was_faulted(seen))
}

/// Puts a copy into service that somebody has asked to be salvaged, although others had more. These go before it does: what they hold
/// under the same names is not what it holds.
pub(super) fn salvage(seen: &Observed) -> Option<Step> {
    let is_asked = |replica: &&Replica| replica.spec.instance.salvage_requested;
    // One that never had all data has nothing to offer, and one that does not answer may never do so.
    let is_there = |replica: &&Replica| {
        let member = seen.member(&replica.name_any()).filter(|member| member.mode == MemberMode::Error);
        !replica.spec.last_healthy_at.is_empty() && member.is_some_and(|member| is_up(seen, member))
    };
    // One that has everything and may come back is not given up for one that has less.
    let may_serve = |replica: &Replica| {
        let member = seen.member(&replica.name_any()).filter(|member| member.mode == MemberMode::ReadWrite);
        member.is_some_and(|member| !matches!(seen.reach(&member.replica, &member.node_id), Reach::Lost))
    };
    if seen.kept().filter(is_asked).any(may_serve) {
        return None;
    }
    let chosen = seen.kept().filter(is_asked).find(is_there)?;
    let other = seen.kept().find(|replica| replica.name_any() != chosen.name_any());
    Some(Ok(match other {
        Some(other) => Action::DeleteReplica { replica: other.name_any().into() },
        // It was salvaged before, and lost again before that was noted: the record takes a new name only.
        None if salvaged(seen).is_some_and(|before| before == chosen.name_any().as_str()) => {
            Action::EndSalvage
        }
        None => Action::Salvage { replica: chosen.name_any().into() },
    }))
}

/// Forgets which copy was salvaged, once it serves: the record must let no later writer call it whole without being asked to.
pub(super) fn end(seen: &Observed) -> Option<Step> {
    let is_served = seen.serving.as_ref().is_some_and(|serving| serving.serving);
    salvaged(seen).filter(|_| is_served).map(|_| Ok(Action::EndSalvage))
}

/// The copy that was salvaged and was not seen to serve since.
fn salvaged(seen: &Observed) -> Option<&ReplicaName> {
    seen.record.as_ref().map(|record| &record.salvaged).filter(|replica| !replica.is_empty())
}
