//! Counts what is copied to the replicas of a node when they come back.
//!
//! An engine counts from its start on, and another one begins at 0. The invariant: what was copied before the replicas were told
//! to come back does not count.

use std::collections::BTreeMap;

use midflight_api::VolumeName;
use midflight_api::longhorn::{NodeDataEngineUpgradeStatus, NodeUpgradeState};

/// Bytes that the engine of each volume says it has copied to replicas that came back.
pub type Copied = BTreeMap<VolumeName, i64>;

/// Notes from where on is counted.
pub(super) fn begin(status: &mut NodeDataEngineUpgradeStatus, copied: &Copied) {
    for (name, entry) in &mut status.volumes {
        entry.rebuilt_before_bytes = copied.get(name).copied().unwrap_or_default();
        entry.rebuilt_bytes = 0;
    }
}

/// Notes what was copied since. The last word of an engine may come after its replica is back.
pub(super) fn note(status: &mut NodeDataEngineUpgradeStatus, copied: &Copied) {
    if !matches!(status.state, NodeUpgradeState::RebuildingReplica | NodeUpgradeState::Finalizing) {
        return;
    }
    for (name, entry) in &mut status.volumes {
        let Some(&now) = copied.get(name) else { continue };
        let before = if now < entry.rebuilt_before_bytes { 0 } else { entry.rebuilt_before_bytes };
        entry.rebuilt_bytes = now - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_copied_to_those_that_come_back_counts() {
        use NodeUpgradeState::{Completed, Finalizing, RebuildingReplica, SwitchingBack};
        #[rustfmt::skip]
        let cases = [
            ("an engine that stayed",  RebuildingReplica, 500, Some(700), 200),
            ("nothing yet",            RebuildingReplica, 500, Some(500), 0),
            ("another engine",         RebuildingReplica, 500, Some(40),  40),
            ("the last word is late",  Finalizing,        500, Some(900), 400),
            ("nobody says anything",   Finalizing,        500, None,      7),
            ("not begun",              SwitchingBack,     500, Some(900), 7),
            ("over",                   Completed,         500, Some(900), 7),
        ];
        for (name, state, before, now, expected) in cases {
            let mut status = NodeDataEngineUpgradeStatus { state, ..Default::default() };
            let volume = VolumeName::from("a");
            status.volumes.entry(volume.clone()).or_default();
            begin(&mut status, &[(volume.clone(), before)].into());
            status.volumes.values_mut().for_each(|entry| entry.rebuilt_bytes = 7);
            note(&mut status, &now.map(|now| (volume.clone(), now)).into_iter().collect());
            assert_eq!(status.volumes[&volume].rebuilt_bytes, expected, "{name}");
        }
    }
}
