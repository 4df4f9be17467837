//! Where nodes stood in their upgrade, and when.
//!
//! The one invariant: a moment belongs to the state that was seen last before it; nothing is guessed of what comes after.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use futures::StreamExt;
use kube::{
    Client,
    api::Api,
    runtime::{WatchStreamExt, watcher},
};
use midflight_api::longhorn::{NAMESPACE, NodeDataEngineUpgrade, NodeUpgradeState};
use tokio::task::JoinHandle;

/// A node that has come to a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) at: Instant,
    pub(super) node: String,
    pub(super) state: NodeUpgradeState,
}

/// What was seen, in its order.
#[derive(Debug, Clone, Default)]
pub(super) struct History(Vec<Reached>);

impl History {
    fn take(&mut self, at: Instant, node: &str, state: NodeUpgradeState) {
        let last = self.0.iter().rev().find(|reached| reached.node == node);
        if last.is_none_or(|last| last.state != state) {
            self.0.push(Reached { at, node: node.to_owned(), state });
        }
    }

    /// Which node had last come to which state at a moment.
    pub(super) fn at(&self, moment: Instant) -> Option<&Reached> {
        self.0.iter().rev().find(|reached| reached.at <= moment)
    }
}

/// Watches until it is asked what it has seen, or nobody is interested any more.
pub(super) struct States {
    seen: Arc<Mutex<History>>,
    watching: JoinHandle<()>,
}

impl States {
    pub(super) fn watch(client: &Client) -> States {
        let upgrades: Api<NodeDataEngineUpgrade> = Api::namespaced(client.clone(), NAMESPACE);
        let seen = Arc::new(Mutex::new(History::default()));
        let told = Arc::clone(&seen);
        let watching = tokio::spawn(async move {
            let changes = watcher(upgrades, watcher::Config::default()).default_backoff().applied_objects();
            let mut changes = changes.boxed();
            while let Some(change) = changes.next().await {
                let Ok(upgrade) = change else { continue };
                let state = upgrade.status.unwrap_or_default().state;
                let mut seen = told.lock().unwrap_or_else(PoisonError::into_inner);
                seen.take(Instant::now(), upgrade.spec.node_id.as_str(), state);
            }
        });
        States { seen, watching }
    }

    pub(super) fn history(&self) -> History {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for States {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_moment_belongs_to_the_state_that_was_reached_last() {
        use NodeUpgradeState::{Completed, FailingReplicas, SwitchingOver};
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let mut history = History::default();
        for (moment, node, state) in [
            (1, "node-1", FailingReplicas),
            (2, "node-1", FailingReplicas),
            (3, "node-1", SwitchingOver),
            (5, "node-1", Completed),
            (7, "node-2", FailingReplicas),
        ] {
            history.take(at(moment), node, state);
        }
        let said = |moment| history.at(at(moment)).map(|reached| (reached.node.as_str(), reached.state));
        assert_eq!(history.0.len(), 4, "the same state again is nothing new");
        #[rustfmt::skip]
        let cases = [
            (0, None),
            (2, Some(("node-1", FailingReplicas))),
            (4, Some(("node-1", SwitchingOver))),
            (6, Some(("node-1", Completed))),
            (9, Some(("node-2", FailingReplicas))),
        ];
        for (moment, expected) in cases {
            assert_eq!(said(moment), expected, "{moment}");
        }
    }
}
