//! The invariant of the module, for any cluster.

use midflight_api::longhorn::NodeUpgradeState;
use proptest::prelude::*;

use super::super::{Action, decide};
use super::world::World;
use super::*;

fn any_volume(name: &'static str) -> impl Strategy<Value = Volume> {
    let places = proptest::sample::subsequence(vec![1usize, 2, 3, 4], 1..=4);
    (1usize..=4, places, any::<bool>(), proptest::collection::vec(0u8..8, 4)).prop_map(
        move |(on, places, is_attached, sick)| {
            let mut volume =
                if is_attached { attached(name, on, &places) } else { detached(name, on, &places) };
            for (replica, sick) in volume.replicas.iter_mut().zip(sick) {
                match sick {
                    0 => replica.runs = false,
                    1 => replica.copy = Copy::Out,
                    2 => replica.copy = Copy::Rebuilding,
                    _ => {}
                }
            }
            volume
        },
    )
}

proptest! {
    #[test]
    fn a_copy_leaves_only_while_another_serves(
        a in any_volume("a"), b in any_volume("b"), lost in 1usize..=6, marked in 2usize..=6,
        state in proptest::sample::select(NodeUpgradeState::ALL),
    ) {
        let mut world = World::new(nodes(4), by_name(vec![a, b]), 1);
        for (number, is_marked) in [(lost, false), (marked, true)] {
            if let Some(node) = world.nodes.get_mut(&name(number)) {
                if is_marked { node.requested = true } else { node.ready = false }
            }
        }
        world.begin(&name(1), state);
        let seen = world.of_node(&name(1));
        for action in decide(&seen).actions {
            if let Action::Stop { volume, .. } = action {
                let others = seen.volumes[&volume].replicas.iter().filter(|replica| replica.node != name(1));
                let serves = |replica: &Replica| replica.is_healthy() && seen.nodes[&replica.node].may_host();
                prop_assert!(others.into_iter().any(serves));
            }
        }
    }

    #[test]
    fn a_step_says_or_does_and_an_end_is_an_end(a in any_volume("a"), state in proptest::sample::select(NodeUpgradeState::ALL)) {
        let mut world = World::new(nodes(4), by_name(vec![a]), 1);
        world.begin(&name(1), state);
        let seen = world.of_node(&name(1));
        let decision = decide(&seen);
        if decision.status.state != seen.status.state {
            prop_assert!(decision.actions.is_empty());
        }
        if matches!(state, NodeUpgradeState::Completed | NodeUpgradeState::Error) {
            prop_assert_eq!(decision.status.state, state);
        }
    }

    #[test]
    fn whatever_the_cluster_is_like_it_ends_and_nothing_is_left(a in any_volume("a"), b in any_volume("b"), parallel in 1i32..=3) {
        let mut world = World::new(nodes(4), by_name(vec![a, b]), parallel);
        prop_assert!(world.goes_on(3000));
        prop_assert!(world.broken.is_none());
        prop_assert!(world.nodes.values().all(|node| !node.requested));
        prop_assert!(world.volumes.values().all(|volume| volume.replicas.iter().all(|replica| !replica.told_to_stop)));
    }
}
