//! A dataset on one node: an API server and the controllers in this process, CSI plugin and FUSE daemon as real
//! processes.
//!
//! The one invariant: dropping it ends every process that it started and removes every mount.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::Client;
use kube::api::{Api, PostParams};
use midflight_api::fluid::{Dataset, JuiceFSRuntime};
use midflight_operator::{Writer, bootstrap};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::place;
use crate::server::Embedded;

const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const NODE: &str = "node-1";

/// A dataset `data` in `default`, and the node that serves it.
pub struct Served {
    pub client: Client,
    server: Embedded,
    operator: JoinHandle<()>,
    folder: TempDir,
    processes: Vec<Child>,
}

impl Served {
    /// Plugin and daemon serve when this returns.
    pub async fn start() -> anyhow::Result<Served> {
        let server = Embedded::start().await?;
        let client = server.admin.client();
        let standing = bootstrap(&client).await?;
        let writer = Arc::new(Writer::new(client.clone()));
        let operator = tokio::spawn(async move { midflight_operator::run(writer, &standing).await });
        let folder = TempDir::with_prefix("mf-ds.")?;
        let mut served = Served { client, server, operator, folder, processes: Vec::new() };
        fs::create_dir_all(served.path("node/data"))?;
        served.make_objects().await?;
        served.start_plugin().await?;
        served.start_daemon().await?;
        Ok(served)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where kubelet would call the plugin.
    pub fn socket(&self) -> PathBuf {
        self.path("csi.sock")
    }

    async fn make_objects(&self) -> anyhow::Result<()> {
        let create = PostParams::default();
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": NODE } }))?;
        Api::all(self.client.clone()).create(&create, &node).await?;
        let dataset: Dataset = serde_json::from_value(json!({
            "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset", "metadata": { "name": "data" },
            "spec": { "mounts": [{ "mountPoint": "local:///data" }], "accessModes": ["ReadWriteMany"] },
        }))?;
        Api::default_namespaced(self.client.clone()).create(&create, &dataset).await?;
        let runtime: JuiceFSRuntime = serde_json::from_value(json!({
            "apiVersion": "data.fluid.io/v1alpha1", "kind": "JuiceFSRuntime", "metadata": { "name": "data" },
            "spec": { "fuse": { "image": "fuse", "imageTag": "v1" } },
        }))?;
        Api::default_namespaced(self.client.clone()).create(&create, &runtime).await?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        until("the dataset has a volume", async || Ok(volumes.get_opt("default-data").await?.is_some())).await
    }

    async fn start_plugin(&mut self) -> anyhow::Result<()> {
        let (socket, state, root) = (self.socket(), self.path("state"), self.path("node"));
        let mut command = self.command("csi")?;
        command.arg("--kubeconfig").arg(self.server.kubeconfig()).args(["--node", NODE]);
        command.args(["--patience-seconds", "20", "--socket"]).arg(&socket);
        command.arg("--state").arg(state).arg("--root").arg(root);
        self.processes.push(command.spawn().context("start the plugin")?);
        until("the plugin listens", async || Ok(socket.exists())).await
    }

    async fn start_daemon(&mut self) -> anyhow::Result<()> {
        let mount = self.path("node/runtime-mnt/juicefs/default/data/juicefs-fuse");
        let mut command = self.command("fuse")?;
        command.arg("--source").arg(self.path("node/data")).arg("--mount").arg(&mount);
        self.processes.push(command.spawn().context("start the daemon")?);
        until("the daemon mounts", async || Ok(mounts_below(&mount)?.len() == 1)).await
    }

    fn command(&self, role: &str) -> anyhow::Result<Command> {
        let log = File::create(self.path(&format!("{role}.log")))?;
        let mut command = Command::new(place::midflight()?);
        command.arg(role).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        Ok(command)
    }

    /// What the processes said.
    pub fn logs(&self) -> String {
        let logs =
            ["csi.log", "fuse.log"].map(|name| fs::read_to_string(self.path(name)).unwrap_or_default());
        logs.join("\n")
    }

    /// Mounts of this dataset, wherever they are shown.
    pub fn mounts(&self) -> anyhow::Result<Vec<PathBuf>> {
        mounts_below(self.folder.path())
    }

    pub async fn stop(self) {
        self.operator.abort();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for mount in self.mounts().unwrap_or_default() {
            // Gone with one before it.
            let _ = unmount(mount, UnmountFlags::DETACH);
        }
    }
}

fn mounts_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(places.filter(|place| place.starts_with(folder)).collect())
}

async fn until(what: &str, holds: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await? {
        if Instant::now() > deadline {
            bail!("waited {PATIENCE:?} until {what}");
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
