//! What the controllers count, for whoever scrapes `/metrics`.
//!
//! The invariant: what is counted here is in the status or the events of an object, too; a process that starts anew
//! counts from 0.

use std::collections::BTreeMap;
use std::time::Duration;

use midflight_api::NodeName;
use midflight_api::longhorn::{NodeUpgradeState, UpgradeNodeStatus};
use midflight_plan::mount::progress::Counted;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDataset {
    namespace: String,
    dataset: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNodeUpgrade {
    upgrade: String,
    state: &'static str,
}

/// Shared by all controllers of a process.
#[derive(Debug, Clone)]
pub struct Figures {
    pauses: Histogram,
    longest_waits: Histogram,
    changes: Family<Outcome, Counter>,
    upgrades: Family<Outcome, Counter>,
    pub(crate) upgrades_under_way: Gauge,
    pub(crate) upgrades_waiting: Gauge,
    pub(crate) upgrades_held: Gauge,
    target_pauses: Histogram,
    target_longest_waits: Histogram,
    target_moves: Family<Outcome, Counter>,
    node_upgrades: Family<Outcome, Counter>,
    node_upgrade_nodes: Family<OfNodeUpgrade, Gauge>,
    node_upgrade_rebuilt: Counter,
    fuse_daemons: Family<OfDataset, Gauge>,
    outdated_fuse_daemons: Family<OfDataset, Gauge>,
}

impl Default for Figures {
    fn default() -> Figures {
        Figures {
            pauses: seconds(),
            longest_waits: seconds(),
            changes: Family::default(),
            upgrades: Family::default(),
            upgrades_under_way: Gauge::default(),
            upgrades_waiting: Gauge::default(),
            upgrades_held: Gauge::default(),
            target_pauses: seconds(),
            target_longest_waits: seconds(),
            target_moves: Family::default(),
            node_upgrades: Family::default(),
            node_upgrade_nodes: Family::default(),
            node_upgrade_rebuilt: Counter::default(),
            fuse_daemons: Family::default(),
            outdated_fuse_daemons: Family::default(),
        }
    }
}

/// From half a millisecond to ten seconds.
fn seconds() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0])
}

impl Figures {
    /// New ones, and what encodes them.
    pub fn new() -> (Figures, Registry) {
        let figures = Figures::default();
        let mut registry = Registry::with_prefix("midflight");
        registry.register(
            "engine_change_pause_seconds",
            "For how long the frontend held requests back while an attached volume changed its engine",
            figures.pauses.clone(),
        );
        registry.register(
            "engine_change_longest_wait_seconds",
            "How long the slowest request took that met a change of the engine",
            figures.longest_waits.clone(),
        );
        registry.register(
            "engine_changes",
            "Changes of the engine of attached volumes, by how they ended",
            figures.changes.clone(),
        );
        registry.register(
            "engine_upgrades",
            "Upgrades of volumes to the default engine image, begun and ended",
            figures.upgrades.clone(),
        );
        registry.register(
            "engine_upgrades_under_way",
            "Volumes that count against the limits of engine upgrades",
            figures.upgrades_under_way.clone(),
        );
        registry.register(
            "engine_upgrades_waiting",
            "Volumes that may move to the default engine image and wait for room",
            figures.upgrades_waiting.clone(),
        );
        registry.register(
            "engine_upgrades_held",
            "1 while upgrades are on and none begins: paused, halted, or no image to move to",
            figures.upgrades_held.clone(),
        );
        registry.register(
            "fuse_daemons",
            "Nodes that have a FUSE daemon of a dataset",
            figures.fuse_daemons.clone(),
        );
        registry.register(
            "fuse_daemons_outdated",
            "Nodes whose FUSE daemon is older than its dataset wants it",
            figures.outdated_fuse_daemons.clone(),
        );
        figures.register_node_upgrades(&mut registry);
        (figures, registry)
    }

    /// How many volumes wait for room to move to the default engine image.
    pub fn upgrades_waiting(&self) -> i64 {
        self.upgrades_waiting.get()
    }

    fn register_node_upgrades(&self, registry: &mut Registry) {
        registry.register(
            "target_move_pause_seconds",
            "For how long the frontend held requests back while the engine of an attached volume moved to another node",
            self.target_pauses.clone(),
        );
        registry.register(
            "target_move_longest_wait_seconds",
            "How long the slowest request took that met a move of the engine to another node",
            self.target_longest_waits.clone(),
        );
        registry.register(
            "target_moves",
            "Moves of engines of attached volumes to other nodes, by how they ended",
            self.target_moves.clone(),
        );
        registry.register(
            "node_upgrades",
            "Upgrades of the data engine of single nodes, begun and ended",
            self.node_upgrades.clone(),
        );
        registry.register(
            "node_upgrade_nodes",
            "Nodes of an upgrade of the data engine, by where they stand",
            self.node_upgrade_nodes.clone(),
        );
        registry.register(
            "node_upgrade_rebuilt_bytes",
            "Bytes copied to replicas that came back when their node was upgraded",
            self.node_upgrade_rebuilt.clone(),
        );
    }

    /// A change of an attached volume's engine has ended well.
    pub(crate) fn engine_changed(&self, pause: Duration, longest_wait: Duration) {
        self.pauses.observe(pause.as_secs_f64());
        self.longest_waits.observe(longest_wait.as_secs_f64());
        self.engine_change_ended("done");
    }

    pub(crate) fn engine_change_ended(&self, outcome: &'static str) {
        self.changes.get_or_create(&Outcome { outcome }).inc();
    }

    /// The engine of an attached volume has moved to another node.
    pub(crate) fn target_moved(&self, pause: Duration, longest_wait: Duration) {
        self.target_pauses.observe(pause.as_secs_f64());
        self.target_longest_waits.observe(longest_wait.as_secs_f64());
        self.target_move_ended("done");
    }

    pub(crate) fn target_move_ended(&self, outcome: &'static str) {
        self.target_moves.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn node_upgrade(&self, outcome: &'static str) {
        self.node_upgrades.get_or_create(&Outcome { outcome }).inc();
    }

    /// A node is upgraded, or back where it was, and so much was copied to its replicas.
    pub(crate) fn node_upgrade_ended(&self, outcome: &'static str, rebuilt_bytes: u64) {
        self.node_upgrade(outcome);
        self.node_upgrade_rebuilt.inc_by(rebuilt_bytes);
    }

    /// Where the nodes of an upgrade stand.
    pub(crate) fn nodes_of_upgrade(&self, upgrade: &str, nodes: &BTreeMap<NodeName, UpgradeNodeStatus>) {
        for &state in NodeUpgradeState::ALL {
            let labels = OfNodeUpgrade { upgrade: upgrade.into(), state: state.as_str() };
            let count = nodes.values().filter(|node| node.state == state).count();
            self.node_upgrade_nodes.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn node_upgrade_has_gone(&self, upgrade: &str) {
        for &state in NodeUpgradeState::ALL {
            let labels = OfNodeUpgrade { upgrade: upgrade.into(), state: state.as_str() };
            self.node_upgrade_nodes.remove(&labels);
        }
    }

    /// How many nodes serve a dataset.
    pub(crate) fn fuse_daemons(&self, namespace: &str, dataset: &str, counted: &Counted) {
        let labels = OfDataset { namespace: namespace.into(), dataset: dataset.into() };
        self.fuse_daemons.get_or_create(&labels).set(counted.daemons.into());
        self.outdated_fuse_daemons.get_or_create(&labels).set(counted.outdated().into());
    }

    pub(crate) fn dataset_has_gone(&self, namespace: &str, dataset: &str) {
        let labels = OfDataset { namespace: namespace.into(), dataset: dataset.into() };
        self.fuse_daemons.remove(&labels);
        self.outdated_fuse_daemons.remove(&labels);
    }

    pub(crate) fn engine_upgrade(&self, outcome: &'static str) {
        self.upgrades.get_or_create(&Outcome { outcome }).inc();
    }
}
