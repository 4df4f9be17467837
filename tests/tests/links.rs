//! Links between nodes, and between nodes and control, are cut in every part of a volume's life and mended again; everything
//! ends where it should, and clients see no error.
//!
//! One life of a volume meets nine cuts. `MIDFLIGHT_CUTS=all` lives so often that each link is cut in each part, with both data
//! engines (the soak does); otherwise once, and `MIDFLIGHT_SEED` draws the same cuts again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use kube::api::{Api, DeleteParams, ListParams};
use midflight_api::longhorn::{BackupState, DataEngine, Engine, NAMESPACE};
use midflight_tests::load::Load;
use midflight_tests::network::End::{self, Control, Node};
use midflight_tests::place;
use midflight_tests::storage::{Program, Storage};
use serde_json::{Value, json};
use tokio::time::sleep;

const LINKS: [(End, End); 6] = [
    (Control, Node(1)),
    (Node(1), Node(2)),
    (Control, Node(2)),
    (Node(1), Node(3)),
    (Node(2), Node(3)),
    (Control, Node(3)),
];
const ENGINES: [DataEngine; 2] = [DataEngine::V2, DataEngine::V1];
/// How long a link stays cut: shorter than anybody notices, until requests are late, until connections are given up.
const CUT_FOR: [Duration; 3] = [Duration::from_millis(300), Duration::from_secs(2), Duration::from_secs(7)];
const SIZE: u64 = 4 << 20;
const IMAGE: &str = "midflight.local/engine:one";

/// A cluster whose links are cut.
struct Life {
    storage: Storage,
    seed: u64,
    parts: u64,
}

impl Life {
    /// Begins a part of the life, cuts a link in the middle of it, mends it, and waits for the end.
    async fn part(
        &mut self,
        what: &str,
        begin: impl AsyncFnOnce(&mut Storage) -> anyhow::Result<()>,
        end: impl AsyncFn(&Storage) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let draw = |of: usize, number: u64| usize::try_from(number).unwrap() % of;
        let (one, other) = LINKS[draw(LINKS.len(), self.seed + self.parts)];
        let cut_for = CUT_FOR[draw(CUT_FOR.len(), self.seed / 6 + self.parts)];
        self.parts += 1;
        let about = || format!("{what} while {one} and {other} are apart for {cut_for:?}");
        begin(&mut self.storage).await.with_context(about)?;
        self.storage.network()?.cut(one, other)?;
        sleep(cut_for).await;
        self.storage.network()?.mend(one, other)?;
        let reached = async || Ok(end(&self.storage).await?.then_some(()));
        let reached = self.storage.until(what, reached).await;
        reached.with_context(|| self.storage.logs()).with_context(about)
    }
}

fn spec(engine: DataEngine, more: &Value) -> Value {
    let mut spec = json!({ "dataEngine": engine, "frontend": "nbd" });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

async fn stands(storage: &Storage, state: &str, robustness: &str) -> anyhow::Result<bool> {
    let status = storage.volumes().get("vol-1").await?.status.unwrap_or_default();
    Ok((status.state.as_str(), status.robustness.as_str()) == (state, robustness))
}

async fn healthy(storage: &Storage) -> anyhow::Result<bool> {
    stands(storage, "attached", "healthy").await
}

async fn detached(storage: &Storage) -> anyhow::Result<bool> {
    stands(storage, "detached", "unknown").await
}

async fn grown(storage: &Storage) -> anyhow::Result<bool> {
    let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let size = engines.get("vol-1-e-0").await?.status.unwrap_or_default().current_size;
    Ok(size.bytes() == 2 * SIZE && healthy(storage).await?)
}

async fn kept(storage: &Storage) -> anyhow::Result<bool> {
    Ok(storage.snapshots().get("monday").await?.status.unwrap_or_default().ready_to_use)
}

async fn copied(storage: &Storage) -> anyhow::Result<bool> {
    let status = storage.backups().get("b-1").await?.status.unwrap_or_default();
    anyhow::ensure!(status.state != BackupState::Error, "the backup was given up: {}", status.error);
    Ok(status.state == BackupState::Completed)
}

async fn restored(storage: &Storage) -> anyhow::Result<bool> {
    let status = storage.volumes().get("vol-2").await?.status.unwrap_or_default();
    let is_restored = status.restore_initiated && !status.restore_required;
    Ok(is_restored && status.state.as_str() == "detached")
}

async fn gone(storage: &Storage) -> anyhow::Result<bool> {
    let mut left = storage.volumes().list(&ListParams::default()).await?.items.len();
    for node in ["node-1", "node-2", "node-3"] {
        for folder in ["replicas", "instances"] {
            left += std::fs::read_dir(storage.room(node).join(folder))?.count();
        }
    }
    Ok(left == 0)
}

async fn live(seed: u64) -> anyhow::Result<()> {
    let engine = ENGINES[usize::from(seed / 6 % 2 == 1)];
    let storage = Storage::start_apart(3, engine).await?;
    storage.make_backup_target("default").await?;
    if engine == DataEngine::V1 {
        storage.add_image(IMAGE, &Program::this()?, 1).await?;
        storage.set("default-engine-image", IMAGE).await?;
    }
    let mut life = Life { storage, seed, parts: 0 };
    let whole = spec(engine, &json!({ "size": SIZE.to_string(), "numberOfReplicas": 3 }));
    life.part("create", async |storage| storage.create_volume("vol-1", whole).await, detached).await?;
    let change =
        |change: Value| async move |storage: &mut Storage| storage.change_volume("vol-1", change).await;
    life.part("attach", change(json!({ "nodeID": "node-1" })), healthy).await?;
    let load = Load::on(&life.storage.endpoint("vol-1").await?, "vol-1", seed)?;
    life.storage.kill_manager("node-2").await?;
    life.storage.until_volume("vol-1", "attached", "degraded").await?;
    life.part("rebuild", async |storage| storage.restart_manager(2).await, healthy).await?;
    life.part("expand", change(json!({ "size": (2 * SIZE).to_string() })), grown).await?;
    life.part("snapshot", async |storage| storage.create_snapshot("vol-1", "monday").await, kept).await?;
    life.part("backup", async |storage| storage.create_backup("monday", "b-1", None).await, copied).await?;
    let url = life.storage.backups().get("b-1").await?.status.unwrap_or_default().url;
    let from = spec(engine, &json!({ "fromBackup": url, "numberOfReplicas": 2 }));
    life.part("restore", async |storage| storage.create_volume("vol-2", from).await, restored).await?;
    load.judge().await?;
    life.part("detach", change(json!({ "nodeID": "" })), detached).await?;
    life.storage.backups().delete("b-1", &DeleteParams::default()).await?;
    let delete = async |storage: &mut Storage| {
        for name in ["vol-1", "vol-2"] {
            storage.volumes().delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    };
    life.part("delete", delete, gone).await?;
    life.storage.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_link_is_cut_in_the_life_of_a_volume_everything_ends_where_it_should() {
    if !rustix::process::geteuid().is_root() {
        return place::skip("network namespaces need root");
    }
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = std::env::var("MIDFLIGHT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    let lives = if std::env::var("MIDFLIGHT_CUTS").is_ok_and(|which| which == "all") { 12 } else { 1 };
    let mut failed = Vec::new();
    for seed in seed..seed + lives {
        // One that goes wrong does not keep the others from being tried.
        if let Err(wrong) = Box::pin(live(seed)).await {
            failed.push(format!("MIDFLIGHT_SEED={seed}: {wrong:#}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
