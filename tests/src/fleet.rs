//! A cluster of `midflight up` whose nodes get another data engine under clients.
//!
//! The one invariant: what a node runs is judged by its processes too, not only by what objects say.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use midflight_api::longhorn::{
    ConditionStatus, DataEngine, DataEngineUpgradeManager, Engine, Image, InstanceManager,
    InstanceManagerState, NAMESPACE, Node, NodeDataEngineUpgrade, NodeUpgradeState, Replica, Setting,
    Snapshot, UpgradeState, Volume,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::endpoint::Endpoint;
use crate::place;

/// The image of the next build.
pub const NEXT: &str = "midflight.local/instance-manager:next";
pub const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Put first into a program: instance managers of it do not start.
pub const DOES_NOT_START: &str = "[ \"$1\" != instance-manager ] || exit 1";
/// The one upgrade that there is at a time.
pub const RUN: &str = "upgrade";

const DEFAULT_IMAGE: &str = "default-instance-manager-image";
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Three nodes, and the images of two builds.
pub struct Fleet {
    pub cluster: Cluster,
    pub client: Client,
    /// The image of this build.
    pub this: String,
}

impl Fleet {
    /// Starts one; instance managers of this build run on all nodes when this returns.
    pub async fn up() -> anyhow::Result<Fleet> {
        let cluster = Cluster::up(3).await?;
        let client = Endpoint::from_kubeconfig(&cluster.kubeconfig()).await?.client();
        let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
        let this = settings.get(DEFAULT_IMAGE).await?.value;
        let fleet = Fleet { cluster, client, this };
        fleet.pack("next", &place::next()?).await?;
        for node in NODES {
            let image = fleet.this.clone();
            fleet.until(&format!("{node} serves"), async || fleet.serves(node, &image).await).await?;
        }
        Ok(fleet)
    }

    /// Publishes a program as an image of instance managers.
    pub async fn pack(&self, tag: &str, program: &Path) -> anyhow::Result<()> {
        let (tag, program) = (format!("instance-manager:{tag}"), program.display().to_string());
        self.cluster.midflight(&["image", "pack", "--tag", &tag, "--binary", &program]).await.map(drop)
    }

    /// The same with the next build, and something in a shell before it is started.
    pub async fn pack_after(&self, tag: &str, first: &str) -> anyhow::Result<()> {
        let program = self.cluster.room(tag);
        fs::write(&program, format!("#!/bin/sh\n{first}\nexec {} \"$@\"\n", place::next()?.display()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        self.pack(tag, &program).await
    }

    pub fn all<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Asks again until it is so. Who is asked may be down for a while.
    pub async fn until(
        &self,
        what: &str,
        is_so: impl AsyncFn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = is_so().await;
            if matches!(answer, Ok(true)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let now = self.standing().await.unwrap_or_else(|error| format!("{error:#}"));
                bail!("waited {PATIENCE:?} until {what}: {answer:?}\n{now}");
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// What the objects of an upgrade say, for people who look for what went wrong.
    pub async fn standing(&self) -> anyhow::Result<String> {
        let all = ListParams::default();
        let mut told = Vec::new();
        for run in self.all::<DataEngineUpgradeManager>().list(&all).await? {
            told.push(serde_json::to_string_pretty(&run.status)?);
        }
        for upgrade in self.all::<NodeDataEngineUpgrade>().list(&all).await? {
            told.push(format!("{}: {}", upgrade.name_any(), serde_json::to_string_pretty(&upgrade.status)?));
        }
        for manager in self.all::<InstanceManager>().list(&all).await? {
            let state = manager.status.unwrap_or_default().current_state;
            told.push(format!("{} on {}: {state}", manager.spec.image, manager.spec.node_id));
        }
        for volume in self.all::<Volume>().list(&all).await? {
            let status = volume.status.clone().unwrap_or_default();
            let waits = status.conditions.get("Settled").map(|now| now.message.to_string());
            told.push(format!(
                "{}: {} {} {waits:?} {:?}",
                volume.name_any(),
                status.state,
                status.robustness,
                status.target_move
            ));
        }
        Ok(told.join("\n"))
    }

    pub async fn set(&self, setting: &str, value: &str) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "value": value }));
        self.all::<Setting>().patch(setting, &PatchParams::default(), &change).await?;
        Ok(())
    }

    /// Makes an image the default, as an upgrade of the system does, and waits until every node has it.
    pub async fn make_default(&self, image: &str) -> anyhow::Result<()> {
        self.set(DEFAULT_IMAGE, image).await?;
        self.until(&format!("{image} is on every node"), async || {
            let images = self.all::<Image>().list(&ListParams::default()).await?;
            let one = images.items.into_iter().find(|one| one.spec.image().as_str() == image);
            let on = one.and_then(|one| one.status).unwrap_or_default().node_deployment_map;
            Ok(NODES.iter().all(|node| on.iter().any(|(name, there)| name.as_str() == *node && *there)))
        })
        .await
    }

    /// The instance managers of the v2 data engine that a node has, by image.
    pub async fn managers(&self, node: &str) -> anyhow::Result<BTreeMap<String, InstanceManagerState>> {
        let all = self.all::<InstanceManager>().list(&ListParams::default()).await?;
        let here = all
            .items
            .into_iter()
            .filter(|manager| manager.spec.node_id == node && manager.spec.data_engine == DataEngine::V2);
        let state = |manager: &InstanceManager| {
            manager.status.as_ref().map(|status| status.current_state).unwrap_or_default()
        };
        Ok(here.map(|manager| (manager.spec.image.to_string(), state(&manager))).collect())
    }

    /// Whether a node is served by an instance manager of this image.
    pub async fn serves(&self, node: &str, image: &str) -> anyhow::Result<bool> {
        Ok(self.managers(node).await?.get(image) == Some(&InstanceManagerState::Running))
    }

    /// The processes of a node's instance managers of the v2 data engine, with the size of their program.
    pub fn processes(&self, node: &str) -> anyhow::Result<BTreeMap<i32, u64>> {
        let mut found = BTreeMap::new();
        for pid in self.cluster.processes_of(node, "instance-manager")? {
            let Ok(arguments) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
            let Ok(program) = fs::metadata(format!("/proc/{pid}/exe")) else { continue };
            if String::from_utf8_lossy(&arguments).contains("instance-manager/v2") {
                found.insert(pid, program.len());
            }
        }
        Ok(found)
    }

    /// Lets new replicas come to these nodes only.
    async fn let_in(&self, nodes: &[&str]) -> anyhow::Result<()> {
        let all: Api<Node> = self.all();
        for node in NODES {
            let is_open = nodes.contains(&node);
            let change = Patch::Merge(json!({ "spec": { "allowScheduling": is_open } }));
            all.patch(node, &PatchParams::default(), &change).await?;
            let wanted = if is_open { ConditionStatus::True } else { ConditionStatus::False };
            self.until(&format!("{node} lets replicas in: {is_open}"), async || {
                let status = all.get(node).await?.status.unwrap_or_default();
                Ok(status.conditions.get("Schedulable").is_some_and(|now| now.status == wanted))
            })
            .await?;
        }
        Ok(())
    }

    /// Makes a volume with a replica on each of these nodes, attached to one or to none.
    pub async fn make(
        &self,
        name: &str,
        (engine, size): (&str, u64),
        on: &str,
        replicas: &[&str],
    ) -> anyhow::Result<()> {
        self.let_in(replicas).await?;
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": { "name": name },
            "spec": {
                "size": size.to_string(), "numberOfReplicas": replicas.len(), "dataEngine": engine, "frontend": "nbd",
                "nodeID": on,
            },
        });
        self.all::<Volume>().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let (state, robustness) =
            if on.is_empty() { ("detached", "unknown") } else { ("attached", "healthy") };
        self.until_volume(name, state, robustness).await?;
        self.let_in(&NODES).await
    }

    pub async fn change(&self, volume: &str, spec: Value) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "spec": spec }));
        self.all::<Volume>().patch(volume, &PatchParams::default(), &change).await?;
        Ok(())
    }

    pub async fn until_volume(&self, name: &str, state: &str, robustness: &str) -> anyhow::Result<()> {
        self.until(&format!("{name} is {state} and {robustness}"), async || {
            let status = self.all::<Volume>().get(name).await?.status.unwrap_or_default();
            Ok((status.state.as_str(), status.robustness.as_str()) == (state, robustness))
        })
        .await
    }

    /// Where clients find a volume.
    pub async fn endpoint(&self, volume: &str) -> anyhow::Result<String> {
        let engine = self.all::<Engine>().get(&format!("{volume}-e-0")).await?;
        Ok(engine.status.unwrap_or_default().endpoint.to_string())
    }

    pub async fn remove(&self, volume: &str) -> anyhow::Result<()> {
        let volumes: Api<Volume> = self.all();
        volumes.delete(volume, &DeleteParams::default()).await?;
        let gone = async || Ok(volumes.get_opt(volume).await?.is_none());
        self.until(&format!("{volume} is gone"), gone).await
    }

    /// Creates the upgrade.
    pub async fn begin(&self, spec: Value) -> anyhow::Result<()> {
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "DataEngineUpgradeManager",
            "metadata": { "name": RUN, "namespace": NAMESPACE }, "spec": spec,
        });
        let runs: Api<DataEngineUpgradeManager> = self.all();
        runs.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    pub async fn run(&self) -> anyhow::Result<DataEngineUpgradeManager> {
        Ok(self.all::<DataEngineUpgradeManager>().get(RUN).await?)
    }

    /// Waits until the upgrade stands so.
    pub async fn until_run(&self, state: UpgradeState) -> anyhow::Result<DataEngineUpgradeManager> {
        self.until(&format!("the upgrade is {state}"), async || {
            Ok(self.run().await?.status.unwrap_or_default().state == state)
        })
        .await?;
        self.run().await
    }

    /// Waits until the upgrade stands so, or is further.
    pub async fn until_run_at_least(&self, wanted: UpgradeState) -> anyhow::Result<()> {
        let place = |state| UpgradeState::ALL.iter().position(|one| *one == state);
        self.until(&format!("the upgrade is {wanted} or further"), async || {
            Ok(place(self.run().await?.status.unwrap_or_default().state) >= place(wanted))
        })
        .await
    }

    /// Waits until the upgrade of a node stands so, or is further.
    pub async fn until_node(&self, node: &str, wanted: NodeUpgradeState) -> anyhow::Result<()> {
        let place = |state| NodeUpgradeState::ALL.iter().position(|one| *one == state);
        self.until(&format!("the upgrade of {node} is {wanted} or further"), async || {
            let all = self.all::<NodeDataEngineUpgrade>().list(&ListParams::default()).await?;
            let here = all.into_iter().find(|one| one.spec.node_id == node);
            Ok(here.is_some_and(|one| place(one.status.unwrap_or_default().state) >= place(wanted)))
        })
        .await
    }

    /// Waits until the upgrade of a node is on its way back and stands so, or is further.
    pub async fn until_back(&self, node: &str, wanted: NodeUpgradeState) -> anyhow::Result<()> {
        let place = |state| NodeUpgradeState::ALL.iter().position(|one| *one == state);
        self.until(&format!("{node} goes back and is {wanted} or further"), async || {
            let all = self.all::<NodeDataEngineUpgrade>().list(&ListParams::default()).await?;
            let here = all.into_iter().find(|one| one.spec.node_id == node);
            let status = here.and_then(|one| one.status).unwrap_or_default();
            Ok(!status.failure.is_empty() && place(status.state) >= place(wanted))
        })
        .await
    }

    /// Deletes the upgrade; all is back when this returns.
    pub async fn end(&self) -> anyhow::Result<()> {
        let runs: Api<DataEngineUpgradeManager> = self.all();
        runs.delete(RUN, &DeleteParams::default()).await?;
        self.until("the upgrade is gone", async || Ok(runs.get_opt(RUN).await?.is_none())).await
    }

    /// Nothing is left of an upgrade: every volume serves at home with all replicas, no node is marked.
    pub async fn is_whole(&self) -> anyhow::Result<()> {
        let all = ListParams::default();
        for node in self.all::<Node>().list(&all).await? {
            ensure!(!node.spec.data_engine_upgrade_requested, "{} is marked", node.name_any());
        }
        for replica in self.all::<Replica>().list(&all).await? {
            let wish = replica.spec.instance.desire_state;
            ensure!(wish.as_str() != "stopped", "{} is told to leave", replica.name_any());
        }
        for volume in self.all::<Volume>().list(&all).await? {
            let (name, status) = (volume.name_any(), volume.status.clone().unwrap_or_default());
            ensure!(volume.spec.target_node_id.is_empty(), "{name} is asked to be elsewhere");
            if volume.spec.node_id.is_empty() {
                continue;
            }
            ensure!(status.current_node_id == volume.spec.node_id, "{name} is not attached");
            ensure!(status.robustness.as_str() == "healthy", "{name} is {}", status.robustness);
            if volume.spec.data_engine == DataEngine::V2 {
                let there = &status.current_target_node_id;
                ensure!(*there == volume.spec.node_id, "{name} is served from {there}");
            }
        }
        let taken = ListParams::default().labels("midflight.dev/node-upgrade");
        let snapshots = self.all::<Snapshot>().list(&taken).await?;
        ensure!(snapshots.items.is_empty(), "{} snapshots are left", snapshots.items.len());
        Ok(())
    }

    /// One instance manager serves a node, of this image; its process is the only one, and runs this program.
    pub async fn runs_only(&self, node: &str, image: &str) -> anyhow::Result<()> {
        let managers = self.managers(node).await?;
        let running: Vec<&String> = managers
            .iter()
            .filter(|(_, state)| {
                !matches!(state, InstanceManagerState::Stopped | InstanceManagerState::Undefined)
            })
            .map(|(image, _)| image)
            .collect();
        ensure!(running == [image], "{node} runs {managers:?}, not {image}");
        let program = if image == NEXT { place::next()? } else { place::midflight()? };
        let size = fs::metadata(&program).with_context(|| format!("look at {}", program.display()))?.len();
        let processes: Vec<u64> = self.processes(node)?.into_values().collect();
        ensure!(processes == [size], "{node} runs programs of {processes:?} bytes, not one of {size}");
        Ok(())
    }
}
