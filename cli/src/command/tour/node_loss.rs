//! Act: a volume goes on while a node is killed, and heals when the node is back.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use kube::api::{Api, Patch, PatchParams, PostParams};
use midflight_agent::pod;
use midflight_api::longhorn::{Engine, NAMESPACE, Robustness, Volume};
use midflight_block::check::workload::{Report, Workload};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::program::Outcome;
use crate::{
    cluster::Temporary,
    process::{Record, Role},
};

const VOLUME: &str = "tour";
const SIZE: u64 = 64 << 20;
/// Blocks that the client uses, so that many are written more than once.
const BLOCKS: u64 = 2048;
/// The node that is killed; the volume is attached to another.
const VICTIM: u8 = 2;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(super) async fn play(stage: &Temporary) -> anyhow::Result<Outcome> {
    let client = stage.client().await?;
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let engines: Api<Engine> = Api::namespaced(client, NAMESPACE);
    let object = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": { "name": VOLUME },
        "spec": {
            "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v2", "frontend": "nbd",
            "nodeID": "node-1",
        },
    });
    let began = Instant::now();
    let object = serde_json::from_value(object).context("write down a volume")?;
    volumes.create(&PostParams::default(), &object).await.context("create a volume")?;
    until(&volumes, Robustness::Healthy).await?;
    let attached = began.elapsed();

    let engine = engines.get(&format!("{VOLUME}-e-0")).await.context("look at the engine")?;
    let endpoint = engine.status.unwrap_or_default().endpoint.to_string();
    let socket = endpoint.split_once("?socket=").context("the volume has no socket")?.1;
    let enough = Arc::new(AtomicBool::new(false));
    let (working, killing) = tokio::join!(work(stage, socket.into(), Arc::clone(&enough)), async {
        let told = lose_and_find(stage, &volumes).await;
        enough.store(true, Ordering::Relaxed);
        told
    });
    let ((degraded, healed), report) = (killing?, working?);
    anyhow::ensure!(report.is_clean(), "the client saw {} errors: {:?}", report.errors, report.complaints);

    let detach = Patch::Merge(json!({ "spec": { "nodeID": "" } }));
    volumes.patch(VOLUME, &PatchParams::default(), &detach).await.context("detach the volume")?;
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

/// A client that never stops until it is told to.
async fn work(stage: &Temporary, socket: PathBuf, enough: Arc<AtomicBool>) -> anyhow::Result<Report> {
    let workload = Workload { socket, volume: VOLUME.to_owned(), depth: 8, blocks: BLOCKS, seed: 7 };
    Ok(stage.block(move || workload.run(PATIENCE * 3, &enough)).await??)
}

/// How long the volume took to be called degraded, and to be healthy again.
async fn lose_and_find(stage: &Temporary, volumes: &Api<Volume>) -> anyhow::Result<(Duration, Duration)> {
    let role = Role::Node(VICTIM);
    let agent = Record::alive(&stage.folder().run(), &role)?.context("the node has no agent")?.1;
    let killed = Instant::now();
    agent.signal(Signal::KILL).context("kill the agent")?;
    agent.ended().await.context("wait for the end of the agent")?;
    pod::kill_all(&stage.folder().node(VICTIM)).context("kill the pods of the node")?;
    until(volumes, Robustness::Degraded).await?;
    let degraded = killed.elapsed();
    let started = Instant::now();
    stage.starter.start(&role).await?;
    until(volumes, Robustness::Healthy).await?;
    Ok((degraded, started.elapsed()))
}

async fn until(volumes: &Api<Volume>, wanted: Robustness) -> anyhow::Result<()> {
    let reached = async {
        loop {
            let volume = volumes.get(VOLUME).await.context("look at the volume")?;
            if volume.status.is_some_and(|status| status.robustness == wanted) {
                return Ok(());
            }
            sleep(LOOK_EVERY).await;
        }
    };
    timeout(PATIENCE, reached).await.with_context(|| format!("the volume never was {wanted}"))?
}
