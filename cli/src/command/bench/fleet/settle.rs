//! All storage controllers before a fleet at rest: how long they take to know it, and what one event costs them.
//!
//! Nodes have no agents and volumes no data; every object that a detached volume consists of is there. The same is measured
//! with a few volumes first, as the peer: what one event costs must not depend on how many there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use midflight_api::longhorn::{NAMESPACE, Volume};
use midflight_apiserver::auth::Identity;
use midflight_apiserver::{ApiServer, Config};
use midflight_operator::Writer;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

use super::hollow;
use crate::command::bench::figure::{Better, Figure};
use crate::memory::resident_bytes;

/// How many volumes the peer has.
const FEW: u32 = 1000;
/// How many events are measured.
const EVENTS: u32 = 500;
/// Writes under way at once while the fleet is made.
const AT_ONCE: usize = 64;
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The controllers know a fleet within this, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How long nothing may happen before the fleet counts as quiet.
const QUIET_FOR: Duration = Duration::from_secs(3);

/// What one fleet costs.
struct Cost {
    converge_seconds: f64,
    cpu_seconds_per_thousand: f64,
    bytes_per_thousand: f64,
    event_cpu_ms: f64,
    event_answer_ms: f64,
}

/// Measures a few volumes, then all.
pub(super) async fn measure(nodes: u32, volumes: u32, say: &dyn Fn(String)) -> anyhow::Result<Vec<Figure>> {
    let few = one(nodes.min(FEW), volumes.min(FEW), say).await?;
    let all = one(nodes, volumes, say).await?;
    let figure =
        |name: &str, unit, ours: f64, peer: &[f64]| Figure::new(name, unit, Better::Lower, &[ours], peer);
    let figures = [
        figure("all volumes known after the start", "s", all.converge_seconds, &[]),
        figure(
            "CPU per 1,000 volumes until then",
            "s",
            all.cpu_seconds_per_thousand,
            &[few.cpu_seconds_per_thousand],
        ),
        figure(
            "memory per 1,000 volumes",
            "MiB",
            all.bytes_per_thousand / MIB,
            &[few.bytes_per_thousand / MIB],
        ),
        figure("CPU of one event of a volume", "ms", all.event_cpu_ms, &[few.event_cpu_ms]),
        figure(
            "one event until its volume's status follows",
            "ms",
            all.event_answer_ms,
            &[few.event_answer_ms],
        ),
    ];
    Ok(figures.into_iter().flatten().collect())
}

const MIB: f64 = (1 << 20) as f64;

async fn one(nodes: u32, volumes: u32, say: &dyn Fn(String)) -> anyhow::Result<Cost> {
    let folder = TempDir::with_prefix("midflight-fleet.").context("make a temporary folder")?;
    let server = ApiServer::open(Config::new(folder.path())).await.context("open an API server")?;
    let client = Client::new(server.service(Identity::admin("system:midflight")), "default");
    let standing = midflight_operator::bootstrap(&client).await.context("install the kinds")?;
    say(format!("preparing {volumes} volumes on {nodes} nodes"));
    prepare(&client, nodes, volumes).await?;

    let own = i32::try_from(std::process::id()).context("read our own process id")?;
    let (memory, cpu, began) = (resident_bytes(own)?, cpu_seconds()?, Instant::now());
    let writer = Arc::new(Writer::new(client.clone()));
    let running = {
        let (writer, standing) = (Arc::clone(&writer), standing.clone());
        tokio::spawn(async move { midflight_operator::run(writer, &standing).await })
    };
    let cost = async {
        until_known(&client, volumes).await?;
        let converge_seconds = began.elapsed().as_secs_f64();
        let cpu_used = cpu_seconds()? - cpu;
        until_quiet(&writer).await?;
        let grown = resident_bytes(own)?.saturating_sub(memory) as f64;
        say(format!("all are known after {converge_seconds:.1} s; measuring {EVENTS} events"));
        let (event_cpu_ms, event_answer_ms) = events(&client, volumes).await?;
        let thousands = f64::from(volumes) / 1000.0;
        anyhow::Ok(Cost {
            converge_seconds,
            cpu_seconds_per_thousand: cpu_used / thousands,
            bytes_per_thousand: grown / thousands,
            event_cpu_ms,
            event_answer_ms,
        })
    }
    .await;
    running.abort();
    server.shutdown().await;
    cost
}

async fn prepare(client: &Client, nodes: u32, volumes: u32) -> anyhow::Result<()> {
    let machines: Api<Node> = Api::all(client.clone());
    for number in 0..nodes {
        let name = hollow::name_of(number);
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "status": { "capacity": { "ephemeral-storage": "1073741824Ki" } },
        });
        machines
            .create(&PostParams::default(), &serde_json::from_value(node)?)
            .await
            .context("make a node")?;
    }
    let made = stream::iter(0..volumes)
        .map(|number| hollow::at_rest(client, number, hollow::name_of(number % nodes)));
    made.buffer_unordered(AT_ONCE).try_collect::<()>().await
}

/// Waits until the controllers have said of every volume how it is.
async fn until_known(client: &Client, volumes: u32) -> anyhow::Result<()> {
    let all: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let deadline = Instant::now() + PATIENCE;
    // The last to be known is asked for first, so that the question costs little while many are missing.
    let mut next = volumes;
    while next > 0 {
        let volume = all.get(&format!("vol-{}", next - 1)).await.context("look at a volume")?;
        let is_known = volume.status.is_some_and(|status| status.state.as_str() == "detached");
        match is_known {
            true => next -= 1,
            false if Instant::now() > deadline => {
                bail!("volume vol-{} is not known after {PATIENCE:?}", next - 1)
            }
            false => sleep(LOOK_EVERY).await,
        }
    }
    Ok(())
}

/// Waits until the controllers write nothing any more.
async fn until_quiet(writer: &Writer) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut before = writer.issued();
    loop {
        sleep(QUIET_FOR).await;
        let now = writer.issued();
        if now == before {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the controllers still write after {PATIENCE:?}");
        }
        before = now;
    }
}

/// Lets volumes be asked for another size, one after the other: the CPU that each costs all of us, and how
/// long its status takes to say so.
async fn events(client: &Client, volumes: u32) -> anyhow::Result<(f64, f64)> {
    let all: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let (cpu, count) = (cpu_seconds()?, EVENTS.min(volumes));
    let mut waited = Vec::new();
    for event in 0..count {
        let name = format!("vol-{}", event * (volumes / count));
        let began = Instant::now();
        let grow = Patch::Merge(json!({ "spec": { "size": "2147483648" } }));
        all.patch(&name, &PatchParams::default(), &grow).await.context("change a volume")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let volume = all.get(&name).await.context("look at a volume")?;
            if volume.status.is_some_and(|status| status.expansion_required) {
                break;
            }
            if Instant::now() > deadline {
                bail!("{name} did not follow its change within {PATIENCE:?}");
            }
            sleep(Duration::from_millis(1)).await;
        }
        waited.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    let cpu = (cpu_seconds()? - cpu) * 1000.0 / f64::from(count);
    let median = crate::command::bench::figure::median(&waited).unwrap_or_default();
    Ok((cpu, median))
}

/// CPU that this process has used.
fn cpu_seconds() -> anyhow::Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").context("look at our own process")?;
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    let (user, system) = (ticks(11), ticks(12));
    Ok((user.context("user time")? + system.context("system time")?) / TICKS_PER_SECOND)
}
