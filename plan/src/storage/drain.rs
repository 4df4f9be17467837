//! Decides which replicas keep a node from being called drained.
//!
//! The invariant: a replica that keeps it under a policy keeps it under every stricter one.

use kube::ResourceExt;
use midflight_api::longhorn::{InstanceState, Replica};
use midflight_api::settings;

/// The setting with the policy.
pub const SETTING: &str = "node-drain-policy";

/// What a node may still hold when it is called drained. From the strictest to the one that minds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// No replica.
    Empty,
    /// None that is the last healthy one of its volume.
    NotTheLast,
    /// None of those that runs.
    NotTheLastThatRuns,
    Anything,
}

impl Policy {
    /// From the value of the setting; the default where that is none that anybody may give it.
    pub fn of(value: Option<&str>) -> Policy {
        let valid = value.filter(|value| settings::check(SETTING, value).is_ok());
        match valid.or_else(|| settings::find(SETTING).map(|setting| setting.default)) {
            Some("block-for-eviction") | None => Policy::Empty,
            Some("allow-if-replica-is-stopped") => Policy::NotTheLastThatRuns,
            Some("always-allow") => Policy::Anything,
            // Replicas leave a node that is drained under each of these.
            Some(_) => Policy::NotTheLast,
        }
    }

    /// Whether a replica has to be gone before its node is drained. `all` are those of all volumes.
    pub fn minds(self, replica: &Replica, all: &[Replica]) -> bool {
        match self {
            Policy::Empty => true,
            Policy::NotTheLast => is_last(replica, all),
            Policy::NotTheLastThatRuns => is_last(replica, all) && runs(replica),
            Policy::Anything => false,
        }
    }
}

/// Whether it is whole, as far as is known.
fn is_healthy(replica: &Replica) -> bool {
    let spec = &replica.spec;
    let is_kept = replica.metadata.deletion_timestamp.is_none();
    is_kept && !spec.healthy_at.is_empty() && spec.failed_at.is_empty()
}

/// Whether its volume has no other healthy replica that stays. Of one that never was whole nothing is lost.
fn is_last(replica: &Replica, all: &[Replica]) -> bool {
    let instance = &replica.spec.instance;
    let others = all.iter().filter(|other| {
        other.spec.instance.volume_name == instance.volume_name && other.name_any() != replica.name_any()
    });
    is_healthy(replica)
        && !others
            .filter(|other| other.spec.instance.node_id != instance.node_id && !other.spec.eviction_requested)
            .any(is_healthy)
}

fn runs(replica: &Replica) -> bool {
    let state = replica.status.as_ref().map(|status| status.instance.current_state).unwrap_or_default();
    !matches!(state, InstanceState::Stopped | InstanceState::Undefined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(volume: &str, node: &str, healthy: bool, state: InstanceState) -> Replica {
        let mut replica = Replica::new(&format!("{volume}-{node}"), Default::default());
        replica.spec.instance.volume_name = volume.into();
        replica.spec.instance.node_id = node.into();
        replica.spec.healthy_at = if healthy { "2026-01-01T00:00:00Z" } else { "" }.into();
        replica.status.get_or_insert_default().instance.current_state = state;
        replica
    }

    #[test]
    fn each_policy_minds_its_replicas() {
        use InstanceState::{Running, Stopped};
        let of = |value| Policy::of(Some(value));
        let (here, there) = (
            |healthy, state| replica("v", "n-1", healthy, state),
            |healthy| replica("v", "n-2", healthy, Running),
        );
        let elsewhere = replica("w", "n-2", true, Running);
        let leaving = || {
            let mut leaving = there(true);
            leaving.spec.eviction_requested = true;
            leaving
        };
        #[rustfmt::skip]
        let cases = [
            // the replica, another of its volume, then whether it is minded by each policy
            ("one of two",        here(true, Running),  Some(there(true)),  [true, false, false, false, false]),
            ("the only one",      here(true, Running),  None,               [true, true,  true,  true,  false]),
            ("the other is sick", here(true, Running),  Some(there(false)), [true, true,  true,  true,  false]),
            ("the other goes too", here(true, Running), Some(leaving()),    [true, true,  true,  true,  false]),
            ("it is stopped",     here(true, Stopped),  None,               [true, true,  true,  false, false]),
            ("it is sick itself", here(false, Running), None,               [true, false, false, false, false]),
        ];
        let policies = [
            "block-for-eviction",
            "block-for-eviction-if-contains-last-replica",
            "block-if-contains-last-replica",
            "allow-if-replica-is-stopped",
            "always-allow",
        ];
        for (case, here, other, expected) in cases {
            let all: Vec<Replica> = [here.clone(), elsewhere.clone()].into_iter().chain(other).collect();
            assert_eq!(policies.map(|policy| of(policy).minds(&here, &all)), expected, "{case}");
        }
    }

    #[test]
    fn what_nobody_may_set_is_the_default() {
        assert_eq!(Policy::of(Some("never")), Policy::NotTheLast);
        assert_eq!(Policy::of(None), Policy::NotTheLast);
    }
}
