//! What people are told of node upgrades: conditions and events.
//!
//! The invariant: `Ready` is True only of what is completed, and `Stalled` says what would help.

use jiff::Timestamp;
use midflight_api::condition::{Condition, Conditions, READY, RECONCILING, STALLED};
use midflight_api::longhorn::{ConditionStatus, NodeUpgradeState, UpgradeState};

use crate::controller::Tone;

/// How an object stands, as tools understand it.
pub(super) enum Standing {
    Done,
    Works,
    Failed,
}

impl Standing {
    pub(super) fn of_run(state: UpgradeState) -> Standing {
        match state {
            UpgradeState::Completed => Standing::Done,
            UpgradeState::Error => Standing::Failed,
            UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => Standing::Works,
        }
    }

    pub(super) fn of_node(state: NodeUpgradeState) -> Standing {
        match state {
            NodeUpgradeState::Completed => Standing::Done,
            NodeUpgradeState::Error => Standing::Failed,
            NodeUpgradeState::Undefined
            | NodeUpgradeState::Initializing
            | NodeUpgradeState::FailingReplicas
            | NodeUpgradeState::SwitchingOver
            | NodeUpgradeState::UpgradingInstanceManager
            | NodeUpgradeState::SwitchingBack
            | NodeUpgradeState::RebuildingReplica
            | NodeUpgradeState::Finalizing => Standing::Works,
        }
    }
}

/// Puts the conditions to what the object says.
pub(super) fn set(
    conditions: &mut Conditions,
    standing: &Standing,
    state: &str,
    message: &str,
    generation: i64,
) {
    let condition = |kind: &str, holds: bool| Condition {
        kind: kind.into(),
        status: if holds { ConditionStatus::True } else { ConditionStatus::False },
        reason: camel(state).into(),
        message: message.into(),
        last_transition_time: Timestamp::now().to_string().into(),
        observed_generation: generation,
    };
    let (ready, other, gone) = match standing {
        Standing::Done => (true, None, [RECONCILING, STALLED].as_slice()),
        Standing::Works => (false, Some(RECONCILING), [STALLED].as_slice()),
        Standing::Failed => (false, Some(STALLED), [RECONCILING].as_slice()),
    };
    conditions.set(condition(READY, ready));
    other.into_iter().for_each(|kind| conditions.set(condition(kind, true)));
    gone.iter().for_each(|kind| conditions.clear(kind));
}

/// `switching-over` as `SwitchingOver`.
pub(super) fn camel(words: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    words.split('-').map(word).collect()
}

pub(super) fn tone(standing: &Standing) -> Tone {
    match standing {
        Standing::Done | Standing::Works => Tone::Normal,
        Standing::Failed => Tone::Warning,
    }
}
