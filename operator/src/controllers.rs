//! Which controllers run in a cluster.
//!
//! The invariant: a controller runs only where the kinds it writes are ours.

use std::sync::Arc;
use std::time::Duration;

use kube::core::CustomResourceExt;
use midflight_api::{
    fluid::Dataset,
    longhorn::{Image, Volume},
};
use tokio::time::sleep;
use tracing::warn;

use crate::bootstrap::Standing;
use crate::controller::Operator;
use crate::engine_upgrade::EngineUpgrades;
use crate::figures::Figures;
use crate::mount::Datasets;
use crate::node_upgrade::{NodeUpgradeRuns, NodeUpgrades};
use crate::storage::{
    BackupTargets, Backups, EngineImages, InstanceManagers, Nodes, Orders, PrePull, Rebuilds, Restores,
    Snapshots, Usage, Volumes,
};
use crate::workload;
use crate::write::Writer;

/// How long to wait before the secret of the instance managers is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Runs every controller that may run in this cluster, until the process ends.
pub async fn run(writer: Arc<Writer>, standing: &Standing) {
    run_counting(writer, standing, Figures::default()).await;
}

/// The same, and counts what they do.
pub async fn run_counting(writer: Arc<Writer>, standing: &Standing, figures: Figures) {
    let mut operator = Operator::counting(Arc::clone(&writer), figures);
    if standing.installed.iter().any(|name| name == Volume::crd_name()) {
        let Some(orders) = orders(&writer).await else { return };
        let images = EngineImages::new(&mut operator);
        operator.add(images);
        let upgrades = EngineUpgrades::new(&mut operator);
        operator.add(upgrades);
        let nodes = Nodes::new(&mut operator);
        operator.add(nodes);
        let managers = InstanceManagers::new(&mut operator, Arc::clone(&orders));
        operator.add(managers);
        let snapshots = Snapshots::new(&mut operator, Arc::clone(&orders));
        operator.add(snapshots);
        let targets = BackupTargets::new(&mut operator, Arc::clone(&orders));
        operator.add(targets);
        let backups = Backups::new(&mut operator, Arc::clone(&orders));
        operator.add(backups);
        let restores = Restores::new(&mut operator, Arc::clone(&orders));
        operator.add(restores);
        let usage = Usage::new(&mut operator, Arc::clone(&orders));
        operator.add(usage);
        let rebuilds = Rebuilds::new(&mut operator);
        operator.add(rebuilds);
        let volumes = Volumes::new(&mut operator, orders);
        operator.add(volumes);
        add_node_upgrades(&mut operator);
    }
    if standing.installed.iter().any(|name| name == Image::crd_name()) {
        let images = PrePull::new(&mut operator);
        operator.add(images);
    }
    if standing.installed.iter().any(|name| name == Dataset::crd_name()) {
        let datasets = Datasets::new(&mut operator);
        operator.add(datasets);
    }
    workload::add(&mut operator);
    operator.run().await;
}

fn add_node_upgrades(operator: &mut Operator) {
    let runs = NodeUpgradeRuns::new(operator);
    operator.add(runs);
    let upgrades = NodeUpgrades::new(operator);
    operator.add(upgrades);
}

/// Runs the controllers of node upgrades and no other, until the writer ends: for clusters whose volumes have no engine
/// behind them.
#[cfg(test)]
pub(crate) async fn run_node_upgrades(writer: Arc<Writer>, figures: Figures) {
    let mut operator = Operator::counting(writer, figures);
    add_node_upgrades(&mut operator);
    operator.run().await;
}

/// Runs the controller of datasets alone, where others bring pods to nodes. Counts what it does.
pub async fn run_datasets(writer: Arc<Writer>, figures: Figures) {
    let mut operator = Operator::counting(writer, figures);
    let datasets = Datasets::new(&mut operator);
    operator.add(datasets);
    operator.run().await;
}

/// The way to give orders to instance managers; nothing once the writer has ended.
async fn orders(writer: &Writer) -> Option<Arc<Orders>> {
    loop {
        match Orders::open(writer).await {
            Ok(orders) => return Some(Arc::new(orders)),
            Err(error) => warn!(%error, "no orders can be given to instance managers yet"),
        }
        tokio::select! {
            () = writer.ended() => return None,
            () = sleep(ASK_AGAIN) => {}
        }
    }
}

/// Runs the controller of engine upgrades and no other, until the writer ends: for fleets whose volumes have no
/// engine behind them. Counts what it does.
pub async fn run_engine_upgrades(writer: Arc<Writer>, figures: Figures) {
    let mut operator = Operator::counting(writer, figures);
    let upgrades = EngineUpgrades::new(&mut operator);
    operator.add(upgrades);
    operator.run().await;
}
