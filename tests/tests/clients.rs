//! What a client of a volume notices when something happens around it.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{Engine, InstanceManager, NAMESPACE, Setting, Volume};
use midflight_api::{MemberMode, VolumeRecord};
use midflight_tests::cluster::Cluster;
use midflight_tests::endpoint::Endpoint;
use midflight_tests::load::Load;
use midflight_tests::storage::run;
use serde_json::json;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(150);
const VOLUME: &str = "vol-1";
const NODE: &str = "node-1";

struct World {
    cluster: Cluster,
    client: Client,
}

impl World {
    async fn up() -> anyhow::Result<World> {
        let cluster = Cluster::up(2).await?;
        let client = Endpoint::from_kubeconfig(&cluster.kubeconfig()).await?.client();
        Ok(World { cluster, client })
    }

    fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Makes a volume of two replicas, attached to the first node.
    async fn volume(&self, engine: &str) -> anyhow::Result<()> {
        let make = ["volume", "create", VOLUME, "--size", "8Mi", "--replicas", "2", "--engine", engine];
        self.cluster.midflight(&make).await?;
        self.cluster.midflight(&["volume", "attach", VOLUME, "--node", NODE, "--wait"]).await?;
        self.until("it is healthy", async || self.is_healthy().await).await
    }

    async fn is_healthy(&self) -> anyhow::Result<bool> {
        let status = self.all::<Volume>().get(VOLUME).await?.status.unwrap_or_default();
        Ok((status.state.as_str(), status.robustness.as_str()) == ("attached", "healthy"))
    }

    async fn endpoint(&self) -> anyhow::Result<String> {
        let engine = self.all::<Engine>().get(&format!("{VOLUME}-e-0")).await?;
        Ok(engine.status.unwrap_or_default().endpoint.to_string())
    }

    /// What the engine itself says of something.
    async fn engine_says(&self, what: &str) -> anyhow::Result<serde_json::Value> {
        let managers = self.all::<InstanceManager>().list(&ListParams::default()).await?;
        let mut engines = managers.iter().filter_map(|manager| {
            let status = manager.status.as_ref()?;
            status.instance_engines.get(&format!("{VOLUME}-e-0"))
        });
        let at = engines.next().context("the engine is somewhere")?.status.listen.to_string();
        // The socket is where the pod has its folders.
        let pid = *self.cluster.processes_of(NODE, "engine")?.first().context("it is a process")?;
        let at = at.replacen("unix:", &format!("unix:/proc/{pid}/root"), 1);
        let told = self.cluster.midflight(&["ask", "--engine", &at, "status"]).await?;
        let told: serde_json::Value = serde_json::from_str(&told)?;
        Ok(told["status"][what].clone())
    }

    async fn in_service(&self) -> anyhow::Result<usize> {
        let record = self.all::<VolumeRecord>().get(VOLUME).await?.spec;
        Ok(record.members.iter().filter(|member| member.mode == MemberMode::ReadWrite).count())
    }

    async fn until(&self, what: &str, is_so: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let so = is_so().await;
            if matches!(so, Ok(true)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "never: {what}: {so:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The setting has to reach an engine that runs: only the lower bound is judged, so that a slow machine changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_silent_is_waited_for_as_long_as_the_setting_says() {
    let world = World::up().await.unwrap();
    world.volume("v1").await.unwrap();
    let longest = Patch::Merge(json!({ "value": "30" }));
    let settings = world.all::<Setting>();
    settings.patch("engine-replica-timeout", &PatchParams::default(), &longest).await.unwrap();
    world
        .until("the engine knows it", async || Ok(world.engine_says("patience").await? == 30))
        .await
        .unwrap();

    let silent = world.cluster.processes_of("node-2", "replica").unwrap();
    assert_eq!(silent.len(), 1, "{silent:?}");
    let signal = async |signal: &str| {
        let sent = Command::new("kill").args([signal, &silent[0].to_string()]).status().await.unwrap();
        assert!(sent.success(), "{signal}");
    };
    let endpoint = world.endpoint().await.unwrap();
    let began = Instant::now();
    signal("-STOP").await;
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &endpoint]).await.unwrap();
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(25), "it was given up after {waited:?}");
    assert_eq!(world.in_service().await.unwrap(), 1);

    signal("-CONT").await;
    world.until("it is rebuilt", async || world.is_healthy().await).await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x5a 1M 64k", &endpoint]).await.unwrap();
}

/// Somebody deletes a Node under a client: its agent lives, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_object_is_deleted_registers_again_and_its_clients_go_on() {
    let world = World::up().await.unwrap();
    world.volume("v2").await.unwrap();
    let endpoint = world.endpoint().await.unwrap();
    let load = Load::on(&endpoint, VOLUME, 1).unwrap();
    let machines: Api<core::Node> = Api::all(world.client.clone());
    let before = machines.get(NODE).await.unwrap().uid();
    machines.delete(NODE, &DeleteParams::default()).await.unwrap();
    let is_back = async || {
        let Some(machine) = machines.get_opt(NODE).await? else { return Ok(false) };
        let conditions = machine.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
        Ok(machine.uid() != before && is_ready)
    };
    world.until("the node is registered again", is_back).await.unwrap();
    world.until("the volume is healthy", async || world.is_healthy().await).await.unwrap();
    assert_eq!(world.endpoint().await.unwrap(), endpoint, "clients find it where it was");
    load.judge().await.unwrap();
    world.cluster.midflight(&["volume", "detach", VOLUME, "--wait"]).await.unwrap();
}
