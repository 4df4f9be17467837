//! Act: a volume goes on while a node is killed, and heals when the node is back.

use std::time::{Duration, Instant};

use anyhow::Context;
use midflight_agent::pod;
use midflight_api::longhorn::Robustness;
use rustix::process::Signal;
use serde_json::json;

use super::{load::Load, program::Outcome, stage::Stage};
use crate::{
    cluster::Volumes,
    process::{Record, Role},
};

const VOLUME: &str = "tour";
const SIZE: u64 = 64 << 20;
/// Blocks that the client uses, so that many are written more than once.
const BLOCKS: u64 = 2048;
/// The node that is killed; the volume is attached to another.
const VICTIM: u8 = 2;

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let volumes = Volumes::of(&stage.cluster).await?;
    let began = Instant::now();
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    });
    volumes.create(VOLUME, spec).await?;
    volumes.until_it_is(VOLUME, Robustness::Healthy).await?;
    let attached = began.elapsed();

    let load = Load::begin(&stage.cluster, VOLUME, volumes.socket(VOLUME).await?, BLOCKS);
    let (degraded, healed) = lose_and_find(stage, &volumes).await?;
    let report = load.judge().await?;
    volumes.change(VOLUME, json!({ "nodeID": "" })).await?;
    Ok(Outcome::Shown(vec![
        format!(
            "a volume with a replica on each of three nodes was attached after {} ms",
            attached.as_millis()
        ),
        format!(
            "every process of a node killed: degraded {} ms later, healthy again {} ms after the node's start",
            degraded.as_millis(),
            healed.as_millis()
        ),
        format!(
            "{} writes and {} reads meanwhile, 0 errors, the longest waited {:.1} ms; {} blocks read back and verified",
            report.writes,
            report.reads,
            report.longest_wait_us as f64 / 1000.0,
            report.verified_blocks
        ),
    ]))
}

/// How long the volume took to be called degraded, and to be healthy again.
async fn lose_and_find(stage: &Stage<'_>, volumes: &Volumes) -> anyhow::Result<(Duration, Duration)> {
    let role = Role::Node(VICTIM);
    let agent = Record::alive(&stage.cluster.folder().run(), &role)?.context("the node has no agent")?.1;
    let killed = Instant::now();
    agent.signal(Signal::KILL).context("kill the agent")?;
    agent.ended().await.context("wait for the end of the agent")?;
    pod::kill_all(&stage.cluster.folder().node(VICTIM)).context("kill the pods of the node")?;
    volumes.until_it_is(VOLUME, Robustness::Degraded).await?;
    let degraded = killed.elapsed();
    let started = Instant::now();
    stage.cluster.starter.start(&role).await?;
    volumes.until_it_is(VOLUME, Robustness::Healthy).await?;
    Ok((degraded, started.elapsed()))
}
