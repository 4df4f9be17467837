//! Processes of every kind are killed while a volume is created, attached, rebuilt, grown, kept, backed up, restored, detached
//! and deleted; everything ends where it should, and nothing is left.
//!
//! One life of a volume meets nine deaths. `MIDFLIGHT_KILLS=all` lives so often that each kind of process dies in each part, with
//! both data engines and both frontends (the soak does); otherwise once, and `MIDFLIGHT_SEED` draws the same deaths again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "whoever repeats a failed run needs its seed")]

use std::panic::AssertUnwindSafe;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use futures::FutureExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Client;
use kube::api::{Api, ListParams};
use midflight_api::longhorn::{
    Backup, BackupState, Engine, InstanceManager, InstanceManagerState, NAMESPACE, Replica, Snapshot, Volume,
};
use midflight_tests::cluster::Cluster;
use midflight_tests::endpoint::Endpoint;
use midflight_tests::leaks::Held;
use midflight_tests::storage::run;
use tokio::time::{Instant, sleep};

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Control,
    Agent,
    InstanceManager,
    Engine,
    Replica,
    Frontend,
    Keeper,
}

const VICTIMS: [Victim; 7] = [
    Victim::Control,
    Victim::Agent,
    Victim::InstanceManager,
    Victim::Engine,
    Victim::Replica,
    Victim::Frontend,
    Victim::Keeper,
];

/// What a volume is made of: data engine and frontend. Engines and replicas of the second are no processes of their own.
const SHAPES: [(&str, &str); 2] = [("v1", "nbd"), ("v2", "blockdev")];

const PATIENCE: Duration = Duration::from_secs(150);
/// The longest between the begin of a part and the death in it.
const LATEST: u64 = 400;
const NODES: i32 = 3;
const NODE: &str = "node-1";
const SIZE: u64 = 8 << 20;

/// A cluster in which processes die.
struct Life {
    cluster: Cluster,
    client: Client,
    /// What it had before the volume.
    before: Held,
    seed: u64,
    parts: u64,
    /// What was written after which part, as a byte: whatever comes, it can be read.
    written: Vec<u8>,
}

impl Life {
    /// Begins a part of the life, kills somebody in the middle of it, and waits for its end.
    async fn part(&mut self, begin: &[&str], end: impl AsyncFn(&Life) -> anyhow::Result<bool>) {
        let victim = VICTIMS[usize::try_from((self.parts + self.seed) % 7).unwrap()];
        self.parts += 1;
        let about = format!("{begin:?} while {victim:?} dies, MIDFLIGHT_SEED={}", self.seed);
        let began = Instant::now();
        self.cluster.midflight(begin).await.with_context(|| about.clone()).unwrap();
        sleep(Duration::from_millis((self.seed * 31 + self.parts).wrapping_mul(2_654_435_761) % LATEST))
            .await;
        self.kill(victim).await.with_context(|| about.clone()).unwrap();
        self.until(&about, end).await;
        // One death at a time: who died is back before the next one dies.
        let back =
            async |life: &Life| Ok(Held::on_machine(&life.cluster.dir())?.has_processes_of(&life.before));
        self.until(&format!("{about}: all are back"), back).await;
        println!("{about}: {:?}", began.elapsed());
    }

    async fn until(&self, about: &str, end: impl AsyncFn(&Life) -> anyhow::Result<bool>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Who is asked may be the one that was killed.
            match end(self).await {
                Ok(true) => return,
                Ok(false) | Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(200)).await,
                ended => {
                    let now = self.cluster.midflight(&["status"]).await;
                    panic!("{about}: {ended:?}\n{now:?}");
                }
            }
        }
    }

    async fn kill(&self, victim: Victim) -> anyhow::Result<()> {
        match victim {
            Victim::Control => self.cluster.kill(&[self.cluster.process("control")?]).await?,
            Victim::Agent => self.cluster.kill(&[self.cluster.process(NODE)?]).await?,
            Victim::InstanceManager => self.kill_role("instance-manager").await?,
            Victim::Engine => self.kill_role("engine").await?,
            Victim::Replica => self.kill_role("replica").await?,
            Victim::Frontend => self.kill_role("frontend").await?,
            Victim::Keeper => self.kill_role("keeper").await?,
        }
        match victim {
            Victim::Control | Victim::Agent => self.cluster.start().await,
            Victim::InstanceManager
            | Victim::Engine
            | Victim::Replica
            | Victim::Frontend
            | Victim::Keeper => Ok(()),
        }
    }

    /// Kills the processes of a role on the first node, if there are any now.
    async fn kill_role(&self, role: &str) -> anyhow::Result<()> {
        self.cluster.kill(&self.cluster.processes_of(NODE, role)?).await
    }

    fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn stands(&self, name: &str, state: &str, robustness: &str) -> anyhow::Result<bool> {
        let status = self.all::<Volume>().get(name).await?.status.unwrap_or_default();
        Ok((status.state.as_str(), status.robustness.as_str()) == (state, robustness))
    }

    async fn endpoint(&self, volume: &str) -> String {
        let engine = self.all::<Engine>().get(&format!("{volume}-e-0")).await.unwrap();
        engine.status.unwrap_or_default().endpoint.to_string()
    }

    /// Writes something of its own to the first volume; it is durable when this returns.
    async fn write(&mut self) {
        let byte = u8::try_from(self.written.len()).unwrap() + 1;
        let endpoint = self.endpoint("vol-1").await;
        let write = format!("write -P {byte} {}k 64k", 64 * u32::from(byte));
        run("qemu-io", &["-f", "raw", "-c", &write, "-c", "flush", &endpoint]).await.unwrap();
        self.written.push(byte);
    }

    /// A volume holds what was written first, so many times.
    async fn holds(&self, volume: &str, written: usize) {
        let endpoint = self.endpoint(volume).await;
        for byte in &self.written[..written] {
            let read = format!("read -P {byte} {}k 64k", 64 * u32::from(*byte));
            run("qemu-io", &["-f", "raw", "-r", "-c", &read, &endpoint]).await.unwrap();
        }
    }
}

/// Whether every node has what it needs for volumes: nothing is started later that was not there before the first volume.
async fn serves(life: &Life) -> anyhow::Result<bool> {
    let managers = life.all::<InstanceManager>().list(&ListParams::default()).await?;
    let runs = |manager: &InstanceManager| {
        manager.status.as_ref().is_some_and(|status| status.current_state == InstanceManagerState::Running)
    };
    let sets = life.all::<DaemonSet>().list(&ListParams::default()).await?;
    let is_ready = |set: &DaemonSet| set.status.as_ref().is_some_and(|status| status.number_ready == NODES);
    // Frontends, keepers, the engine image, and the images of managers.
    Ok(managers.items.len() == 6
        && managers.iter().all(runs)
        && sets.items.len() >= 4
        && sets.iter().all(is_ready))
}

async fn detached(life: &Life) -> anyhow::Result<bool> {
    life.stands("vol-1", "detached", "unknown").await
}

async fn healthy(life: &Life) -> anyhow::Result<bool> {
    life.stands("vol-1", "attached", "healthy").await
}

async fn grown(life: &Life) -> anyhow::Result<bool> {
    let size = life.all::<Engine>().get("vol-1-e-0").await?.status.unwrap_or_default().current_size;
    Ok(size.bytes() == 2 * SIZE && healthy(life).await?)
}

async fn kept(life: &Life) -> anyhow::Result<bool> {
    Ok(life.all::<Snapshot>().get("monday").await?.status.unwrap_or_default().ready_to_use)
}

async fn copied(life: &Life) -> anyhow::Result<bool> {
    let status = life.all::<Backup>().get("b-1").await?.status.unwrap_or_default();
    assert_ne!(status.state, BackupState::Error, "{}", status.error);
    Ok(status.state == BackupState::Completed)
}

async fn restored(life: &Life) -> anyhow::Result<bool> {
    let status = life.all::<Volume>().get("vol-2").await?.status.unwrap_or_default();
    Ok(status.restore_initiated
        && !status.restore_required
        && life.stands("vol-2", "detached", "unknown").await?)
}

async fn gone(life: &Life) -> anyhow::Result<bool> {
    let replicas = life.all::<Replica>().list(&ListParams::default()).await?;
    let volumes = life.all::<Volume>().list(&ListParams::default()).await?;
    Ok(volumes.items.is_empty() && replicas.items.is_empty())
}

/// The life of a volume, from a cluster in an empty folder to nothing.
async fn live(seed: u64) -> anyhow::Result<()> {
    let (engine, frontend) = SHAPES[usize::from(seed / 7 % 2 == 1)];
    let cluster = Cluster::up(3).await?;
    let client = Endpoint::from_kubeconfig(&cluster.kubeconfig()).await?.client();
    let folder = cluster.dir();
    let before = Held::default();
    let mut life = Life { cluster, client, before, seed, parts: 0, written: Vec::new() };
    life.until("all that serves volumes runs", serves).await;
    life.before = Held::now(&folder, &life.client).await?;

    let shape = ["--engine", engine, "--frontend", frontend];
    let create = [&["volume", "create", "vol-1", "--size", "8Mi", "--replicas", "3"], &shape[..]].concat();
    life.part(&create, detached).await;
    life.part(&["volume", "attach", "vol-1", "--node", NODE], healthy).await;
    life.write().await;

    // A replica is rebuilt: its process dies, and somebody else while it returns.
    let role = if engine == "v1" { "replica" } else { "instance-manager" };
    let lost = life.cluster.processes_of("node-2", role)?;
    ensure!(!lost.is_empty(), "no {role} on node-2");
    life.cluster.kill(&lost).await?;
    life.write().await;
    life.part(&["node", "ls"], healthy).await;
    life.part(&["volume", "expand", "vol-1", "--size", "16Mi"], grown).await;
    life.write().await;
    life.part(&["volume", "snapshot", "create", "vol-1", "--name", "monday"], kept).await;
    let in_backup = life.written.len();
    life.write().await;
    let back_up = ["volume", "backup", "create", "vol-1", "--snapshot", "monday", "--name", "b-1"];
    life.part(&back_up, copied).await;
    let restore = [&["volume", "restore", "vol-2", "--from", "b-1", "--replicas", "2"], &shape[..]].concat();
    life.part(&restore, restored).await;
    life.write().await;
    life.part(&["volume", "detach", "vol-1"], detached).await;

    for (name, written) in [("vol-1", life.written.len()), ("vol-2", in_backup)] {
        life.cluster.midflight(&["volume", "attach", name, "--node", "node-2", "--wait"]).await?;
        life.holds(name, written).await;
    }
    life.cluster.midflight(&["volume", "backup", "rm", "b-1", "--wait"]).await?;
    life.cluster.midflight(&["volume", "rm", "vol-2", "--force", "--wait"]).await?;
    life.part(&["volume", "rm", "vol-1", "--force"], gone).await;
    life.before.until_no_more(&folder, &life.client).await?;

    life.cluster.purge().await?;
    Held::on_machine(&folder)?.ensure_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_in_the_life_of_a_volume_everything_ends_where_it_should() {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = std::env::var("MIDFLIGHT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    let lives = if std::env::var("MIDFLIGHT_KILLS").is_ok_and(|which| which == "all") { 14 } else { 1 };
    let mut failed = Vec::new();
    for seed in seed..seed + lives {
        // One that goes wrong does not keep the others from being tried; a panic has told its reason already.
        match AssertUnwindSafe(Box::pin(live(seed))).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(wrong)) => failed.push(format!("MIDFLIGHT_SEED={seed}: {wrong:#}")),
            Err(_) => failed.push(format!("MIDFLIGHT_SEED={seed}")),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
