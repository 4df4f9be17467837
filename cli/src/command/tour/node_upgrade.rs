//! Act: the instance manager of each of three nodes is replaced by the next version's, under the volumes that it serves.

use std::time::{Duration, Instant};

use anyhow::Context;
use kube::{
    Client, ResourceExt,
    api::{Api, DeleteParams, ListParams},
};
use midflight_api::longhorn::{
    DataEngine, DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, InstanceManager,
    InstanceManagerState, NAMESPACE, NodeDataEngineUpgrade, Robustness, Setting, VolumeUpgradeStatus,
};
use serde_json::json;

use super::{
    load::{Load, in_all},
    program::Outcome,
    stage::Stage,
};
use crate::{
    cluster::Volumes,
    command::upgrade::{
        engines::set,
        nodes::{
            IMAGE,
            drive::{self, Over},
        },
    },
    output::size,
};

/// Name of the image that has the next version in it.
const NEXT: &str = "midflight.local/instance-manager:next";
const UPGRADE: &str = "upgrade";
/// Each volume, and the node that it is attached to.
const VOLUMES: [(&str, &str); 3] = [("home-1", "node-1"), ("home-2", "node-2"), ("home-3", "node-3")];
const SIZE: u64 = 16 << 20;
/// Blocks of a volume that its client uses.
const BLOCKS: u64 = 1024;
/// How long all nodes together may take.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let next = match stage.next().await? {
        Ok(next) => next,
        Err(absent) => return Ok(Outcome::Skipped(absent.to_string())),
    };
    stage.publish(next, NEXT).await?;
    let volumes = Volumes::of(&stage.cluster).await?;
    make(&volumes).await?;
    let client = stage.cluster.client().await?;
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let before = settings.get(IMAGE).await.context("look up the default instance-manager image")?.value;

    let mut loads = Vec::new();
    for (name, _) in VOLUMES {
        loads.push(Load::begin(&stage.cluster, name, volumes.socket(name).await?, BLOCKS));
    }
    set(&client, IMAGE, NEXT).await?;
    drive::until_settled(&client, NEXT, PATIENCE).await?;
    let began = Instant::now();
    drive::begin(&client, UPGRADE, every_node()).await?;
    let over = drive::until_completed(&client, UPGRADE, PATIENCE).await?;
    let took = began.elapsed();
    let mut reports = Vec::new();
    for load in loads {
        reports.push(load.judge().await?);
    }

    runs_nothing_else(&client).await?;
    let counted = stage.counted("target_move_pause_seconds_count").await?;
    anyhow::ensure!(counted >= 2 * VOLUMES.len(), "/metrics tells of {counted} pauses");
    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(client, NAMESPACE);
    upgrades.delete(UPGRADE, &DeleteParams::default()).await.context("remove the upgrade")?;
    volumes.remove(&VOLUMES.map(|(name, _)| name)).await?;
    let mut told = vec![format!(
        "{} nodes went from {before} to {NEXT} in {:.1} s, one after another, each while its volumes served",
        over.nodes.len(),
        took.as_secs_f64()
    )];
    told.extend(pauses(&over)?);
    told.push(copied(&over));
    told.push(in_all(&reports));
    Ok(Outcome::Shown(told))
}

fn every_node() -> DataEngineUpgradeManagerSpec {
    DataEngineUpgradeManagerSpec { data_engine: DataEngine::V2, max_parallel_nodes: 1, ..Default::default() }
}

async fn make(volumes: &Volumes) -> anyhow::Result<()> {
    for (name, node) in VOLUMES {
        let spec = json!({
            "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v2", "frontend": "nbd", "nodeID": node,
        });
        volumes.create(name, spec).await?;
    }
    for (name, _) in VOLUMES {
        volumes.until_it_is(name, Robustness::Healthy).await?;
    }
    Ok(())
}

/// What the clients of each volume met while its own node was upgraded.
fn pauses(over: &Over) -> anyhow::Result<Vec<String>> {
    let told = VOLUMES.iter().map(|&(name, home)| {
        let at_home = over.nodes.iter().find(|one| one.spec.node_id == *home);
        let entry = at_home.and_then(|one| of_volume(one, name)).context("nothing is told of a volume")?;
        anyhow::ensure!(entry.pause_us > 0, "{name} was never held back: {entry:?}");
        let ms = |us: i64| us as f64 / 1000.0;
        Ok(format!(
            "{name} of {home} was served from {} meanwhile: its clients were held back for {:.1} ms at most, the slowest request took {:.1} ms",
            entry.temporary_node_id,
            ms(entry.pause_us),
            ms(entry.longest_wait_us)
        ))
    });
    told.collect()
}

fn of_volume<'a>(node: &'a NodeDataEngineUpgrade, volume: &str) -> Option<&'a VolumeUpgradeStatus> {
    let mut volumes = node.status.iter().flat_map(|status| &status.volumes);
    volumes.find_map(|(name, entry)| (name.as_str() == volume).then_some(entry))
}

/// What was copied to replicas that came back, in all.
fn copied(over: &Over) -> String {
    let entries =
        over.nodes.iter().flat_map(|node| VOLUMES.iter().filter_map(|(name, _)| of_volume(node, name)));
    let copied: i64 = entries.map(|entry| entry.rebuilt_bytes).sum();
    let all = SIZE * (VOLUMES.len() * VOLUMES.len()) as u64;
    format!(
        "every replica left and came back with its data: {} of {} were copied",
        size(copied.unsigned_abs()),
        size(all)
    )
}

/// Nothing of the old version is left on any node.
async fn runs_nothing_else(client: &Client) -> anyhow::Result<()> {
    let managers: Api<InstanceManager> = Api::namespaced(client.clone(), NAMESPACE);
    let all = managers.list(&ListParams::default()).await.context("look at the instance managers")?;
    let v2: Vec<_> = all.items.into_iter().filter(|one| one.spec.data_engine == DataEngine::V2).collect();
    anyhow::ensure!(v2.len() == VOLUMES.len(), "{} instance managers are there", v2.len());
    for manager in v2 {
        let state = manager.status.as_ref().map(|status| status.current_state).unwrap_or_default();
        let is_next = manager.spec.image == NEXT && state == InstanceManagerState::Running;
        anyhow::ensure!(is_next, "{} of {} is {state}", manager.name_any(), manager.spec.image);
    }
    Ok(())
}
