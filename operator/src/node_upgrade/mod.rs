//! Replaces the data engine of every node while its volumes serve, as `plan::node_upgrade` decides (seed 004).
//!
//! Two controllers: `run` for DataEngineUpgradeManagers, `node` for NodeDataEngineUpgrades. `cluster` is what both look
//! at, `told` what people are told. The invariant: a status is written before anything is done that it does not say yet.

mod cluster;
mod node;
mod run;
mod told;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use node::NodeUpgrades;
pub(crate) use run::NodeUpgradeRuns;

/// A turn looks at all volumes of a node, or of every node, and one of them seldom changes alone. On a machine that
/// has its clients as well, that is time that they wait.
const GATHERS: Duration = Duration::from_millis(20);
