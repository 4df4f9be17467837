//! Act: all volumes move to the engine of the next version, those with clients under their clients.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use anyhow::Context;
use futures::StreamExt;
use kube::{
    ResourceExt,
    api::Api,
    runtime::{WatchStreamExt, watcher},
};
use midflight_api::{
    NodeName,
    longhorn::{EngineChangeState, NAMESPACE, Robustness, Setting, Volume, VolumeState},
    settings::ENGINE_UPGRADE_LIMIT,
};
use midflight_plan::engine_upgrade as plan;
use serde_json::json;

use super::{
    load::{Load, in_all},
    program::Outcome,
    stage::Stage,
};
use crate::{
    cluster::Volumes,
    command::upgrade::engines::{IMAGE, set},
};

/// Name of the image that has the next version in it.
const NEXT: &str = "midflight.local/engine:next";
/// Volumes of a node that may move at once.
const AT_ONCE: usize = 2;
/// Volumes with clients, all on one node.
const BUSY: [&str; 3] = ["busy-1", "busy-2", "busy-3"];
const IDLE: [&str; 3] = ["idle-1", "idle-2", "idle-3"];
const NODE: &str = "node-1";
const SIZE: u64 = 16 << 20;
/// Blocks of a volume that its client uses.
const BLOCKS: u64 = 1024;

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let next = match stage.next().await? {
        Ok(next) => next,
        Err(absent) => return Ok(Outcome::Skipped(absent.to_string())),
    };
    let cluster = &stage.cluster;
    stage.publish(next, NEXT).await?;
    let volumes = Volumes::of(cluster).await?;
    make(&volumes).await?;
    let client = cluster.client().await?;
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let before = settings.get(IMAGE).await.context("look up the default engine image")?.value;

    let mut loads = Vec::new();
    for name in BUSY {
        loads.push(Load::begin(cluster, name, volumes.socket(name).await?, BLOCKS));
    }
    let most = AtomicUsize::new(0);
    let began = Instant::now();
    let moved = async {
        set(&client, IMAGE, NEXT).await?;
        set(&client, ENGINE_UPGRADE_LIMIT, &AT_ONCE.to_string()).await?;
        arrive(&volumes).await
    };
    let pauses = tokio::select! {
        moved = moved => moved?,
        () = count(&volumes.objects, &most) => anyhow::bail!("the watch of the volumes has ended"),
    };
    let took = began.elapsed();
    let mut reports = Vec::new();
    for load in loads {
        reports.push(load.judge().await?);
    }
    let most = most.into_inner();
    anyhow::ensure!(most <= AT_ONCE, "{most} volumes of a node moved at once");

    let counted = stage.counted("engine_change_pause_seconds_count").await?;
    anyhow::ensure!(counted == BUSY.len(), "/metrics tells of {counted} pauses");
    set(&client, ENGINE_UPGRADE_LIMIT, "0").await?;
    set(&client, IMAGE, &before).await?;
    volumes.remove(&[BUSY, IDLE].concat()).await?;
    let mut told = vec![format!(
        "{} volumes moved from {before} to {NEXT} in {:.1} s, never more than {most} of a node at once",
        BUSY.len() + IDLE.len(),
        took.as_secs_f64()
    )];
    told.extend(pauses);
    told.push(in_all(&reports));
    Ok(Outcome::Shown(told))
}

async fn make(volumes: &Volumes) -> anyhow::Result<()> {
    let spec =
        json!({ "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v1", "frontend": "nbd" });
    for name in IDLE {
        volumes.create(name, spec.clone()).await?;
    }
    for name in BUSY {
        let mut spec = spec.clone();
        spec["nodeID"] = json!(NODE);
        volumes.create(name, spec).await?;
    }
    for name in IDLE {
        let is_there = |volume: &Volume| {
            volume.status.as_ref().is_some_and(|status| status.state == VolumeState::Detached)
        };
        volumes.until(name, "detached", is_there).await?;
    }
    for name in BUSY {
        volumes.until_it_is(name, Robustness::Healthy).await?;
    }
    Ok(())
}

/// Waits until all volumes run the next version; says of each that has clients what they met.
async fn arrive(volumes: &Volumes) -> anyhow::Result<Vec<String>> {
    let runs_it = |volume: &Volume| volume.status.as_ref().is_some_and(|status| status.current_image == NEXT);
    for name in IDLE {
        volumes.until(name, "at the next version", runs_it).await?;
    }
    let mut pauses = Vec::new();
    for name in BUSY {
        let volume = volumes.until(name, "at the next version", runs_it).await?;
        let change = volume.status.unwrap_or_default().engine_change;
        anyhow::ensure!(change.state == EngineChangeState::Done, "{name}: {change:?}");
        let ms = |us: i64| us as f64 / 1000.0;
        pauses.push(format!(
            "{name}: its clients were held back for {:.1} ms, the slowest request took {:.1} ms",
            ms(change.pause_us),
            ms(change.longest_wait_us)
        ));
    }
    Ok(pauses)
}

/// Looks after every write how many volumes of a node are on their way.
async fn count(objects: &Api<Volume>, most: &AtomicUsize) {
    let mut there: BTreeMap<String, plan::Volume> = BTreeMap::new();
    let mut events =
        watcher(objects.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(event) = events.next().await {
        let Ok(volume) = event else { continue };
        there.insert(volume.name_any(), plan::Volume::of(&volume, plan::Replicas::default()));
        let mut nodes: BTreeMap<Option<&NodeName>, usize> = BTreeMap::new();
        for volume in there.values().filter(|volume| volume.is_upgrading()) {
            *nodes.entry(volume.seat()).or_default() += 1;
        }
        most.fetch_max(nodes.into_values().max().unwrap_or_default(), Ordering::Relaxed);
    }
}
