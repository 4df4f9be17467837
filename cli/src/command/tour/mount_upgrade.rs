//! Act: the FUSE daemon of a node is replaced when its last workload ends, not before.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client,
    api::{Api, DeleteParams, Patch, PatchParams, PostParams},
};
use midflight_api::fluid::{Dataset, JuiceFSRuntime};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    program::Outcome,
    stage::Stage,
    workload::{self, Met},
};
use crate::{
    cluster::Temporary,
    command::mount::{self, observe},
};

const DATASET: &str = "library";
const NAMESPACE: &str = "default";
const NODE: &str = "node-1";
const NODE_NUMBER: u8 = 1;
const IMAGE: &str = "midflight.local/fuse";
const NOW: &str = concat!("v", env!("CARGO_PKG_VERSION"));
const NEXT: &str = "next";
/// The workload that keeps the old daemon, and the one that gets the new.
const FIRST: &str = "reader-1";
const SECOND: &str = "reader-2";
/// Records after which a workload counts as at work.
const AT_WORK: u64 = 100;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return Ok(Outcome::Skipped("mounts need root and /dev/fuse".to_owned()));
    }
    let next = match stage.next().await? {
        Ok(next) => next,
        Err(absent) => return Ok(Outcome::Skipped(absent.to_string())),
    };
    publish(stage, next).await?;
    let scene = Scene::build(&stage.cluster).await?;
    scene.start(FIRST).await?;
    scene.until_at_work(FIRST).await?;

    scene.want(NEXT).await?;
    let wanted = |seen: &mount::Mounted| seen.image == format!("{IMAGE}:{NEXT}");
    scene.until("the claim asks for the next image", wanted).await?;
    scene.until_at_work(FIRST).await?;
    let kept = scene.look().await?;
    let kept = kept.node(NODE).filter(|daemon| !daemon.up_to_date).context("a daemon in use was replaced")?;
    let kept_by: Vec<&str> = kept.used_by.iter().map(|user| user.pod.as_str()).collect();
    anyhow::ensure!(kept_by == [FIRST], "the daemon is said to be kept by {kept_by:?}");
    let kept_image = kept.image.clone();

    scene.end(FIRST).await?;
    let ended = Instant::now();
    scene.start(SECOND).await?;
    let gone = async {
        let is_gone = |seen: &mount::Mounted| seen.node(NODE).is_none_or(|daemon| daemon.up_to_date);
        scene.until("the old daemon has gone", is_gone).await?;
        anyhow::Ok(ended.elapsed())
    };
    let back = async {
        scene.until_begun(SECOND, 1).await?;
        anyhow::Ok(ended.elapsed())
    };
    let (gone, back) = tokio::try_join!(gone, back)?;
    scene.until_at_work(SECOND).await?;
    let new = scene.look().await?;
    let new = new.node(NODE).filter(|daemon| daemon.up_to_date).context("the daemon is not the new one")?;
    let new_image = new.image.clone();
    scene.end(SECOND).await?;
    let met = scene.judge()?;
    scene.clear().await?;
    Ok(Outcome::Shown(vec![
        format!("the image changed under a workload: its daemon stayed {kept_image}, kept by {FIRST}"),
        format!("that daemon was gone {} ms after its last workload", gone.as_millis()),
        format!("the next workload, asked for at once, waited {} ms and got {new_image}", back.as_millis()),
        in_all(&met),
    ]))
}

async fn publish(stage: &Stage<'_>, next: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("find this program")?;
    for (tag, program) in [(NOW, own.as_path()), (NEXT, next)] {
        stage.publish(program, &format!("{IMAGE}:{tag}")).await?;
    }
    Ok(())
}

fn in_all(met: &[Met]) -> String {
    let longest = met.iter().map(|met| met.longest_turn_us).max().unwrap_or_default();
    format!(
        "{} records written, read back and found in the folder, 0 errors, the slowest took {:.1} ms: no byte was lost",
        met.iter().map(|met| met.records).sum::<u64>(),
        longest as f64 / 1000.0
    )
}

/// A dataset, and workloads that use it on one node.
struct Scene {
    client: Client,
    pods: Api<Pod>,
    runtimes: Api<JuiceFSRuntime>,
    datasets: Api<Dataset>,
    /// The folder of the dataset on the node.
    data: PathBuf,
}

fn object<K: serde::de::DeserializeOwned>(json: Value) -> anyhow::Result<K> {
    serde_json::from_value(json).context("describe an object of the act")
}

impl Scene {
    async fn build(cluster: &Temporary) -> anyhow::Result<Scene> {
        let client = cluster.client().await?;
        let data = cluster.folder().node(NODE_NUMBER).join("data");
        std::fs::create_dir_all(&data).with_context(|| format!("make {}", data.display()))?;
        let scene = Scene {
            pods: Api::namespaced(client.clone(), NAMESPACE),
            runtimes: Api::namespaced(client.clone(), NAMESPACE),
            datasets: Api::namespaced(client.clone(), NAMESPACE),
            client,
            data,
        };
        let dataset = object(json!({
            "metadata": { "name": DATASET },
            "spec": { "mounts": [{ "mountPoint": "local:///data" }], "accessModes": ["ReadWriteMany"] },
        }))?;
        let runtime = object(json!({
            "metadata": { "name": DATASET },
            "spec": { "fuse": { "image": IMAGE, "imageTag": NOW, "updateStrategy": "OnIdle" } },
        }))?;
        let parameters = PostParams::default();
        scene.datasets.create(&parameters, &dataset).await.context("create the dataset")?;
        scene.runtimes.create(&parameters, &runtime).await.context("create the runtime")?;
        scene.until("the dataset has a claim", |seen| !seen.image.is_empty()).await?;
        Ok(scene)
    }

    async fn want(&self, tag: &str) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "spec": { "fuse": { "imageTag": tag } } }));
        let changed = self.runtimes.patch(DATASET, &PatchParams::default(), &change).await;
        changed.map(drop).context("change the image of the runtime")
    }

    async fn start(&self, name: &str) -> anyhow::Result<()> {
        let pod = object(json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 30,
                "containers": [{
                    "name": "main", "image": format!("{IMAGE}:{NOW}"),
                    "args": ["tour-workload", "/data", "--name", name],
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": DATASET } }],
            },
        }))?;
        let made = self.pods.create(&PostParams::default(), &pod).await;
        made.map(drop).with_context(|| format!("create the pod {name}"))
    }

    /// Waits until a workload has written some more records.
    async fn until_at_work(&self, name: &str) -> anyhow::Result<()> {
        self.until_begun(name, workload::begun(&self.data, name) + AT_WORK).await
    }

    async fn until_begun(&self, name: &str, records: u64) -> anyhow::Result<()> {
        wait(&format!("{name} has written {records} records"), async || {
            Ok((workload::begun(&self.data, name) >= records).then_some(()))
        })
        .await
    }

    /// Ends a workload and waits until it has gone.
    async fn end(&self, name: &str) -> anyhow::Result<()> {
        let ended = self.pods.delete(name, &DeleteParams::default()).await;
        ended.map(drop).with_context(|| format!("delete the pod {name}"))?;
        wait(&format!("{name} has ended"), async || {
            let pod = self.pods.get_opt(name).await.with_context(|| format!("look at the pod {name}"))?;
            Ok(pod.is_none().then_some(()))
        })
        .await
    }

    /// What `midflight mount show` says.
    async fn look(&self) -> anyhow::Result<mount::Mounted> {
        observe::one(&self.client, NAMESPACE, DATASET).await?.context("the dataset has gone")
    }

    async fn until(&self, what: &str, holds: impl Fn(&mount::Mounted) -> bool) -> anyhow::Result<()> {
        wait(what, async || Ok(holds(&self.look().await?).then_some(()))).await
    }

    fn judge(&self) -> anyhow::Result<Vec<Met>> {
        [FIRST, SECOND].iter().map(|name| workload::judge(&self.data, name)).collect()
    }

    /// Removes the dataset; its daemon goes with it.
    async fn clear(&self) -> anyhow::Result<()> {
        let gone = DeleteParams::background();
        self.runtimes.delete(DATASET, &gone).await.context("delete the runtime")?;
        self.datasets.delete(DATASET, &gone).await.context("delete the dataset")?;
        let daemons = kube::api::ListParams::default().labels(&format!("release={DATASET}"));
        wait("the daemon of the dataset has gone", async || {
            let left = self.pods.list(&daemons).await.context("list the daemons")?;
            Ok(left.items.is_empty().then_some(()))
        })
        .await
    }
}

async fn wait<T>(what: &str, mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let reached = async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            sleep(LOOK_EVERY).await;
        }
    };
    timeout(PATIENCE, reached).await.with_context(|| format!("not within {PATIENCE:?}: {what}"))?
}
