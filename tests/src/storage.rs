//! A storage cluster on one machine: an API server and the controllers in this process, and for every node a real
//! instance manager of one data engine and a frontend.
//!
//! The one invariant: dropping it ends every process that it started.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use midflight_api::ImageRef;
use midflight_api::longhorn::{
    self, Backup, BackupState, BackupTarget, ConditionStatus, DataEngine, Engine, EngineImage,
    InstanceManager, InstanceManagerState, NAMESPACE, Setting, Snapshot, Volume,
};
use midflight_block::instance::end_all;
use midflight_block::wire::hello::VERSIONS;
use midflight_operator::{Standing, Writer, bootstrap};
use midflight_plan::storage::{engine_image, instance_manager};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::network::{End, Network};
use crate::place;
use crate::server::Embedded;

const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The engine image of this build, where there are two.
pub const THIS: &str = "midflight.local/engine:this";
/// The engine image of the next build.
pub const NEXT: &str = "midflight.local/engine:next";

/// The versions of the interface that engines of the next build have.
const NEXT_VERSIONS: RangeInclusive<u16> = 1..=2;

/// A running cluster.
pub struct Storage {
    pub client: Client,
    server: Option<Embedded>,
    operator: JoinHandle<()>,
    standing: Standing,
    engine: DataEngine,
    nodes: Vec<String>,
    binary: PathBuf,
    folder: TempDir,
    /// Instance managers and frontends, by role and node.
    processes: HashMap<(&'static str, String), Child>,
    /// Where every node has a network of its own. Goes after the processes in it.
    network: Option<Network>,
}

impl Storage {
    /// Starts one with nodes `node-1` and so on; all of them serve when this returns.
    pub async fn start(nodes: u8, engine: DataEngine) -> anyhow::Result<Storage> {
        Storage::start_on(nodes, engine, async |_| Ok(None)).await
    }

    /// The same with links between the nodes that can be cut.
    pub async fn start_apart(nodes: u8, engine: DataEngine) -> anyhow::Result<Storage> {
        let apart = async |kubeconfig: &Path| Network::of(nodes, kubeconfig).await.map(Some);
        Storage::start_on(nodes, engine, apart).await
    }

    async fn start_on(
        nodes: u8,
        engine: DataEngine,
        network: impl AsyncFnOnce(&Path) -> anyhow::Result<Option<Network>>,
    ) -> anyhow::Result<Storage> {
        let server = Embedded::start().await?;
        let network = network(&server.kubeconfig()).await?;
        let client = server.admin.client();
        let standing = bootstrap(&client).await?;
        let operator = operate(Arc::new(Writer::new(client.clone())), client.clone(), standing.clone());
        let mut storage = Storage {
            client,
            server: Some(server),
            operator,
            standing,
            engine,
            nodes: (1..=nodes).map(|number| format!("node-{number}")).collect(),
            binary: place::midflight()?,
            folder: TempDir::with_prefix("mf-st.")?,
            processes: HashMap::new(),
            network,
        };
        std::fs::create_dir_all(storage.binaries())?;
        for number in 1..=nodes {
            storage.add_node(number).await?;
        }
        Ok(storage)
    }

    /// Programs of engine images, as every node has them.
    fn binaries(&self) -> PathBuf {
        self.room("engine-binaries")
    }

    /// Three nodes for v1 volumes with the images of two builds; this build's is the default.
    pub async fn of_two_builds() -> anyhow::Result<Storage> {
        let storage = Storage::start(3, DataEngine::V1).await?;
        storage.add_image(THIS, &Program::this()?, 1).await?;
        storage.add_image_speaking(NEXT, &Program::next()?, 2, NEXT_VERSIONS).await?;
        storage.set("default-engine-image", THIS).await?;
        Ok(storage)
    }

    /// Puts an engine image on every node, with the versions of this build.
    pub async fn add_image(&self, image: &str, program: &Program, build: u32) -> anyhow::Result<()> {
        self.add_image_speaking(image, program, build, VERSIONS.oldest..=VERSIONS.newest).await
    }

    /// The same with an image of these versions of the engine's interface.
    pub async fn add_image_speaking(
        &self,
        image: &str,
        program: &Program,
        build: u32,
        versions: RangeInclusive<u16>,
    ) -> anyhow::Result<()> {
        let name = ImageRef::from(image);
        let path = self.binaries().join(engine_image::binary(&name));
        std::fs::create_dir_all(path.parent().context("a binary is in a folder")?)?;
        program.put(&path)?;
        let images: Api<EngineImage> = Api::namespaced(self.client.clone(), NAMESPACE);
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "EngineImage",
            "metadata": { "name": engine_image::name(&name) }, "spec": { "image": image },
        });
        images.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let there: HashMap<&String, bool> = self.nodes.iter().map(|node| (node, true)).collect();
        let status = json!({ "status": {
            "state": "deployed", "nodeDeploymentMap": there, "gitCommit": format!("build-{build}"),
            "controllerAPIVersion": versions.end(), "controllerAPIMinVersion": versions.start(),
        } });
        let parameters = PatchParams::default();
        images.patch_status(&engine_image::name(&name), &parameters, &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Lets new replicas come to a node, or not.
    pub async fn let_in(&self, node: &str, replicas: bool) -> anyhow::Result<()> {
        let nodes: Api<longhorn::Node> = Api::namespaced(self.client.clone(), NAMESPACE);
        let change = Patch::Merge(json!({ "spec": { "allowScheduling": replicas } }));
        nodes.patch(node, &PatchParams::default(), &change).await?;
        let wanted = if replicas { ConditionStatus::True } else { ConditionStatus::False };
        self.until(&format!("{node} lets replicas in: {replicas}"), async || {
            let status = nodes.get(node).await?.status.unwrap_or_default();
            let is_so =
                status.conditions.get("Schedulable").is_some_and(|condition| condition.status == wanted);
            Ok(is_so.then_some(()))
        })
        .await
    }

    pub async fn set(&self, setting: &str, value: &str) -> anyhow::Result<()> {
        let settings: Api<Setting> = Api::namespaced(self.client.clone(), NAMESPACE);
        settings.patch(setting, &PatchParams::default(), &Patch::Merge(json!({ "value": value }))).await?;
        Ok(())
    }

    async fn add_node(&mut self, number: u8) -> anyhow::Result<()> {
        let name = format!("node-{number}");
        std::fs::create_dir_all(self.room(&name).join("run"))?;
        let node: Node = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "status": {
                "capacity": { "ephemeral-storage": "1048576Ki" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }))?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.create(&PostParams::default(), &node).await?;
        let status = Patch::Merge(json!({ "status": node.status }));
        nodes.patch_status(&name, &PatchParams::default(), &status).await?;
        self.start_frontend(number)?;
        self.start_manager(number).await?;
        let manager = self.manager_of(&name).await?;
        let managers: Api<InstanceManager> = Api::namespaced(self.client.clone(), NAMESPACE);
        let running = async || {
            let status = managers.get(&manager).await?.status.unwrap_or_default();
            Ok((status.current_state == InstanceManagerState::Running).then_some(()))
        };
        let reached = self.until("the instance manager runs", running).await;
        reached.map_err(|error| error.context(self.logs()))
    }

    /// The folder of a node.
    pub fn room(&self, node: &str) -> PathBuf {
        self.folder.path().join(node)
    }

    fn start_frontend(&mut self, number: u8) -> anyhow::Result<()> {
        let node = format!("node-{number}");
        let control = format!("--control=unix:{}", self.room(&node).join("run/frontend").display());
        let mut command = self.command_of(&self.binary, "frontend", number)?;
        command.arg(control);
        self.processes.insert(("frontend", node), command.spawn()?);
        Ok(())
    }

    async fn start_manager(&mut self, number: u8) -> anyhow::Result<()> {
        let name = self.manager_of(&format!("node-{number}")).await?;
        let this = self.binary.clone();
        self.start_manager_as(&name, &this, number).await
    }

    /// Starts the process of an instance manager, in the place of the one before.
    async fn start_manager_as(&mut self, name: &str, program: &Path, number: u8) -> anyhow::Result<()> {
        let node = format!("node-{number}");
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        let secret = secrets.get("midflight-instance-managers").await?.data.unwrap_or_default();
        let secret = secret.get("secret").context("the secret has its key")?.0.clone();
        let room = self.room(&node);
        let server = self.server.as_ref().context("the cluster runs")?;
        let (address, kubeconfig) = match &self.network {
            None => (format!("127.0.0.{}", number + 1), server.kubeconfig()),
            Some(network) => (network.address(End::Node(number)).to_string(), network.kubeconfig()),
        };
        let mut command = self.command_of(program, "instance-manager", number)?;
        command
            .arg(format!("--folder={}", room.display()))
            .arg(format!("--listen={address}:0"))
            .arg(format!("--records=api:{}", kubeconfig.display()))
            .arg(format!("--name={name}"))
            .arg(format!("--binaries={}", self.binaries().display()))
            .arg(format!("--frontend=unix:{}", room.join("run/frontend").display()))
            .env("MIDFLIGHT_INSTANCE_SECRET", String::from_utf8(secret)?);
        self.processes.insert(("instance-manager", node), command.spawn()?);
        Ok(())
    }

    /// Links between the nodes, where there are such.
    pub fn network(&self) -> anyhow::Result<&Network> {
        self.network.as_ref().context("the nodes have networks of their own")
    }

    fn command_of(&self, program: &Path, role: &'static str, number: u8) -> anyhow::Result<Command> {
        let log = self.room(&format!("node-{number}")).join(format!("{role}.log"));
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = match &self.network {
            None => Command::new(program),
            Some(network) => network.command(number, program).into(),
        };
        command.arg(role).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        Ok(command)
    }

    /// The object of a node's instance manager, once the controllers have made it.
    async fn manager_of(&self, node: &str) -> anyhow::Result<String> {
        let managers: Api<InstanceManager> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.until("the instance manager has its object", async || {
            let all = managers.list(&ListParams::default()).await?;
            let is_it = |manager: &&InstanceManager| {
                manager.spec.node_id == node && manager.spec.data_engine == self.engine
            };
            Ok(all.items.iter().find(is_it).map(|manager| manager.name_any()))
        })
        .await
    }

    /// Kills the instance manager of a node, and all that it hosts or has started.
    pub async fn kill_manager(&mut self, node: &str) -> anyhow::Result<()> {
        let process = self.processes.get_mut(&("instance-manager", node.to_owned()));
        process.context("the node has an instance manager")?.kill().await?;
        end_all(&self.room(node))?;
        Ok(())
    }

    /// Does what a node does when the pod of its instance manager is to end, and to follow it: ends the process, and starts one of
    /// the next build for the instance manager of this image.
    pub async fn follow_manager(&mut self, number: u8, image: &str) -> anyhow::Result<()> {
        let node = format!("node-{number}");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let here = ListParams::default()
            .labels(&format!("longhorn.io/node={node},longhorn.io/data-engine={}", self.engine));
        let ends = async || {
            let all = pods.list(&here).await?;
            let ends = all.iter().find(|pod| pod.metadata.deletion_timestamp.is_some());
            Ok(ends.map(ResourceExt::name_any))
        };
        let old = self.until("the pod of the old instance manager ends", ends).await?;
        self.kill_manager(&node).await?;
        pods.delete(&old, &DeleteParams::default().grace_period(0)).await?;
        let name = instance_manager::name(&node.as_str().into(), &image.into(), self.engine);
        let made = async || Ok(pods.get_opt(&name).await?.map(drop));
        self.until("the pod of the new instance manager is made", made).await?;
        self.start_manager_as(&name, &place::next()?, number).await
    }

    pub async fn restart_manager(&mut self, number: u8) -> anyhow::Result<()> {
        self.start_manager(number).await
    }

    /// Says of a node that it is there, or is not, as its agent would or those who miss it.
    pub async fn set_ready(&self, node: &str, ready: bool) -> anyhow::Result<()> {
        let status = if ready { "True" } else { "False" };
        let said = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(said)).await?;
        Ok(())
    }

    /// Ends the controllers; nobody looks until others are started.
    pub async fn stop_operator(&self) {
        self.operator.abort();
        while !self.operator.is_finished() {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Ends the controllers and starts others, with this writer. Where that ends, a third lot goes on.
    pub async fn replace_operator(&mut self, writer: Writer) -> Arc<Writer> {
        self.operator.abort();
        // It was told to end.
        let _ = (&mut self.operator).await;
        let writer = Arc::new(writer);
        self.operator = operate(Arc::clone(&writer), self.client.clone(), self.standing.clone());
        writer
    }

    /// A client in the name of somebody who is not the operator.
    pub fn client_as(&self, user: &str) -> anyhow::Result<Client> {
        Ok(self.server.as_ref().context("the cluster runs")?.client_as(user))
    }

    pub fn volumes(&self) -> Api<Volume> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub async fn create_volume(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let volume = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec,
        });
        self.volumes().create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
        Ok(())
    }

    pub async fn change_volume(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "spec": spec }));
        self.volumes().patch(name, &PatchParams::default(), &change).await?;
        Ok(())
    }

    pub async fn annotate(&self, volume: &str, name: &str, value: &str) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "metadata": { "annotations": { name: value } } }));
        self.volumes().patch(volume, &PatchParams::default(), &change).await?;
        Ok(())
    }

    /// Waits until a volume stands so: state and robustness.
    pub async fn until_volume(&self, name: &str, state: &str, robustness: &str) -> anyhow::Result<()> {
        let what = format!("{name} is {state} and {robustness}");
        let reached = self
            .until(&what, async || {
                let status = self.volumes().get(name).await?.status.unwrap_or_default();
                let stands = (status.state.as_str(), status.robustness.as_str()) == (state, robustness);
                Ok(stands.then_some(()))
            })
            .await;
        let Err(error) = reached else { return Ok(()) };
        let now = serde_json::to_string_pretty(&self.volumes().get(name).await?.status)?;
        Err(error.context(format!("it is {now}\n{}", self.logs())))
    }

    /// Where clients find a volume.
    pub async fn endpoint(&self, volume: &str) -> anyhow::Result<String> {
        let engines: Api<Engine> = Api::namespaced(self.client.clone(), NAMESPACE);
        let engine = engines.get(&format!("{volume}-e-0")).await?;
        Ok(engine.status.unwrap_or_default().endpoint.to_string())
    }

    pub fn snapshots(&self) -> Api<Snapshot> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub async fn create_snapshot(&self, volume: &str, name: &str) -> anyhow::Result<()> {
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Snapshot", "metadata": { "name": name },
            "spec": { "volume": volume, "createSnapshot": true },
        });
        self.snapshots().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    /// Keeps a volume as it is now; the snapshot is there when this returns.
    pub async fn take_snapshot(&self, volume: &str, name: &str) -> anyhow::Result<Snapshot> {
        self.create_snapshot(volume, name).await?;
        self.until(&format!("snapshot {name} is ready"), async || {
            let snapshot = self.snapshots().get(name).await?;
            let ready = snapshot.status.as_ref().is_some_and(|status| status.ready_to_use);
            Ok(ready.then_some(snapshot))
        })
        .await
        .map_err(|error| error.context(self.logs()))
    }

    /// Removes a snapshot; it is gone when this returns.
    pub async fn remove_snapshot(&self, name: &str) -> anyhow::Result<()> {
        self.snapshots().delete(name, &DeleteParams::default()).await?;
        let gone = async || Ok(self.snapshots().get_opt(name).await?.is_none().then_some(()));
        self.until(&format!("snapshot {name} is gone"), gone).await
    }

    /// The snapshots that the engine of a volume has, as its object says.
    pub async fn layers(&self, volume: &str) -> anyhow::Result<Vec<String>> {
        let engines: Api<Engine> = Api::namespaced(self.client.clone(), NAMESPACE);
        let engine = engines.get_opt(&format!("{volume}-e-0")).await?;
        let status = engine.and_then(|engine| engine.status).unwrap_or_default();
        Ok(status.snapshots.into_keys().collect())
    }

    pub fn backups(&self) -> Api<Backup> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A folder for backups, which every node sees.
    pub async fn make_backup_target(&self, name: &str) -> anyhow::Result<()> {
        let targets: Api<BackupTarget> = Api::namespaced(self.client.clone(), NAMESPACE);
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "BackupTarget", "metadata": { "name": name },
            "spec": { "backupTargetURL": format!("file://{}", self.room("backups").display()) },
        });
        targets.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    pub async fn create_backup(
        &self,
        snapshot: &str,
        name: &str,
        volume: Option<&str>,
    ) -> anyhow::Result<()> {
        let labels = volume.map(|volume| json!({ "backup-volume": volume }));
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Backup", "metadata": { "name": name, "labels": labels },
            "spec": { "snapshotName": snapshot },
        });
        self.backups().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    /// Backs a snapshot up; the backup is complete when this returns.
    pub async fn back_up(&self, snapshot: &str, name: &str) -> anyhow::Result<Backup> {
        self.create_backup(snapshot, name, None).await?;
        let complete = async || {
            let backup = self.backups().get(name).await?;
            let status = backup.status.clone().unwrap_or_default();
            ensure!(status.state != BackupState::Error, "backup {name}: {}", status.error);
            Ok((status.state == BackupState::Completed).then_some(backup))
        };
        let made = self.until(&format!("backup {name} is complete"), complete).await;
        let Err(error) = made else { return made };
        let now = serde_json::to_string_pretty(&self.backups().get(name).await?)?;
        Err(error.context(format!("{now}\n{}", self.logs())))
    }

    /// Asks again until there is an answer.
    pub async fn until<T>(
        &self,
        what: &str,
        ask: impl AsyncFn() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = ask().await? {
                return Ok(answer);
            }
            if Instant::now() > deadline {
                bail!("waited {PATIENCE:?} until {what}");
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The last words of every process.
    pub fn logs(&self) -> String {
        let tail = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(12)..].join("\n")
        };
        let mut names: Vec<&(&str, String)> = self.processes.keys().collect();
        names.sort();
        let shown = names.iter().map(|(role, node)| {
            format!("--- {role} of {node}\n{}", tail(&self.room(node).join(format!("{role}.log"))))
        });
        shown.collect::<Vec<_>>().join("\n")
    }

    pub async fn stop(mut self) {
        self.operator.abort();
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
    }
}

impl Drop for Storage {
    #[expect(clippy::print_stderr, reason = "whoever runs the tests must read it")]
    fn drop(&mut self) {
        self.operator.abort();
        let managers = self.processes.iter_mut().filter(|((role, _), _)| *role == "instance-manager");
        for (_, manager) in managers {
            // One that has ended already needs no end.
            let _ = manager.start_kill();
            while matches!(manager.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for node in &self.nodes {
            if let Err(error) = end_all(&self.room(node)) {
                eprintln!("end what the instance manager of {node} has started: {error}");
            }
        }
    }
}

fn operate(first: Arc<Writer>, client: Client, standing: Standing) -> JoinHandle<()> {
    tokio::spawn(async move {
        midflight_operator::run(first, &standing).await;
        midflight_operator::run(Arc::new(Writer::new(client)), &standing).await;
    })
}

/// What is in an engine image.
#[derive(Debug, Clone)]
pub enum Program {
    /// A build as it is.
    Build(PathBuf),
    /// A build with a failpoint.
    Failing(PathBuf, &'static str),
}

impl Program {
    /// This build.
    pub fn this() -> anyhow::Result<Program> {
        Ok(Program::Build(place::midflight()?))
    }

    /// The build of the next version.
    pub fn next() -> anyhow::Result<Program> {
        Ok(Program::Build(place::next()?))
    }

    /// Makes it the file of this path.
    pub fn put(&self, path: &Path) -> anyhow::Result<()> {
        match self {
            Program::Build(build) => {
                std::fs::hard_link(build, path).or_else(|_| std::fs::copy(build, path).map(drop))?;
            }
            Program::Failing(build, point) => {
                let script =
                    format!("#!/bin/sh\nMIDFLIGHT_FAILPOINT={point} exec {} \"$@\"\n", build.display());
                std::fs::write(path, script)?;
                std::fs::set_permissions(path, Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }
}

/// Runs a program to its end.
pub async fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new(program).args(arguments).output().await.with_context(|| format!("run {program}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{program} {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// A client each of whose requests takes so much longer.
pub fn slow(client: &Client, delay: Duration) -> Client {
    let client = client.clone();
    let service = tower::service_fn(move |request| {
        let client = client.clone();
        async move {
            sleep(delay).await;
            client.send(request).await
        }
    });
    Client::new(service, "default")
}
