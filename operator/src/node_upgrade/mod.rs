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

pub(crate) use node::NodeUpgrades;
pub(crate) use run::NodeUpgradeRuns;
