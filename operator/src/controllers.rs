//! Which controllers run in a cluster.
//!
//! The invariant: a controller runs only where the kinds it writes are ours.

use std::sync::Arc;

use kube::core::CustomResourceExt;
use midflight_api::longhorn::Volume;

use crate::bootstrap::Standing;
use crate::controller::Operator;
use crate::engine_upgrade::EngineUpgrades;
use crate::storage::EngineImages;
use crate::write::Writer;

/// Runs every controller that may run in this cluster, until the process ends.
pub async fn run(writer: Arc<Writer>, standing: &Standing) {
    let mut operator = Operator::new(writer);
    if standing.installed.iter().any(|name| name == Volume::crd_name()) {
        let images = EngineImages::new(&mut operator);
        operator.add(images);
        let upgrades = EngineUpgrades::new(&mut operator);
        operator.add(upgrades);
    }
    operator.run().await;
}
