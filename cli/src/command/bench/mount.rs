//! `midflight bench mount`: what an upgrade of FUSE daemons asks of the API server, on thousands of hollow nodes.
//!
//! Plugins and operator are the real ones, the API server is the embedded one; nodes, daemons and workloads are
//! hollow. The DaemonSet controller and kubelet are played here, and what they ask is not counted.

mod count;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use midflight_agent::csi::{
    Access,
    client::{CallError, Volume},
    hollow::HollowNode,
};
use midflight_api::fluid::{Dataset, IMAGE_VERSION_ANNOTATION, JuiceFSRuntime};
use midflight_apiserver::{ApiServer, Config};
use midflight_operator::{Figures, Writer, bootstrap, run_datasets};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

use self::count::{Counter, Requests};
use super::{
    conditions::Conditions,
    errand::interrupted,
    figure::{Better, Figure, show},
};
use crate::{
    cluster::Interrupts,
    output::{Answer, Paint},
    session::Session,
};

const OLD: &str = "fuse:v1";
const NEW: &str = "fuse:v2";
/// What the runtime says in the end.
const UPGRADED: &str = "no daemon is older than generation 2";
const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Count what an upgrade of FUSE daemons asks of the API server
///
/// Every hollow node has a workload that uses a dataset. The image of its daemons changes; then each workload ends
/// and another one comes, which gets the new daemon.
#[derive(Debug, Args)]
pub(crate) struct MountBench {
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 5000)]
    nodes: usize,
    /// Workloads that end at the same time
    #[arg(long, value_name = "N", default_value_t = 64)]
    at_once: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    conditions: Conditions,
    nodes: usize,
    seconds: f64,
    /// Asked from the change of the image until the runtime tells that every node runs the new one.
    plugins: Requests,
    operator: Requests,
    figures: Vec<Figure>,
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        let Measured { conditions, nodes, seconds, plugins, operator, figures } = self;
        let told = |who: &str, asked: &Requests| {
            let Requests { reads, lists, watches, writes } = asked;
            format!("{who}: {reads} reads, {lists} lists, {watches} watches, {writes} writes")
        };
        let (plugins, operator) = (told("plugins", plugins), told("operator", operator));
        format!("{conditions}\n{nodes} nodes in {seconds:.1} s\n{plugins}\n{operator}\n\n{}", show(figures))
    }
}

impl MountBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let measured = tokio::select! {
            measured = self.measure() => measured?,
            () = interrupts.next() => return Err(interrupted()),
        };
        session.answer(&measured)
    }

    async fn measure(&self) -> anyhow::Result<Measured> {
        let conditions = Conditions::before();
        let folder = tempfile::Builder::new().prefix("mf-mount.").tempdir().context("make a folder")?;
        let server = ApiServer::open(Config::new(folder.path().join("api"))).await.context("open the API")?;
        let disks = disks_of_nodes().context("make a folder for the nodes")?;
        let fleet = Fleet::make(&server, self, disks.path()).await?;
        let (seconds, plugins, operator) = fleet.upgrade().await?;
        fleet.operating.abort();
        server.shutdown().await;
        let per_node = |count: u64| count as f64 / self.nodes as f64;
        let figure = |name: &str, value: f64| Figure::new(name, "per node", Better::Lower, &[value], &[]);
        let figures = [
            figure("writes by plugins and operator", per_node(plugins.writes + operator.writes)),
            figure("reads by plugins and operator", per_node(plugins.reads + operator.reads)),
            figure("lists by plugins and operator", per_node(plugins.lists + operator.lists)),
        ];
        let figures = figures.into_iter().flatten().collect();
        Ok(Measured {
            conditions: conditions.after(),
            nodes: self.nodes,
            seconds,
            plugins,
            operator,
            figures,
        })
    }
}

/// In memory where that can be had: thousands of nodes would wait for one disk which in truth each has for itself.
fn disks_of_nodes() -> std::io::Result<tempfile::TempDir> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("mf-nodes.");
    folder.tempdir_in("/dev/shm").or_else(|_| folder.tempdir())
}

/// All nodes, and those who drive them.
struct Fleet {
    user: Client,
    nodes: Vec<HollowNode>,
    at_once: usize,
    plugins: Counter,
    operator: Counter,
    operating: tokio::task::JoinHandle<()>,
    /// Nodes whose daemon runs.
    ready: AtomicUsize,
    /// Those of them that have the new one.
    updated: AtomicUsize,
}

impl Fleet {
    /// Returns when every node has a workload on the old daemon.
    async fn make(server: &ApiServer, args: &MountBench, folder: &Path) -> anyhow::Result<Fleet> {
        let user = Counter::default().client(server);
        let (plugins, operator) = (Counter::default(), Counter::default());
        bootstrap(&user).await.context("prepare the API")?;
        let names: Vec<String> = (0..args.nodes).map(|number| format!("node-{number}")).collect();
        let api: Api<Node> = Api::all(user.clone());
        let made = stream::iter(&names).map(|name| {
            let node = Node {
                metadata: kube::core::ObjectMeta { name: Some(name.clone()), ..Default::default() },
                ..Default::default()
            };
            let api = api.clone();
            async move { api.create(&PostParams::default(), &node).await.map(drop) }
        });
        made.buffer_unordered(args.at_once).try_collect::<Vec<()>>().await.context("make the nodes")?;
        let writer = Arc::new(Writer::new(operator.client(server)));
        let operating = tokio::spawn(run_datasets(writer, Figures::default()));
        let volume = make_dataset(&user).await?;
        let client = plugins.client(server);
        let nodes = names
            .iter()
            .map(|name| HollowNode::new(name, client.clone(), &folder.join(name), volume.clone()));
        let nodes = nodes.collect::<Result<Vec<_>, _>>().context("make the hollow nodes")?;
        let fleet = Fleet {
            user,
            nodes,
            at_once: args.at_once,
            plugins,
            operator,
            operating,
            ready: AtomicUsize::new(0),
            updated: AtomicUsize::new(0),
        };
        fleet.each(async |node| fleet.begin(node, OLD).await).await?;
        fleet.report_daemons().await?;
        Ok(fleet)
    }

    async fn each(&self, work: impl AsyncFn(&HollowNode) -> anyhow::Result<()>) -> anyhow::Result<()> {
        stream::iter(&self.nodes)
            .map(|node| work(node))
            .buffer_unordered(self.at_once)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    /// A workload comes to a node, and with it a daemon.
    async fn begin(&self, node: &HollowNode, image: &str) -> anyhow::Result<()> {
        insist(async || node.stage().await).await?;
        node.daemon_comes(image).context("bring the daemon")?;
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.updated.fetch_add(usize::from(image == NEW), Ordering::Relaxed);
        insist(async || node.publish().await).await
    }

    /// A workload ends; its daemon is outdated and goes.
    async fn end(&self, node: &HollowNode) -> anyhow::Result<()> {
        insist(async || node.unpublish().await).await?;
        insist(async || node.unstage().await).await?;
        node.daemon_goes();
        self.ready.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the time it took, and what plugins and operator have asked.
    async fn upgrade(&self) -> anyhow::Result<(f64, Requests, Requests)> {
        self.plugins.take();
        self.operator.take();
        let begun = Instant::now();
        let runtimes: Api<JuiceFSRuntime> = Api::default_namespaced(self.user.clone());
        let change = Patch::Merge(json!({ "spec": { "fuse": { "imageTag": "v2" } } }));
        runtimes.patch("data", &PatchParams::default(), &change).await.context("change the image")?;
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(self.user.clone());
        until("the claim asks for the new image", async || {
            let claim = claims.get("data").await?;
            Ok(claim.annotations().get(IMAGE_VERSION_ANNOTATION).is_some_and(|image| image == NEW))
        })
        .await?;
        let renew = self.each(async |node| {
            self.end(node).await?;
            self.begin(node, NEW).await
        });
        tokio::select! {
            done = renew => done?,
            failed = self.keep_reporting() => failed?,
        }
        self.report_daemons().await?;
        let seconds = begun.elapsed().as_secs_f64();
        let left = self.nodes.iter().filter(|node| node.used().as_deref() != Some(NEW)).count();
        ensure!(left == 0, "{left} nodes do not run the new daemon");
        until("the runtime tells that all daemons are new", async || {
            let status = runtimes.get("data").await?.status.unwrap_or_default();
            Ok(status.conditions.iter().any(|condition| condition.message.as_str() == UPGRADED))
        })
        .await?;
        Ok((seconds, self.plugins.take(), self.operator.take()))
    }

    /// As often as a DaemonSet controller that follows its pods.
    async fn keep_reporting(&self) -> anyhow::Result<()> {
        loop {
            sleep(Duration::from_millis(100)).await;
            self.report_daemons().await?;
        }
    }

    /// What the DaemonSet controller says of its pods.
    async fn report_daemons(&self) -> anyhow::Result<()> {
        let sets: Api<DaemonSet> = Api::default_namespaced(self.user.clone());
        let seen = sets.get("data-fuse").await.context("look at the daemons")?.metadata.generation;
        let (all, ready) = (self.nodes.len(), self.ready.load(Ordering::Relaxed));
        let updated = if seen == Some(1) { ready } else { self.updated.load(Ordering::Relaxed) };
        let status = json!({ "status": {
            "observedGeneration": seen, "updatedNumberScheduled": updated, "desiredNumberScheduled": all, "currentNumberScheduled": ready, "numberReady": ready,
            "numberAvailable": ready, "numberUnavailable": all - ready.min(all), "numberMisscheduled": 0,
        }});
        let params = PatchParams::default();
        sets.patch_status("data-fuse", &params, &Patch::Merge(status))
            .await
            .context("tell of the daemons")?;
        Ok(())
    }
}

/// Gives the volume that the operator makes of it.
async fn make_dataset(client: &Client) -> anyhow::Result<Volume> {
    let create = PostParams::default();
    let dataset: Dataset = serde_json::from_value(json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset", "metadata": { "name": "data" },
        "spec": { "mounts": [{ "mountPoint": "local:///data" }] },
    }))?;
    let runtime: JuiceFSRuntime = serde_json::from_value(json!({
        "apiVersion": "data.fluid.io/v1alpha1", "kind": "JuiceFSRuntime", "metadata": { "name": "data" },
        "spec": { "fuse": { "image": "fuse", "imageTag": "v1", "updateStrategy": "OnIdle" } },
    }))?;
    Api::default_namespaced(client.clone()).create(&create, &dataset).await.context("make the dataset")?;
    Api::default_namespaced(client.clone()).create(&create, &runtime).await.context("make the runtime")?;
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    until("the dataset has a claim", async || Ok(claims.get_opt("data").await?.is_some())).await?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = volumes.get("default-data").await.context("read the volume")?;
    let source = volume.spec.and_then(|spec| spec.csi).context("the volume has no CSI source")?;
    let attributes = source.volume_attributes.unwrap_or_default();
    Ok(Volume { handle: source.volume_handle, attributes, access: Access::ReadWrite })
}

/// As kubelet does: a call that failed is made again.
async fn insist(call: impl AsyncFn() -> Result<(), CallError>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Err(error) if error.is_transient() && Instant::now() < deadline => sleep(LOOK_EVERY).await,
            answer => return Ok(answer?),
        }
    }
}

async fn until(what: &str, holds: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await? {
        ensure!(Instant::now() < deadline, "waited {PATIENCE:?} until {what}");
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
